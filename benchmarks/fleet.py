"""Measures what an event costs the machine of a fleet, what a device takes of memory, and how long
a start takes, with 1,000 to 1,000,000 devices.

Run as ``python -m benchmarks.fleet``, or with other numbers of devices; writes
``benchmarks/results/fleet.json``. Each size runs in a process of its own. Events are timed in
chunks by the wall clock: run it on an idle machine. Storage, messages and aggregation are not in
it; `benchmarks.load` has them.
"""

import argparse
import gc
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.fleet import events as e
from aggregator.fleet.records import AdmittedUpdate, Campaign, Fleet, Version
from aggregator.fleet.step import step, steps
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from algorithms.core.keys import NEWCOMER
from benchmarks.results.report import describe_machine, keep
from wire.messages import CheckIn, Evaluate, Metrics, Train

OUT = Path(__file__).parent / "results" / "fleet.json"
SIZES = (1_000, 100_000, 1_000_000)
CHUNK = 25
"""Number of events that are timed together; the median of the chunks is reported."""
EVENTS = 5_000
VERSION = Version(
    round=0,
    models={NEWCOMER: "a" * 64},
    memory="",
    programs={
        "": (Train(graph="step", epochs=1, batch_size=16, hyper={}),),
        "closing": (Evaluate(graph="evaluate", split="test"),),
    },
    newcomers=NEWCOMER,
)
LABELS = {
    "check_in_us": "a device checks in for the first time",
    "sweep_us": "a device is reconciled after a change that concerns all",
    "update_us": "an update of a cohort of 100",
    "next_round_us": "a round is aggregated and the next asks 100, each device",
    "buffered_us": "an update of 100 that are buffered, with the next device's assignment",
    "again_us": "a device checks in again",
    "lost_us": "a device is lost",
    "timer_us": "a timer rings for nothing",
    "bytes": "bytes of memory a device",
    "start_s": "seconds of a start from SQLite",
}


BEFORE = (
    "The core before this machine, measured once on the same processor with 100,000 devices: 42 "
    "microseconds an update of a cohort, 171,000 a buffered update, 355,000 to open a round."
)


def settings(name: str, **changes: Any) -> RunSettings:
    """Return the settings of the campaign."""
    return RunSettings(
        run_id=name,
        name=name,
        algorithm="fedavg",
        data="x",
        bundle="b" * 64,
        rounds=10**6,
        min_devices=50,
        min_updates=50,
        deadline_s=1e6,
        reported={},
        responses={},
        **ADMIT_ALL,
        **changes,
    )


def check_in(number: int, battery: float = 80.0) -> CheckIn:
    """Return the facts of a device, as a board says them."""
    return CheckIn(
        f"device-{number:07}",
        1000,
        200,
        bundle="b" * 64,
        client="shoal 0.1.0",
        runtime="onnxruntime 1.20",
        battery_percent=battery,
        unmetered=True,
        hardware="Raspberry Pi 5 Model B",
        free_bytes=10**10,
        temperature_c=40.0,
        charging=True,
        encodings=("int8",),
    )


class Measured:
    """A fleet of so many devices while it is measured."""

    def __init__(self, size: int) -> None:
        self.size, self.fleet, self.at_s = size, Fleet(), 1.0
        self.plans: deque[e.SendPlan] = deque()
        self.aggregate: e.Aggregate | None = None

    def carry_out(self, commands: list[e.Command]) -> None:
        """Note what is to be done."""
        self.plans += (command for command in commands if isinstance(command, e.SendPlan))
        found = (command for command in commands if isinstance(command, e.Aggregate))
        self.aggregate = next(found, self.aggregate)

    def take(self, event: e.Event) -> None:
        """Have an event happen."""
        self.fleet, commands = step(self.fleet, event)
        self.carry_out(commands)

    def begin(self) -> float:
        """Have all devices check in; return the microseconds of each."""
        began_s = time.perf_counter()
        for first in range(0, self.size, 500):
            numbers = range(first, min(self.size, first + 500))
            facts = [check_in(number) for number in numbers]
            came = (e.CheckedIn(at_s=1.0, device_id=each.device_id, facts=each) for each in facts)
            self.fleet, _ = steps(self.fleet, came)
        return 1e6 * (time.perf_counter() - began_s) / self.size

    def start(self, name: str, **changes: Any) -> float:
        """Start a campaign in place of the one before; return the microseconds that its sweep takes
        for each device."""
        self.plans.clear()
        own = settings(name, **changes)
        record = Campaign(settings=own, next_settings=own, version=VERSION)
        for earlier in self.fleet.campaigns:
            self.take(e.Directed(at_s=self.at_s, campaign=earlier, order="abort"))
        self.take(e.Started(at_s=self.at_s, campaign=own.name, record=record))
        began_s, swept = time.perf_counter(), self.fleet.sweep
        while self.fleet.sweep:
            self.take(e.Tick(at_s=self.at_s, keys=("",)))
        took_s = time.perf_counter() - began_s
        self.take(e.Tick(at_s=self.at_s, keys=("",)))
        return 1e6 * took_s / swept

    def update(self) -> e.Updated:
        """Return the update of the device that was assigned first."""
        plan = self.plans.popleft()
        self.at_s += 0.001
        counted = AdmittedUpdate(
            blob=f"{plan.assignment.serial:064x}",
            start=NEWCOMER,
            num_train=1000,
            num_steps=1,
            evaluated=Metrics(200, 1.0, 100),
            trained=Metrics(1000, 2.0, 500),
            bytes_up=1,
            bytes_down=1,
        )
        return e.Updated(
            at_s=self.at_s,
            device_id=plan.device_id,
            serial=plan.assignment.serial,
            update=counted,
        )

    def rounds(self, name: str) -> tuple[float, float]:
        """Return the microseconds of an update, and of what follows a round for each device that
        the next one asks."""
        updates, opened = list[float](), list[float]()
        for _ in range(EVENTS):
            if self.aggregate is not None:
                closed, self.aggregate, left = self.aggregate, None, len(self.plans)
                aggregated = e.Aggregated(
                    at_s=self.at_s, campaign=name, round=closed.round, version=VERSION
                )
                began_s = time.perf_counter()
                self.take(aggregated)
                took_s = time.perf_counter() - began_s
                opened.append(took_s / max(1, len(self.plans) - left))
            made = [self.update() for _ in range(min(CHUNK, len(self.plans)))]
            began_s = time.perf_counter()
            for event in made:
                self.take(event)
            updates.append((time.perf_counter() - began_s) / len(made))
            if len(updates) * CHUNK >= EVENTS:
                break
        return 1e6 * statistics.median(updates), 1e6 * statistics.median(opened)

    def idle(self, make: Callable[[int], e.Event]) -> float:
        """Return the microseconds of an event of a device that waits."""
        every = max(1, self.size // EVENTS)
        events = [make(number) for number in range(0, self.size, every)]
        took = list[float]()
        for first in range(0, len(events), CHUNK):
            chunk = events[first : first + CHUNK]
            began_s = time.perf_counter()
            for event in chunk:
                self.take(event)
            took.append((time.perf_counter() - began_s) / len(chunk))
        return 1e6 * statistics.median(took)


def name_of(number: int) -> str:
    """Return the id of a device."""
    return f"device-{number:07}"


def measure(size: int) -> dict[str, float]:
    """Return the figures of a fleet of this size."""
    gc.disable()  # as the service, whose records hold no cycles
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fleet, found = Measured(size), dict[str, float]()
    found["check_in_us"] = fleet.begin()
    found["sweep_us"] = fleet.start("run", cohort=100)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found["bytes"] = 1024 * memory / size
    found["update_us"], found["next_round_us"] = fleet.rounds("run")
    at_s = fleet.at_s
    found["again_us"] = fleet.idle(
        lambda n: e.CheckedIn(at_s=at_s, device_id=name_of(n), facts=check_in(n, 70.0))
    )
    found["timer_us"] = fleet.idle(lambda n: e.Tick(at_s=at_s, keys=(name_of(n),)))
    fleet.start("buffered", buffer=100, concurrency=500)
    found["buffered_us"], _ = fleet.rounds("buffered")
    found["lost_us"] = fleet.idle(
        lambda n: e.Seen(at_s=fleet.at_s, device_id=name_of(n), online=False)
    )
    with tempfile.TemporaryDirectory() as folder:
        url = sqlite_url(Path(folder) / "shoal.db")
        store = FleetStore(url)
        store.commit(store.load(), fleet.fleet, set(fleet.fleet.devices), [])
        store.close()
        began_s = time.perf_counter()
        loaded = FleetStore(url).load()
        found["start_s"] = time.perf_counter() - began_s
    if set(loaded.devices) != set(fleet.fleet.devices):
        raise RuntimeError("the start has lost devices")
    return found


def render(results: dict[str, dict[str, float]], machine: str) -> str:
    """Return the section of the results page."""
    sizes = list(results)
    lines = [
        "## What an event costs a fleet",
        "",
        "The pure machine, `aggregator.fleet.step`: median of chunks of "
        f"{CHUNK} events, in microseconds where nothing else is said.",
        "",
        "| | " + " | ".join(f"{int(size):,} devices" for size in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    for name, label in LABELS.items():
        values = " | ".join(
            f"{results[size][name]:,.{1 if name == 'start_s' else 0}f}" for size in sizes
        )
        lines.append(f"| {label} | {values} |")
    notes = (BEFORE, f"{machine}.", "Run `python -m benchmarks.fleet`.")
    return "\n".join(lines) + "\n\n" + "\n\n".join(notes)


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    results = {}
    for size in options.sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results[str(size)] = pool.apply(measure, (size,))
        for name, label in LABELS.items():
            print(f"{size:9,} {label:70} {results[str(size)][name]:10.1f}", flush=True)
    machine = describe_machine()
    text = render(results, machine)
    keep({"machine": machine, "results": results}, options.out, OUT, "fleet", text)


if __name__ == "__main__":
    main()
