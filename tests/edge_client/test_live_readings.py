"""Payloads of sensors."""

import contextlib
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.live.sources import cbor
from edge_client.live.sources.readings import Readings, decode_payload
from wire.errors import DataError

NOW_S = 1_800_000_000.0


def read(
    value: Any, topic: str = "", channels: tuple[str, ...] = ("a", "b"), **options: Any
) -> tuple[list[float], list[list[float | None]]]:
    """Times after NOW_S, and values, None where there are none."""
    readings = Readings(channels, **options)
    readings.add(value, NOW_S, topic)
    taken = readings.take()
    if not taken:
        return [], []
    rows = [[None if v != v else v for v in row] for row in taken[0].values.tolist()]
    return np.round(taken[0].t - NOW_S, 6).tolist(), rows


@pytest.mark.parametrize(
    ("value", "topic", "rows"),
    [
        (3.5, "home/a", [[3.5, None]]),
        ("3.5", "home/a", [[3.5, None]]),
        ("ON", "home/b", [[None, 1.0]]),
        ("unavailable", "home/a", []),
        (3.5, "home/other", []),
        (float("nan"), "home/a", []),
        (10**400, "home/a", []),
        ({"a": 1, "b": True, "linkquality": 80}, "zigbee2mqtt/wrist", [[1.0, 1.0]]),
        ({"a": None, "b": "unknown"}, "x", []),
        ({"a": 1}, "x", [[1.0, None]]),
        ([{"a": 1, "b": 2}, {"a": 3, "b": 4}], "x", [[1, 2], [3, 4]]),
        ([[1, 2], [3, 4], [5]], "x", [[1, 2], [3, 4]]),
        ({"a": [1, 2], "b": [3, None]}, "x", [[1, 3], [2, None]]),
        ([1, 2], "x/a", [[1, None], [2, None]]),
        ({"samples": [[1, 2]], "unit": "g"}, "x", [[1, 2]]),
        ([], "x", []),
        (None, "x/a", []),
    ],
)
def test_shapes_of_payloads(value: Any, topic: str, rows: list[list[float | None]]) -> None:
    assert read(value, topic) == ([0.0] * len(rows), rows)


def test_addresses_lead_into_objects_and_through_topics() -> None:
    addresses = {"a": "accel/x", "b": "zigbee2mqtt/hall/illuminance"}
    assert read(
        {"accel": {"x": 1, "y": 2}, "illuminance": 9}, "zigbee2mqtt/hall", addresses=addresses
    )[1] == [[1, 9]]
    assert read({"illuminance": 9}, "zigbee2mqtt/porch", addresses=addresses)[1] == []


@pytest.mark.parametrize(
    "stamp",
    [
        NOW_S - 2,
        (NOW_S - 2) * 1e3,
        (NOW_S - 2) * 1e6,
        int((NOW_S - 2) * 1e9),
        "2027-01-15T07:59:58Z",
        "2027-01-15T08:59:58+01:00",
    ],
)
@pytest.mark.parametrize("field", ["t", "last_seen", "last_updated"])
def test_time_stamps(field: str, stamp: Any) -> None:
    assert read({field: stamp, "a": 1, "b": 2})[0] == [-2.0]


def test_a_sensors_own_clock_begins_when_its_first_sample_came() -> None:
    readings = Readings(("a",))
    for at_s, arrived_s in (
        (12.0, 0.0),
        (12.5, 0.7),
        (13.0, 1.0),
        (0.1, 5.0),
        (0.2, 5.2),
    ):  # it was switched off between
        readings.add({"t": at_s, "a": 1}, NOW_S + arrived_s)
    assert np.round(readings.take()[0].t - NOW_S, 3).tolist() == [0.0, 0.5, 1.0, 5.0, 5.1]


def test_samples_without_a_time_stamp_are_even_although_they_come_in_bursts() -> None:
    readings, rng = Readings(("a",), rate_hz=100.0), np.random.default_rng(0)
    for burst in range(200):
        readings.add([[i] for i in range(10)], NOW_S + burst * 0.1 + rng.uniform(0, 0.05))
    t = readings.take()[0].t
    assert np.diff(t).min() > 0.009
    assert np.diff(t).max() < 0.011
    assert t[-1] - NOW_S == pytest.approx(19.9, abs=0.06)


def test_more_samples_than_a_payload_may_hold() -> None:
    with pytest.raises(DataError, match="100001 samples"):
        read([[1, 2]] * 100_001)


VECTORS = {  # RFC 8949, appendix A
    "00": 0,
    "1864": 100,
    "1bffffffffffffffff": 2**64 - 1,
    "20": -1,
    "3903e7": -1000,
    "f93c00": 1.0,
    "f90001": 5.960464477539063e-8,
    "fa47c35000": 100000.0,
    "fb3ff199999999999a": 1.1,
    "f4": False,
    "f6": None,
    "c11a514b67b0": 1363896240,
    "4401020304": b"\1\2\3\4",
    "62c3bc": "\u00fc",
    "8301820203820405": [1, [2, 3], [4, 5]],
    "a26161016162820203": {"a": 1, "b": [2, 3]},
    "5f42010243030405ff": b"\1\2\3\4\5",
    "9f018202039f0405ffff": [1, [2, 3], [4, 5]],
    "bf61610161629f0203ffff": {"a": 1, "b": [2, 3]},
    "7f657374726561646d696e67ff": "streaming",
}


@pytest.mark.parametrize(("text", "value"), VECTORS.items())
def test_cbor_vectors(text: str, value: Any) -> None:
    assert cbor.decode(bytes.fromhex(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "18",
        "ff",
        "0000",
        "9bffffffffffffffff",
        "7bffffffffffffffff",
        "1c",
        "81" * 40 + "00",
        "bf01ff",
        "a1f6ff",
        "a18000",
    ],
)
def test_hostile_cbor_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        cbor.decode(bytes.fromhex(text))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    with contextlib.suppress(DataError):
        Readings(("a",)).add(decode_payload(payload), NOW_S, "x/a")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda v: (
        st.lists(v, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "t", "label", "x"]), v, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values, st.sampled_from(["", "x/a", "x"]))
def test_any_payload_gives_finite_times_or_none(value: Any, topic: str) -> None:
    readings = Readings(("a", "b"), rate_hz=50.0)
    readings.add(value, NOW_S, topic)
    for samples in readings.take():
        assert np.isfinite(samples.t).all()
        assert samples.values.shape == (len(samples.t), 2)


def test_a_payload_in_cbor_is_told_from_json() -> None:
    assert decode_payload(b"\xa1\x61a" + b"\xfb" + struct.pack(">d", 2.5)) == {"a": 2.5}
    assert decode_payload(json.dumps({"a": 2.5}).encode()) == {"a": 2.5}
    assert decode_payload(b"unavailable") == "unavailable"
