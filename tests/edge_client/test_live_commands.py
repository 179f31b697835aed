"""`shoal-edge record` and `predict --live` as processes, and what their settings may be."""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from edge_client.live.labelling.labels import Labels
from edge_client.live.settings import LiveSettings, live_settings
from edge_client.live.store import LiveData
from edge_client.options import parser
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, take_up
from tests.support.bundles import Exported
from tests.support.known import known
from tests.support.waiting import wait_until
from wire.errors import ConfigError
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery

EDGE = [sys.executable, "-m", "edge_client.main"]
RATE_HZ = 32.0
WHAT = ["--channels", "a,b", "--rate", str(RATE_HZ)]


def lines(seconds: int, begin_s: float = 1_700_000_100.0, label: str = "slow") -> str:
    rows = (
        {"t": begin_s + i / RATE_HZ, "a": np.sin(i / 3), "b": 0.5, "label": label}
        for i in range(int(seconds * RATE_HZ))
    )
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def write_all(to: IO[str], text: str) -> None:
    with contextlib.suppress(OSError):
        to.write(text)
    with contextlib.suppress(OSError):
        to.close()


def asked(*words: str) -> argparse.Namespace:
    return parser().parse_args(["record", "--state", "s", *words])


class TestRecord:
    def test_standard_input_becomes_windows(self, tmp_path: Path) -> None:
        command = [
            *EDGE,
            "record",
            "--source",
            "stdin",
            "--state",
            str(tmp_path),
            *WHAT,
            "--classes",
            "slow,fast",
            "--window",
            "32",
        ]
        done = subprocess.run(command, input=lines(300), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "Recorded: steps=9600 lost=0 late=0 ignored=0: " in done.stdout
        again = subprocess.run(
            command,
            input=lines(120, 1_700_001_000.0, ""),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "without a label" in again.stdout
        assert [int(part.split()[0]) > 0 for part in again.stdout.split(": ")[2].split(", ")] == [
            True
        ] * 3

    def test_a_quantity_that_comes_once_a_second_is_a_target(self, tmp_path: Path) -> None:
        begin_s, count = 1_700_000_100.0, int(300 * RATE_HZ)
        rows = [
            {"t": begin_s + i / RATE_HZ, "a": float(i), "b": 0.5}
            | ({"target.speed": i / RATE_HZ} if i % 32 == 0 else {})
            for i in range(count)
        ]
        said = ["--channels", "a,b,target.speed", "--rate", str(RATE_HZ), "--window", "32"]
        command = [*EDGE, "record", "--source", "stdin", "--state", str(tmp_path), *said]
        done = subprocess.run(
            command,
            input="\n".join(map(json.dumps, rows)) + "\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "ignored=0: " in done.stdout
        settings = live_settings(asked("--source", "stdin", *said))
        assert (settings.cut.channels, settings.classes) == (("a", "b"), ("speed",))
        windows = LiveData(
            tmp_path / "live", Labels(tmp_path / "live", ()), settings.cut, settings.classes
        ).now()
        assert windows.num_train > 100
        np.testing.assert_allclose(
            windows.train_y[:, 0], windows.train_x[:, 0].mean(1) / RATE_HZ, rtol=1e-4
        )

    def test_nothing_recorded_is_an_error(self, tmp_path: Path) -> None:
        command = [*EDGE, "record", "--source", "stdin", "--state", str(tmp_path), *WHAT]
        done = subprocess.run(
            command, input='{"x": 1}\nnot json\n', capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)
        assert "ignored=2" in done.stdout

    def test_one_process_records_into_a_folder(self, tmp_path: Path) -> None:
        command = [*EDGE, "record", "--source", "stdin", "--state", str(tmp_path), *WHAT]
        first = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(
                lambda: (
                    (tmp_path / "live" / "labels.jsonl").parent.exists()
                    and (tmp_path / "live" / "live.json").exists()
                )
            )
            second = subprocess.run(command, input="", capture_output=True, text=True, timeout=60)
            assert (second.returncode, "another process records there" in second.stderr) == (
                2,
                True,
            )
        finally:
            first.terminate()
            first.wait(20)


class TestSettings:
    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("stdin", {"kind": "stdin"}),
            ("folder:/data/in", {"kind": "folder", "path": "/data/in"}),
            ("iio:3", {"kind": "iio", "device": "3"}),
            (
                "mqtt://localhost:1884/zigbee2mqtt/#",
                {"kind": "mqtt", "broker": "mqtt://localhost:1884", "topics": ("zigbee2mqtt/#",)},
            ),
            (
                "mqtts://u:p@h/a/+/b",
                {"kind": "mqtt", "broker": "mqtts://u:p@h", "topics": ("a/+/b",)},
            ),
        ],
    )
    def test_short_forms(self, source: str, expected: dict[str, Any]) -> None:
        settings = live_settings(asked("--source", source, *WHAT))
        assert {name: getattr(settings.source, name) for name in expected} == expected
        assert (settings.cut.channels, settings.cut.rate_hz, settings.cut.length) == (
            ("a", "b"),
            RATE_HZ,
            128,
        )

    def test_a_file_and_options_that_count_more(self, tmp_path: Path) -> None:
        (tmp_path / "live.toml").write_text(
            '[window]\nchannels = ["a"]\nrate_hz = 10\nclasses = ["x"]\n[source]\nkind = "stdin"\n'
            "[ring]\nquota_bytes = 65536\n"
        )
        settings = live_settings(
            asked("--source", str(tmp_path / "live.toml"), "--rate", "20", "--page")
        )
        assert (settings.cut.rate_hz, settings.classes, settings.ring.quota_bytes) == (
            20,
            ("x",),
            65536,
        )
        assert settings.labels.page == "127.0.0.1:8765"

    def test_a_bundle_says_what_is_recorded(self, exported: Exported) -> None:
        bundle = str(exported.folder / "device.shoal")
        settings: LiveSettings = live_settings(
            asked("--source", "stdin", "--bundle", bundle, "--rate", "32")
        )
        assert (settings.cut.channels, settings.cut.length, settings.classes) == (
            ("a", "b"),
            32,
            ("slow", "middle", "fast"),
        )

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            (["--source", "stdin"], "--source stdin needs channels and a rate"),
            (["--source", "tape"], "--source must be FILE.toml, .*, got 'tape'"),
            (
                ["--source", "mqtt://host", *WHAT],
                "--source must be FILE.toml, .*, got 'mqtt://host'",
            ),
            (["--source", "none.toml"], "No such file"),
            (
                ["--source", "stdin", "--channels", "a,a", "--rate", "1"],
                "channels must be different, got a,a",
            ),
            (["--source", "stdin", "--bundle", "none.shoal"], "No such file"),
            (
                ["--source", "stdin", "--channels", "a,label.x,target.y", "--rate", "1"],
                "labels must be of one kind, got label.NAME and target.NAME",
            ),
            (
                ["--source", "stdin", "--channels", "a,target.y", "--rate", "1", "--steps", "4"],
                "labels must be of one kind, got steps in channels",
            ),
            (
                ["--source", "stdin", "--channels", "target.y", "--rate", "1"],
                "are all labels; add channels of samples",
            ),
            (
                ["--source", "stdin", *WHAT, "--steps", "5"],
                "steps must divide the 128 samples of a window, got 5",
            ),
        ],
    )
    def test_what_cannot_be_used(self, words: list[str], error: str) -> None:
        with pytest.raises(ConfigError, match=error):
            live_settings(asked(*words))

    @pytest.mark.parametrize(
        "text",
        [
            "[source]\n",
            '[source]\nkind = "tape"',
            '[source]\nkind = "stdin"\nspeed = 3',
            "[",
            "[ring]\nblock_s = 0",
        ],
    )
    def test_a_file_that_cannot_be_used_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "live.toml").write_text(text)
        with pytest.raises(ConfigError, match=r"live\.toml"):
            live_settings(asked("--source", str(tmp_path / "live.toml"), *WHAT))


@pytest.fixture
def state(fleet: FleetData, exported: Exported, tmp_path: Path) -> Path:
    """A state folder with a model in use."""
    device = Device(fleet, exported, tmp_path / "state")
    take_up(device)
    return tmp_path / "state"


class TestPredictLive:
    def test_from_a_source_of_its_own(self, state: Path) -> None:
        command = [*EDGE, "predict", "--live", "--state", str(state), "--source", "stdin", *WHAT]
        done = subprocess.run(command, input=lines(10), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert [answer["t"] for answer in answers] == [1_700_000_100.0 + i for i in range(10)]
        assert all(answer["class"] in ("slow", "middle", "fast") for answer in answers)
        assert not (state / "live").exists()  # nothing is recorded

    @pytest.mark.parametrize("live", [True, False])
    def test_it_ends_when_nobody_reads_its_answers_any_more(
        self, state: Path, tmp_path: Path, live: bool
    ) -> None:
        np.save(tmp_path / "x.npy", np.zeros((5000, 2, 32), np.float32))
        words = ["--live", "--source", "stdin", *WHAT] if live else [str(tmp_path / "x.npy")]
        command = [*EDGE, "predict", "--state", str(state), *words]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            stdin, stdout, stderr = (
                known(process.stdin),
                known(process.stdout),
                known(process.stderr),
            )
            feed = threading.Thread(target=write_all, args=(stdin, lines(3000) if live else ""))
            feed.start()
            assert json.loads(stdout.readline())["class"]
            stdout.close()
            assert (process.wait(60), stderr.read()) == (128 + signal.SIGPIPE, "")
            feed.join()

    def test_what_another_process_records_goes_to_a_topic(
        self, state: Path, mosquitto: str
    ) -> None:
        listener = MqttLink(BrokerAddress.parse(mosquitto), "listener")
        listener.subscribe("home/activity")
        record = [
            *EDGE,
            "record",
            "--source",
            "stdin",
            "--state",
            str(state),
            *WHAT,
            "--stride",
            "32",
        ]
        recorder = subprocess.Popen(
            record, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert recorder.stdin is not None
        recorder.stdin.write(lines(3))
        recorder.stdin.flush()
        wait_until(lambda: bool(list((state / "live").glob("*.samples"))))
        predict = [
            *EDGE,
            "predict",
            "--live",
            "--state",
            str(state),
            "--publish",
            f"{mosquitto}/home/activity",
        ]
        predictor = subprocess.Popen(predict)
        found: list[dict[str, Any]] = []
        try:
            second, end_s = 1_700_000_043.0, time.monotonic() + 30
            while len(found) < 5 and time.monotonic() < end_s:
                recorder.stdin.write(lines(1, second))
                recorder.stdin.flush()
                second += 1
                event = listener.receive(0.2)
                if isinstance(event, Delivery):
                    found.append(json.loads(event.payload))
        finally:
            for process in (predictor, recorder):
                process.terminate()
                process.wait(20)
            listener.close()
        assert len(found) >= 5
        assert np.diff([answer["t"] for answer in found]).tolist() == [1.0] * (len(found) - 1)

    def test_a_unix_socket_has_several_listeners(self, state: Path, tmp_path: Path) -> None:
        path = tmp_path / "answers"
        command = [
            *EDGE,
            "predict",
            "--live",
            "--state",
            str(state),
            "--source",
            "stdin",
            *WHAT,
            "--publish",
            f"unix:{path}",
        ]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        assert process.stdin is not None
        wait_until(path.exists)
        listeners = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for listener in listeners:
            listener.connect(str(path))
            listener.settimeout(10)
        process.stdin.write(lines(5))
        process.stdin.close()
        assert process.wait(30) == 0
        for listener in listeners:
            text = listener.makefile("rb").read()
            assert len([json.loads(line) for line in text.splitlines()]) == 5
            listener.close()
        assert not path.exists()

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            (["--source", "stdin", "--channels", "a", "--rate", "32"], "channel 'b'"),
            (["--publish", "http://x"], "--publish must be mqtt://"),
            ([], "live.json"),
        ],
    )
    def test_what_cannot_be_used_is_one_line(
        self, state: Path, words: list[str], error: str
    ) -> None:
        done = subprocess.run(
            [*EDGE, "predict", "--live", "--state", str(state), *words],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
        assert error in done.stderr


def test_data_and_source_exclude_each_other(tmp_path: Path) -> None:
    for words in ([], ["--data", str(tmp_path), "--source", "stdin"]):
        command = [*EDGE, "run", "--id", "d", "--state", str(tmp_path / "s"), "--insecure", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
        assert (done.returncode, "either --data" in done.stderr) == (2, True)
