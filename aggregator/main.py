"""The service: makes store, blob store, link, runner and HTTP server from its settings, and runs them until it is stopped."""

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from aggregator.adapters.engine import sqlite_url
from aggregator.adapters.fleet_lease import FleetLease, LeaseLost
from aggregator.adapters.http_api import create_api
from aggregator.adapters.http_server import HttpServer
from aggregator.adapters.release_store import ReleaseStore
from aggregator.adapters.schema import is_behind, upgrade
from aggregator.adapters.sql_store import load_run
from aggregator.aggregation import check_fit
from aggregator.assembly import Assembly
from aggregator.campaign import Observer
from aggregator.charter import LATEST, Charter, accept, charters, check_campaign_name, next_number, propose
from aggregator.core.conditions import Conditions, Counted
from aggregator.core.ports import Clock
from aggregator.core.settings import RunSettings, TrainingSettings
from aggregator.core.state import Event, RunState
from aggregator.desk import Desk
from aggregator.duties import Duties
from aggregator.enrolment.service import EnrolmentSettings, enrolment
from aggregator.fleet import Fleet
from aggregator.identity import SteadyClock, boot_ids, find_epoch, lock_service, service_signer
from aggregator.release_orders import release_handlers
from aggregator.release_policy import RELEASES, ReleasePolicy, When, group_of
from aggregator.rollouts import Rollouts, RolloutSettings
from aggregator.runner import Runner
from aggregator.start import Exported, check_retuned, read_exported, read_trust, refuse_lost_run, run_secret, write_trust
from aggregator.steering import Place, Steering, unfinished_or_latest
from aggregator.storage import blobs_name, open_blobs, open_lease
from algorithms.registry import AlgorithmSpec, make_algorithm
from host.native.arithmetic import NativeArithmetic
from wire.bundle import Bundle
from wire.errors import OtherAggregator
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.messages import AggregatorStatus
from wire.pieces import MOST_BYTES
from wire.signed import Signer, Verifier
from wire.topics import Topics, aggregator_role

log = logging.getLogger("shoal.aggregator")

SILENCE_S = 180.0
"""A device of which nothing came for so long is taken for absent."""


class CampaignSettings(TrainingSettings[AlgorithmSpec], frozen=True, kw_only=True):
    """What a campaign is started with."""

    run: str = "run-1"
    """Its name: its place in the store."""
    start_from: str = LATEST
    """As in `Charter`."""
    data: str = ""
    """The data's name, for people; the bundle's when empty."""
    min_devices: int = 2
    """As in `RunSettings`, and the least number of updates of a round."""
    deadline_s: float = 600.0
    """Seconds for which a round is open at most."""
    grace_s: float = 60.0
    """Seconds for which a round waits for a device that was lost."""
    min_group: int = 2
    """As in `RunSettings`."""
    weight_cap: float = 10.0
    """As in `RunSettings`."""
    norm_cap: float = 10.0
    """As in `RunSettings`."""
    max_update_norm: float = 1e6
    """As in `RunSettings`."""
    max_drop: float = 0.3
    """As in `RunSettings`."""
    keep_models: int = 3
    """As in `RunSettings`."""


class ServeSettings(CampaignSettings, frozen=True, kw_only=True):
    """What a service is started with, and a campaign of it where there is a bundle."""

    folder: Path
    """Holds the database, the blobs and the campaigns."""
    bundle: Path | None = None
    """A folder that `shoal export` wrote, for the campaign `run`; without one only the campaigns of the folder go on."""
    broker: BrokerAddress
    fleet: str = "default"
    take_over: bool = False
    """Whether to begin although another aggregator is at work; that one then ends."""
    standby: bool = False
    """Whether to wait while another aggregator has the lease in the database, and then to take over."""
    database: str = ""
    """``sqlite:///PATH`` or ``postgresql://...``; SQLite in the folder when empty."""
    blobs: str = ""
    """``s3://BUCKET/PREFIX``, or a folder; one in `folder` when empty."""
    max_payload: int = MOST_BYTES >> 20
    """MiB of the largest update and model."""
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    release: When = "off"
    """Whether the fleet has releases, and what makes them (`aggregator.release_policy`)."""
    release_every: int = 0
    """After so many rounds of training the models are released too; 0: when the campaign is over."""
    rollout: RolloutSettings = RolloutSettings()
    """How releases reach devices."""
    stay: bool = True
    """Whether to go on answering devices and HTTP when every campaign is over."""
    enrolment: EnrolmentSettings = EnrolmentSettings()


def serve(settings: ServeSettings, stop: Callable[[], bool], observe: Observer = lambda _state, _event: None) -> RunState | None:
    """Run a service until `stop` returns true, or until every campaign is over where `stay` is false; returns the last state of the
    campaign that it was started with, or of the latest; None if there was none, or if it was stopped while it waited for another service.
    Campaigns that are in the folder go on.

    Raises:
        ShoalError: a setting, a bundle, the database or the broker cannot be used; or another aggregator has the fleet.
    """
    topics, folder = Topics(settings.fleet), settings.folder
    if settings.bundle is not None:
        check_campaign_name(settings.run)
    held = lock_service(folder)
    try:
        with ExitStack() as opened:
            opening = _Opening.read(settings)
            http = opened.enter_context(HttpServer(settings.http_host, settings.http_port))
            lease = open_lease(opening.place.database, settings.fleet, secrets.token_hex(8), settings.standby)
            if lease is not None:
                opened.enter_context(closing(lease))
                if is_behind(opening.place.database) and not lease.take((), settings.standby, settings.take_over, stop):
                    return None  # nobody else may use the database while it is migrated
            upgrade(opening.place.database)
            secret = opening.look(settings)
            known = boot_ids(folder / "boots", boot_id := lease.name if lease else secrets.token_hex(8))
            if lease is not None:
                lease.share(secret)
                if not lease.take(known, settings.standby, settings.take_over, stop):
                    return None
                known.append(lease.holder_before)
                opening.look(settings)  # the one before may have written meanwhile
            opening.begin(settings)
            named = (settings.fleet, settings.broker, folder / "trust.pem", settings.database)
            opened.enter_context(enrolment(settings.enrolment, folder, *named))
            return _serve(settings, topics, http, opening, lease, known, boot_id, stop, observe)
    except OtherAggregator as error:
        raise LeaseLost(str(error)) if settings.standby else error from None
    finally:
        os.close(held)


@dataclass
class _Opening:
    """What a service opens. Nothing but the folder's own charters is changed, and nobody is disturbed."""

    place: Place
    known: dict[str, Charter]
    """The campaigns of the folder."""
    exported: Exported | None
    """Of the campaign that the service was started with."""
    fresh: RunSettings | None
    """That campaign's settings."""
    states: dict[str, RunState | None] = field(default_factory=dict)

    @classmethod
    def read(cls, settings: ServeSettings) -> "_Opening":
        """Read the folder, and check the campaign that the service is started with as far as that needs no state of it.

        Raises:
            ConfigError: it cannot be opened.
        """
        folder, database = settings.folder, settings.database or sqlite_url(settings.folder / "shoal.db")
        place = Place(folder, database, settings.blobs, read_trust(settings.bundle or folder))
        exported, fresh = None, None
        if settings.bundle is not None:
            exported = read_exported(settings.bundle, place.trust)
            fresh = run_settings(settings, exported.bundle, secrets.token_hex(16))
            algorithm = make_algorithm(settings.algorithm, arithmetic=NativeArithmetic())
            check_fit(fresh, algorithm, exported.bundle.manifest)
            named = (settings.blobs, folder, settings.run)
            refuse_lost_run(database, fresh, algorithm, exported, open_blobs(*named).names(), blobs_name(*named))
        return cls(place, charters(folder), exported, fresh)

    def look(self, settings: ServeSettings) -> bytes:
        """Read where the campaigns stand; returns what their noise is drawn from, if it is drawn here.

        Raises:
            ConfigError: the campaign that the service is started with cannot go on with these settings.
        """
        names = [*self.known, *([settings.run] if self.fresh is not None and settings.run not in self.known else [])]
        self.states = {name: load_run(self.place.database, name) for name in names}
        service_signer(settings.folder, settings.fleet, self.place.trust.keys, self.place.trust.root, SteadyClock(self.last_s)())
        if self.fresh is None:
            return b""
        stored = self.states[settings.run]
        if stored is not None:
            check_retuned(stored.next_settings, msgspec.structs.replace(self.fresh, run_id=stored.settings.run_id), settings.folder)
        algorithm = make_algorithm(settings.algorithm, arithmetic=NativeArithmetic())
        secret = run_secret(settings.folder, settings.run, stored is not None, algorithm)
        return secret if algorithm.privacy.server_noise else b""

    def begin(self, settings: ServeSettings) -> None:
        """Let the campaign that the service is started with be one of the folder's."""
        if self.fresh is None or settings.bundle is None:
            return
        if settings.run not in self.known:
            stored = self.states[settings.run]
            begun = stored.settings if stored is not None else self.fresh
            self.known[settings.run] = Charter(next_number(settings.folder), begun, start_from=settings.start_from)
            propose(settings.folder, self.known[settings.run], settings.bundle)
            accept(settings.folder, settings.run)
        write_trust(settings.folder, settings.bundle)

    def charters(self, own: str) -> list[Charter]:
        """Those of the campaigns that are opened; `own` is one of them if it is known."""
        opened = {*unfinished_or_latest({name: self.states[name] for name in self.known}), own}
        return [charter for name, charter in self.known.items() if name in opened]

    @property
    def last_s(self) -> float:
        """The latest second that is stored."""
        return max((state.at_s for state in self.states.values() if state is not None), default=0.0)

    @property
    def last_epoch(self) -> int:
        """The greatest epoch that is stored."""
        return max((state.epoch for state in self.states.values() if state is not None), default=0)


def _serve(
    settings: ServeSettings,
    topics: Topics,
    http: HttpServer,
    opening: _Opening,
    lease: FleetLease | None,
    known: list[str],
    boot_id: str,
    stop: Callable[[], bool],
    observe: Observer,
) -> RunState | None:
    folder, trust, clock = settings.folder, opening.place.trust, SteadyClock(opening.last_s)

    def make_signer() -> Signer:
        return service_signer(folder, settings.fleet, trust.keys, trust.root, clock())

    signer, verifier = make_signer(), Verifier(settings.fleet, trust.keys)
    client_id = aggregator_role(settings.fleet)

    def look() -> MqttLink:
        return MqttLink(settings.broker, client_id, confirmed=True)

    least = max(opening.last_epoch, lease.epoch - 1 if lease else 0)
    epoch = find_epoch(look, topics, verifier, least, known, clock(), settings.take_over)
    log.info("fleet=%s epoch=%d broker=%s", settings.fleet, epoch, settings.broker)
    gone = AggregatorStatus(False, boot_id, epoch, clock())
    link = MqttLink(settings.broker, client_id, Will(topics.aggregator, signer(gone)), confirmed=True)
    counted = Counted()

    def observe_too(state: RunState, event: Event) -> None:
        counted.observe(state, event)
        if releases is not None:
            releases.observe(state, event)
        observe(state, event)

    fleet = Fleet(link, topics, boot_id, signer)
    releases = _releases(settings, opening.place, lease, fleet, clock, lambda: runner) if settings.release != "off" else None
    rollouts = releases.rollouts if releases is not None else None
    assembly = Assembly(folder / "pieces", settings.max_payload << 20)
    runner = Runner(fleet, clock, epoch=epoch, silence_s=SILENCE_S, verifier=verifier, rollouts=rollouts, assembly=assembly)
    steering = Steering(runner, opening.place, observe_too, lease)
    try:
        started_s = time.monotonic()
        for charter in opening.charters(settings.run):
            own = opening.fresh is not None and charter.settings.name == settings.run
            if own:
                steering.open(charter, opening.exported, opening.fresh)
            else:
                steering.open_if_possible(charter)

        def renew() -> float:
            signer = make_signer()
            fleet.sign_with(signer)
            return signer.until_s

        def done() -> bool:
            if releases is not None:
                releases.tick()
            return duties.done()

        handlers = dict(steering.handlers)
        if releases is not None:
            handlers |= release_handlers(releases, lambda: {name: campaign.known() for name, campaign in runner.campaigns.items()})
        duties = Duties(runner, Desk(folder, handlers), clock, renew)
        conditions = partial(_conditions, runner, steering, duties, counted)
        released = None if rollouts is None else lambda: rollouts.state
        http.serve(create_api(lambda: runner.campaigns, conditions, lambda: time.monotonic() - started_s, released))
        runner.run(lambda: stop() or (lease is not None and lease.is_lost()) or done() or (runner.finished and not settings.stay))
        fleet.announce(runner.epoch, clock(), "", online=False)
        last = runner.campaigns.get(settings.run) or next(reversed(runner.campaigns.values()), None)
        return last.known() if last is not None else None
    finally:
        link.close()
        steering.close()


def _releases(
    settings: ServeSettings, place: Place, lease: FleetLease | None, fleet: Fleet, clock: Clock, runner: Callable[[], Runner]
) -> ReleasePolicy:
    """The fleet's releases, and what makes them of campaigns' models. `runner`: what runs these."""

    def is_online(device_id: str) -> bool:
        known = (campaign.known().devices.get(device_id) for campaign in runner().campaigns.values())
        return any(device is not None and device.online for device in known)

    def group(device_id: str) -> str:
        campaign = runner().campaign_of(device_id)
        return group_of(campaign.known(), device_id) if campaign is not None else ""

    rollouts = Rollouts(
        ReleaseStore(place.database, settings.fleet, lease.fence if lease else None),
        open_blobs(settings.blobs or str(place.folder), place.folder, RELEASES, lease.holds if lease else lambda: True),
        fleet,
        clock,
        lambda: runner().epoch,
        online=is_online,
        group=group,
        settings=settings.rollout,
    )
    return ReleasePolicy(rollouts, lambda name: runner().campaigns[name].blobs, settings.release, settings.release_every)


def _conditions(runner: Runner, steering: Steering, duties: Duties, counted: Counted) -> Conditions:
    """What the HTTP API says of the service beside its campaigns."""
    broken = "; ".join(f"campaign {name} cannot be opened: {why}" for name, why in steering.broken.items())
    return Conditions(dict(runner.refused), runner.connected, runner.paused or broken, duties.unvouched, counted)


def run_settings(settings: CampaignSettings, bundle: Bundle, run_id: str) -> RunSettings:
    """What the round core needs of a campaign's settings, for the run of this identity."""
    return RunSettings.for_bundle(
        bundle,
        settings,
        run_id=run_id,
        name=settings.run,
        min_updates=settings.min_devices,
        min_group=settings.min_group,
        weight_cap=settings.weight_cap,
        norm_cap=settings.norm_cap,
        max_update_norm=settings.max_update_norm,
        max_drop=settings.max_drop,
        keep_models=settings.keep_models,
        data=settings.data or bundle.manifest.name,
        min_devices=settings.min_devices,
        deadline_s=settings.deadline_s,
        grace_s=settings.grace_s,
    )
