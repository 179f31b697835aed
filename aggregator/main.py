"""The service: makes store, blob store, link, runner and HTTP server from its settings, and runs them until it is stopped."""

import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from aggregator.adapters.http_api import create_api
from aggregator.adapters.http_server import HttpServer
from aggregator.adapters.registry_table import RegistryTable
from aggregator.adapters.sql_store import load_run, sqlite_url
from aggregator.aggregation import check_fit
from aggregator.campaign import Observer
from aggregator.charter import LATEST, Charter, accept, charters, check_campaign_name, next_number, propose
from aggregator.core.conditions import Conditions, Counted
from aggregator.core.settings import RunSettings, TrainingSettings
from aggregator.core.state import Event, RunState
from aggregator.desk import Desk
from aggregator.device_orders import DeviceOrders
from aggregator.devices import Devices
from aggregator.duties import Duties
from aggregator.fleet import Fleet
from aggregator.identity import SteadyClock, boot_ids, find_epoch, lock_service, service_signer
from aggregator.runner import Runner
from aggregator.start import Exported, check_asking, check_retuned, read_exported, read_trust, refuse_lost_run, run_secret, write_trust
from aggregator.steering import Place, Steering, unfinished_or_latest
from algorithms.registry import AlgorithmSpec, make_algorithm
from host.native.arithmetic import NativeArithmetic
from wire.bundle import Bundle
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.messages import AggregatorStatus
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
    where: str = ""
    """As in `RunSettings`."""
    cohort: int = 0
    """As in `RunSettings`."""
    over_select: float = 1.0
    """As in `RunSettings`."""
    quorum: float = 0.0
    """As in `RunSettings`."""
    pace_s: float = 0.0
    """As in `RunSettings`."""
    hours: str = ""
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
    database: str = ""
    """SQLAlchemy URL; SQLite in the folder when empty."""
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    stay: bool = True
    """Whether to go on answering devices and HTTP when every campaign is over."""


def serve(settings: ServeSettings, stop: Callable[[], bool], observe: Observer = lambda _state, _event: None) -> RunState | None:
    """Run a service until `stop` returns true, or until every campaign is over where `stay` is false; returns the last state of the
    campaign that it was started with, or of the latest. Campaigns that are in the folder go on.

    Raises:
        ShoalError: a setting, a bundle, the database or the broker cannot be used; or another aggregator has the fleet.
    """
    topics, folder = Topics(settings.fleet), settings.folder
    if settings.bundle is not None:
        check_campaign_name(settings.run)
    held = lock_service(folder)
    try:
        opening = _prepare(settings)
        with HttpServer(settings.http_host, settings.http_port) as http:
            return _serve(settings, topics, http, opening, stop, observe)
    finally:
        os.close(held)


@dataclass(frozen=True)
class _Opening:
    """What a service opens."""

    place: Place
    charters: tuple[Charter, ...]
    exported: Exported | None
    """Of the campaign that the service was started with."""
    fresh: RunSettings | None
    """That campaign's settings."""
    last_s: float
    last_epoch: int


def _prepare(settings: ServeSettings) -> _Opening:
    """Read and check what is to be opened. Nothing but the folder's own charters is changed, and nobody is disturbed.

    Raises:
        ConfigError: it cannot be opened.
    """
    folder, database = settings.folder, settings.database or sqlite_url(settings.folder / "shoal.db")
    known = charters(folder)
    trust = read_trust(settings.bundle or folder)
    states = {name: load_run(database, name) for name in known}
    exported, fresh = None, None
    if settings.bundle is not None:
        exported = read_exported(settings.bundle, trust)
        fresh = run_settings(settings, exported.bundle, secrets.token_hex(16))
        states[settings.run] = stored = load_run(database, settings.run)
        _check_own(settings, fresh, stored, exported, database)
        if settings.run not in known:
            begun = stored.settings if stored is not None else fresh
            known[settings.run] = Charter(next_number(folder), begun, start_from=settings.start_from)
            propose(folder, known[settings.run], settings.bundle)
            accept(folder, settings.run)
        write_trust(folder, settings.bundle)
    opened = {*unfinished_or_latest({name: states[name] for name in known}), *([settings.run] if fresh else [])}
    last = [state for state in states.values() if state is not None]
    return _Opening(
        place=Place(folder, database, trust),
        charters=tuple(charter for name, charter in known.items() if name in opened),
        exported=exported,
        fresh=fresh,
        last_s=max((s.at_s for s in last), default=0.0),
        last_epoch=max((s.epoch for s in last), default=0),
    )


def _check_own(settings: ServeSettings, fresh: RunSettings, stored: RunState | None, exported: Exported, database: str) -> None:
    """Check that the campaign that the service is started with can begin, or go on with these settings."""
    algorithm = make_algorithm(settings.algorithm, arithmetic=NativeArithmetic())
    check_fit(fresh, algorithm, exported.bundle.manifest)
    if stored is not None:
        check_retuned(stored.next_settings, msgspec.structs.replace(fresh, run_id=stored.settings.run_id), settings.folder)
    else:
        refuse_lost_run(database, fresh, algorithm, exported, settings.folder / "blobs" / settings.run)
    run_secret(settings.folder, settings.run, stored is not None, algorithm)


def _serve(
    settings: ServeSettings, topics: Topics, http: HttpServer, opening: _Opening, stop: Callable[[], bool], observe: Observer
) -> RunState | None:
    folder, trust, clock = settings.folder, opening.place.trust, SteadyClock(opening.last_s)

    def make_signer() -> Signer:
        return service_signer(folder, settings.fleet, trust.keys, trust.root, clock())

    signer, verifier, boot_id = make_signer(), Verifier(settings.fleet, trust.keys), secrets.token_hex(8)
    client_id = aggregator_role(settings.fleet)

    def look() -> MqttLink:
        return MqttLink(settings.broker, client_id, confirmed=True)

    known = boot_ids(folder / "boots", boot_id)
    epoch = find_epoch(look, topics, verifier, opening.last_epoch, known, clock(), settings.take_over)
    log.info("fleet=%s epoch=%d broker=%s", settings.fleet, epoch, settings.broker)
    gone = AggregatorStatus(False, boot_id, epoch, clock())
    link = MqttLink(settings.broker, client_id, Will(topics.aggregator, signer(gone)), confirmed=True)
    counted = Counted()

    def observe_too(state: RunState, event: Event) -> None:
        counted.observe(state, event)
        observe(state, event)

    fleet = Fleet(link, topics, boot_id, signer)
    registry = RegistryTable(opening.place.database)
    devices = Devices(registry, clock)
    runner = Runner(fleet, clock, epoch=epoch, silence_s=SILENCE_S, verifier=verifier, devices=devices)
    steering = Steering(runner, opening.place, observe_too)
    try:
        started_s = time.monotonic()
        for charter in opening.charters:
            own = opening.fresh is not None and charter.settings.name == settings.run
            if own:
                steering.open(charter, opening.exported, opening.fresh)
            else:
                steering.open_if_possible(charter)

        def renew() -> float:
            signer = make_signer()
            fleet.sign_with(signer)
            return signer.until_s

        orders = DeviceOrders(devices, folder, opening.place.database, runner)
        duties = Duties(runner, Desk(folder, {**steering.handlers, **orders.handlers}), clock, renew)
        conditions = partial(_conditions, runner, steering, duties, counted)
        http.serve(create_api(lambda: runner.campaigns, conditions, lambda: time.monotonic() - started_s, devices))
        runner.run(lambda: stop() or duties.done() or (runner.finished and not settings.stay))
        fleet.announce(runner.epoch, clock(), "", online=False)
        devices.save()
        last = runner.campaigns.get(settings.run) or next(reversed(runner.campaigns.values()), None)
        return last.known() if last is not None else None
    finally:
        link.close()
        steering.close()
        registry.close()


def _conditions(runner: Runner, steering: Steering, duties: Duties, counted: Counted) -> Conditions:
    """What the HTTP API says of the service beside its campaigns."""
    broken = "; ".join(f"campaign {name} cannot be opened: {why}" for name, why in steering.broken.items())
    return Conditions(
        dict(runner.refused), runner.connected, runner.paused or broken, duties.unvouched, counted, dict(runner.devices.declined)
    )


def run_settings(settings: CampaignSettings, bundle: Bundle, run_id: str) -> RunSettings:
    """What the round core needs of a campaign's settings, for the run of this identity.

    Raises:
        ConfigError: a rule or hours cannot be read, or a cohort is too small.
    """
    made = RunSettings.for_bundle(
        bundle,
        settings,
        where=settings.where,
        cohort=settings.cohort,
        over_select=settings.over_select,
        quorum=settings.quorum,
        pace_s=settings.pace_s,
        hours=settings.hours,
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
    check_asking(made)
    return made
