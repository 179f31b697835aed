"""Start of a service: its errors, and that a start which has to fail changes nothing and never
comes to the broker."""

import json
import logging
import socket
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.aggregation.orders import start_campaign
from aggregator.fleet import events as e
from aggregator.fleet.records import AdmittedUpdate
from aggregator.http.server import HttpServer
from aggregator.leadership.identity import own_secret
from aggregator.main import serve
from aggregator.service.start import read_exported, read_trust, run_settings
from aggregator.service_settings import ServeSettings
from aggregator.storage.blob_folder import BlobFolder, blob_names
from aggregator.storage.engine import sqlite_url
from algorithms.composition import make_algorithm, read_algorithm
from host.logs import alive
from simulation.local.broker import EmbeddedBroker, free_port
from tests.aggregator.stored import store_events
from tests.support.bundles import Exported
from wire.errors import ConfigError
from wire.links.mqtt import BrokerAddress
from wire.messages import CheckIn, Metrics


class AtTheBroker(Exception):
    """A start has come as far as to the broker."""


def settings_of(folder: Path, bundle: Path, broker: str) -> ServeSettings:
    """Settings of a service that takes any free port."""
    address = BrokerAddress.parse(broker)
    return ServeSettings(
        folder=folder,
        bundle=bundle,
        broker=address,
        algorithm=read_algorithm("distfl"),
        http_port=0,
    )


def begin(settings: ServeSettings, blobs: BlobFolder, others: tuple[bytes, ...] = ()) -> e.Started:
    """Make the first blobs of a run."""
    assert settings.bundle is not None
    exported = read_exported(settings.bundle, read_trust(settings.bundle))
    algorithm = make_algorithm(settings.algorithm)
    blobs.put(exported.bundle.payload, *others)
    run = run_settings(settings, exported.bundle, "r")
    return start_campaign(run, algorithm, exported.probe, exported.bundle.initial, blobs, 0.0)


class TestStart:
    @pytest.fixture(autouse=True)
    def look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def come(*_: object) -> None:
            raise AtTheBroker

        monkeypatch.setattr("aggregator.main.find_epoch", come)

    def settings(self, folder: Path, bundle: Path) -> ServeSettings:
        return settings_of(folder, bundle, "mqtt://nowhere")

    def test_a_file_in_place_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "README.md").write_text("x")
        with pytest.raises(ConfigError, match=r"folder .*README\.md: File exists"):
            serve(self.settings(tmp_path / "README.md", tmp_path), lambda: True)

    @pytest.mark.parametrize(
        ("name", "payload"),
        [
            *(
                (name, payload)
                for name in ("trust.pem", "device.shoal", "server.pt2")
                for payload in (None, b"", b"nothing")
            ),
            ("signing.key", b"nothing"),  # it may be elsewhere
        ],
    )
    def test_every_file_of_the_bundle_is_named_when_it_is_missing_or_wrong(
        self, tmp_path: Path, exported: Exported, name: str, payload: bytes | None
    ) -> None:
        for path in exported.folder.iterdir():
            if path.is_file():
                (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / name).unlink(missing_ok=True)
        if payload is not None:
            (tmp_path / name).write_bytes(payload)
        with pytest.raises(ConfigError, match=f"bundle file .*{name}: "):
            serve(self.settings(tmp_path / "served", tmp_path), lambda: True)

    def test_without_the_root_key_it_says_how_to_vouch_and_leaves_the_public_half(
        self, tmp_path: Path, exported: Exported
    ) -> None:
        for name in ("trust.pem", "device.shoal", "server.pt2"):
            (tmp_path / name).write_bytes((exported.folder / name).read_bytes())
        with pytest.raises(ConfigError, match=r"service\.voucher: missing; `shoal vouch --service"):
            serve(self.settings(tmp_path / "served", tmp_path), lambda: True)
        assert (tmp_path / "served" / "service.pub").exists()

    def killed(self, folder: Path, bundle: Path, *others: bytes) -> ServeSettings:
        """Settings of a start in a folder in which one was killed before it saved its first event,
        and which has other blobs besides."""
        settings = self.settings(folder, bundle)
        begin(settings, BlobFolder(folder / "blobs" / "run-1"), others)
        return settings

    def begun(self, settings: ServeSettings) -> ServeSettings:
        """The settings of a run that has begun, whose service was then stopped."""
        started = begin(settings, BlobFolder(settings.folder / "blobs" / "run-1"))
        store_events(sqlite_url(settings.folder / "shoal.db"), started)
        own_secret(settings.folder / "secret.key")
        return settings

    @pytest.mark.parametrize("database", ["gone", "empty", "another"])
    def test_a_run_whose_database_is_lost_is_not_begun_anew(
        self, tmp_path: Path, exported: Exported, database: str
    ) -> None:
        settings = self.killed(tmp_path, exported.folder, b"an update")
        before = blob_names(tmp_path / "blobs" / "run-1")
        path = tmp_path / ("typo.db" if database == "another" else "shoal.db")
        if database == "empty":
            path.write_bytes(b"")
        if database == "another":
            settings = replace(settings, database=sqlite_url(path))
        told = (
            rf"campaign 'run-1': missing in database sqlite:///{path}, but {tmp_path}/blobs/run-1 "
            r"has its blobs; restore the database, name the right one with --database"
        )
        with pytest.raises(ConfigError, match=told):
            serve(settings, lambda: True)
        assert blob_names(tmp_path / "blobs" / "run-1") == before
        assert (path.read_bytes() if path.exists() else b"") == b"", "nothing was begun"
        with pytest.raises(AtTheBroker):
            serve(replace(settings, run="run-2"), lambda: True)

    def test_a_start_that_was_killed_before_its_first_event_is_begun_again(
        self, tmp_path: Path, exported: Exported
    ) -> None:
        with pytest.raises(AtTheBroker):
            serve(self.killed(tmp_path, exported.folder), lambda: True)

    def test_a_damaged_database_is_named(self, tmp_path: Path, exported: Exported) -> None:
        (tmp_path / "shoal.db").write_bytes(b"nothing" * 1000)
        with pytest.raises(ConfigError, match=r"database .*shoal\.db: .*not a database"):
            serve(self.settings(tmp_path, exported.folder), lambda: True)

    def test_settings_are_compared_before_the_broker_is_touched(
        self, tmp_path: Path, exported: Exported, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = self.begun(self.settings(tmp_path, exported.folder))
        with pytest.raises(AtTheBroker):
            serve(replace(settings, local_epochs=7), lambda: True)
        assert "goes on with other settings" not in caplog.text, "nothing goes on yet"
        for change, error in (
            (
                {"seed": 7},
                "was started with other settings \\(seed 0, not 7\\); give it another --run",
            ),
            (
                {"algorithm": read_algorithm("dbe")},
                "was exported for the objective 'fedavg', not for 'fedavg\\+dbe'",
            ),
            ({"hyper": {"nothing": 1.0}}, "hyper-parameter 'nothing'"),
        ):
            with pytest.raises(ConfigError, match=error):
                serve(replace(settings, take_over=True, **change), lambda: True)

    def test_the_port_is_taken_before_the_broker_is_touched(
        self, tmp_path: Path, exported: Exported
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(
                ConfigError,
                match=rf"HTTP on 127\.0\.0\.1:{port}: the address cannot be used \(is the port "
                r"taken\?\)",
            ):
                serve(
                    replace(
                        self.settings(tmp_path, exported.folder), http_port=port, take_over=True
                    ),
                    lambda: True,
                )

    @pytest.mark.parametrize(
        ("host", "port"),
        [("127.0.0.1", 70_000), ("203.0.113.1", 0), ("nowhere.invalid", 0), ("a" * 70, 0)],
    )
    def test_an_address_that_cannot_be_used_is_one_clear_error(self, host: str, port: int) -> None:
        with pytest.raises(ConfigError, match=f"HTTP on {host}:{port}: the address cannot be used"):
            HttpServer(host, port)

    @pytest.mark.parametrize("database", ["stored", "new"])
    def test_a_lost_secret_is_replaced_only_where_no_noise_was_drawn_from_it(
        self, tmp_path: Path, exported: Exported, caplog: pytest.LogCaptureFixture, database: str
    ) -> None:
        plain = self.settings(tmp_path, exported.folder)
        noisy = replace(plain, algorithm=read_algorithm("fedavg+gaussian"))
        for settings, refused in ((noisy, True), (plain, False)):
            settings = replace(settings, folder=tmp_path / str(refused))
            path = settings.folder / "secret.key"
            if database == "stored":
                self.begun(settings)
                path.unlink()
            caplog.clear()
            if refused and database == "stored":
                with pytest.raises(
                    ConfigError,
                    match=r"secret\.key: missing, but run 'run-1' draws its noise from it",
                ):
                    serve(settings, lambda: True)
                assert not path.exists()
                continue
            with pytest.raises(AtTheBroker):
                serve(settings, lambda: True)
            assert len(path.read_bytes()) == 32
            assert ("Secret was missing, another is made" in caplog.text) is (database == "stored")


class TestRestart:
    """A service whose run has a closed round that was not aggregated when it was stopped."""

    @pytest.fixture
    def settings(
        self, tmp_path: Path, exported: Exported, embedded_broker: EmbeddedBroker
    ) -> ServeSettings:
        settings = replace(
            settings_of(tmp_path / "served", exported.folder, embedded_broker.url),
            http_port=free_port(),
            min_devices=1,
        )
        started = begin(settings, BlobFolder(settings.folder / "blobs" / "run-1"))
        update = AdmittedUpdate(
            blob=started.record.version.memory,
            start="initial",
            num_train=10,
            num_steps=2,
            evaluated=Metrics(4, 1.0, 3),
            trained=Metrics(10, 2.0, 5),
            bytes_up=100,
            bytes_down=50,
        )
        store_events(
            sqlite_url(settings.folder / "shoal.db"),
            started,
            e.CheckedIn(at_s=1.0, device_id="d0", facts=CheckIn("d0", 10, 4)),
            e.Updated(at_s=2.0, device_id="d0", serial=1, update=update),
        )
        own_secret(settings.folder / "secret.key")
        return settings

    def test_while_it_aggregates_it_answers_and_its_watchdog_waits(
        self,
        settings: ServeSettings,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notified.bind(str(tmp_path / "notify"))
        notified.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setattr("aggregator.leadership.identity.EVERY_S", 0.05)
        met: dict[str, tuple[int, dict[str, Any]]] = {}

        def stop() -> bool:
            alive()
            return bool(met)

        def aggregate(*_: object) -> None:
            for path in ("/health", "/ready", "/run", "/openapi.json"):
                connection = HTTPConnection("127.0.0.1", settings.http_port, timeout=10)
                connection.request("GET", path)
                answer = connection.getresponse()
                met[path] = answer.status, json.loads(answer.read())
            notified.settimeout(10)
            said.extend(notified.recv(100) for _ in range(3))
            raise RuntimeError("not now")

        said: list[bytes] = []
        monkeypatch.setattr("aggregator.service.trainer.aggregate", aggregate)
        with notified, caplog.at_level(logging.INFO, "shoal.aggregator"):
            last = serve(settings, stop)
            notified.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    said.append(notified.recv(100))
        assert last is not None
        assert last.campaigns["run-1"].phase == "aggregating"
        assert {status for status, _ in met.values()} == {200}
        health, ready = met["/health"][1], met["/ready"][1]
        assert (health["status"], health["phase"], health["round"]) == ("ok", "aggregating", 1)
        assert (ready["ready"], ready["phase"]) == (True, "aggregating")
        assert said[0] == b"READY=1\nWATCHDOG=1"
        assert b"WATCHDOG=1\nEXTEND_TIMEOUT_USEC=120000000" in said, "it is at work"

    def test_it_says_once_that_it_goes_on_with_other_settings(
        self, settings: ServeSettings, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "shoal.aggregator"):
            serve(replace(settings, local_epochs=7), lambda: True)
        assert (
            caplog.text.count("goes on with other settings: campaign=run-1: local_epochs 7, not 1")
            == 1
        )
