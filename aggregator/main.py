"""The service: makes store, blob store, link, runner and HTTP server from its settings, and runs them until it is stopped."""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from aggregator.adapters.blob_folder import BlobFolder
from aggregator.adapters.http_api import create_api
from aggregator.adapters.probe_file import load_probe
from aggregator.adapters.sql_store import SqlStore, sqlite_url
from aggregator.core.state import RunSettings, RunState, TrainingSettings
from aggregator.fleet import Fleet
from aggregator.runner import Observer, Runner
from algorithms.registry import AlgorithmSpec, make_algorithm
from host.files import write_atomically
from host.native.arithmetic import NativeArithmetic
from wire.bundle import Bundle, unpack
from wire.codec import encode
from wire.errors import ConfigError
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.messages import AggregatorStatus
from wire.topics import Topics, check_name

log = logging.getLogger("shoal.aggregator")


class ServeSettings(TrainingSettings[AlgorithmSpec], frozen=True, kw_only=True):
    """What a service is started with."""

    folder: Path
    """Holds the database and the blobs."""
    bundle: Path
    """A folder that `shoal export` wrote."""
    broker: BrokerAddress
    run_id: str
    fleet: str = "default"
    data: str = ""
    """The data's name, for people; the bundle's when empty."""
    min_devices: int = 2
    """Round 1 opens when so many devices are online."""
    deadline_s: float = 600.0
    """Seconds for which a round is open at most."""
    grace_s: float = 60.0
    """Seconds for which a round waits for a device that was lost."""
    database: str = ""
    """SQLAlchemy URL; SQLite in the folder when empty."""
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    stay: bool = True
    """Whether to go on answering devices and HTTP when the run is over."""


def serve(settings: ServeSettings, stop: Callable[[], bool], observe: Observer = lambda _state, _event: None) -> RunState:
    """Run a service until `stop` returns true, or until the run is over where `stay` is false; returns the run's last state. A run of this
    id that is in the store goes on.

    Raises:
        ShoalError: a setting, the bundle, the database or the broker cannot be used.
    """
    check_name(settings.run_id, "run id")
    topics = Topics(settings.fleet)
    secret = own_secret(settings.folder / "secret.key") + settings.run_id.encode()
    algorithm = replace(make_algorithm(settings.algorithm), secret=secret, arithmetic=NativeArithmetic())
    bundle = unpack(_read(settings.bundle / "device.shoal"))
    probe = load_probe(_read(settings.bundle / "server.pt2"), bundle.digest)
    blobs = BlobFolder(settings.folder / "blobs" / settings.run_id)
    store = SqlStore(settings.database or sqlite_url(settings.folder / "shoal.db"), settings.run_id)
    boot_id = secrets.token_hex(8)
    will = Will(topics.aggregator, encode(AggregatorStatus(False, boot_id, settings.run_id)))
    link = MqttLink(settings.broker, f"{settings.fleet}.aggregator", will)
    try:
        fleet = Fleet(link, topics, boot_id)
        runner = Runner(algorithm, bundle, probe, store, blobs, fleet, time.time, observe)
        wanted = run_settings(settings, bundle)
        if runner.state is not None and runner.state.settings != wanted:
            raise ConfigError(
                f"run {settings.run_id!r} in {settings.folder} was started with other settings "
                f"({_differences(runner.state.settings, wanted)}); give it another --run-id"
            )
        started_s = time.monotonic()
        runner.start_or_resume(wanted)
        api = create_api(lambda: _state(runner), store, blobs, lambda: dict(runner.refused), lambda: time.monotonic() - started_s)
        with _Http(api, settings.http_host, settings.http_port):
            runner.run(lambda: stop() or (runner.finished and not settings.stay))
        fleet.announce(settings.run_id, online=False)
        return _state(runner)
    finally:
        link.close()
        store.close()


def run_settings(settings: ServeSettings, bundle: Bundle) -> RunSettings:
    """What the round core needs of a service's settings. Hyper-parameters in the algorithm's name count where the settings have none."""
    return RunSettings.for_bundle(
        bundle,
        msgspec.structs.replace(settings, hyper={**settings.algorithm.hyper, **settings.hyper}),
        run_id=settings.run_id,
        data=settings.data or bundle.manifest.name,
        min_devices=settings.min_devices,
        deadline_s=settings.deadline_s,
        grace_s=settings.grace_s,
    )


def own_secret(path: Path) -> bytes:
    """32 random bytes that the aggregator alone knows: made once, in a file that only its user can read, the same after a restart."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, secrets.token_bytes(32), mode=0o600)
    return path.read_bytes()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"bundle file {path}: {error.strerror}; `shoal export` writes it") from None


def _state(runner: Runner) -> RunState:
    assert runner.state is not None
    return runner.state


def _differences(had: RunSettings, wanted: RunSettings) -> str:
    names = [n for n in RunSettings.__struct_fields__ if getattr(had, n) != getattr(wanted, n) and n not in ("reported", "responses")]
    return ", ".join(f"{n} {getattr(had, n)!r}, not {getattr(wanted, n)!r}" for n in names)


class _Http:
    """The HTTP server in a thread of its own for as long as the context is open."""

    def __init__(self, api: Any, host: str, port: int) -> None:
        self._server = uvicorn.Server(uvicorn.Config(api, host=host, port=port, log_level="warning", access_log=False))
        self._thread = threading.Thread(target=self._server.run, name="http", daemon=True)
        self._where = f"{host}:{port}"

    def __enter__(self) -> None:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise ConfigError(f"HTTP on {self._where}: the address cannot be used (is the port taken?)")
            time.sleep(0.02)
        log.info("http://%s", self._where)

    def __exit__(self, *_error: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5.0)
