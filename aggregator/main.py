"""The service: makes store, blob store, link, runner and HTTP server from its settings, and runs them until it is stopped."""

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec

from aggregator.adapters.blob_folder import BlobFolder
from aggregator.adapters.http_api import create_api
from aggregator.adapters.http_server import HttpServer
from aggregator.adapters.registry_table import RegistryTable
from aggregator.adapters.sql_store import SqlStore, sqlite_url
from aggregator.aggregation import check_fit
from aggregator.core.conditions import Conditions, Counted
from aggregator.core.eligibility import read_rule
from aggregator.core.hours import read_hours
from aggregator.core.settings import RunSettings, TrainingSettings
from aggregator.core.state import Event, RunState
from aggregator.desk import Desk
from aggregator.device_orders import DeviceOrders
from aggregator.devices import Devices
from aggregator.duties import Duties
from aggregator.fleet import Fleet
from aggregator.identity import SteadyClock, boot_ids, find_epoch, lock_service, service_signer
from aggregator.runner import Observer, Runner
from aggregator.start import Exported, check_retuned, read_exported, refuse_lost_run, run_secret
from algorithms.algorithm import Algorithm
from algorithms.registry import AlgorithmSpec, make_algorithm
from host.native.arithmetic import NativeArithmetic
from wire.bundle import Bundle
from wire.errors import ConfigError
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.messages import AggregatorStatus
from wire.signed import Verifier
from wire.topics import Topics, aggregator_role, check_name

log = logging.getLogger("shoal.aggregator")

SILENCE_S = 180.0
"""A device of which nothing came for so long is taken for absent."""


class ServeSettings(TrainingSettings[AlgorithmSpec], frozen=True, kw_only=True):
    """What a service is started with."""

    folder: Path
    """Holds the database and the blobs."""
    bundle: Path
    """A folder that `shoal export` wrote."""
    broker: BrokerAddress
    run: str = "run-1"
    """The run's name: its place in the store."""
    fleet: str = "default"
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
    take_over: bool = False
    """Whether to begin although another aggregator is at work; that one then ends."""
    database: str = ""
    """SQLAlchemy URL; SQLite in the folder when empty."""
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    stay: bool = True
    """Whether to go on answering devices and HTTP when the run is over."""


def serve(settings: ServeSettings, stop: Callable[[], bool], observe: Observer = lambda _state, _event: None) -> RunState:
    """Run a service until `stop` returns true, or until the run is over where `stay` is false; returns the run's last state. A run of this
    name that is in the store goes on.

    Raises:
        ShoalError: a setting, the bundle, the database or the broker cannot be used; or another aggregator has the fleet.
    """
    if check_name(settings.run, "run name") in (".", ".."):  # a folder's name, too
        raise ConfigError(f"run name {settings.run!r}: it is the name of another folder")
    topics, folder = Topics(settings.fleet), settings.folder
    held = lock_service(folder)
    try:
        exported = read_exported(settings.bundle)
        algorithm = make_algorithm(settings.algorithm, arithmetic=NativeArithmetic())
        fresh = run_settings(settings, exported.bundle, secrets.token_hex(16))
        check_fit(fresh, algorithm, exported.bundle.manifest)
        database = settings.database or sqlite_url(folder / "shoal.db")
        refuse_lost_run(database, fresh, algorithm, exported, folder / "blobs" / settings.run)
        with (
            closing(SqlStore(database, settings.run)) as store,
            closing(RegistryTable(database)) as registry,
            HttpServer(settings.http_host, settings.http_port) as http,
        ):
            return _serve(settings, topics, database, store, registry, http, exported, algorithm, fresh, stop, observe)
    finally:
        os.close(held)


def _serve(
    settings: ServeSettings,
    topics: Topics,
    database: str,
    store: SqlStore,
    registry: RegistryTable,
    http: HttpServer,
    exported: Exported,
    algorithm: Algorithm,
    fresh: RunSettings,
    stop: Callable[[], bool],
    observe: Observer,
) -> RunState:
    folder, stored, trusted, root = settings.folder, store.load(), exported.trusted, exported.root
    wanted = msgspec.structs.replace(fresh, run_id=stored.settings.run_id) if stored else fresh
    if stored is not None:
        check_retuned(stored.next_settings, wanted, folder)
    algorithm = replace(algorithm, secret=run_secret(folder, settings.run, stored is not None, algorithm))
    blobs = BlobFolder(folder / "blobs" / settings.run)
    clock = SteadyClock(stored.at_s if stored else 0.0)
    signer = service_signer(folder, settings.fleet, trusted, root, clock())
    verifier = Verifier(settings.fleet, trusted)
    boot_id = secrets.token_hex(8)
    client_id = aggregator_role(settings.fleet)

    def look() -> MqttLink:
        return MqttLink(settings.broker, client_id, confirmed=True)

    known = boot_ids(folder / "boots", boot_id)
    epoch = find_epoch(look, topics, verifier, stored.epoch if stored else 0, known, clock(), settings.take_over)
    log.info("fleet=%s epoch=%d broker=%s", settings.fleet, epoch, settings.broker)
    gone = AggregatorStatus(False, boot_id, epoch, clock(), stored.settings.run_id if stored else "")
    link = MqttLink(settings.broker, client_id, Will(topics.aggregator, signer(gone)), confirmed=True)
    try:
        fleet = Fleet(link, topics, boot_id, signer)
        bundle, probe = exported.bundle, exported.probe
        counted = Counted()

        def observe_too(state: RunState, event: Event) -> None:
            counted.observe(state, event)
            observe(state, event)

        devices = Devices(registry, clock)
        runner = Runner(
            *(algorithm, bundle, probe, store, blobs, fleet, clock, observe_too),
            epoch=epoch,
            silence_s=SILENCE_S,
            verifier=verifier,
            devices=devices,
        )
        started_s = time.monotonic()
        runner.start_or_resume(wanted)
        state = runner.known()
        log.info("run=%s phase=%s round=%d: waiting for devices, at least %d", settings.run, state.phase, state.round, settings.min_devices)

        def renew() -> float:
            signer = service_signer(folder, settings.fleet, trusted, root, clock())
            fleet.sign_with(signer)
            return signer.until_s

        orders = DeviceOrders(devices, folder, database, lambda: {settings.run: runner})
        duties, desk = Duties(runner, folder, clock, renew), Desk(folder, orders.handlers)
        http.serve(
            create_api(
                runner.known, store, blobs, lambda: conditions(runner, duties, counted), lambda: time.monotonic() - started_s, devices
            )
        )

        def done() -> bool:
            desk.look()
            return stop() or duties.done() or (runner.finished and not settings.stay)

        runner.run(done)
        state = runner.known()
        fleet.announce(state.epoch, clock(), state.settings.run_id, online=False)
        devices.save()
        return state
    finally:
        link.close()


def conditions(runner: Runner, duties: Duties, counted: Counted) -> Conditions:
    """What the HTTP API says of the service beside the run."""
    declined = dict(runner.devices.declined)
    return Conditions(dict(runner.refused), runner.connected, runner.paused, duties.unvouched, counted, declined)


def run_settings(settings: ServeSettings, bundle: Bundle, run_id: str) -> RunSettings:
    """What the round core needs of a service's settings, for the run of this identity.

    Raises:
        ConfigError: a rule or hours cannot be read, or a cohort is too small.
    """
    read_rule(settings.where)
    read_hours(settings.hours)
    if 0 < settings.cohort < settings.min_devices:
        raise ConfigError(
            f"a cohort of {settings.cohort}: no round is aggregated with fewer updates than {settings.min_devices} (min_devices)"
        )
    return RunSettings.for_bundle(
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
