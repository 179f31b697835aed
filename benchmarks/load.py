"""Capacity of an aggregator: updates per second, the pause from a round's last acknowledgement to
the next round's first plan, and check-ins.

Run as ``python -m benchmarks.load``; writes ``benchmarks/results/load.json``. The devices are one
client that answers every plan with an update of about 45,000 floats. Admission, store, blobs,
signatures and mean are the service's own; only the broker is in this process, so that the
aggregator alone is measured: its time for messages, not the devices'. The folder is on a RAM disk
and on this machine's disk, whose fsync is measured beside it.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.core.settings import RunSettings
from aggregator.core.training import TrainingSettings
from aggregator.fleet.records import Campaign
from aggregator.leadership.identity import steady_clock
from aggregator.leadership.rivals import Rivals
from aggregator.service.inbox import FleetInbox
from aggregator.service.runner import GROUP, Runner
from aggregator.service.start import Exported
from aggregator.service.telemetry import Telemetry
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from aggregator.storage.telemetry_table import TelemetryTable
from aggregator.transfer.fleet import FleetLink
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.probe import make_probe
from benchmarks.results.report import describe_machine, keep
from edge_client.core.ports import Windows
from export.describe import describe_bundle
from host.files import write_atomically
from host.native.arithmetic import NativeArithmetic
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from wire import messages as m
from wire.bundle import Window
from wire.codec import decode, encode, encode_update
from wire.identity.keys import new_key
from wire.identity.signed import Signer, vouch
from wire.links.in_process import InProcessBroker, InProcessLink
from wire.links.port import Delivery, LinkEvent
from wire.topics import Topics

OUT = Path(__file__).parent / "results" / "load.json"
RAM = Path("/dev/shm")
FLEETS = (100, 1000, 1500)
CHECK_INS = (1_000, 10_000, 20_000)
ROUNDS = 4
LENGTH = 345
"""Samples in a window; it decides how large the model is."""
TOPICS = Topics("load")


class Watched(InProcessLink):
    """An aggregator's link that remembers when it published what: (second, kind of topic,
    payload)."""

    def __init__(self, broker: InProcessBroker) -> None:
        link = broker.connect("aggregator")
        super().__init__(link._broker, link._session)
        self.published: list[tuple[float, str, bytes]] = []

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.published.append((time.perf_counter(), TOPICS.parse(topic).kind, payload))
        super().publish(topic, payload, retain=retain)


class Bench:
    """A service without its broker, in a folder, and the devices that answer it."""

    def __init__(
        self,
        folder: Path,
        devices: int,
        rounds: int = ROUNDS,
        algorithm_name: str = "fedavg",
        accelerator: str = "cpu",
    ) -> None:
        window = Window(tuple(f"c{i}" for i in range(9)), LENGTH, LENGTH)
        x = np.random.default_rng(0).standard_normal((64, 9, LENGTH)).astype(np.float32)
        data = FleetData(
            "load",
            window,
            tuple("abcdef"),
            {"d": Windows(x, np.arange(64) % 6, x, np.arange(64) % 6)},
        )
        algorithm = read_algorithm(algorithm_name)
        objective = objective_for_fleet(data, algorithm, 0)
        bundle = describe_bundle(objective, name="load", classes=data.classes, window=window)
        self.topics, broker, root, service = TOPICS, InProcessBroker(), new_key(), new_key()
        self.devices = broker.connect("devices")
        self.devices.subscribe("shoal/1/load/device/+/plan")
        self.link, clock = Watched(broker), steady_clock()
        signer = Signer(service, vouch(root, "load", service.public_key(), clock() + 1e6))
        url, fleet = sqlite_url(folder / "shoal.db"), FleetLink(self.link, TOPICS, "boot", signer)
        self.store, telemetry = FleetStore(url), Telemetry(TelemetryTable(url), clock)
        inbox = FleetInbox(TOPICS, clock, fleet.offered, telemetry, silence_s=180.0)
        rivals = Rivals(None, clock, inbox.count)
        self.runner = Runner(self.store, fleet, inbox, telemetry, rivals, clock)
        training = TrainingSettings(algorithm=algorithm, rounds=rounds)
        times = {"deadline_s": 600.0, "grace_s": 60.0}
        limits = {"max_drop": 1.0, "keep_models": 0}
        settings = RunSettings.for_bundle(
            bundle, training, run_id="0" * 32, data="load", min_devices=devices, **times, **limits
        )
        plain = make_algorithm(algorithm, arithmetic=NativeArithmetic())
        server = replace(plain, accelerator=accelerator)
        exported = Exported(bundle, make_probe(objective.model, window.shape))
        self.name = settings.name
        self.runner.open(settings, server, exported, BlobFolder(folder / "blobs"))
        self.runner.begin(1)
        rng, layout = np.random.default_rng(1), bundle.manifest.reported("step")
        self.tensors = {name: 0.01 * rng.random(shape, np.float32) for name, _, shape in layout}
        self.num_floats = sum(array.size for array in self.tensors.values())
        self.seconds: dict[str, float] = {}

    @property
    def campaign(self) -> Campaign:
        """The campaign."""
        return self.runner.fleet.campaigns[self.name]

    def handle(self, what: str, deliveries: list[LinkEvent]) -> None:
        """Give these to the aggregator in groups, as its loop does, and count the time that it
        takes."""
        began = time.perf_counter()
        for at in range(0, len(deliveries), GROUP):
            self.runner.handle(*deliveries[at : at + GROUP])
            self.runner.tick()
        while self.runner.next_s() <= self.runner.now_s:  # many plans are made bit by bit
            self.runner.tick()
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - began

    def close(self) -> None:
        """Close the database."""
        self.store.close()
        self.runner.telemetry.close()

    def check_in(self, count: int) -> None:
        names = [f"d{i:05d}" for i in range(count)]
        self.handle(
            "check-in",
            [
                Delivery(self.topics.device(d, "check-in"), encode(m.CheckIn(d, 300, 60)))
                for d in names
            ],
        )

    def answers(self) -> list[LinkEvent]:
        """An update for every plan that has come."""
        made: list[LinkEvent] = []
        while (event := self.devices.receive(timeout_s=0)) is not None:
            if isinstance(event, Delivery):
                plan: m.Plan = decode(event.payload.split(b"\n")[0], m.Plan)
                evaluated = m.Metrics(60, 30.0, 40)
                trained = (
                    evaluated
                    if not any(isinstance(v, m.Train) for v in plan.verbs)
                    else m.Metrics(300, 99.0, 200)
                )
                update = m.Update(
                    plan.run_id,
                    plan.epoch,
                    plan.round,
                    plan.attempt,
                    plan.device_id,
                    plan.model,
                    300,
                    10,
                    evaluated,
                    trained,
                )
                tensors = self.tensors if any(isinstance(v, m.Train) for v in plan.verbs) else {}
                made.append(
                    Delivery(
                        self.topics.device(plan.device_id, "update"), encode_update(update, tensors)
                    )
                )
        return made


def measure_rounds(
    folder: Path, devices: int, algorithm: str = "fedavg", accelerator: str = "cpu"
) -> dict[str, float]:
    """Updates a second, and the pause in milliseconds from the last acknowledgement to the first
    plan of the next round: medians."""
    bench = Bench(folder, devices, algorithm_name=algorithm, accelerator=accelerator)
    bench.check_in(devices)
    rates, pauses = [], []
    for _ in range(ROUNDS):
        updates = bench.answers()
        assert len(updates) == devices
        bench.link.published.clear()
        bench.seconds.clear()
        bench.handle("update", updates)
        acknowledged = [
            at_s
            for at_s, kind, payload in bench.link.published
            if kind == "reply" and b'"acknowledge"' in payload
        ]
        planned = [at_s for at_s, kind, _ in bench.link.published if kind == "plan"]
        assert len(acknowledged) == devices, len(acknowledged)
        began_s = acknowledged[-1]
        pauses.append(1e3 * (planned[0] - began_s))
        rates.append(devices / (bench.seconds["update"] - (bench.link.published[-1][0] - began_s)))
    assert bench.campaign.trained == ROUNDS, bench.runner.condition
    bench.close()
    return {
        "updates_per_s": round(statistics.median(rates), 1),
        "pause_ms": round(statistics.median(pauses), 1),
    }


def measure_check_ins(folder: Path, count: int) -> dict[str, float]:
    """Check-ins a second of so many new devices, and how long a restart takes to read them."""
    bench = Bench(folder, 10**6)
    bench.check_in(count)
    began = time.perf_counter()
    assert len(bench.store.load().devices) == count
    bench.close()
    return {
        "per_s": round(count / bench.seconds["check-in"]),
        "replay_ms": round(1e3 * (time.perf_counter() - began)),
    }


def measure_fsync(folder: Path, size: int = 181_000, times: int = 100) -> float:
    """Return the number of files of an update's size that this disk stores safely in a second, one
    after the other: written, synchronised, renamed."""
    payload, began = bytes(size), time.perf_counter()
    for i in range(times):
        write_atomically(folder / str(i), payload)
    return round(times / (time.perf_counter() - began), 1)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--devices", type=int, nargs="+", default=FLEETS)
    parser.add_argument(
        "--disk",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="a folder on this machine's disk",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=RAM) as name:
        floats = Bench(Path(name), 1).num_floats
    results: dict[str, Any] = {"machine": describe_machine(), "floats": floats, "places": {}}
    for place, root in (("RAM disk", RAM), ("disk", arguments.disk)):
        results["places"][place] = measure_place(
            root, arguments.devices, lambda line: print(line, flush=True)
        )
    keep(results, arguments.out, OUT, "load", table(results))


def measure_place(
    root: Path, fleets: tuple[int, ...], say: Callable[[str], None]
) -> dict[str, Any]:
    """Everything, in folders under `root`."""
    found: dict[str, Any] = {"rounds": {}, "check_ins": {}}
    with tempfile.TemporaryDirectory(dir=root) as name:
        folder = Path(name)

        def fresh() -> Path:
            shutil.rmtree(folder / "run", ignore_errors=True)
            (folder / "run").mkdir()
            return folder / "run"

        found["files_per_s"] = measure_fsync(fresh())
        say(f"{root}: {found['files_per_s']} files a second")
        for devices in fleets:
            found["rounds"][str(devices)] = measure_rounds(fresh(), devices)
            say(f"{root}: {devices} devices: {found['rounds'][str(devices)]}")
        for count in CHECK_INS:
            found["check_ins"][str(count)] = measure_check_ins(fresh(), count)
            say(f"{root}: {count} check-ins: {found['check_ins'][str(count)]}")
    return found


def table(results: dict[str, Any]) -> str:
    """The section of the page of results."""
    lines = [
        "## What an aggregator bears",
        "",
        f"`python -m benchmarks.load`. {results['machine']}. Updates of {results['floats']:,} "
        "floats, FedAvg; the aggregator's own time.",
        "",
        "| folder on | devices | updates a second | last acknowledgement to next plan, ms | files "
        "that the disk makes safe a second |",
        "|---|---|---|---|---|",
    ]
    for place, found in results["places"].items():
        for devices, row in found["rounds"].items():
            lines.append(
                f"| {place} | {devices} | {row['updates_per_s']:,} | {row['pause_ms']:,} | "
                f"{found['files_per_s']:,} |"
            )
    lines += [
        "",
        "| folder on | new devices | check-ins a second | reading them again, ms |",
        "|---|---|---|---|",
    ]
    for place, found in results["places"].items():
        lines += [
            f"| {place} | {count} | {row['per_s']:,} | {row['replay_ms']:,} |"
            for count, row in found["check_ins"].items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
