"""Wires the service: store, blobs, link, runner, HTTP."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvicorn

from aggregator.adapters.blob_folder import BlobFolder
from aggregator.adapters.http_api import create_api
from aggregator.adapters.probe_file import load_probe
from aggregator.adapters.sql_store import SqlStore, sqlite_url
from aggregator.core.state import Event, RunSettings, RunState
from aggregator.fleet import Fleet
from aggregator.runner import Runner
from algorithms.registry import AlgorithmSpec, make_algorithm, read_algorithm
from wire.bundle import Bundle, unpack
from wire.codec import encode
from wire.errors import ConfigError
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.messages import AggregatorStatus
from wire.topics import Topics, check_name

log = logging.getLogger("shoal.aggregator")


@dataclass(frozen=True)
class ServeSettings:
    """What a service is started with. `folder` holds the database and the blobs; `bundle` is a folder that `shoal export` wrote."""

    folder: Path
    bundle: Path
    broker: BrokerAddress
    run_id: str
    fleet: str = "default"
    data: str = ""
    algorithm: AlgorithmSpec = read_algorithm("distfl")  # noqa: RUF009  # it cannot be changed
    rounds: int = 20
    min_devices: int = 2
    deadline_s: float = 600.0
    grace_s: float = 60.0
    local_epochs: int = 1
    batch_size: int = 32
    hyper: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    database: str = ""
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    stay: bool = True
    """Whether to go on answering devices and HTTP when the run is over."""


def serve(settings: ServeSettings, stop: Callable[[], bool], observe: Callable[[RunState, Event], None] = lambda _s, _e: None) -> RunState:
    """Run a service until `stop`, or until the run is over where `stay` is false. Goes on with a run it finds in the store.

    Raises:
        ShoalError: a setting, the bundle, the database or the broker cannot be used.
    """
    check_name(settings.run_id, "run id")
    topics = Topics(settings.fleet)
    algorithm = replace(make_algorithm(settings.algorithm), secret=own_secret(settings.folder / "secret.key") + settings.run_id.encode())
    bundle, probe = unpack(_read(settings.bundle / "device.shoal")), load_probe(_read(settings.bundle / "server.pt2"))
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
        runner.begin(wanted)
        api = create_api(lambda: _state(runner), store, blobs, lambda: dict(runner.refused), lambda: time.monotonic() - started_s)
        with _Http(api, settings.http_host, settings.http_port):
            runner.run(lambda: stop() or (runner.finished and not settings.stay))
        fleet.announce(settings.run_id, online=False)
        return _state(runner)
    finally:
        link.close()
        store.close()


def run_settings(settings: ServeSettings, bundle: Bundle) -> RunSettings:
    """What the round core needs of a service's settings."""
    return RunSettings.for_bundle(
        bundle,
        hyper={**settings.algorithm.hyper, **settings.hyper},
        run_id=settings.run_id,
        algorithm=str(settings.algorithm),
        data=settings.data or bundle.manifest.name,
        rounds=settings.rounds,
        min_devices=settings.min_devices,
        deadline_s=settings.deadline_s,
        grace_s=settings.grace_s,
        seed=settings.seed,
        local_epochs=settings.local_epochs,
        batch_size=settings.batch_size,
    )


def own_secret(path: Path) -> bytes:
    """What the aggregator alone knows: made once, readable by its user only, and the same after a restart."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
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
