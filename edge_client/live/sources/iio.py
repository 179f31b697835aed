"""Samples from a sensor that Linux knows as an Industrial I/O device (``/sys/bus/iio``).

With the device's buffer, scans come from ``/dev/iio:deviceN`` with the kernel's time of the
measurement; sensors that need a trigger must have one set (Documentation/iio/iio_devbuf.rst).
Without the buffer (``buffered = false``), each channel's ``in_NAME_raw`` is read at the configured
rate. In both cases a value is (raw + offset) x scale, in the units of the kernel: m/s^2, rad/s,
Gauss. A channel's address is its name in sysfs without ``in_``: ``accel_x``, ``anglvel_z``.
"""

import logging
import os
import re
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_client.data.recordings.resampling import Samples
from edge_client.live.sources.tally import Tally
from wire.arrays.tensors import Array
from wire.errors import ConfigError

log = logging.getLogger("shoal.edge")

SYSFS, DEV = Path("/sys/bus/iio/devices"), Path("/dev")
TYPE = re.compile(r"(be|le):([su])(\d+)/(\d+)(?:X(\d+))?>>(\d+)\s*")
READ_BYTES = 2**16
CLOCKS = {
    "realtime": time.CLOCK_REALTIME,
    "monotonic": time.CLOCK_MONOTONIC,
    "boottime": getattr(time, "CLOCK_BOOTTIME", 7),
}


@dataclass(frozen=True)
class _Element:
    """Element of a scan: its place in the sequence, its storage format, and its conversion."""

    name: str
    index: int
    order: str
    is_signed: bool
    bits: int
    num_bytes: int
    shift: int
    offset: float = 0.0
    scale: float = 1.0


class IioSource:
    """Reader of one device; `device` is its number or the name that its driver gives it."""

    is_over = False

    def __init__(
        self,
        device: str,
        addresses: Sequence[str],
        rate_hz: float,
        *,
        buffered: bool = True,
        sysfs: Path = SYSFS,
        dev: Path = DEV,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Open the device, and enable its buffer if it is to be used.

        Raises:
            ConfigError: there is no such device, it lacks a channel, or it cannot be set up.
        """
        self._folder = _device_folder(sysfs, device)
        self._addresses, self._rate_hz, self._wall = list(addresses), rate_hz, wall
        self._file, self._rest = -1, b""
        self._next_s = 0.0
        self.ignored = Tally(f"a sample of {self._folder}")
        self._values = {
            name: (self._number(name, "offset", 0.0), self._number(name, "scale", 1.0))
            for name in addresses
        }
        try:
            if buffered:
                self._elements = self._set_up()
                self._file = os.open(dev / self._folder.name, os.O_RDONLY | os.O_NONBLOCK)
            else:
                self._poll()
        except OSError as error:
            raise ConfigError(
                f"{error.filename or self._folder}: {error.strerror}; may this user read and "
                "write it?"
            ) from None

    def read(self, timeout_s: float) -> list[Samples]:
        return self._read_scans(timeout_s) if self._file >= 0 else self._read_polled(timeout_s)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            try:
                (self._folder / "buffer" / "enable").write_text("0")
            except OSError as error:
                log.warning(
                    "Buffer of the sensor stays enabled: device=%s: %s",
                    self._folder,
                    error.strerror,
                )

    def _read_polled(self, timeout_s: float) -> list[Samples]:
        """Return rows that are read at the configured rate until the time is over."""
        end_s, t, rows = time.monotonic() + timeout_s, list[float](), list[list[float]]()
        while (wait_s := self._next_s - time.monotonic()) < end_s - time.monotonic():
            time.sleep(max(0.0, wait_s))
            self._next_s = max(self._next_s + 1 / self._rate_hz, time.monotonic())
            try:
                rows.append(self._poll())
                t.append(self._wall())
            except (OSError, ValueError) as error:
                self.ignored.add(str(error))
        return [Samples(np.array(t), np.array(rows))] if t else []

    def _poll(self) -> list[float]:
        return [
            (float((self._folder / f"in_{name}_raw").read_text()) + offset) * scale
            for name, (offset, scale) in ((name, self._values[name]) for name in self._addresses)
        ]

    def _read_scans(self, timeout_s: float) -> list[Samples]:
        if not select.select([self._file], [], [], timeout_s)[0]:
            return []
        try:
            data = os.read(self._file, READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            self.ignored.add(str(error))
            time.sleep(timeout_s)
            return []
        if not data:  # the device has no further scans for now
            time.sleep(timeout_s)
        size, places = _layout(self._elements)
        scans, self._rest = _split(self._rest + data, size)
        if not len(scans):
            return []
        columns = {e.name: _column(scans, e, places[e.name]) for e in self._elements}
        stamps = columns.pop("timestamp", None)
        if stamps is None:  # evenly spaced, the last one now
            t = self._wall() - np.arange(len(scans) - 1, -1, -1) / self._rate_hz
        else:
            t = stamps / 1e9 + (self._wall() - time.clock_gettime(self._clock))
        values = np.stack([columns[name] for name in self._addresses], axis=1)
        return [Samples(t, values)]

    def _set_up(self) -> list[_Element]:
        """Enable the channels, the time stamp and the buffer; return the elements of a scan."""
        scan = self._folder / "scan_elements"
        (self._folder / "buffer" / "enable").write_text("0")
        enable_paths = {path.name[3:-3]: path for path in scan.glob("in_*_en")}
        if missing := [name for name in self._addresses if name not in enable_paths]:
            raise ConfigError(
                f"{scan}: no channel {missing[0]!r}. Known channels: "
                f"{', '.join(sorted(enable_paths))}."
            )
        wanted = {*self._addresses, *({"timestamp"} & enable_paths.keys())}
        for name, path in enable_paths.items():
            path.write_text("1" if name in wanted else "0")
        frequency = self._folder / "sampling_frequency"
        if frequency.exists():
            frequency.write_text(f"{self._rate_hz:g}")
        clock = self._folder / "current_timestamp_clock"
        self._clock = (
            CLOCKS.get(clock.read_text().strip(), time.CLOCK_REALTIME)
            if clock.exists()
            else time.CLOCK_REALTIME
        )
        (self._folder / "buffer" / "length").write_text(str(max(16, int(2 * self._rate_hz))))
        elements = sorted((self._element(scan, name) for name in wanted), key=lambda e: e.index)
        (self._folder / "buffer" / "enable").write_text("1")
        return elements

    def _element(self, scan: Path, name: str) -> _Element:
        text = (scan / f"in_{name}_type").read_text()
        fits = TYPE.fullmatch(text)
        if (
            fits is None
            or fits[5] not in (None, "1")
            or int(fits[4]) not in (8, 16, 32, 64)
            or not 0 < int(fits[3]) <= int(fits[4])
        ):
            raise ConfigError(
                f"{scan}/in_{name}_type must be like le:s12/16>>4, got {text.strip()!r}"
            )
        index = int((scan / f"in_{name}_index").read_text())
        offset, scale = self._values.get(name, (0.0, 1.0))
        return _Element(
            name,
            index,
            fits[1],
            fits[2] == "s",
            int(fits[3]),
            int(fits[4]) // 8,
            int(fits[6]),
            offset,
            scale,
        )

    def _number(self, name: str, what: str, default: float) -> float:
        """Return the value that sysfs has for a channel or for its kind, otherwise the default.

        Raises:
            ConfigError: the value cannot be read.
        """
        for stem in (name, name.rsplit("_", 1)[0]):
            path = self._folder / f"in_{stem}_{what}"
            if path.exists():
                try:
                    return float(path.read_text())
                except (OSError, ValueError) as error:
                    raise ConfigError(f"{path}: {error}") from None
        return default


def _device_folder(sysfs: Path, device: str) -> Path:
    if device.isdigit() and (sysfs / f"iio:device{device}").is_dir():
        return sysfs / f"iio:device{device}"
    names = {}
    for folder in sorted(sysfs.glob("iio:device*")):
        try:
            names[(folder / "name").read_text().strip()] = folder
        except OSError:
            continue
    if device not in names:
        raise ConfigError(
            f"{sysfs}: no device {device!r}. Known devices: {', '.join(names) or 'none'}."
        )
    return names[device]


def _layout(elements: Sequence[_Element]) -> tuple[int, dict[str, int]]:
    """Return the size of a scan and the offset of each element (bytes).

    Each element lies at a multiple of its size; the scan's size is a multiple of the largest.
    """
    at, places = 0, {}
    for element in elements:
        at = -(-at // element.num_bytes) * element.num_bytes
        places[element.name] = at
        at += element.num_bytes
    largest = max(element.num_bytes for element in elements)
    return -(-at // largest) * largest, places


def _split(data: bytes, size: int) -> tuple[Array, bytes]:
    count = len(data) // size
    return np.frombuffer(data, np.uint8, count * size).reshape(count, size), data[count * size :]


def _column(scans: Array, element: _Element, at: int) -> Array:
    kind = f"{'<' if element.order == 'le' else '>'}u{element.num_bytes}"
    raw = (
        np.ascontiguousarray(scans[:, at : at + element.num_bytes])
        .view(kind)[:, 0]
        .astype(np.uint64)
    )
    number = (raw >> np.uint64(element.shift)) & np.uint64((1 << element.bits) - 1)
    if element.is_signed:
        sign_shift = np.uint64(64 - element.bits)
        signed = (number << sign_shift).astype(np.int64) >> np.int64(64 - element.bits)
    else:
        signed = number.astype(np.float64) if element.bits == 64 else number.astype(np.int64)
    return np.asarray((signed.astype(np.float64) + element.offset) * element.scale)
