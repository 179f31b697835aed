"""Conversion of decoded payloads of sensors (JSON or CBOR) to samples.

A payload is a number, an object with several fields, or a list of these. The *name* of a value is
its topic and the fields that lead to it, joined by ``/``: ``zigbee2mqtt/wrist/accel/x``. A channel
takes the values whose name is its *address*, or ends with ``/`` and its address. The address is the
channel's own name unless the settings give another. All other fields are ignored, except two:

* a time stamp, in a field of `TIMES`: Unix time in seconds, milli-, micro- or nanoseconds,
  distinguished by their size, or text in ISO 8601. A time before the year 2001 counts from an
  unknown start, such as the start of the sensor. Its first sample gets the time of its arrival.
* ``label``, a text.

A list holds samples: objects, lists of numbers (all channels in order), or numbers under a
channel's name. Samples without a time stamp come `rate_hz` times a second if the rate is known, the
last of them at the arrival of the payload. Without a known rate each gets the time of its arrival.
Values that are not finite are ignored.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from edge_client.data.recordings.resampling import Samples
from edge_client.live.sources import cbor
from wire.errors import DataError

TIMES = ("t", "time", "timestamp", "ts", "last_seen", "last_updated", "last_changed")
"""Fields with a time stamp; the last three are Zigbee2MQTT's and Home Assistant's."""
FIRST_S = 1e9
"""Smallest time stamp that is Unix time; smaller ones count from an unknown start."""
MOST_SAMPLES = 100_000
"""Maximum number of samples in one payload."""
MOST_BYTES = 2**20
"""Size of the longest payload or line that is read."""
FOLLOWED = 0.05
"""Share by which times without a stamp are corrected towards the clock at each payload."""
SLACK_S = 2.0
"""Largest difference from the expected time; beyond it the times start anew."""
MOST_NAMES, LONGEST_NAME = 10_000, 256
"""Maximum number of names and topics that are remembered, and their maximum length."""
_WORDS = {"on": 1.0, "off": 0.0, "true": 1.0, "false": 0.0}


def decode_payload(payload: bytes) -> Any:
    """Return a payload decoded as JSON; if that fails, as CBOR; if that fails, as a word.

    Raises:
        DataError: it is none of them, or longer than `MOST_BYTES`.
    """
    if len(payload) > MOST_BYTES:
        raise DataError(f"a payload of {len(payload)} bytes: at most {MOST_BYTES} are read")
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        pass
    try:
        return cbor.decode(payload)
    except DataError as error:
        if (text := payload.decode(errors="replace").strip()).isprintable() and text:
            return text
        raise DataError(
            f"a payload of {len(payload)} bytes is neither JSON nor CBOR: {error}"
        ) from None


class Readings:
    """Collector of samples from payloads."""

    def __init__(
        self,
        channels: Sequence[str],
        addresses: Mapping[str, str] | None = None,
        rate_hz: float = 0.0,
    ) -> None:
        """Start without samples.

        Args:
            channels: names of the channels.
            addresses: addresses by channel, for channels whose address is not their own name.
            rate_hz: rate of samples without a time stamp, 0 if unknown.
        """
        self._addresses = [(addresses or {}).get(name, name) for name in channels]
        self._rate_hz, self._width = rate_hz, len(channels)
        self._places: dict[str, int] = {}
        self._t: list[float] = []
        self._rows: list[list[float]] = []
        self._labels: list[str] = []
        self._labelled = False
        self._offset_s, self._relative_s = math.nan, math.nan
        self._last_s: dict[str, float] = {}

    def __len__(self) -> int:
        """Return the number of collected samples."""
        return len(self._t)

    def add(self, value: Any, arrived_s: float, topic: str = "") -> int:
        """Add the samples of a decoded payload, and return their number.

        Raises:
            DataError: the payload has too many samples, or is nested too deeply.
        """
        samples: list[tuple[float | None, list[float], str]] = []
        try:
            self._collect(value, topic, samples)
        except RecursionError:
            raise DataError("a payload has too many lists and objects inside each other") from None
        if not samples:
            return 0
        untimed = sum(1 for t, _, _ in samples if t is None)
        step_s, at_s = self._steps(topic, arrived_s, untimed)
        for t, row, label in samples:
            if t is None:
                at_s += step_s
            self._t.append(at_s if t is None else self._anchored(t, arrived_s))
            self._rows.append(row)
            self._labels.append(label)
            self._labelled |= bool(label)
        return len(samples)

    def take(self) -> list[Samples]:
        """Return the samples since the last call, as a list of one or none."""
        if not self._t:
            return []
        labels = tuple(self._labels) if self._labelled else ()
        samples = Samples(np.array(self._t, np.float64), np.array(self._rows, np.float64), labels)
        self._t, self._rows, self._labels, self._labelled = [], [], [], False
        return [samples]

    def _collect(
        self, value: Any, name: str, readings: list[tuple[float | None, list[float], str]]
    ) -> None:
        if isinstance(value, list):
            _check_count(len(readings) + len(value))
            if self._place(name) >= 0:
                for one in value:
                    self._put_one(self._place(name), one, readings)
            else:
                for one in value:
                    if isinstance(one, dict):
                        self._object(one, name, readings)
                    elif isinstance(one, list) and len(one) == self._width:
                        row = [math.nan if (n := _number(v)) is None else n for v in one]
                        readings.append((None, row, ""))
        elif isinstance(value, dict):
            self._object(value, name, readings)
        elif (place := self._place(name)) >= 0:
            self._put_one(place, value, readings)

    def _put_one(
        self, place: int, value: Any, readings: list[tuple[float | None, list[float], str]]
    ) -> None:
        if (number := _number(value)) is not None:
            row = [math.nan] * self._width
            row[place] = number
            readings.append((None, row, ""))

    def _object(
        self,
        value: dict[Any, Any],
        name: str,
        readings: list[tuple[float | None, list[float], str]],
    ) -> None:
        time = next((value[key] for key in TIMES if key in value), None)
        label = value.get("label")
        label = label if isinstance(label, str) else ""
        fields: dict[int, Any] = {}
        self._fields(value, name, fields, 0)
        length = max((len(v) for v in fields.values() if isinstance(v, list)), default=0)
        _check_count(len(readings) + length)
        if length:
            times = time if isinstance(time, list) else [None] * length
            for i in range(length):
                row = [math.nan] * self._width
                for place, item in fields.items():
                    if (
                        isinstance(item, list)
                        and i < len(item)
                        and (number := _number(item[i])) is not None
                    ):
                        row[place] = number
                readings.append((_seconds(times[i]) if i < len(times) else None, row, label))
        elif fields or label:
            row = [math.nan] * self._width
            for place, item in fields.items():
                if (number := _number(item)) is not None:
                    row[place] = number
            if label or any(n == n for n in row):
                readings.append((_seconds(time), row, label))
        else:
            for key, item in value.items():  # lists of samples below a name that is not a channel's
                if isinstance(item, list):
                    self._collect(item, f"{name}/{key}", readings)

    def _fields(self, value: dict[Any, Any], name: str, fields: dict[int, Any], depth: int) -> None:
        for key, item in value.items():
            place = self._place(f"{name}/{key}" if name else str(key))
            if isinstance(item, dict):
                if depth < 4:
                    self._fields(item, f"{name}/{key}" if name else str(key), fields, depth + 1)
            elif place >= 0:
                fields[place] = item

    def _place(self, name: str) -> int:
        """Return the index of the channel that takes values of this name, -1 if there is none."""
        place = self._places.get(name)
        if place is None:
            fits = (
                i
                for i, address in enumerate(self._addresses)
                if name == address or name.endswith("/" + address)
            )
            place = next(fits, -1)
            if len(self._places) < MOST_NAMES and len(name) <= LONGEST_NAME:
                self._places[name] = place
        return place

    def _steps(self, topic: str, arrived_s: float, count: int) -> tuple[float, float]:
        """Return the interval of samples without a time stamp, and the time before the first."""
        if not self._rate_hz or not count:
            return 0.0, arrived_s
        last_s, length_s = self._last_s.get(topic, math.nan), count / self._rate_hz
        ahead_s = arrived_s - (last_s + length_s)
        begin_s = last_s if abs(ahead_s) <= SLACK_S else arrived_s - length_s
        end_s = begin_s + length_s + (FOLLOWED * ahead_s if abs(ahead_s) <= SLACK_S else 0.0)
        if len(topic) <= LONGEST_NAME:
            self._last_s.pop(topic, None)
            self._last_s[topic] = end_s
        if len(self._last_s) > MOST_NAMES:  # drop the topic that was silent for longest
            del self._last_s[next(iter(self._last_s))]
        return (end_s - begin_s) / count, begin_s

    def _anchored(self, t: float, arrived_s: float) -> float:
        if t >= FIRST_S:
            return t
        if not abs(t - self._relative_s) <= SLACK_S:
            self._offset_s = arrived_s - t if not t > self._relative_s else self._offset_s
        self._relative_s = t
        return t + self._offset_s


def _check_count(count: int) -> None:
    if count > MOST_SAMPLES:
        raise DataError(f"a payload of {count} samples: at most {MOST_SAMPLES} are read")


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _WORDS:
            return _WORDS[word]
        try:
            value = float(word)
        except ValueError:
            return None
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None
    return None


def _seconds(value: Any) -> float | None:
    """Return a time stamp in seconds, None if the value is not a time stamp."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            pass
    number = None if isinstance(value, bool) else _number(value)
    if number is None:
        return None
    for beyond, unit in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
        if abs(number) >= beyond:
            return number / unit
    return number
