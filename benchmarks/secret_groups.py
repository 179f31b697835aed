"""Groups from secret sums: ``python -m benchmarks.secret_groups [FLEET...]``.

Simulated fleets in secret mode, whose groups are found from sums over at least five devices alone.
The numbers that a device sends are integers, rounded as they are before masks; masks change no bit
of a sum. A fleet is right if its groups are the people's arms, or one group if it has none.
"""

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

from sklearn.metrics import adjusted_rand_score

from benchmarks.results.report import describe_machine, keep
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData, select_devices
from simulation.engine.options import EngineOptions
from simulation.engine.progress import STOP, RunProgress, Stop
from simulation.partition import partition, read_partition
from simulation.settings import SimulationSettings
from simulation.simulate import simulate

OUT = Path(__file__).parent / "results" / "secret_groups.json"
ROUNDS = 10
ACCURACY_SEEDS = range(5)


@dataclass(frozen=True)
class FleetCase:
    """A fleet, and the seeds of its model and of its partition."""

    data: str
    seeds: tuple[int, ...]
    partition: str = ""
    people: int = 0
    """Number of people of the data that take part; 0 for all."""

    def load(self) -> FleetData:
        """Return the fleet's data, before its partition."""
        data = load_data(self.data)
        return select_devices(data, self.people) if self.people else data


FRESH = 80
"""First seed at which nobody looked while the rule was made."""
SEEDS = (*range(5), *range(FRESH, FRESH + 20))
FLEETS = {
    "watches of 20 people": FleetCase("watch", SEEDS),
    "their windows dealt at random to 20": FleetCase("watch", SEEDS, "iid:devices=20"),
    "phones of 20 people (UCI HAR)": FleetCase("uci-har", SEEDS, people=20),
    "their windows dealt at random to 20 (UCI HAR)": FleetCase("uci-har", SEEDS, "iid:devices=20"),
}


def groups_of(case: FleetCase, data: FleetData, seed: int) -> dict[str, Any]:
    """Return the groups of a fleet from sums, and what they have cost."""
    settings = SimulationSettings("distfl+uniform", 1, secret=True, seed=seed)
    if case.partition:
        data = partition(data, read_partition(case.partition), seed)

    def is_found(progress: RunProgress) -> Stop | None:
        return STOP if progress.records and progress.records[-1].groups else None

    began_s = process_time()
    result = simulate(data, settings, is_found, engine=EngineOptions("eager"))
    groups = result.records[-1].groups
    devices, truth = sorted(groups), result.data.truth
    exchanges = [record for record in result.records if record.phase == "preparing"]
    sent = sum(record.bytes_up / len(record.evaluated) for record in exchanges)
    return {
        "seed": seed,
        "groups": len(set(groups.values())),
        "ari": float(
            adjusted_rand_score(
                [truth[d] if truth else "" for d in devices], [groups[d] for d in devices]
            )
        ),
        "rounds": len(exchanges),
        "bytes_up": sent,
        "cpu_s": process_time() - began_s,
        "tested": exchanges[-1].notes["survey"],
    }


def accuracies() -> list[dict[str, Any]]:
    """Return the accuracy of the watches after ten rounds, in secret and in clear mode, by seed."""
    data, rows = FleetCase("watch", ()).load(), list[dict[str, Any]]()
    for seed in ACCURACY_SEEDS:
        row: dict[str, Any] = {"seed": seed}
        for name, algorithm, secret in (
            ("secret", "distfl+uniform", True),
            ("clear", "distfl+uniform", False),
            ("one model", "fedavg+uniform", True),
        ):
            settings = SimulationSettings(algorithm, ROUNDS, secret=secret, seed=seed)
            result = simulate(data, settings)
            row[name] = result.summary.accuracy.mean
        rows.append(row)
        print(row, flush=True)
    return rows


def text(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        "## Groups from secret sums",
        "",
        f"Machine: {results['machine']}. Made by `python -m benchmarks.secret_groups`; numbers in "
        "`results/secret_groups.json`.",
        "",
        "Each fleet is simulated in secret mode (`simulate --secret --algorithm distfl+uniform`) "
        "until its groups are known, from sums over five devices or more. It is right if its "
        "groups are the true ones, or one group if the fleet has none. The rule was chosen by "
        "seeds from 0 to 79. Those from 80 on were run once before its last two changes, which "
        "have other reasons (fixed integers, six splits at most), and once after. Bytes are those "
        "that a device sends for its groups, an average over the devices of each round. The time "
        "is that of all "
        "parties, with the surveys, on one core beside other programs.",
        "",
        "| fleet | right, seeds 0 to 4 | right, seeds 80 to 99 | groups found: fleets | rounds | "
        "a device sends | processor |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in results["fleets"].items():
        looked = [run for run in runs if run["seed"] < FRESH]
        fresh = [run for run in runs if run["seed"] >= FRESH]
        counts = Counter(run["groups"] for run in runs)
        middle = sorted(runs, key=lambda run: run["bytes_up"])[len(runs) // 2]
        cells = [
            name,
            _right(looked),
            _right(fresh) if fresh else "-",
            ", ".join(f"{groups}: {count}" for groups, count in sorted(counts.items())),
            str(middle["rounds"]),
            f"{middle['bytes_up'] / 1e3:.1f} KB",
            f"{middle['cpu_s']:.1f} s",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    rows = results["accuracies"]
    lines += [
        "",
        f"Accuracy of the watches after {ROUNDS} rounds, in percent, seeds 0 to "
        f"{len(rows) - 1}; the clear mode has surveys of single devices and their models:",
        "",
        "| mode | mean | by seed |",
        "|---|---|---|",
    ]
    for key, title in (
        ("secret", "secret, groups from sums"),
        ("clear", "clear, the same algorithm"),
        ("one model", "secret, one model (`fedavg+uniform`)"),
    ):
        values = [100 * row[key] for row in rows]
        each = ", ".join(f"{value:.1f}" for value in values)
        lines.append(f"| {title} | {sum(values) / len(values):.1f} | {each} |")
    return "\n".join(lines)


def _right(runs: list[dict[str, Any]]) -> str:
    return f"{sum(run['ari'] == 1 for run in runs)} of {len(runs)}"


def main() -> None:
    """Run the fleets that are named, or all of them and the accuracies."""
    chosen = [name for name in FLEETS if any(word in name for word in sys.argv[1:])] or [*FLEETS]
    fleets: dict[str, list[dict[str, Any]]] = {}
    for name in chosen:
        case = FLEETS[name]
        data, fleets[name] = case.load(), []
        for seed in case.seeds:
            fleets[name].append(groups_of(case, data, seed))
        wrong = [run for run in fleets[name] if run["ari"] < 1]
        print(name, _right(fleets[name]), *wrong, sep="\n    ", flush=True)
    if len(chosen) < len(FLEETS):
        return
    results = {"machine": describe_machine(), "fleets": fleets, "accuracies": accuracies()}
    keep(results, OUT, OUT, "secret-groups", text(json.loads(json.dumps(results))))


if __name__ == "__main__":
    main()
