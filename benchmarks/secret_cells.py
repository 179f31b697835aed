"""Robust means over cells: ``python -m benchmarks.secret_cells``.

Simulated fleets in secret mode with attackers among 50 devices: a mean of all devices, and means
that compare sums over ten cells of five; beside them the median of single devices in clear mode.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.results.report import describe_machine, keep
from benchmarks.secret_noise import linear_on, mnist_of
from simulation.settings import SimulationSettings
from simulation.simulate import simulate

OUT = Path(__file__).parent / "results" / "secret_cells.json"
DEVICES, ROUNDS, SEEDS = 50, 8, range(3)
ATTACKERS = (0, 1, 3, 5, 10)
ATTACKS = ("sign-flip:scale=10", "label-flip")
MEANS = (
    ("uniform", True),
    ("median", True),
    ("trimmed:share=0.3", True),
    ("multi-krum", True),
    ("median", False),
)
"""Means, and True for secret mode."""


def accuracy_of(mean: str, is_secret: bool, attack: str, attackers: int, seed: int) -> float:
    """Return the mean accuracy of the honest devices in per cent."""
    data = mnist_of(DEVICES, seed)
    settings = SimulationSettings(
        f"fedavg+{mean}",
        ROUNDS,
        1,
        batch_size=10,
        secret=is_secret,
        attack=f"{attack}:count={attackers}" if attackers else "",
        hyper={"lr": 0.05},
        seed=seed,
    )
    accuracy = simulate(data, settings, objective=linear_on(data)).summary.accuracy.mean
    assert accuracy is not None
    return 100 * accuracy


def measure_rows(attack: str) -> list[dict[str, Any]]:
    """Return the accuracies of each mean under an attack, by number of attackers and by seed."""
    rows = []
    for mean, is_secret in MEANS:
        row: dict[str, Any] = {
            "attack": attack,
            "mean": mean,
            "secret": is_secret,
            "accuracies": {},
        }
        for attackers in ATTACKERS:
            accuracies = [accuracy_of(mean, is_secret, attack, attackers, seed) for seed in SEEDS]
            row["accuracies"][attackers] = accuracies
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def section(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        "## Robust means over cells",
        "",
        f"Machine: {results['machine']}. Made by `python -m benchmarks.secret_cells`; numbers in "
        f"`results/secret_cells.json`. MNIST dealt at random to {DEVICES} devices, 60 examples "
        f"each, one linear layer, {ROUNDS} rounds. Accuracy of honest devices in %, the mean of "
        f"{len(SEEDS)} seeds. In secret mode, robust means compare ten cells of five devices.",
        "",
        f"| attack | mean | {' | '.join(f'{n} attackers' for n in ATTACKERS)} |",
        f"|---|---{'|---' * len(ATTACKERS)}|",
    ]
    for row in results["rows"]:
        place = "" if row["secret"] else ", clear mode"
        cells = [f"{statistics.fmean(values):.1f}" for values in row["accuracies"].values()]
        lines.append(f"| `{row['attack']}` | `{row['mean']}`{place} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print each row, and write the results."""
    rows = [row for attack in ATTACKS for row in measure_rows(attack)]
    results = {"machine": describe_machine(), "rows": rows}
    keep(results, OUT, OUT, "secret-cells", section(results))


if __name__ == "__main__":
    main()
