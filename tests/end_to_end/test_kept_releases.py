"""Devices that keep something of a model are given a worse one: its rollout goes back, and they
answer as they did."""

from pathlib import Path

import numpy as np
import pytest
from immutables import Map

from aggregator.core.steps import Gate, Step
from aggregator.fleet import records
from aggregator.fleet.gate import answer_marks, judge
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.rollouts import tally_of
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, other_model
from tests.edge_client.kept_cases import answer, keep, train
from tests.support.bundles import Exported

pytestmark = pytest.mark.full


def test_the_gate_sees_what_devices_lose_and_a_return_gives_it_back(
    fleet: FleetData, exported: Exported, tmp_path: Path
) -> None:
    device = Device(fleet, exported, tmp_path / "state")
    keep(device)
    device.release(1)
    own = answer(device)
    train(device, 2, 3, 4)
    device.release(2, other_model(device, 0.0))
    said = device.in_use()
    assert said.before.accuracy > said.evaluated.accuracy
    last_offer = records.LastOffer(serial=2, release=2)
    marks = answer_marks(records.Device(online=True, last_offer=last_offer, in_use=said))
    twenty = records.Fleet(counts=Map(dict.fromkeys(marks, 20)))
    gate, steps = Gate(), (Step(1.0),)
    rollout = records.Rollout(campaign="c", releases={"0": 2}, steps=steps, gate=gate)
    outcome, reason = judge(gate, tally_of(Turn(twenty), rollout), 0.0)
    assert outcome == "fail"
    assert "accuracy fell by" in reason
    device.release(3)
    np.testing.assert_array_equal(answer(device), own)
    assert device.in_use().before == said.evaluated
