"""A simulation with a fleet's own profile takes as long for a round as the fleet did."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.core.policies import policy_settings, read_policy
from aggregator.core.telemetry import DeviceTelemetry, LastTraining
from aggregator.fleet.records import Ban, Device
from aggregator.profile import BYTES_PER_S, profile_of
from algorithms.composition import read_algorithm
from simulation.datasets.windows import FleetData
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from simulation.timing.traces import read_trace
from tests.aggregator.timed_fleet import TimedFleet
from tests.support.known import known
from wire.errors import ConfigError
from wire.messages import CheckIn

SPEEDS = {"d0": 80.0, "d1": 40.0, "d2": 20.0, "d3": 5.0}


@pytest.mark.representatives("sync-*")
@pytest.mark.parametrize(
    ("policy", "rounds", "within"),
    [
        ("sync", 10, 0.1),
        ("buffered:buffer=2:concurrency=2", 60, 0.25),
    ],  # who works next is drawn, on both sides by other draws
)
def test_simulated_rounds_take_as_long_as_those_of_the_fleet(
    fleet: FleetData, tmp_path: Path, policy: str, rounds: int, within: float
) -> None:
    measured = TimedFleet(
        fleet, SPEEDS, rounds=rounds, min_updates=2, **policy_settings(read_policy(policy))
    )
    measured.run()
    made = profile_of(measured.runner.fleet.devices, measured.runner.telemetry.records)
    assert (made.devices, made.untrained) == (4, ())
    path = tmp_path / "fleet.csv"
    path.write_text(made.text)
    columns, _ = read_trace(path, None, 4)
    np.testing.assert_allclose(columns["examples_per_s"], list(SPEEDS.values()), rtol=0.05)
    simulated = simulate(
        fleet,
        SimulationSettings(
            read_algorithm("fedavg"),
            rounds=rounds,
            batch_size=16,
            profiles=f"trace:devices={path}",
            policy=policy,
        ),
    )
    records = measured.rounds()
    took_s = records[-1].closed_at_s - records[0].opened_at_s
    assert known(simulated.summary.time).virtual_s == pytest.approx(took_s, rel=within)


def device(**others: Any) -> Device:
    return Device(facts=CheckIn("x", 10, 4), **others)


FAST = DeviceTelemetry(training=LastTraining(100, 1.0, 2.0, 500, 500))
SLOW = DeviceTelemetry(training=LastTraining(100, 10.0, 10.0, 500, 500))


def test_what_is_not_known_of_a_device_is_the_median_of_the_others_and_is_said() -> None:
    devices = {"a": device(updates=3, declines=1), "b": device(), "c": device()}
    devices |= {"never here": Device(), "banned": device(ban=Ban(0, ""))}
    made = profile_of(devices, {"a": FAST, "b": SLOW, "banned": SLOW})
    assert made.text.splitlines()[1:] == [
        "a,100,1000,1000,0.25",
        "b,10,1000,1000,0",
        "c,55,1000,1000,0",
    ]
    assert (made.untrained, made.unmeasured) == (("c",), ("b", "c"))
    assert f"{BYTES_PER_S:.6g}" in profile_of({"b": device()}, {"b": SLOW}).text


def test_a_fleet_that_has_not_trained_has_no_profile() -> None:
    with pytest.raises(
        ConfigError,
        match=r"No profile yet: none of 1 devices has trained\. A profile is made from their "
        r"reports of training",
    ):
        profile_of({"a": device(), "never here": Device()}, {})
