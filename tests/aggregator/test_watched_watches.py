"""Twenty smartwatches of ten people, by messages: a liar is named, and no honest device is."""

from functools import cache

import pytest

from aggregator.fleet.divergence import NOBODY, scored, stands_out
from aggregator.view.round_record import RoundRecord
from algorithms.composition import read_algorithm
from simulation.datasets.catalog import load_data
from simulation.engine.options import EngineOptions
from simulation.settings import SimulationSettings
from simulation.simulate import simulate


@cache
def watched(seed: int, rounds: int, devices: int, attack: str = "") -> tuple[RoundRecord, ...]:
    settings = SimulationSettings(
        read_algorithm("fedavg"),
        rounds,
        devices=devices,
        seed=seed,
        attack=attack,
    )
    data = load_data("watch")
    data = data.only(sorted(data.devices)[:devices])
    result = simulate(data, settings, engine=EngineOptions("messages"))
    assert len(result.records[0].evaluated) == devices
    return tuple(record for record in result.records if record.phase == "training")


def named(records: tuple[RoundRecord, ...]) -> dict[str, int]:
    """The round in which each device is named."""
    members, rounds = dict.fromkeys(records[0].evaluated, NOBODY), dict[str, int]()
    for record in records:
        for device_id, pull in record.notes["pulls"].items():
            evidence = pull["evidence"]
            members[device_id] = scored(members[device_id], evidence, record.round)
            if stands_out(members[device_id]):
                rounds.setdefault(device_id, record.round)
    return rounds


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_honest_watch_is_named_in_twenty_rounds(seed: int) -> None:
    assert not named(watched(seed, 20, 20))


@pytest.mark.full
@pytest.mark.parametrize("devices", [5, 20])
def test_a_watch_that_sends_its_change_the_other_way_ten_times_as_loud_is_named(
    devices: int,
) -> None:
    records = watched(0, 4, devices, "sign-flip:count=1:scale=10")
    assert list(named(records).values()) == [3]
