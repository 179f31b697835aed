"""What a large registry costs an aggregator: 10,000 registered devices, of which 1,000 report in a
round.

Run as ``python -m benchmarks.registry``; writes ``benchmarks/results/registry.json``. The load is
that of `benchmarks.load`, in a folder on a RAM disk; it takes less than two minutes.
"""

import argparse
import gc
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from aggregator.core.state import Retuned
from aggregator.service.devices import Devices
from aggregator.storage.engine import sqlite_url
from aggregator.storage.registry_table import RegistryTable
from benchmarks.load import RAM, Bench
from benchmarks.results.report import describe_machine, keep
from wire import messages as m
from wire.codec import encode
from wire.links.port import Delivery, LinkEvent

OUT = Path(__file__).parent / "results" / "registry.json"
RULE = "tags has nights and battery >= 50 and not metered and client >= 0.1 and windows >= 40"


def check_in(device_id: str, number: int) -> m.CheckIn:
    return m.CheckIn(
        device_id,
        300,
        60,
        client="shoal 0.1.0",
        runtime="onnxruntime",
        battery_percent=float(number % 101),
        unmetered=number % 10 > 0,
        hardware="Raspberry Pi 4 Model B Rev 1.4",
        free_bytes=12_000_000_000,
        temperature_c=41.5,
        charging=True,
        idle=True,
    )


def resident_mib() -> float:
    """This process's memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def measure(folder: Path, registered: int, cohort: int) -> dict[str, Any]:
    """Everything, with so many devices and updates in a round."""
    bench, found = Bench(folder, registered, rounds=3), dict[str, Any]()
    runner, table = bench.runner, RegistryTable(sqlite_url(folder / "shoal.db"))
    runner.devices = runner._inbox._devices = Devices(table, time.time)
    campaign = bench.campaign
    campaign._devices = runner.devices
    settings = msgspec.structs.replace(
        campaign.known().settings, cohort=cohort, over_select=1.1, min_updates=2
    )
    campaign.dispatch(Retuned(time.time(), settings, campaign.known().programs))
    names = [f"d{i:05d}" for i in range(registered)]
    gc.collect()
    before = resident_mib()
    deliveries: list[LinkEvent] = [
        Delivery(bench.topics.device(d, "check-in"), encode(check_in(d, i)))
        for i, d in enumerate(names)
    ]
    bench.handle("check-in", deliveries)
    gc.collect()
    found["check_ins_per_s"] = round(registered / bench.seconds["check-in"])
    found["mib_for_all_devices"] = round(resident_mib() - before, 1)
    found["save_all_s"] = timed(runner.devices.save)
    found["tag_all_s"] = timed(lambda: runner.devices.tag(names, ["nights"]))
    found["rule_over_all_ms"] = round(1e3 * timed(lambda: runner.devices.eligible(RULE)), 1)
    found["eligible"] = len(runner.devices.eligible(RULE))
    found["load_all_s"] = timed(lambda: Devices(table, time.time))
    rounds = []
    while not runner.finished and campaign.known().phase == "training":
        number, answers = campaign.known().round, bench.answers()
        bench.seconds.clear()
        bench.handle("update", answers[:cohort])
        rounds.append(bench.seconds["update"])
        assert campaign.known().round == number + 1, runner.paused
        found["asked"] = len(answers)
    found |= {
        "updates": cohort,
        "round_s": [round(seconds, 2) for seconds in rounds],
        "peak_mib": round(peak_mib(), 1),
    }
    bench.store.close()
    table.close()
    return found


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def timed(act: Any) -> float:
    began = time.perf_counter()
    act()
    return round(time.perf_counter() - began, 4)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--cohort", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=RAM) as name:
        found = measure(Path(name), arguments.devices, arguments.cohort)
    results = {"machine": describe_machine(), "registered": arguments.devices, "found": found}
    keep(results, arguments.out, OUT, "registry", table_of(results))


def table_of(results: dict[str, Any]) -> str:
    """The section of the page of results."""
    rows = [f"| {name.replace('_', ' ')} | {value} |" for name, value in results["found"].items()]
    head = (
        f"`python -m benchmarks.registry`. {results['machine']}. {results['registered']:,} "
        "registered devices; a cohort of a tenth of them."
    )
    return "\n".join(
        ["## What a registry costs", "", head, "", "| what | measured |", "|---|---|", *rows]
    )


if __name__ == "__main__":
    main()
