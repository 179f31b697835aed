"""Hostile samples: over the samples' broker, into standard input, into the folder of recordings."""

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.data.recordings import resampling
from edge_client.data.recordings.resampling import LONGEST_S as BRIDGED_S
from edge_client.data.recordings.resampling import MOST_STEPS, Resampler, Samples, Stretch
from edge_client.live.recorder import AHEAD_S, Recorder
from edge_client.live.ring import Ring, read_records, ring_files
from edge_client.live.sources import folder as folder_module
from edge_client.live.sources.folder import FolderSource
from edge_client.live.sources.mqtt import MqttSource
from edge_client.live.sources.readings import (
    LONGEST_NAME,
    MOST_BYTES,
    MOST_NAMES,
    MOST_SAMPLES,
    Readings,
    decode_payload,
)
from edge_client.live.sources.stdin import StdinSource
from edge_client.live.sources.tally import Tally
from host.files import open_regular
from wire.arrays.tensors import Array
from wire.errors import DataError
from wire.links.in_process import InProcessBroker

T0_S, NOW_S, RATE_HZ = 1_700_000_000.0, 1_700_100_000.0, 50.0
SECRET = "MIGHAgEAMBMGByqGSM49"


def samples(t: Array, channels: int = 1) -> Samples:
    return Samples(t, np.ones((len(t), channels)))


class TestResampling:
    @pytest.mark.parametrize("apart_s", [1.0, BRIDGED_S - 0.1, 11.0, 4e4, 1e6, 1e12])
    def test_samples_far_apart_make_few_steps(self, apart_s: float) -> None:
        resampler = Resampler(1, RATE_HZ)
        t = T0_S + np.arange(2000) * apart_s
        parts = [len(s.x) for s in (*resampler.push(samples(t)), *resampler.flush())]
        assert max(parts) <= MOST_STEPS
        assert sum(parts) <= len(t) * BRIDGED_S * RATE_HZ
        assert len(t) - 10 <= sum(parts)

    @given(
        st.lists(
            st.floats(allow_nan=True, allow_infinity=True) | st.floats(1.6e9, 1.8e9), max_size=60
        ),
        st.integers(1, 3),
    )
    def test_whatever_the_times_are(self, times: list[float], channels: int) -> None:
        resampler = Resampler(channels, RATE_HZ)
        with np.errstate(all="ignore"):
            found = [
                *resampler.push(samples(np.array(times, np.float64), channels)),
                *resampler.flush(),
            ]
        assert sum(len(s.x) for s in found) <= (len(times) + 1) * BRIDGED_S * RATE_HZ

    def test_a_slow_recording_of_slow_samples_has_no_gap(self) -> None:
        resampler = Resampler(1, 0.01, 0.5)
        found = [*resampler.push(samples(T0_S + np.arange(200) * 100.0)), *resampler.flush()]
        assert sum(len(s.x) for s in found) == pytest.approx(200, abs=10)

    def test_samples_of_one_moment_are_not_held_without_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resampling, "MOST_HELD", 2000)
        resampler = Resampler(1, RATE_HZ)
        list(resampler.push(samples(T0_S + np.arange(10_000) * 1e-5)))
        assert len(resampler._channels[0].t) <= 2000
        assert resampler.num_late >= 8000
        assert len(list(resampler.push(samples(T0_S + 10 + np.arange(200) / RATE_HZ)))) > 0

    def test_a_value_that_float32_does_not_hold_is_none(self) -> None:
        resampler = Resampler(1, RATE_HZ)
        values = np.ones((100, 1))
        values[50] = 1e300
        found = [
            *resampler.push(Samples(T0_S + np.arange(100) / RATE_HZ, values)),
            *resampler.flush(),
        ]
        assert np.concatenate([s.x for s in found]).tolist() == [[1.0]] * 100


class TestRing:
    @pytest.mark.parametrize(("count", "quota_bytes"), [(50_000, 2**16), (2**20 + 5, 2**28)])
    def test_a_stretch_that_is_larger_than_a_file_or_a_record_is_split(
        self, tmp_path: Path, count: int, quota_bytes: int
    ) -> None:
        ring = Ring(tmp_path, RATE_HZ, quota_bytes, 1e9, 100)
        ring.append(Stretch(T0_S, np.arange(count, dtype=np.float32)[:, None], True))
        ring.close()
        assert sum(path.stat().st_size for path in ring_files(tmp_path)) <= quota_bytes
        records = [
            record for path in ring_files(tmp_path) for record, _ in read_records(path.read_bytes())
        ]
        kept = np.concatenate([record.x[:, 0] for record in records])
        assert kept.tolist() == list(range(count - len(kept), count))
        assert len(kept) >= min(count, quota_bytes // 8)
        assert all(r.t0_s == pytest.approx(T0_S + r.x[0, 0] / RATE_HZ, abs=1e-3) for r in records)
        assert sum(r.begins for r in records) == (len(kept) == count)


class _Source:
    """Gives what is in the list; raises what is an exception."""

    def __init__(self, *parts: Samples | Exception) -> None:
        self._parts, self.ignored, self.is_over = list(parts), Tally("a part"), not parts

    def read(self, timeout_s: float) -> list[Samples]:
        part = self._parts.pop(0)
        self.is_over = not self._parts
        if isinstance(part, Exception):
            raise part
        return [part]

    def close(self) -> None:
        self._parts = []


class TestRecorder:
    def test_times_far_ahead_are_not_recorded(self, caplog: pytest.LogCaptureFixture) -> None:
        t = np.concatenate(
            [NOW_S + np.arange(100) / RATE_HZ, NOW_S + AHEAD_S + 60 + np.arange(40) * 1e5]
        )
        found: list[Stretch] = []
        recorder = Recorder(
            _Source(samples(t)),
            Resampler(1, RATE_HZ),
            RATE_HZ,
            on_stretch=found.append,
            wall=lambda: NOW_S,
        )
        recorder.run(lambda: False)
        assert max(s.t0_s for s in found) < NOW_S + 3
        assert "steps=100 lost=0 late=0 ignored=40" in str(recorder)
        assert (
            len(
                [
                    r
                    for r in caplog.records
                    if "are its clock and the sensor's set" in r.getMessage()
                ]
            )
            == 1
        )

    def test_what_nobody_has_foreseen_costs_what_came(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        good = samples(T0_S + np.arange(100) / RATE_HZ)
        source = _Source(
            good, *[KeyError("\x1b[2J")] * 3, samples(T0_S + 50 + np.arange(100) / RATE_HZ)
        )
        recorder = Recorder(source, Resampler(1, RATE_HZ), RATE_HZ)
        recorder.run(lambda: False)
        assert recorder.num_steps >= 170
        assert "ignored=3" in str(recorder)
        (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert "KeyError at test_live_hostile.py:" in record.getMessage()
        assert (record.exc_info, record.getMessage().isprintable()) == (None, True)


class TestReadings:
    @pytest.mark.parametrize("depth", range(100, 1000, 50))
    def test_a_deep_payload_is_nothing_worse_than_an_error(self, depth: int) -> None:
        readings = Readings(["x"], rate_hz=RATE_HZ)
        with contextlib.suppress(DataError):
            readings.add(decode_payload(b'{"a":[' * depth + b"1" + b"]}" * depth), NOW_S, "s/t")
        assert readings.take() == []

    def test_many_samples_in_several_lists(self) -> None:
        with pytest.raises(DataError, match="at most"):
            Readings(["x"]).add([{"x": [1] * (MOST_SAMPLES // 2)}] * 3, NOW_S)

    def test_a_long_payload(self) -> None:
        with pytest.raises(DataError, match="at most"):
            decode_payload(b"1" * (MOST_BYTES + 1))

    def test_many_topics_and_long_names_are_not_remembered(self) -> None:
        readings = Readings(["x"], rate_hz=RATE_HZ)
        readings.add({"n" * 10**6: 1, "x": 1}, NOW_S, "t" * 60_000)
        for i in range(MOST_NAMES + 100):
            readings.add({"x": 1}, NOW_S, f"topic/{i}")
        assert max(len(readings._last_s), len(readings._places)) <= MOST_NAMES
        assert max(map(len, (*readings._last_s, *readings._places))) <= LONGEST_NAME


class _Failing(Readings):
    def add(self, value: Any, arrived_s: float, topic: str = "") -> int:
        if value == {"bad": 1}:
            raise ZeroDivisionError("nobody has thought of it")
        return super().add(value, arrived_s, topic)


class TestLines:
    def test_standard_input(self, caplog: pytest.LogCaptureFixture) -> None:
        read, write = os.pipe()
        source = StdinSource(_Failing(["x"]), read)
        found: list[Samples] = []
        for chunk in (
            f'{SECRET}\n{{"{SECRET}": 1}}\n{{"bad":1}}\n'.encode(),
            *[b"[" * 2**15] * 40,
            b'\n{"t": 1700000000, "x": 1}\n',
        ):
            os.write(write, chunk)
            found += source.read(1.0)
        os.close(write)
        assert source.ignored.count == 4
        assert [s.values.tolist() for s in found] == [[[1.0]]]
        assert SECRET not in caplog.text
        os.close(read)

    def test_a_topic(self, caplog: pytest.LogCaptureFixture) -> None:
        broker = InProcessBroker()
        sender = broker.connect("sensor")

        def fail(_payload: bytes) -> None:
            raise ZeroDivisionError

        source = MqttSource(broker.connect("recorder"), ["imu/#"], _Failing(["x"]), "label", fail)
        for topic, payload in (
            ("imu/\x1b[2J", b'{"bad": 1}'),
            ("label", b"walk"),
            ("imu/a", b" " * 2**21),
            ("imu/a", b'{"x": 1}'),
        ):
            sender.publish(topic, payload)
        found = [one for _ in range(4) for one in source.read(0.05)]
        assert [s.values.tolist() for s in found] == [[[1.0]]]
        assert source.ignored.count == 3
        assert all(
            record.getMessage().isprintable() and not record.exc_info for record in caplog.records
        )


class TestFolder:
    @pytest.fixture
    def inbox(self, tmp_path: Path) -> Path:
        (tmp_path / "in").mkdir()
        return tmp_path / "in"

    def source(self, inbox: Path) -> FolderSource:
        return FolderSource(
            inbox, lambda: Readings(["x"]), inbox.parent / "done", RATE_HZ, settled_s=0.0
        )

    def read(self, source: FolderSource, times: int = 3) -> Array:
        return np.array(
            [v for _ in range(times) for s in source.read(0.0) for v in s.values[:, 0].tolist()]
        )

    def test_links_pipes_and_devices_are_not_read(
        self, inbox: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "key.pem").write_text(f"{SECRET}\n" * 5)
        (inbox / "a.jsonl").symlink_to(tmp_path / "key.pem")
        (inbox / "b.jsonl").symlink_to("/dev/zero")
        os.mkfifo(inbox / "c.csv")
        (inbox / "d.json").mkdir()
        (inbox / "e.csv").write_text("t,x\n1700000000,7\n")
        source = self.source(inbox)
        assert self.read(source, 12).tolist() == [7.0]
        assert source.ignored.count == 4
        assert SECRET not in caplog.text

    @pytest.mark.parametrize("path", ["/dev/zero", "/dev", "/proc/self/exe"])
    def test_what_is_not_a_regular_file_is_not_opened(self, path: str) -> None:
        with pytest.raises(OSError, match=r"not a regular file|symbolic links"):
            open_regular(Path(path))

    def test_the_log_does_not_get_what_a_file_says(
        self, inbox: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (inbox / "a.jsonl").write_text(f'{SECRET}\n{{"t": 1700000000, "x": 7}}\n"{SECRET}\n')
        (inbox / "b.csv").write_text(f"{SECRET},x\n" + '"' + SECRET * 10_000)
        source = self.source(inbox)
        assert self.read(source, 6).tolist() == [7.0]
        assert source.ignored.count >= 3
        assert (SECRET in caplog.text, "a.jsonl, line 1" in caplog.text) == (False, True)

    def test_long_lines_wide_tables_and_large_files(self, inbox: Path) -> None:
        line = '{"t": 1700000000, "x": %d}\n'
        (inbox / "a.jsonl").write_text(
            line % 1 + "[" * (3 * MOST_BYTES) + "\n" + line % 2 + "[" * (2 * MOST_BYTES)
        )
        (inbox / "b.csv").write_text(",".join("c" * 5000) + "\n" + "1\n" * 1000)
        with (inbox / "c.jsonl").open("w") as file:
            file.truncate(2**32)
        source = self.source(inbox)
        assert self.read(source, 8).tolist() == [1.0, 2.0]
        assert source.ignored.count == 4

    @pytest.mark.parametrize(
        "name",
        [b"a\nb.jsonl", b"\x1b[2J.jsonl", b"\xff\xfe.jsonl", "\u2028.jsonl".encode(), b"\\.jsonl"],
    )
    def test_a_name_of_any_bytes_is_read_once_also_after_a_restart(
        self, inbox: Path, name: bytes
    ) -> None:
        (inbox / os.fsdecode(name)).write_text('{"t": 1700000000, "x": 7}\n')
        (inbox / "other.jsonl").write_text('{"t": 1700000000, "x": 8}\n')
        assert sorted(self.read(self.source(inbox), 6).tolist()) == [7.0, 8.0]
        assert self.read(self.source(inbox), 6).tolist() == []

    def test_very_many_files(self, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder_module, "MOST_FILES", 20)
        monkeypatch.setattr(folder_module, "LOOK_S", 0.0)
        for i in range(50):
            (inbox / f"{i}.jsonl").write_text(f'{{"t": 1700000000, "x": {i}}}\n')
        source = self.source(inbox)
        assert sorted(self.read(source, 120).tolist()) == list(range(50))
        for path in inbox.iterdir():
            path.unlink()
        deadline_s = time.monotonic() + 5
        while (inbox.parent / "done").read_text() and time.monotonic() < deadline_s:
            assert source.read(0.01) == []
        assert (inbox.parent / "done").read_text() == ""

    def test_a_folder_that_goes_is_waited_for(self, inbox: Path) -> None:
        source = self.source(inbox)
        inbox.rmdir()
        assert self.read(source).tolist() == []
        inbox.mkdir()
        (inbox / "a.jsonl").write_text('{"t": 1700000000, "x": 7}\n')
        assert self.read(source).tolist() == [7.0]
