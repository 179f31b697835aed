"""Device's side of releases: take up offered models and report which one is in use.

The protocol is in SPEC.md, 'Releases'.
"""

import json
import logging
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from edge_client.agent.outbox import Outbox
from edge_client.core import offers
from edge_client.core.backoff import RESEND_S
from edge_client.core.ports import Current, Windows
from edge_client.core.report import WITHHELD
from edge_client.core.session import ModelOffer
from edge_client.data.layout import windows_for
from edge_client.models import trial
from edge_client.models.current import CurrentModel
from edge_client.models.kept import KeptModels, Own
from edge_client.models.loaded import LoadedModel
from edge_client.storage.memory import SessionStore
from edge_client.storage.state import DeviceState
from edge_client.work.executor import Between
from edge_client.work.plan import BlobMissing, Stopped, read_blob
from wire.arrays.onnx_model import whole_model
from wire.arrays.tensors import encode_tensors
from wire.bundle import check_version, unpack
from wire.codec import digest, encode
from wire.errors import BundleError, ShoalError, printable
from wire.identity.keys import PublicKey
from wire.messages import Metrics, Policy, Release
from wire.tasks import CLASSIFICATION

log = logging.getLogger("shoal.edge")

FAILURES_S = 60.0
"""Minimum interval between reports of failed predictions."""
AGAIN_S = 3600.0
"""Pause before an offered model that failed is tried again, and between comparisons with the model
before."""


class Releases:
    """Device's side of releases. `model` is the model in use."""

    def __init__(
        self,
        device_id: str,
        model: CurrentModel,
        state: DeviceState,
        windows: Callable[[], Windows],
        memory: SessionStore,
        kept: KeptModels,
        outbox: Outbox,
        trusted: Sequence[PublicKey],
        policy: Policy,
        clock: Callable[[], float],
    ) -> None:
        self.model = model
        self._device_id, self._state, self._windows = device_id, state, windows
        self._memory, self._kept, self._outbox = memory, kept, outbox
        self._trusted, self._policy, self._clock = trusted, policy, clock
        self._take_up_at_s, self._failures_at_s, self._again_at_s = 0.0, 0.0, clock() + AGAIN_S
        self._compare_at_s = 0.0
        self._is_own_lost = False
        offer = memory.session.offer
        self._mend()
        if (
            offer is not None and offer.tries and not offer.problem and self.offer is None
        ):  # the client ended after the model was in use
            memory.note(offers.on_taken(memory.session))
        memory.note(offers.on_again(memory.session))

    @property
    def offer(self) -> ModelOffer | None:
        """Offer that is still to be taken into use, or None.

        The offer of the model in use is open again if the model's private tensors are damaged.
        """
        session, current = self._memory.session, self.model.current
        is_lost = self._is_own_lost and offers.is_of_offer(session, current)
        return offers.open_offer(
            session, None if is_lost else offers.newest(current, self.model.before)
        )

    def on_release(self, release: Release) -> None:
        """Remember a release that came.

        Raises:
            OSError: the session cannot be stored.
        """
        self._memory.save(offers.on_release(self._memory.session, release))

    def report(self) -> None:
        """Report which release is in use."""
        if not self._outbox.connected:  # the next check-in is followed by a report
            return
        session = self._memory.session
        if failures := self.model.drain_failures():
            self._memory.note(
                msgspec.structs.replace(session, failures=session.failures + failures)
            )
        in_use = offers.in_use(self._memory.session, self._device_id, self.model.current)
        if in_use.problem and not self._policy.tells_errors:
            in_use = msgspec.structs.replace(in_use, problem=WITHHELD)
        if self._policy.min_sum is not None:
            in_use = msgspec.structs.replace(in_use, evaluated=Metrics(), before=Metrics())
        self._outbox.publish("in-use", encode(in_use))
        self._failures_at_s = self._clock() + FAILURES_S

    def beat(self) -> None:
        """Report failed predictions, and let a failed offer be tried again, each now and then."""
        if self.model.failures and self._clock() >= self._failures_at_s:
            self.report()
        if self._clock() >= self._again_at_s:
            self._again_at_s = self._clock() + AGAIN_S
            self._memory.note(offers.on_again(self._memory.session))

    def take_up(self, now_s: float, between: Between) -> None:
        """Take the offered model into use, or remember why it failed, and report the outcome.

        The start is stored before it happens. An exception of `between` interrupts the take-up.

        Args:
            now_s: Unix time, as well as the device knows it.
            between: function that is called between windows.

        Raises:
            OSError: something cannot be stored; the take-up is tried again after a while.
        """
        if self._clock() < self._take_up_at_s:
            return
        self._take_up_at_s = self._clock() + RESEND_S[0]
        memory = self._memory
        memory.save(offers.on_trying(memory.session))
        offer = self.offer
        if offer is not None:
            try:
                self._adopt(offer, now_s, between)
                memory.note(offers.on_taken(memory.session))
            except (BlobMissing, Stopped, OSError) as error:
                memory.note(offers.on_interrupted(memory.session))
                if isinstance(error, OSError):
                    raise
                self._take_up_at_s = 0.0
                return
            except Exception as error:
                foreseen = isinstance(error, ShoalError)
                self._outbox.incidents.note("Offered model not taken into use", error)
                problem = printable(f"{type(error).__name__}: {error}")[:1000]
                memory.note(offers.on_failed(memory.session, problem))
                self._again_at_s = self._clock() + AGAIN_S
                log.error(
                    "Offered model not taken into use, the previous one stays: %s",
                    problem,
                    exc_info=not foreseen,
                )
        elif memory.session.offer is not None:
            log.error(
                "Offered model not taken into use, the previous one stays: %s",
                memory.session.offer.problem,
            )
        self._take_up_at_s = 0.0
        self.report()

    def compare(self, between: Between) -> None:
        """Use the model before if it is better on the windows held out since the newer one came.

        Its mean loss must be lower by more than one standard error of the difference. After that,
        the newer one is used again by the same rule. The comparison is made now and then.

        Raises:
            OSError: something cannot be stored. The model in use does not change.
        """
        if self._clock() < self._compare_at_s or self.offer is not None:
            return
        self._compare_at_s = self._clock() + AGAIN_S
        current, before = self.model.current, self.model.before
        newest = offers.newest(current, before)
        if current is None or before is None or newest is None or not _are_alike(current, before):
            return
        windows = self._windows()
        if not trial.has_fresh(windows, newest.since_s):  # so nothing is loaded
            return
        try:
            used = self.model.loaded()
            windows = windows_for(used.bundle.manifest, windows)
            x, y = trial.fresh(windows, self._policy, newest.since_s)
            if not len(y):
                return
            other = self.model.load(before)
            pair = [trial.losses(each, x, y, between) for each in (used, other)]
        except Stopped:
            return
        except ShoalError as failure:
            log.warning("Model in use not compared with the one before: %s", failure)
            return
        gain, error = trial.gain(*pair)
        if gain <= error:
            return
        reason = (
            f"went back from model {current.model[:12]}, because its mean loss over {len(y)} "
            f"held-out windows since it came is {pair[0].mean():.3f}, and {pair[1].mean():.3f} "
            f"with the model before (standard error of the difference {error:.3f})"
        )
        chosen = offers.gone_back(current, before, reason)
        onnx = whole_model(other.bundle, other.tensors, about(chosen))
        self.model.replace(
            msgspec.structs.replace(chosen, onnx=digest(onnx) if onnx else ""), other, onnx
        )
        self._memory.note(msgspec.structs.replace(self._memory.session, failures=0))
        log.info("Model in use: model=%s %s", chosen.model[:12], chosen.back or "again")
        self.report()

    def _adopt(self, offer: ModelOffer, now_s: float, between: Between) -> None:
        """Take up the offered model if its bundle verifies, its graphs load and it answers.

        It has to answer on one of this device's windows. After any exception the model before stays
        in use.
        """
        bundle = unpack(read_blob(self._state.blob, offer.bundle), self._trusted)
        manifest = bundle.manifest
        # a release may go back to an older version; its own number only grows, so no old one can be
        # replayed
        if not offer.number:
            check_version(manifest, self._memory.session.versions)
        if self._policy.bundles is not None and manifest.name not in self._policy.bundles:
            raise BundleError(f"the policy does not permit the bundle {manifest.name}")
        personal = self._kept.beside(offer)
        private = encode_tensors(personal.tensors)
        self._state.put_blob(digest(private), private)
        current = Current(
            bundle=bundle.digest,
            model=offer.model,
            private=digest(private),
            run_id=offer.run_id,
            epoch=offer.epoch,
            since_s=now_s if np.isfinite(now_s) else 0.0,
            release=offer.number,
            group=offer.group,
            name=manifest.name,
            version=manifest.version,
            classes=manifest.classes,
            task=manifest.task,
            window=manifest.window,
            personal_model=personal.personal_model,
            alone=personal.alone,
        )
        loaded, stored = (
            self.model.try_load(bundle, current),
            windows_for(manifest, self._windows()),
        )
        trial.check_answer(loaded, stored)
        onnx = whole_model(bundle, loaded.tensors, about(current))
        if onnx:
            trial.check_whole(loaded, onnx, stored)
            current = msgspec.structs.replace(current, onnx=digest(onnx))
        session, used = self._memory.session, self.model.current
        # if the offer is in use already, the model before it was measured when the offer came
        is_again = offers.is_of_offer(session, used) and used and used.release == offer.number
        measured = trial.measure(
            offer if is_again else msgspec.structs.replace(offer, before=Metrics()),
            loaded,
            None if is_again else self._used(),
            stored,
            self._policy,
            between,
        )
        self._memory.save(
            offers.on_measured(self._memory.session, measured, manifest.name, manifest.version)
        )
        self.model.replace(current, loaded, onnx)
        self._is_own_lost = False
        which = (
            f"release={offer.number} group={offer.group}"
            if offer.number
            else f"campaign={offer.run_id}"
        )
        untried = "" if trial.has_any(stored) else "; tried on zeros: this device has no window"
        log.info(
            "Model in use: %s bundle=%s version=%d model=%s%s%s",
            which,
            manifest.name,
            manifest.version,
            offer.model[:12],
            beside(personal),
            untried,
        )

    def _mend(self) -> None:
        """Repair the model in use after damage.

        Its ONNX file is written again. If private tensors are damaged, the model is to be taken up
        anew.
        """
        current = self.model.current
        if current is not None and current.private and self._state.blob(current.private) is None:
            log.warning("Personal tensors of the model in use are damaged or missing")
            self._is_own_lost = True
            return
        if current is None or not current.onnx or self._state.onnx(current) is not None:
            return
        try:
            loaded = self.model.loaded()
            onnx = whole_model(loaded.bundle, loaded.tensors, about(current))
            if digest(onnx) == current.onnx:  # a different file would not be the model in use
                self._state.put_current(current, onnx)
                log.warning("File of the model in use was damaged, written again")
        except Exception as error:
            log.warning("File of the model in use is damaged, not written again: %s", error)

    def _used(self) -> LoadedModel | None:
        """Return the model in use for a comparison, or None if none can be loaded."""
        try:
            return self.model.loaded() if self.model.current is not None else None
        except ShoalError as error:
            log.warning("Offered model cannot be compared with the model in use: %s", error)
            return None


def _are_alike(one: Current, other: Current) -> bool:
    """Return True if two models classify the same windows."""
    kinds = [(each.task, each.classes, each.window) for each in (one, other)]
    return one.task == CLASSIFICATION and kinds[0] == kinds[1] and one != other


def beside(model: Own) -> str:
    """Return the part of a log line that says if a personal model is used, and if not, why."""
    return (
        " personal_model=used"
        if model.personal_model
        else f" personal_model=none: {model.alone}"
        if model.alone
        else ""
    )


def about(current: Current) -> dict[str, str]:
    """Return the metadata of a model's ONNX file."""
    return {
        "task": current.task,
        "classes": json.dumps(current.classes),
        "window": msgspec.json.encode(current.window).decode(),
        "release": str(current.release),
        "group": current.group,
        "bundle": f"{current.name} {current.version} {current.bundle}",
        "model": current.model,
    }
