"""Sources of samples, each by the same contract, and what is particular to each."""

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_client.live.samples import Source
from edge_client.live.sources.folder import FolderSource
from edge_client.live.sources.iio import IioSource
from edge_client.live.sources.mqtt import MqttSource
from edge_client.live.sources.readings import Readings
from edge_client.live.sources.stdin import StdinSource
from tests.contracts.sample_source import Feed, SampleSourceContract, Spoil, collect
from wire.arrays.tensors import Array
from wire.errors import ConfigError
from wire.links.mqtt import BrokerAddress, MqttLink

CHANNELS = ("a", "b")


def readings(rate_hz: float = 0.0) -> Readings:
    return Readings(CHANNELS, rate_hz=rate_hz)


class TestStdin(SampleSourceContract):
    @pytest.fixture
    def pipe(self) -> Iterator[tuple[int, int]]:
        ends = os.pipe()
        yield ends
        for end in ends:
            os.close(end)

    @pytest.fixture
    def source(self, pipe: tuple[int, int]) -> Source:
        return StdinSource(readings(), pipe[0])

    @pytest.fixture
    def feed(self, pipe: tuple[int, int]) -> Feed:
        def write(t: Array, values: Array) -> None:
            for at_s, (a, b) in zip(t.tolist(), values.tolist(), strict=True):
                os.write(pipe[1], json.dumps({"t": at_s, "a": a, "b": b}).encode() + b"\n")

        return write

    @pytest.fixture
    def spoil(self, pipe: tuple[int, int]) -> Spoil:
        return lambda: (os.write(pipe[1], b"{not json\n"), None)[1]

    def test_it_is_over_at_the_end_and_reads_a_last_line_without_an_end(self) -> None:
        read, write = os.pipe()
        os.write(write, b'{"t": 1800000000, "a": 1, "b": 2}')
        os.close(write)
        source = StdinSource(readings(), read)
        assert collect(source, 1).values.tolist() == [[1, 2]]
        assert source.is_over
        os.close(read)


class TestFolder(SampleSourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        (tmp_path / "in").mkdir()
        return FolderSource(tmp_path / "in", readings, tmp_path / "done", 50.0, settled_s=0.0)

    @pytest.fixture
    def feed(self, tmp_path: Path) -> Feed:
        def write(t: Array, values: Array) -> None:
            rows = [
                f"{at_s!r},{a},{b}"
                for at_s, (a, b) in zip(t.tolist(), values.tolist(), strict=True)
            ]
            arrive(tmp_path / "in" / "one.csv", "\n".join(["t,a,b", *rows]))

        return write

    @pytest.fixture
    def spoil(self, tmp_path: Path) -> Spoil:
        return lambda: arrive(tmp_path / "in" / "bad.jsonl", "{not json\n")

    def test_a_file_is_read_once_also_after_a_restart(
        self, tmp_path: Path, source: Source, feed: Feed
    ) -> None:
        feed(time.time() + np.arange(5) / 50, np.ones((5, 2)))
        assert len(collect(source, 5).t) == 5
        source.read(0.0)
        again = FolderSource(tmp_path / "in", readings, tmp_path / "done", 50.0, settled_s=0.0)
        assert again.read(0.0) == []
        arrive(
            tmp_path / "in" / "two.jsonl", '{"t": 1800000000, "a": 7, "b": 8, "label": "walk"}\n'
        )
        samples = collect(again, 1)
        assert (samples.values.tolist(), samples.labels) == ([[7, 8]], ("walk",))

    @pytest.mark.parametrize("header", ["a,b", "t,a,b"])
    def test_a_recording_without_a_clock_ends_when_the_file_was_changed(
        self, tmp_path: Path, source: Source, header: str
    ) -> None:
        rows = [f"{i / 50},{i},0" if header.startswith("t") else f"{i},0" for i in range(100)]
        arrive(tmp_path / "in" / "one.csv", "\n".join([header, *rows]))
        samples = collect(source, 100)
        np.testing.assert_allclose(np.diff(samples.t), 0.02, atol=1e-5)
        assert samples.t[-1] == pytest.approx(
            (tmp_path / "in" / "one.csv").stat().st_mtime, abs=0.001
        )

    def test_a_file_that_still_changes_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        source = FolderSource(tmp_path / "in", readings, tmp_path / "done", 50.0, settled_s=60.0)
        arrive(tmp_path / "in" / "one.csv", "a,b\n1,2")
        assert source.read(0.0) == []

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no such folder"):
            FolderSource(tmp_path / "none", readings, tmp_path / "done", 50.0)


def arrive(path: Path, text: str) -> None:
    """A file comes into a folder whole."""
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


class TestMqtt(SampleSourceContract):
    @pytest.fixture
    def sender(self, mosquitto: str) -> Iterator[MqttLink]:
        link = MqttLink(BrokerAddress.parse(mosquitto), "sensor")
        yield link
        link.close()

    @pytest.fixture
    def labels(self) -> list[bytes]:
        return []

    @pytest.fixture
    def source(self, mosquitto: str, sender: MqttLink, labels: list[bytes]) -> Iterator[Source]:
        link = MqttLink(BrokerAddress.parse(mosquitto), "recorder", persistent=False)
        source = MqttSource(link, ["imu/#"], readings(), "activity", labels.append)
        sender.subscribe("imu/ready")
        while not any(
            getattr(e, "topic", "") == "imu/ready" for e in [sender.receive(0.1)]
        ):  # the subscription is in place
            sender.publish("imu/ready", b"{}")
        time.sleep(0.3)
        source.read(0.1)
        yield source
        source.close()

    @pytest.fixture
    def feed(self, sender: MqttLink) -> Feed:
        def publish(t: Array, values: Array) -> None:
            for at_s, (a, b) in zip(t.tolist(), values.tolist(), strict=True):
                sender.publish(
                    "imu/wrist",
                    json.dumps({"timestamp": round(at_s * 1000), "a": a, "b": b}).encode(),
                )

        return publish

    @pytest.fixture
    def spoil(self, sender: MqttLink) -> Spoil:
        return lambda: sender.publish("imu/wrist", b"\xff\xfe\x00")

    def test_labels_come_on_a_topic_of_their_own(
        self, source: Source, sender: MqttLink, labels: list[bytes]
    ) -> None:
        sender.publish("activity", b"walking")
        end_s = time.monotonic() + 5
        while not labels and time.monotonic() < end_s:
            source.read(0.1)
        assert labels == [b"walking"]


ELEMENTS = {"a": (0, "le:s12/16>>4"), "b": (1, "be:u14/32>>2"), "timestamp": (2, "le:s64/64>>0")}


def sysfs(root: Path) -> Path:
    """Return the kernel's files of a device with two channels; its buffer's file is a pipe."""
    device = root / "sys" / "iio:device3"
    for folder in ("scan_elements", "buffer"):
        (device / folder).mkdir(parents=True)
    files = {
        "name": "fake6",
        "in_a_scale": "0.5",
        "in_b_offset": "-100",
        "in_a_raw": "7",
        "in_b_raw": "103",
        "buffer/enable": "0",
    }
    for name, (index, kind) in ELEMENTS.items():
        files |= {
            f"scan_elements/in_{name}_{what}": str(v)
            for what, v in (("en", 0), ("index", index), ("type", kind))
        }
    for name, text in (
        files | {"buffer/length": "0", "sampling_frequency": "10", "scan_elements/in_c_en": "1"}
    ).items():
        (device / name).write_text(text + "\n")
    (root / "dev").mkdir()
    os.mkfifo(root / "dev" / "iio:device3")
    return device


class TestIio(SampleSourceContract):
    @pytest.fixture
    def device(self, tmp_path: Path) -> Path:
        return sysfs(tmp_path)

    @pytest.fixture
    def source(self, tmp_path: Path, device: Path) -> Iterator[Source]:
        source = IioSource("fake6", CHANNELS, 50.0, sysfs=tmp_path / "sys", dev=tmp_path / "dev")
        yield source
        source.close()

    @pytest.fixture
    def writer(self, tmp_path: Path, source: Source) -> Iterator[int]:
        end = os.open(tmp_path / "dev" / "iio:device3", os.O_WRONLY)
        yield end
        os.close(end)

    @pytest.fixture
    def feed(self, writer: int) -> Feed:
        def scan(t: Array, values: Array) -> None:
            for at_s, (a, b) in zip(t.tolist(), values.tolist(), strict=True):
                raw_a, raw_b = (round(a / 0.5) & 0xFFF) << 4, round(b + 100) << 2
                os.write(
                    writer,
                    struct.pack("<Hxx", raw_a)
                    + struct.pack(">I", raw_b)
                    + struct.pack("<q", round(at_s * 1e9)),
                )

        return scan

    @pytest.fixture
    def spoil(self) -> Spoil:
        return lambda: None

    def test_what_cannot_be_read_is_counted_and_what_comes_after_is_read(
        self, source: Source, feed: Feed, spoil: Spoil
    ) -> None:
        """The kernel writes whole scans alone; what can fail is a file that is read without a
        buffer."""
        source.close()
        device, root = source._folder, source._folder.parent.parent  # type: ignore[attr-defined]
        polled = IioSource(
            "3", CHANNELS, 50.0, buffered=False, sysfs=root / "sys", dev=root / "dev"
        )
        (device / "in_a_raw").write_text("")
        assert polled.read(0.1) == []
        (device / "in_a_raw").write_text("8")
        assert collect(polled, 1).values[0].tolist() == [4.0, 3.0]
        assert polled.ignored.count >= 1

    def test_the_device_is_set_up_for_these_channels(self, device: Path, source: Source) -> None:
        held = {p.name: p.read_text().strip() for p in (device / "scan_elements").glob("*_en")}
        assert held == {"in_a_en": "1", "in_b_en": "1", "in_timestamp_en": "1", "in_c_en": "0"}
        assert (device / "sampling_frequency").read_text() == "50"
        assert (device / "buffer" / "enable").read_text() == "1"
        source.close()
        assert (device / "buffer" / "enable").read_text() == "0"

    def test_without_a_buffer_channels_are_read_one_by_one(
        self, tmp_path: Path, device: Path
    ) -> None:
        source = IioSource(
            "3", CHANNELS, 50.0, buffered=False, sysfs=tmp_path / "sys", dev=tmp_path / "dev"
        )
        samples = collect(source, 10)
        assert samples.values[:10].tolist() == [[3.5, 3.0]] * 10
        assert np.diff(samples.t[1:]).mean() == pytest.approx(0.02, abs=0.01)

    @pytest.mark.parametrize(
        ("device_name", "channels", "error"),
        [("none", CHANNELS, "no device 'none'"), ("3", ("a", "z"), "no channel 'z'")],
    )
    def test_what_is_not_there(
        self, tmp_path: Path, device: Path, device_name: str, channels: tuple[str, ...], error: str
    ) -> None:
        with pytest.raises(ConfigError, match=error):
            IioSource(device_name, channels, 50.0, sysfs=tmp_path / "sys", dev=tmp_path / "dev")

    def test_a_type_that_is_not_known(self, tmp_path: Path, device: Path) -> None:
        (device / "scan_elements" / "in_a_type").write_text("le:s12/16X2>>4")
        with pytest.raises(ConfigError, match="in_a_type"):
            IioSource("3", CHANNELS, 50.0, sysfs=tmp_path / "sys", dev=tmp_path / "dev")
