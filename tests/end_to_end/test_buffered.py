"""A buffered campaign with real processes: a device that is stopped in the middle of a plan, and
kills of the device and of the service."""

import signal
import time
from pathlib import Path

import pytest

from aggregator.core.state import RunState
from aggregator.storage.engine import sqlite_url
from aggregator.storage.sql_store import SqlStore
from simulation.local.broker import EmbeddedBroker
from simulation.local.fleet import LocalFleet
from tests.end_to_end.field import Field
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet
from tests.support.known import known

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


def stored(field: Field) -> RunState:
    store = SqlStore(sqlite_url(field.folder / "run" / "shoal.db"), "run-1")
    try:
        state: RunState = known(store.load())
        return state
    finally:
        store.close()


def stop_at_work(field: Field, edges: LocalFleet, device_id: str) -> int:
    """Stops a device that has a plan and has not sent its update, and gives the round then. What it
    sent just before is awaited."""
    field.wait(lambda run: run["round"] >= 2)
    for _ in range(20):
        field.wait(lambda _: device_id in stored(field).flights)
        edges.processes[device_id].send_signal(signal.SIGSTOP)
        began = stored(field)
        time.sleep(1.0)
        if (flight := stored(field).flights.get(device_id)) and flight == began.flights.get(
            device_id
        ):
            return int(began.round)
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
            field.wait(lambda run: run["round"] >= began + 4)
            for device_id in ("d0", "d1"):
                edges.processes[device_id].send_signal(signal.SIGSTOP)
            service.kill()
            service.wait()
            edges.processes["d2"].kill()
            edges.processes["d2"].wait()
            before = stored(field)
            assert before.flights["d2"].round <= began + 1 < before.round
            edges.start("d2")
            service = field.serve(*OPTIONS)
            field.wait(
                lambda _: (
                    "d2" not in stored(field).flights
                    or stored(field).flights["d2"].round == before.round
                )
            )
            for device_id in ("d0", "d1"):
                edges.processes[device_id].send_signal(signal.SIGCONT)
            state = field.finish()
        records = SqlStore(sqlite_url(field.folder / "run" / "shoal.db"), "run-1").rounds()
        training = [record for record in records if record.phase == "training"]
        late = {
            r.round: r.notes["staleness"]["d2"]
            for r in training
            if "d2" in r.notes.get("staleness", {})
        }
        assert (state.trained, len(training)) == (ROUNDS, ROUNDS)
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
