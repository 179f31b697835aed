"""Orders of an operator to campaigns, and the opening of the campaigns of a service's folder."""

import dataclasses
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from aggregator.aggregation.inherit import TrainedModels
from aggregator.aggregation.orders import configured, rolled_back
from aggregator.aggregation.stored import check_fit, load_models, work_of
from aggregator.core.settings import RunSettings, with_rate
from aggregator.fleet.budget import why_ended
from aggregator.fleet.events import Directed, Excluded
from aggregator.fleet.records import Campaign
from aggregator.ports import Blobs
from aggregator.releases import ReleaseMaker, released_source
from aggregator.service.place import ServiceStorage
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
)
from aggregator.view.progress import release_states
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.keys import is_no_group
from algorithms.privacy.base import counts_from
from algorithms.spec import is_outside
from host.native.arithmetic import NativeArithmetic
from wire.errors import ConfigError, ShoalError

log = logging.getLogger("shoal.aggregator")


class Steering:
    """Handlers of orders to campaigns; also opens the campaigns of the service's folder."""

    def __init__(
        self,
        runner: Runner,
        place: ServiceStorage,
        maker: ReleaseMaker,
        accelerator: str = "auto",
    ) -> None:
        self._runner, self._place, self._maker = runner, place, maker
        self._accelerator = accelerator
        self.broken: dict[str, str] = {}
        """Error of each campaign of this folder that could not be opened."""
        self.handlers: dict[str, Callable[..., str]] = {
            "campaign-start": self._start,
            "campaign-pause": self._pause,
            "campaign-resume": self._resume,
            "campaign-abort": self._abort,
            "campaign-set": self._configure,
            "campaign-rollback": self._roll_back,
            "campaign-exclude": self._exclude,
            "campaign-include": self._include,
        }
        """Handlers by the names of their orders."""

    def open(
        self,
        charter: Charter,
        exported: Exported | None = None,
        wanted: RunSettings | None = None,
        source: TrainedModels | None = None,
    ) -> Campaign:
        """Open a campaign of this folder, which continues from its stored state or begins.

        `exported`, `source`: the bundle and the models to start from, if they are already loaded.
        `wanted`: settings to continue with.

        Raises:
            ConfigError: a file cannot be read, or the campaign cannot continue with these settings.
            StorageFailed: the database or blobs cannot be read or written.
        """
        settings, place, name = charter.settings, self._place, charter.settings.name
        exported = exported or read_exported(campaign_folder(place.folder, name), place.trust)
        stored = self._runner.fleet.campaigns.get(name)
        if stored is not None:
            run_id = stored.settings.run_id
            wanted = replace(wanted, run_id=run_id) if wanted else stored.next_settings
            if changes := check_retuned(stored.next_settings, wanted, place.folder):
                log.warning("Campaign goes on with other settings: campaign=%s: %s", name, changes)
        wanted = wanted or settings
        algorithm = make_algorithm(read_algorithm(wanted.algorithm), arithmetic=NativeArithmetic())
        check_fit(wanted, algorithm, exported.bundle.manifest)
        secret = run_secret(place.folder, name, stored is not None, algorithm)
        algorithm = dataclasses.replace(algorithm, secret=secret, accelerator=self._accelerator)
        if stored is None:
            refuse_lost_run(
                place.database, settings, algorithm, exported, place.folder, place.blobs
            )
            source = source or self.source(charter)
        blobs = open_blobs(place.blobs, place.folder, name, place.may_delete)
        self._runner.open(wanted, algorithm, exported, blobs, source)
        self.broken.pop(name, None)
        campaign = self._runner.fleet.campaigns[name]
        log.info("Campaign opened: campaign=%s phase=%s", name, campaign.phase)
        counts = counts_from(wanted.min_batch, wanted.batch_size)
        if cost := algorithm.privacy.cost(wanted.rounds, counts, work_of(wanted)):
            log.info("Privacy planned: campaign=%s: %s", name, cost)
        return campaign

    def source(self, charter: Charter) -> TrainedModels | None:
        """Return the models that a new campaign starts from; None for the bundle's own.

        Raises:
            ConfigError: no campaign of this name exists, or it has not trained.
        """
        if charter.start_from == INITIAL:
            return None
        runner, name = self._runner, charter.settings.name
        trained = [c for c in runner.fleet.campaigns.values() if c.version.round and c.name != name]
        if charter.start_from == LATEST:
            released = released_source(runner.fleet, self._maker.blobs)
            if released is not None:
                return released
            states, releases = release_states(runner.fleet), runner.fleet.releases
            back = {releases[n].model for n, state in states.items() if state == "withdrawn"}
            healthy = [c for c in trained if back.isdisjoint(c.models.values())]
            return self._source_of(healthy[-1]) if healthy else None
        chosen = next((c for c in trained if c.name == charter.start_from), None)
        if chosen is None:
            raise ConfigError(
                f"start_from must be {LATEST}, {INITIAL} or a campaign that has trained "
                f"({', '.join(c.name for c in trained) or 'none'}), got {charter.start_from!r}"
            )
        return self._source_of(chosen)

    def _source_of(self, campaign: Campaign) -> TrainedModels:
        return source_of(campaign, self._runner.trainers[campaign.name].blobs)

    def _start(self, name: str) -> str:
        """Start the campaign that `aggregator.storage.charter.propose` stored under this name."""
        if name in self._runner.fleet.campaigns:
            return f"campaign {name} has started already"
        folder = self._place.folder
        if campaign_folder(folder, name).exists():
            raise ConfigError(f"Campaign name {name!r} is taken. Choose another.")
        wanted, charter = proposed(folder, name)
        try:
            exported = read_exported(wanted, self._place.trust)
            algorithm = make_algorithm(read_algorithm(charter.settings.algorithm))
            check_fit(charter.settings, algorithm, exported.bundle.manifest)
            source = self.source(charter)
            charter = accept(folder, name)
            campaign = self.open(charter, exported, source=source)
        except ShoalError:
            # if the renaming fails, the campaign begins with the next start of the service
            with suppress(OSError):
                campaign_folder(folder, name).rename(wanted)
            shutil.rmtree(wanted, ignore_errors=True)
            raise
        self._runner.announce()
        self._place.share(charter)
        return f"campaign {name} has started: {campaign.phase}"

    def _pause(self, name: str) -> str:
        """Pause a campaign until it is resumed."""
        if self._campaign(name).phase == "finished":
            raise ConfigError(f"Campaign {name} is finished, so it cannot be paused.")
        self._direct(name, "pause")
        return f"campaign {name} is paused; `shoal campaign resume` lets it go on"

    def _resume(self, name: str = "") -> str:
        """Resume a paused or stopped campaign, or every such campaign if no name is given."""
        runner = self._runner
        names = [self._campaign(name).name] if name else [*runner.fleet.campaigns]
        resumed, stopped = list[str](), list[str]()
        for each in names:
            trainer = runner.trainers.get(each)
            is_stopped = trainer is not None and bool(trainer.problem)
            if not is_stopped and not runner.fleet.campaigns[each].paused:
                continue
            if trainer is not None and not trainer.try_to_go_on(resumed=True):
                stopped.append(f"Campaign {each} is still stopped: {trainer.problem}")
                continue
            self._direct(each, "resume")
            resumed.append(each)
        if stopped:
            raise ConfigError("; ".join(stopped))
        return f"resumed: {', '.join(resumed)}" if resumed else "no campaign was paused"

    def _abort(self, name: str) -> str:
        """End the training of a campaign at once, without an evaluation."""
        if self._campaign(name).phase == "finished":
            raise ConfigError(f"Campaign {name} is finished; devices have its models already.")
        self._direct(name, "abort")
        trained = self._runner.fleet.campaigns[name].trained
        return f"campaign {name} has ended after {trained} rounds of training"

    def _direct(self, name: str, order: Literal["pause", "resume", "abort"]) -> None:
        self._runner.order(Directed(at_s=self._runner.now_s, campaign=name, order=order))

    def _configure(self, name: str, changes: dict[str, Any]) -> str:
        """Change settings of a campaign from the next round on.

        `changes`: new values by field of `RunSettings`.
        """
        campaign, trainer = self._campaign(name), self._runner.trainers[name]
        before = campaign.next_settings
        merged = {"hyper": {**before.hyper, **changes["hyper"]}} if "hyper" in changes else {}
        try:
            wanted = msgspec.convert(msgspec.to_builtins(before) | changes | merged, RunSettings)
            hyper = with_rate(wanted.hyper, wanted.lr_schedule, trainer.bundle.manifest)
            wanted = replace(wanted, hyper=hyper)
        except msgspec.ValidationError as error:
            raise ConfigError(f"campaign {name}: {error}") from None
        added = _outside_names(wanted.algorithm) - _outside_names(before.algorithm)
        # an order must not choose the code that a service runs
        if added:
            raise ConfigError(
                f"campaign {name}: {min(added)} cannot be added; classes of your own can be named "
                "only when a campaign starts"
            )
        algorithm = read_algorithm(wanted.algorithm)
        algorithm.hyper_with((changes | merged).get("hyper", {}))
        check_retuned(before, wanted, self._place.folder)
        mean = make_algorithm(algorithm).mean
        changed = dataclasses.replace(trainer.algorithm, name=wanted.algorithm, mean=mean)
        event = configured(campaign, wanted, changed, trainer.blobs, self._runner.now_s)
        self._runner.order(event)
        trainer.algorithm = changed
        campaign = self._runner.fleet.campaigns[name]
        others = [f"{field} {getattr(wanted, field)}" for field in changes if field != "hyper"]
        usual = trainer.bundle.manifest.hyper
        rates = [
            f"{each} {wanted.hyper[each]:g} (of the bundle: {usual[each]:g})"
            for each in changes.get("hyper", ())
        ]
        values = ", ".join((*rates, *others))
        if campaign.phase == "finished":
            return f"campaign {name} has {values}, and stays finished: {why_ended(campaign)}"
        return f"campaign {name} goes on with {values}"

    def _roll_back(self, name: str, to: int) -> str:
        """Return a campaign to the models of a round, and open its round anew."""
        campaign, trainer = self._campaign(name), self._runner.trainers[name]
        is_present = to == campaign.version.round
        if is_present and campaign.phase == "finished":
            return f"campaign {name} is finished and has the models of round {to} already"
        if to not in (rounds := stored_rounds(campaign)):
            raise ConfigError(f"No models of round {to}. {_named(rounds)}")
        event = rolled_back(campaign, to, trainer.algorithm, trainer.blobs, self._runner.now_s)
        trainer.end_stop()
        self._runner.order(event)
        if is_present:
            number = campaign.received
            lost = f"{number} update{' of it is' if number == 1 else 's of it are'} discarded"
            return f"campaign {name} opens its round anew from the models of round {to}; {lost}"
        is_over = self._runner.fleet.campaigns[name].phase == "finished"
        return f"campaign {name} is back at the models of round {to}" + (
            "" if is_over else ", and goes on"
        )

    def _exclude(self, name: str, device_id: str, since: int | None = None) -> str:
        """Exclude a device from a campaign.

        `since`: return to the last stored models before this round; None: go on with the current
        ones.
        """
        campaign = self._campaign(name)
        self._check_device(device_id)
        rounds = stored_rounds(campaign)
        before = [number for number in rounds if since is not None and number < since]
        if since is not None and not before:
            raise ConfigError(
                f"No models from before round {since}. {_named(rounds)} Without --since, the "
                "device is excluded only."
            )
        self._runner.order(Excluded(at_s=self._runner.now_s, campaign=name, device_id=device_id))
        excluded = f"{device_id} is excluded from campaign {name}, and may still be given its model"
        if since is None:
            return excluded
        if (last := before[-1]) == campaign.version.round:
            return f"{excluded}; the present models, of round {last}, are from before round {since}"
        missing = f" (no models of round {since - 1} are stored)" if last < since - 1 else ""
        return f"{excluded}; {self._roll_back(name, last)}{missing}"

    def _include(self, name: str, device_id: str) -> str:
        """Let an excluded device take part in a campaign again."""
        self._campaign(name)
        self._check_device(device_id)
        self._runner.order(
            Excluded(at_s=self._runner.now_s, campaign=name, device_id=device_id, excluded=False)
        )
        return f"{device_id} takes part in campaign {name}"

    def _check_device(self, device_id: str) -> None:
        """Raise ConfigError if a device is not known."""
        if device_id not in self._runner.fleet.devices:
            raise ConfigError(f"No device {device_id!r}. `shoal devices list` names all.")

    def _campaign(self, name: str) -> Campaign:
        """Return a campaign. A campaign of this folder that is not open is opened first."""
        fleet = self._runner.fleet
        if name in fleet.campaigns and name in self._runner.trainers:
            return fleet.campaigns[name]
        folder_charters = charters(self._place.folder)
        if name not in folder_charters:
            raise ConfigError(
                f"No campaign {name!r}. Known campaigns: {', '.join(folder_charters) or 'none'}."
            )
        return self.open(folder_charters[name])


def stored_rounds(campaign: Campaign) -> list[int]:
    """Return the numbers of the rounds whose models a campaign can return to."""
    return sorted({version.round for version in campaign.versions})


def _named(rounds: list[int]) -> str:
    return f"Rounds whose models are stored: {', '.join(map(str, rounds))}."


def _outside_names(text: str) -> set[str]:
    """Return the names of the user's own classes in an algorithm's name, which running it loads."""
    pieces = ([piece.strip() for piece in part.split(":")] for part in text.split("+"))
    return {":".join(piece[:2]) for piece in pieces if is_outside(piece[0])}


def source_of(campaign: Campaign, blobs: Blobs) -> TrainedModels:
    """Return the current models of a campaign, and the group of each device."""
    models = load_models(campaign.version, blobs)
    groups = {
        device_id: member.group
        for device_id, member in campaign.members.items()
        if member.group and not is_no_group(member.group)
    }
    chosen = {key: model for key, model in models.items() if not is_no_group(key)} or models
    return TrainedModels(
        f"campaign {campaign.name}, round {campaign.version.round}", chosen, groups
    )
