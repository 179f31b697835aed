"""Plans that a service sends: how an update is encoded."""

from typing import Any

from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from wire import messages as m
from wire.codec import encode


def encodings(bench: Bench) -> dict[str, str]:
    """Return the encodings of the plans since the last look, by device."""
    return {p.device_id: p.encoding for p in bench.answers() if isinstance(p, m.Plan)}


def check_in(bench: Bench, device_id: str, **facts: Any) -> dict[str, str]:
    """Have a device check in, and return the encodings of the plans that follow."""
    bench.answers()
    bench.send(device_id, "check-in", encode(m.CheckIn(device_id, 10, 4, **facts)))
    return encodings(bench)


def test_an_encoding_is_named_only_to_a_device_that_can_make_it(fleet: FleetData) -> None:
    bench = Bench(fleet, settings={"update_encoding": "int8", "rounds": 3})
    assert encodings(bench) == {"a": "float32", "b": "float32"}
    both = ("one-bit", "int8")
    assert check_in(bench, "a", encodings=both) == {"a": "int8"}, "it has a newer client now"
    assert check_in(bench, "b", encodings=("one-bit",)) == {"b": "float32"}
    assert check_in(bench, "a") == {"a": "float32"}, "it has an older client now"


def test_nobody_is_asked_for_an_encoding_unless_the_campaign_is_to_have_it(
    fleet: FleetData,
) -> None:
    assert check_in(Bench(fleet), "a", encodings=("int8",)) == {"a": "float32"}
