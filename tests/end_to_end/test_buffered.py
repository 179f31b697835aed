"""A buffered campaign with real processes: a device that is stopped in the middle of a plan, and
kills of the device and of the service."""

import signal
import time
from pathlib import Path

import pytest

from aggregator.fleet.desired import is_at_work
from aggregator.fleet.records import Assignment
from simulation.local.broker import EmbeddedBroker
from simulation.local.fleet import LocalFleet
from tests.end_to_end.field import Field
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet

ROUNDS = 60
OPTIONS = (
    "--policy",
    "buffered:buffer=2:concurrency=3",
    "--min-devices",
    "2",
    "--rounds",
    str(ROUNDS),
    "--grace",
    "600",
)


def assignment(field: Field, device_id: str) -> Assignment | None:
    """Return the assignment that a device works on, as it is stored."""
    device = field.stored().devices[device_id]
    return device.assignment if is_at_work(device) else None


def stop_at_work(field: Field, edges: LocalFleet, device_id: str) -> Assignment:
    """Stop a device that has a plan and has not sent its update, and return its assignment. What it
    sent just before is awaited."""
    field.wait(lambda run: run["round"] >= 2)
    for _ in range(20):
        field.wait(lambda _: assignment(field, device_id))
        edges.processes[device_id].send_signal(signal.SIGSTOP)
        began = assignment(field, device_id)
        time.sleep(1.0)
        if began is not None and assignment(field, device_id) == began:
            return began
        edges.processes[device_id].send_signal(signal.SIGCONT)
    raise TimeoutError(f"{device_id} had always sent its update when it was stopped")


@pytest.mark.slow
def test_the_update_of_a_plan_in_flight_counts_once_over_kills_of_device_and_service(
    exported: Exported, tmp_path: Path, embedded_broker: EmbeddedBroker
) -> None:
    field = Field(
        synthetic_fleet(num_devices=3, num_windows=120),
        exported,
        tmp_path,
        embedded_broker.url,
        epochs=20,
    )
    try:
        with field.edges() as edges:
            service = field.serve(*OPTIONS)
            began = stop_at_work(field, edges, "d2")
            field.wait(lambda run: run["round"] >= began.round + 4)
            for device_id in ("d0", "d1"):
                edges.processes[device_id].send_signal(signal.SIGSTOP)
            service.kill()
            service.wait()
            edges.processes["d2"].kill()
            edges.processes["d2"].wait()
            before = field.campaign().round
            assert assignment(field, "d2") == began, "its plan outlives its round"
            assert began.round + 1 < before
            edges.start("d2")
            service = field.serve(*OPTIONS)
            field.wait(lambda _: assignment(field, "d2") != began)
            for device_id in ("d0", "d1"):
                edges.processes[device_id].send_signal(signal.SIGCONT)
            campaign = field.finish()
        training = [record for record in field.records() if record.phase == "training"]
        late = {
            r.round: r.notes["staleness"]["d2"]
            for r in training
            if "d2" in r.notes.get("staleness", {})
        }
        assert (campaign.trained, len(training)) == (ROUNDS, ROUNDS)
        assert max(late.values()) >= 3, "the plan that was in flight over both kills"
        for device_id in ("d0", "d1", "d2"):
            counted = [
                r.round - r.notes.get("staleness", {}).get(device_id, 0)
                for r in training
                if device_id in r.evaluated
            ]
            assert len(counted) == len(set(counted)), f"an update of {device_id} counted twice"
    finally:
        field.stop()
