"""The service: makes store, blob store, link, runner and HTTP server from its settings, and runs them until it is stopped."""

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import msgspec

from aggregator.adapters.engine import sqlite_url
from aggregator.adapters.fleet_lease import FleetLease, LeaseLost
from aggregator.adapters.http_api import create_api
from aggregator.adapters.http_server import HttpServer
from aggregator.adapters.schema import is_behind, upgrade
from aggregator.adapters.sql_store import SqlStore
from aggregator.aggregation import check_fit
from aggregator.core.conditions import Conditions, Counted
from aggregator.core.settings import RunSettings, TrainingSettings
from aggregator.core.state import Event, RunState
from aggregator.duties import Duties
from aggregator.fleet import Fleet
from aggregator.identity import SteadyClock, boot_ids, find_epoch, lock_service, service_signer
from aggregator.runner import Observer, Runner
from aggregator.start import Exported, check_retuned, read_exported, refuse_lost_run, run_secret
from aggregator.storage import blobs_name, open_blobs, open_lease
from algorithms.algorithm import Algorithm
from algorithms.registry import AlgorithmSpec, make_algorithm
from host.native.arithmetic import NativeArithmetic
from wire.bundle import Bundle
from wire.errors import ConfigError, OtherAggregator
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
    take_over: bool = False
    """Whether to begin although another aggregator is at work; that one then ends."""
    standby: bool = False
    """Whether to wait while another aggregator has the lease in the database, and then to take over."""
    database: str = ""
    """``sqlite:///PATH`` or ``postgresql://...``; SQLite in the folder when empty."""
    blobs: str = ""
    """``s3://BUCKET/PREFIX``, or a folder; one in `folder` when empty."""
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    stay: bool = True
    """Whether to go on answering devices and HTTP when the run is over."""


def serve(settings: ServeSettings, stop: Callable[[], bool], observe: Observer = lambda _state, _event: None) -> RunState | None:
    """Run a service until `stop` returns true, or until the run is over where `stay` is false; returns the run's last state, None if it was
    stopped while it waited for another service. A run of this name that is in the store goes on.

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
        place = (settings.blobs, folder, settings.run)
        refuse_lost_run(database, fresh, algorithm, exported, open_blobs(*place).names(), blobs_name(*place))
        with ExitStack() as opened:
            http = opened.enter_context(HttpServer(settings.http_host, settings.http_port))
            lease = open_lease(database, settings.fleet, secrets.token_hex(8), settings.standby)
            if lease is not None:
                opened.enter_context(closing(lease))
                if is_behind(database) and not lease.take((), settings.standby, settings.take_over, stop):
                    return None  # nobody else may use the database while it is migrated
            upgrade(database)
            store = opened.enter_context(closing(SqlStore(database, settings.run, lease.fence if lease else None)))
            return _serve(settings, topics, store, lease, http, exported, algorithm, fresh, stop, observe)
    except OtherAggregator as error:
        raise LeaseLost(str(error)) if settings.standby else error from None
    finally:
        os.close(held)


def _serve(
    settings: ServeSettings,
    topics: Topics,
    store: SqlStore,
    lease: FleetLease | None,
    http: HttpServer,
    exported: Exported,
    algorithm: Algorithm,
    fresh: RunSettings,
    stop: Callable[[], bool],
    observe: Observer,
) -> RunState | None:
    folder, trusted, root = settings.folder, exported.trusted, exported.root
    stored, wanted = _stored(store, fresh, folder)
    secret = run_secret(folder, settings.run, stored is not None, algorithm)
    algorithm = replace(algorithm, secret=secret)
    service_signer(folder, settings.fleet, trusted, root, SteadyClock(stored.at_s if stored else 0.0)())
    boot_id = lease.name if lease else secrets.token_hex(8)
    known = boot_ids(folder / "boots", boot_id)
    if lease is not None:
        lease.share(secret if algorithm.privacy.server_noise else b"")
        if not lease.take(known, settings.standby, settings.take_over, stop):
            return None
        known.append(lease.holder_before)
        stored, wanted = _stored(store, fresh, folder)  # the one before may have written meanwhile
    blobs = open_blobs(settings.blobs, folder, settings.run, lease.holds if lease else lambda: True)
    clock = SteadyClock(stored.at_s if stored else 0.0)
    signer = service_signer(folder, settings.fleet, trusted, root, clock())
    verifier = Verifier(settings.fleet, trusted)
    client_id = aggregator_role(settings.fleet)

    def look() -> MqttLink:
        return MqttLink(settings.broker, client_id, confirmed=True)

    least = max(stored.epoch if stored else 0, lease.epoch - 1 if lease else 0)
    epoch = find_epoch(look, topics, verifier, least, known, clock(), settings.take_over)
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

        runner = Runner(
            algorithm, bundle, probe, store, blobs, fleet, clock, observe_too, epoch=epoch, silence_s=SILENCE_S, verifier=verifier
        )
        started_s = time.monotonic()
        runner.start_or_resume(wanted)
        state = runner.known()
        log.info("run=%s phase=%s round=%d: waiting for devices, at least %d", settings.run, state.phase, state.round, settings.min_devices)

        def renew() -> float:
            signer = service_signer(folder, settings.fleet, trusted, root, clock())
            fleet.sign_with(signer)
            return signer.until_s

        duties = Duties(runner, folder, clock, renew)
        http.serve(
            create_api(runner.known, store, blobs, lambda: conditions(runner, duties, counted), lambda: time.monotonic() - started_s)
        )
        runner.run(lambda: stop() or (lease is not None and lease.is_lost()) or duties.done() or (runner.finished and not settings.stay))
        state = runner.known()
        fleet.announce(state.epoch, clock(), state.settings.run_id, online=False)
        return state
    finally:
        link.close()


def _stored(store: SqlStore, fresh: RunSettings, folder: Path) -> tuple[RunState | None, RunSettings]:
    """The state that is stored, and the settings that are wanted now.

    Raises:
        ConfigError: the run may not go on with them.
    """
    stored = store.load()
    wanted = msgspec.structs.replace(fresh, run_id=stored.settings.run_id) if stored else fresh
    if stored is not None:
        check_retuned(stored.next_settings, wanted, folder)
    return stored, wanted


def conditions(runner: Runner, duties: Duties, counted: Counted) -> Conditions:
    """What the HTTP API says of the service beside the run."""
    return Conditions(dict(runner.refused), runner.connected, runner.paused, duties.unvouched, counted)


def run_settings(settings: ServeSettings, bundle: Bundle, run_id: str) -> RunSettings:
    """What the round core needs of a service's settings, for the run of this identity."""
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
