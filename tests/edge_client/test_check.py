"""`shoal-edge check`, and what `run` refuses to do without being told."""

import datetime
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import trustme

from edge_client.commands import check as module
from edge_client.commands.check import check
from edge_client.main import run
from edge_client.options import parser
from edge_client.storage.state import DeviceState, only_process
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker
from tests.edge_client.device import Device, other_model, take_up
from tests.edge_client.kept_cases import keep
from tests.support.bundles import Exported
from tests.support.known import known
from wire.codec import digest
from wire.errors import ConfigError
from wire.identity.keys import PrivateKey, new_key, public_pem
from wire.identity.signed import Signer, utc, vouch
from wire.links.in_process import InProcessBroker
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Denied
from wire.messages import AggregatorStatus
from wire.topics import Topics

Captured = pytest.CaptureFixture[str]
YEAR_S = 365 * 86_400


@pytest.fixture
def folder(fleet: FleetData, tmp_path: Path) -> Path:
    """A device's folder: data, and a policy."""
    windows = fleet.devices["d0"]
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "train.npz", X=windows.train_x, y=windows.train_y)
    np.savez(tmp_path / "data" / "test.npz", X=windows.test_x, y=windows.test_y)
    (tmp_path / "policy.toml").write_text("max_epochs = 3\n")
    return tmp_path


def words(folder: Path, broker: str = "mqtt://127.0.0.1:9", **options: str) -> list[str]:
    given = {
        "broker": broker,
        "id": "d0",
        "data": folder / "data",
        "state": folder / "state",
        "policy": folder / "policy.toml",
        **options,
    }
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def findings(capsys: Captured, *words: str) -> tuple[int, dict[str, str]]:
    """The exit code, and by subject the line, which is one."""
    code = check(parser().parse_args(["check", *words]))
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok    ", "WRONG ")) for line in lines)
    assert code == int(any(line.startswith("WRONG") for line in lines))
    return code, {line[6:].partition(": ")[0]: line for line in lines}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), r"13 training and 6 test windows.*shape \(1, 128\)"),
        (("--window", "32"), r"66 training and 23 test windows.*shape \(1, 32\)"),
        (("--window", "32", "--stride", "50"), r"21 training and 8 test windows.*\(1, 32\)"),
    ],
)
def test_windows_are_cut_as_options_say(
    tmp_path: Path, capsys: Captured, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "data").mkdir()
    rows = [f"{i / 50},{i * 7 % 11},0" for i in range(1500)]
    (tmp_path / "data" / "a.csv").write_text("\n".join(["t,ax,label", *rows]))
    words = ("--data", str(tmp_path / "data"), "--state", str(tmp_path / "state"))
    check(parser().parse_args(["check", *words, *options]))
    assert re.search(said, capsys.readouterr().out)


@contextmanager
def aggregator(
    root: PrivateKey, broker: str, at_s: float, online: bool = True, until_s: float | None = None
) -> Iterator[None]:
    """The status of an aggregator at a broker."""
    service = new_key()
    signer = Signer(
        service, vouch(root, "default", service.public_key(), until_s or time.time() + 1e6)
    )
    link = MqttLink(BrokerAddress.parse(broker), "default@aggregator")
    try:
        link.publish(
            Topics("default").aggregator,
            signer(AggregatorStatus(online, "b", 1, at_s)),
            retain=True,
        )
        yield
    finally:
        link.close()


@pytest.fixture
def root(folder: Path) -> PrivateKey:
    key = new_key()
    (folder / "trust.pem").write_bytes(public_pem(key))
    return key


class TestBroker:
    def test_all_is_well(
        self, folder: Path, root: PrivateKey, embedded_broker: EmbeddedBroker, capsys: Captured
    ) -> None:
        with aggregator(root, embedded_broker.url, time.time()):
            code, lines = findings(
                capsys, *words(folder, embedded_broker.url, trust=str(folder / "trust.pem"))
            )
        assert code == 0, lines
        subjects = [
            "data",
            "runtime",
            "state folder",
            "model in use",
            "credentials",
            "trusted keys",
            "policy",
            "broker",
            "clock",
        ]
        assert list(lines) == subjects
        assert "40 training and 12 test windows" in lines["data"]

    @pytest.mark.full
    def test_a_device_without_any_window(self, folder: Path, capsys: Captured) -> None:
        for name in ("train.npz", "test.npz"):
            np.savez(folder / "data" / name, X=np.zeros((0, 3, 32)), y=[])
        _, lines = findings(capsys, *words(folder))
        assert lines["data"] == (
            "ok    data: no windows, of shape (3, 32): this device has its group's model, and "
            "trains once it has some"
        )
        np.savez(folder / "data" / "unlabelled.npz", X=np.ones((5, 3, 32)))
        _, lines = findings(capsys, *words(folder))
        assert "0 training and 0 test windows and 5 without labels" in lines["data"]

    @pytest.mark.parametrize(("offset_s", "text"), [(-4000, "ahead of"), (4000, "behind")])
    def test_a_wrong_clock(
        self,
        folder: Path,
        root: PrivateKey,
        embedded_broker: EmbeddedBroker,
        capsys: Captured,
        offset_s: float,
        text: str,
    ) -> None:
        with aggregator(root, embedded_broker.url, time.time() + offset_s):
            code, lines = findings(
                capsys, *words(folder, embedded_broker.url, trust=str(folder / "trust.pem"))
            )
        assert (code, text in lines["clock"]) == (1, True)
        assert list(lines)[-2:] == ["clock", "broker"], "what is wrong is said first"

    def test_a_clock_that_is_two_years_ahead_is_said_before_the_voucher(
        self, folder: Path, root: PrivateKey, embedded_broker: EmbeddedBroker, capsys: Captured
    ) -> None:
        now_s = time.time()
        with aggregator(root, embedded_broker.url, now_s - 2 * YEAR_S, until_s=now_s - YEAR_S):
            code, lines = findings(
                capsys, *words(folder, embedded_broker.url, trust=str(folder / "trust.pem"))
            )
        assert (code, list(lines)[-2:]) == (1, ["clock", "broker"])
        today, at, until = utc(now_s)[:10], utc(now_s - 2 * YEAR_S), utc(now_s - YEAR_S)
        assert lines["clock"].startswith(f"WRONG clock: it says {today}")
        assert (
            f"s ahead of the service's, {at}, whose voucher is good until {until}; set "
            "it, for example by NTP"
        ) in lines["clock"]
        assert f"this device's clock says {today}" in lines["broker"]
        assert f"the service's voucher ended at {until}" in lines["broker"]

    def test_a_voucher_whose_time_is_over_by_a_clock_that_is_right(
        self, folder: Path, root: PrivateKey, embedded_broker: EmbeddedBroker, capsys: Captured
    ) -> None:
        with aggregator(root, embedded_broker.url, time.time(), until_s=time.time() - YEAR_S):
            code, lines = findings(
                capsys, *words(folder, embedded_broker.url, trust=str(folder / "trust.pem"))
            )
        assert (code, lines["clock"][:5]) == (1, "ok   ")
        assert "if the clock is right, make a new voucher with `shoal vouch`" in lines["broker"]

    def test_an_aggregator_that_is_not_online(
        self, folder: Path, root: PrivateKey, embedded_broker: EmbeddedBroker, capsys: Captured
    ) -> None:
        with aggregator(root, embedded_broker.url, time.time(), online=False):
            _, lines = findings(
                capsys, *words(folder, embedded_broker.url, trust=str(folder / "trust.pem"))
            )
        assert "is not online" in lines["broker"]

    def test_an_aggregator_of_another_key(
        self, folder: Path, root: PrivateKey, embedded_broker: EmbeddedBroker, capsys: Captured
    ) -> None:
        with aggregator(new_key(), embedded_broker.url, time.time()):
            _, lines = findings(
                capsys, *words(folder, embedded_broker.url, trust=str(folder / "trust.pem"))
            )
        assert "cannot be verified" in lines["broker"]

    def test_a_broker_that_denies_a_subscription(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Access is that of Mosquitto with dynamic security, as in `tests/wire/test_access.py`."""
        link = InProcessBroker().connect("default.d0")
        monkeypatch.setattr(
            link, "receive", lambda timeout_s: Denied("subscribe", "shoal/1/default/aggregator")
        )
        monkeypatch.setattr(module, "MqttLink", lambda *_args, **_options: link)
        told = findings(capsys, *words(folder), "--insecure")[1]["broker"]
        assert "the broker does not let this device subscribe shoal/1/default/aggregator" in told

    def test_nobody_is_there(
        self,
        folder: Path,
        embedded_broker: EmbeddedBroker,
        capsys: Captured,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(module, "STATUS_WAIT_S", 0.2)
        monkeypatch.setattr(module, "CONNECT_S", 0.2)
        assert (
            "no status of the service arrived"
            in findings(capsys, *words(folder, embedded_broker.url), "--insecure")[1]["broker"]
        )
        assert "no connection" in findings(capsys, *words(folder), "--insecure")[1]["broker"]

    def test_a_client_that_is_running(self, folder: Path, capsys: Captured) -> None:
        with only_process(folder / "state"):
            code, lines = findings(capsys, *words(folder), "--insecure")
        assert (code, "not tried" in lines["broker"], "in use" in lines["state folder"]) == (
            0,
            True,
            True,
        )


class TestWithoutBroker:
    @pytest.fixture(autouse=True)
    def no_broker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "CONNECT_S", 0.1)

    @pytest.mark.parametrize(
        ("option", "value", "subject", "text"),
        [
            ("data", "none", "data", "no such folder"),
            ("policy", "none", "policy", "No such file"),
            ("trust", "none", "trusted keys", "No such file"),
            ("ca", "none", "credentials", "certificates need mqtts"),
        ],
    )
    def test_what_is_wrong_is_named(
        self, folder: Path, capsys: Captured, option: str, value: str, subject: str, text: str
    ) -> None:
        code, lines = findings(capsys, *words(folder, **{option: str(folder / value)}))
        assert (code, lines[subject].startswith("WRONG"), text in lines[subject]) == (1, True, True)

    def test_a_disk_without_room(
        self, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "FREE_BYTES", 2**60)
        assert (
            "MiB of free space" in findings(capsys, *words(folder), "--insecure")[1]["state folder"]
        )

    def test_no_trusted_keys_and_no_tls(self, folder: Path, capsys: Captured) -> None:
        lines = findings(capsys, *words(folder, "mqtt://192.0.2.1"))[1]
        assert "--trust is missing" in lines["trusted keys"]
        assert "without TLS" in lines["credentials"]

    def test_certificates(self, folder: Path, capsys: Captured) -> None:
        authority, now = trustme.CA(), datetime.datetime.now(datetime.UTC)
        authority.cert_pem.write_to_path(folder / "ca.pem")
        for name, identity, until in (("good", "d0", 90), ("old", "d0", -1), ("other", "d1", 90)):
            made = authority.issue_cert(
                f"{identity}.example",
                common_name=identity,
                not_after=now + datetime.timedelta(days=until),
            )
            made.private_key_pem.write_to_path(folder / f"{name}.key")
            made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")

        def line(cert: str, key: str) -> str:
            files = {
                "ca": str(folder / "ca.pem"),
                "cert": str(folder / f"{cert}.pem"),
                "key": str(folder / f"{key}.key"),
            }
            return findings(capsys, *words(folder, "mqtts://127.0.0.1:9", **files), "--insecure")[
                1
            ]["credentials"]

        assert line("good", "good").startswith("ok")
        assert "renew it" in line("old", "old")
        assert "do not fit together" in line("good", "old")
        assert "must be for d0 (--id), and is for d1" in line("other", "other")
        assert "No such file" in line("good", "none")

    def test_it_ends_when_nobody_reads_its_findings_any_more(self, folder: Path) -> None:
        command = [sys.executable, "-m", "edge_client.main", "check", *words(folder), "--insecure"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            known(process.stdout).close()
            assert (process.wait(60), known(process.stderr).read()) == (128 + signal.SIGPIPE, "")

    def test_the_model_in_use(
        self, folder: Path, fleet: FleetData, exported: Exported, capsys: Captured
    ) -> None:
        device = Device(fleet, exported, folder / "state")
        device.offer()
        device.finish()
        device.turn()
        assert (
            digest(device.model)[:12]
            in findings(capsys, *words(folder), "--insecure")[1]["model in use"]
        )
        keep(device)
        assert (
            "with what this device has kept of it"
            in findings(capsys, *words(folder), "--insecure")[1]["model in use"]
        )
        take_up(device, other_model(device))
        assert (
            "without a personal model: the personal model of campaign r was made from"
            in findings(capsys, *words(folder), "--insecure")[1]["model in use"]
        )
        onnx = folder / "state" / "current" / "model.onnx"
        model = onnx.read_bytes()
        onnx.write_bytes(bytes([model[0] ^ 1]) + model[1:])
        assert (
            "current/model.onnx, which other programs may read, is damaged"
            in findings(capsys, *words(folder), "--insecure")[1]["model in use"]
        )
        onnx.write_bytes(model)
        kept = folder / "state" / "blobs" / known(DeviceState(folder / "state").current()).private
        whole = kept.read_bytes()
        kept.write_bytes(whole[:-1])
        assert findings(capsys, *words(folder), "--insecure")[0] != 0
        line = findings(capsys, *words(folder), "--insecure")[1]["model in use"]
        assert (
            "the client uses the previous one; applications can still read it from "
            "current/model.onnx: The personal tensors of this"
        ) in line
        onnx.unlink()
        assert (
            "applications that start now have no model"
            in findings(capsys, *words(folder), "--insecure")[1]["model in use"]
        )
        kept.write_bytes(whole)
        onnx.write_bytes(model)
        device.offer(b"junk")
        device.finish("s", model=digest(b"junk"))
        device.turn()
        assert (
            "the previous one stays"
            in findings(capsys, *words(folder), "--insecure")[1]["model in use"]
        )
        assert DeviceState(folder / "state").current() is not None

    def test_the_rules_of_the_policy_are_words(self, folder: Path, capsys: Captured) -> None:
        def line(text: str) -> str:
            (folder / "policy.toml").write_text(text)
            return findings(capsys, *words(folder), "--insecure")[1]["policy"]

        found = line('bundles = ["watch", "a"]\nmin_windows = 20\nreport_errors = false\n')
        assert "bundles watch a, min_windows 20, report_errors false" in found
        assert "Policy(" not in found
        assert "no restriction" in line("min_windows = 1\n")

    def test_graphs_of_the_policy_that_the_bundle_in_use_has_not(
        self, folder: Path, fleet: FleetData, exported: Exported, capsys: Captured
    ) -> None:
        (folder / "policy.toml").write_text('unreported = ["evaluate", "chose"]\n')
        assert (
            "chose"
            not in findings(capsys, *words(folder), "--insecure")[1]["policy"].partition(";")[2]
        )
        device = Device(fleet, exported, folder / "state")
        device.offer()
        device.finish()
        device.turn()
        line = findings(capsys, *words(folder), "--insecure")[1]["policy"]
        assert line.startswith("ok")
        assert "in use, has no graph chose; it has evaluate" in line
        (folder / "policy.toml").write_text('graphs = ["evaluate"]\n')
        assert "no graph" not in findings(capsys, *words(folder), "--insecure")[1]["policy"]


class TestRun:
    def test_it_does_not_run_without_keys_unless_it_is_told_to(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="--trust is missing"):
            run(parser().parse_args(["run", *words(folder)]))

    @pytest.mark.parametrize(
        "host", ["192.0.2.1", "broker.example", "127.example", "localhost.example"]
    )
    def test_it_does_not_speak_in_the_clear_to_another_machine(
        self, folder: Path, root: PrivateKey, host: str
    ) -> None:
        with pytest.raises(ConfigError, match="without TLS"):
            run(
                parser().parse_args(
                    ["run", *words(folder, f"mqtt://{host}", trust=str(folder / "trust.pem"))]
                )
            )

    def test_one_process_for_a_state_folder(self, folder: Path, root: PrivateKey) -> None:
        with (
            only_process(folder / "state"),
            pytest.raises(ConfigError, match="is in use by another process"),
        ):
            run(parser().parse_args(["run", *words(folder, trust=str(folder / "trust.pem"))]))
