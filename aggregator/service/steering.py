"""An operator's orders to campaigns, and how a service opens the campaigns of its folder."""

import logging
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import msgspec

from aggregator.aggregation.inherit import Source
from aggregator.aggregation.stored import check_fit, load_models
from aggregator.core.budget import why_ended
from aggregator.core.ports import StorageFailed
from aggregator.core.settings import RunSettings, with_rate
from aggregator.service.campaign import Campaign, Observer
from aggregator.service.place import Place
from aggregator.service.runner import Runner
from aggregator.service.start import (
    Exported,
    check_retuned,
    read_exported,
    refuse_lost_run,
    run_secret,
)
from aggregator.storage.blob_bucket import open_blobs
from aggregator.storage.charter import (
    INITIAL,
    LATEST,
    Charter,
    accept,
    campaign_folder,
    charters,
    proposed,
    write_charter,
)
from aggregator.storage.sql_store import SqlStore
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.keys import is_no_group
from algorithms.spec import is_outside
from host.native.arithmetic import NativeArithmetic
from wire.errors import ConfigError, ShoalError

log = logging.getLogger("shoal.aggregator")


class Steering:
    """Opens campaigns and carries out orders to them."""

    def __init__(
        self,
        runner: Runner,
        place: Place,
        observe: Observer,
        released: Callable[[], Source | None] = lambda: None,
    ) -> None:
        """`released`: the models that the fleet has released, which a campaign starts from by
        default."""
        self._runner, self._place, self._observe, self._released = runner, place, observe, released
        self.stores = ExitStack()
        """Databases that are open."""
        self.broken: dict[str, str] = {}
        """By campaign of this folder that could not be opened, why."""
        self.handlers: dict[str, Callable[..., str]] = {
            "campaign-start": self._start,
            "campaign-pause": self._hold,
            "campaign-resume": self._resume,
            "campaign-abort": self._abort,
            "campaign-set": self._retune,
            "campaign-rollback": self._roll_back,
        }
        """Handlers by the names of their orders."""

    def open(
        self,
        charter: Charter,
        exported: Exported | None = None,
        wanted: RunSettings | None = None,
        source: Source | None = None,
    ) -> Campaign:
        """Open a campaign of this folder, which goes on where it stopped. `exported`, `source`:
        what it trains with and starts from, if that was read; `wanted`: the settings that it is to
        go on with.

        Raises:
            ConfigError: something of it cannot be read, or it cannot go on with these settings.
            StorageFailed: its database cannot be read or written.
        """
        settings, place = charter.settings, self._place
        exported = exported or read_exported(
            campaign_folder(place.folder, settings.name), place.trust
        )
        algorithm = make_algorithm(
            read_algorithm((wanted or settings).algorithm), arithmetic=NativeArithmetic()
        )
        check_fit(wanted or settings, algorithm, exported.bundle.manifest)
        refuse_lost_run(place.database, settings, algorithm, exported, place.folder, place.blobs)
        with ExitStack() as opened:
            store = SqlStore(place.database, settings.name, place.fence())
            opened.callback(store.close)
            stored = store.load()
            if stored is not None:
                wanted = (
                    msgspec.structs.replace(wanted, run_id=stored.settings.run_id)
                    if wanted
                    else stored.next_settings
                )
                if changes := check_retuned(stored.next_settings, wanted, place.folder):
                    log.warning(
                        "run=%s goes on with other settings: it had %s", settings.name, changes
                    )
            algorithm = make_algorithm(
                read_algorithm((wanted or settings).algorithm), arithmetic=NativeArithmetic()
            )
            algorithm = replace(
                algorithm,
                secret=run_secret(place.folder, settings.name, stored is not None, algorithm),
            )
            campaign = self._runner.add(
                wanted or settings,
                algorithm,
                exported.bundle,
                exported.probe,
                store,
                open_blobs(place.blobs, place.folder, settings.name, place.may_delete),
                observe=self._observe,
                source=(source or self.source(charter)) if stored is None else None,
                held=charter.held,
            )
            self.stores.push(opened.pop_all())
        self.broken.pop(settings.name, None)
        state = campaign.state
        waits = (
            f": waiting for devices, at least {state.next_settings.min_devices}"
            if state.phase == "waiting"
            else ""
        )
        log.info("run=%s phase=%s round=%d%s", campaign.name, state.phase, state.round, waits)
        return campaign

    def source(self, charter: Charter) -> Source | None:
        """The models that a new campaign starts from; None for the bundle's own.

        Raises:
            ConfigError: the campaign that it names is not here, or has not trained.
        """
        if charter.start_from == INITIAL:
            return None
        trained = [
            c
            for c in self._runner.campaigns.values()
            if c.state.made_in and c.name != charter.settings.name
        ]
        if charter.start_from == LATEST:
            return self._released() or (source_of(trained[-1]) if trained else None)
        named = next((c for c in trained if c.name == charter.start_from), None)
        if named is None:
            has = ", ".join(c.name for c in trained) or "none"
            raise ConfigError(
                f"--start-from {charter.start_from}: it is no campaign here that has trained; "
                f"those are: {has}"
            )
        return source_of(named)

    def _start(self, name: str) -> str:
        """Start the campaign that was laid down under this name
        (`aggregator.storage.charter.propose`)."""
        if name in self._runner.campaigns:
            return f"campaign {name} is there already"
        folder = self._place.folder
        if campaign_folder(folder, name).exists():
            raise ConfigError(f"campaign {name}: there was one of this name; give another")
        wanted, charter = proposed(folder, name)
        try:
            exported = read_exported(wanted, self._place.trust)
            check_fit(
                charter.settings,
                make_algorithm(read_algorithm(charter.settings.algorithm)),
                exported.bundle.manifest,
            )
            source = self.source(charter)
            charter = accept(folder, name)
            campaign = self.open(charter, exported, source=source)
        except ShoalError:
            # where that fails it begins with the next start of the service
            with suppress(OSError):
                campaign_folder(folder, name).rename(wanted)
            shutil.rmtree(wanted, ignore_errors=True)
            raise
        self._runner.announce()
        self._place.share(charter)
        return (
            f"campaign {name} has started: {campaign.state.phase}, "
            f"{campaign.state.num_online} devices are there for it"
        )

    def _hold(self, name: str) -> str:
        """Pause a campaign until `_resume`."""
        campaign = self._campaign(name)
        if campaign.finished:
            raise ConfigError(f"campaign {name} is finished: there is nothing to pause")
        self._keep(name, held=True)
        campaign.hold()
        return f"campaign {name} is paused; `shoal campaign resume` lets it go on"

    def _resume(self, name: str = "") -> str:
        """Go on after a pause, whatever its cause was; with every campaign if none is named."""
        named = [self._campaign(name)] if name else list(self._runner.campaigns.values())
        paused = [c for c in named if c.paused]
        for campaign in paused:
            self._keep(campaign.name, held=False)
            campaign.try_to_go_on(told=True)
        still = [f"campaign {c.name} is still paused: {c.paused}" for c in paused if c.paused]
        if still:
            raise ConfigError("; ".join(still))
        return (
            f"{', '.join(c.name for c in paused)}: it goes on" if paused else "nothing was paused"
        )

    def _abort(self, name: str) -> str:
        """End a campaign where it stands."""
        campaign = self._campaign(name)
        self._saved(campaign, campaign.abort())
        self._keep(name, held=False)
        return f"campaign {name} has ended after {campaign.state.trained} rounds of training"

    def _retune(self, name: str, changes: dict[str, Any]) -> str:
        """Give a campaign these values of its settings, by field of `RunSettings`, from the next
        round on."""
        campaign = self._campaign(name)
        had = campaign.state.next_settings
        merged = {"hyper": {**had.hyper, **changes["hyper"]}} if "hyper" in changes else {}
        try:
            wanted = msgspec.convert(msgspec.to_builtins(had) | changes | merged, RunSettings)
            wanted = msgspec.structs.replace(
                wanted, hyper=with_rate(wanted.hyper, wanted.lr_schedule, campaign.bundle.manifest)
            )
        except msgspec.ValidationError as error:
            raise ConfigError(f"campaign {name}: {error}") from None
        if named := _outside_names(wanted.algorithm) - _outside_names(
            had.algorithm
        ):  # an order must not choose which code a service runs
            raise ConfigError(
                f"campaign {name}: {min(named)} would be new: a class of one's own is named "
                "where a campaign starts"
            )
        read_algorithm(wanted.algorithm).hyper_with((changes | merged).get("hyper", {}))
        check_retuned(had, wanted, self._place.folder)
        if was_over := campaign.finished:
            self._runner.bring(campaign)
        saved = campaign.retune(wanted, make_algorithm(read_algorithm(wanted.algorithm)).mean)
        if was_over:
            self._runner.reassign()
        self._saved(campaign, saved)
        told = ", ".join(f"{field} {getattr(wanted, field)}" for field in changes)
        if campaign.finished:
            return f"campaign {name} has {told}, and stays finished: {why_ended(campaign.state)}"
        return f"campaign {name} goes on with {told}"

    def _roll_back(self, name: str, to: int) -> str:
        """Return to the models that a round made."""
        campaign = self._campaign(name)
        self._saved(campaign, campaign.roll_back(to))
        self._keep(name, held=campaign.held)
        made_in = campaign.state.made_in
        if made_in != to:
            raise ConfigError(
                f"the models of round {to} are not remembered, those of round {made_in} stay"
            )
        return f"campaign {name} is back at the models of round {made_in}"

    def _campaign(self, name: str) -> Campaign:
        if name in self._runner.campaigns:
            return self._runner.campaigns[name]
        known = charters(self._place.folder)
        if name not in known:
            raise ConfigError(
                f"campaign {name!r} is not here; those that are: {', '.join(known) or 'none'}"
            )
        return self.open(known[name])

    def _keep(self, name: str, held: bool) -> None:
        """Note in a campaign's charter whether the operator has paused it."""
        charter = charters(self._place.folder).get(name)
        if charter is not None and charter.held != held:
            charter = msgspec.structs.replace(charter, held=held)
            self._place.share(charter)
            write_charter(self._place.folder, charter)

    def _saved(self, campaign: Campaign, saved: bool) -> None:
        if not saved:
            raise StorageFailed(
                f"campaign {campaign.name}: nothing can be saved: {campaign.paused}"
            )


def _outside_names(text: str) -> set[str]:
    """Return the names of classes of one's own in an algorithm's name, which running it loads."""
    pieces = ([piece.strip() for piece in part.split(":")] for part in text.split("+"))
    return {":".join(piece[:2]) for piece in pieces if is_outside(piece[0])}


def source_of(campaign: Campaign) -> Source:
    """The models of a campaign as they are now, and who is in which group."""
    state = campaign.state
    models = load_models(state, campaign.blobs)
    groups = {
        device_id: key
        for device_id, key in state.starts.items()
        if device_id and not is_no_group(key)
    }
    chosen = {key: model for key, model in models.items() if not is_no_group(key)} or models
    return Source(f"campaign {campaign.name}, round {state.made_in}", chosen, groups)
