"""Means against liars inside the service's bounds. ``python -m benchmarks.liars``.

A fleet of twenty trains a small perceptron by FedAvg, once for each mean, in lockstep. A share of
the devices attacks in every round, by the simulator's own attacks, and knows the changes of all
others. Data, partitions, attacks, bounds and means are the product's; only the training is a
smaller one, so that the grid ends on one core.

Each cell (data, partition, seed, attack, share) is one line of ``benchmarks/results/liars.jsonl``,
appended when it is complete. The same command goes on where it was ended, with the most important
cells first, and puts its section into RESULTS.md; ``--seconds`` bounds it.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, avg_pool2d, cross_entropy

from aggregator.aggregation.bounds import FLOOR
from algorithms.core.contract import Slice
from algorithms.core.stack import Stack
from algorithms.registry import make
from algorithms.spec import Choice
from benchmarks.results.report import describe_machine, put
from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from simulation.engine.workers.attacks import (
    COLLUDING,
    Attack,
    make_attack,
    read_attack,
    stamped,
    success_rate,
)
from simulation.partition import make_fleet, read_partition
from wire.arrays import names

OUT = Path(__file__).parents[1] / "benchmarks" / "results" / "liars.jsonl"
DEVICES, ROUNDS, EPOCHS, BATCH, HIDDEN, EXAMPLES, TESTS = 20, 15, 2, 16, 32, 64, 60
RATE, MOMENTUM = 0.05, 0.9
NORM_CAP = 10.0
"""Default of the service: an update counts up to this many times the median norm."""
DATA = {
    "watch": ("iid", "user", "dirichlet:alpha=0.5"),
    "uci-har": ("iid", "user", "dirichlet:alpha=0.5"),
    "mnist": ("iid", "dirichlet:alpha=0.5"),
}
"""Partitions of each data set; MNIST has no users."""
ATTACKS = {
    "labels": "label-flip",
    "louder": "ipm:scale=9.9",
    "sign": "sign-flip",
    "alie": "alie",
    "ipm": "ipm",
    "fang": "fang",
    "min-max": "min-max",
    "backdoor": "backdoor",
}
MEANS = (
    "weighted",
    "trimmed:share=0.2",
    "median",
    "multi-krum",
    "irls",
    "robust",
    "robust:reach=1",
)
"""Means of the product; the other candidates are below."""
SHARES = (0.2, 0.1, 0.3)
FEW = (3, 4, 5, 6)
"""Sizes of small groups with one liar."""

WHY = (
    "- The default has to lose at most half a point without a liar, and to keep the most with a "
    "fifth of liars. `irls`, `robust:reach=1` and `robust` (1.5)",
    "  keep 76.1, 76.2 and 75.9 of 78.8. `reach=1` loses more than a point without a liar where "
    "devices are people, and 5 to 10 in groups of three and five;",
    "  `irls` loses a point where devices are people, and falls to one liar among three: the "
    "default is `robust` with 1.5.",
    "- With three liars of ten, `reach=1` keeps three points more than the default, which *fang* "
    "brings to 55. Where that many may lie and groups are",
    "  large, choose `robust:reach=1`.",
    "- `median`, `trimmed` and `multi-krum` cost points without a liar. `geometric` and `clipped` "
    "cost next to none, but a liar pulls them as hard",
    "  from far away as from nearby.",
    "- What is left to a liar is its change the other way (*sign*), as loud as an honest one: "
    "under `robust` it costs six points after 15 rounds.",
    "- A backdoor gets through every mean, and through `multi-krum` the least.",
)
"""Reading of the results."""

Combine = Callable[[Any, Any, Any], Any]
"""Function (models (N, D), start (D,), numbers of examples (N,)) -> model (D,)."""


def geometric(models: Any, start: Any, counts: Any) -> Any:
    """Weiszfeld's geometric median (Pillutla et al., RFA, IEEE TSP 2022)."""
    del start, counts
    centre = models.mean(0)
    for _ in range(5):
        weights = 1 / np.maximum(np.linalg.norm(models - centre, axis=1), 1e-12)
        centre = weights @ models / weights.sum()
    return centre


def clipped(models: Any, start: Any, counts: Any) -> Any:
    """Centred clipping (Karimireddy et al., ICML 2021) about the median, to the median distance."""
    del start, counts
    centre = np.median(models, axis=0)
    for _ in range(3):
        moves = models - centre
        lengths = np.linalg.norm(moves, axis=1)
        factors = np.minimum(1, np.median(lengths) / np.maximum(lengths, 1e-12))
        centre = centre + (factors[:, None] * moves).mean(0)
    return centre


def agreement(models: Any, start: Any, counts: Any) -> Any:
    """FLTrust's weights (Cao et al., NDSS 2021) with the median's change in place of a server's."""
    del counts
    moves = models - start
    trusted = np.median(moves, axis=0)
    lengths, length = np.linalg.norm(moves, axis=1), np.linalg.norm(trusted)
    usual = np.median(lengths)
    trust = np.maximum(moves @ trusted / np.maximum(lengths * length, 1e-12), 0)
    if not trust.any():
        return start + trusted
    return start + (trust / trust.sum() * usual / np.maximum(lengths, 1e-12)) @ moves


def product_mean(text: str) -> Combine:
    """Return a mean of the product as such a function."""
    name, *options = text.split(":")
    values = tuple((k, float(v)) for k, v in (each.split("=") for each in options))
    mean = make(Choice(name, values))

    def combine(models: Any, start: Any, counts: Any) -> Any:
        layout = (Slice(names.shared("w"), 0, models.shape[1], (models.shape[1],)),)
        return mean.combine(Stack(models), counts, layout, 0).flat

    return combine


CANDIDATES: Mapping[str, Combine] = {
    **{text: product_mean(text) for text in MEANS},
    "geometric": geometric,
    "clipped": clipped,
    "agreement": agreement,
}


@dataclass(frozen=True)
class Cell:
    """One line of results."""

    data: str
    partition: str
    seed: int
    attack: str
    share: float
    devices: int = DEVICES

    @property
    def key(self) -> tuple[Any, ...]:
        """Identity of the cell."""
        return (self.data, self.partition, self.seed, self.attack, self.share, self.devices)


def cells() -> list[Cell]:
    """Every cell, the most important first: a fifth of liars before others, seed by seed."""
    places = [(d, p) for d, partitions in DATA.items() for p in partitions]
    some = [("", 0.0), *product(ATTACKS, SHARES[:1])]
    alone = [
        Cell(data, "user", seed, attack, share, devices)
        for data in ("watch", "uci-har")
        for seed in range(3)
        for devices in FEW
        for attack, share in (("", 0.0), ("louder", round(1 / devices, 2)))
    ]
    by_seed = [[Cell(d, p, seed, *each) for d, p in places for each in some] for seed in range(3)]
    return [*by_seed[0], *alone, *by_seed[1], *by_seed[2]] + [
        Cell(d, p, seed, attack, share)
        for seed in range(3)
        for share in SHARES[1:]
        for d, p in places
        for attack in ATTACKS
    ]


@cache
def fleet_of(data: str, partition: str, seed: int, devices: int) -> FleetData:
    """Return the fleet of a cell, with at most `EXAMPLES` training and `TESTS` test windows a
    device."""
    fleet = make_fleet(data, read_partition(partition), devices, seed)
    rng = np.random.default_rng(seed)
    few = {}
    for name in sorted(fleet.devices):
        w = fleet.devices[name]
        train, test = rng.permutation(w.num_train)[:EXAMPLES], rng.permutation(w.num_test)[:TESTS]
        few[name] = Windows(w.train_x[train], w.train_y[train], w.test_x[test], w.test_y[test])
    return FleetData(fleet.name, fleet.window, fleet.classes, few, fleet.truth)


def features(x: Any) -> Tensor:
    """Return windows as rows: a quarter of the steps, half of the rows and columns of images."""
    t = torch.from_numpy(np.asarray(x, np.float32))
    return (avg_pool2d(t, 2) if t.ndim == 4 else avg_pool1d(t, 4)).flatten(1)


def logits(flat: Tensor, x: Tensor, classes: int) -> Tensor:
    """Return the outputs (..., B, classes) of perceptrons whose weights are rows (..., D)."""
    size, at, parts = x.shape[-1], 0, []
    for shape in ((size, HIDDEN), (1, HIDDEN), (HIDDEN, classes), (1, classes)):
        count = math.prod(shape)
        parts.append(flat[..., at : at + count].unflatten(-1, shape))
        at += count
    hidden: Tensor = torch.relu(x @ parts[0] + parts[1])
    answers: Tensor = hidden @ parts[2] + parts[3]
    return answers


def initial(size: int, classes: int, seed: int) -> Any:
    """Return the first model (D,)."""
    rng = np.random.default_rng([seed, 1])
    first = rng.normal(0, math.sqrt(2 / size), size * HIDDEN)
    last = rng.normal(0, math.sqrt(1 / HIDDEN), HIDDEN * classes)
    parts = [first, np.zeros(HIDDEN), last, np.zeros(classes)]
    return np.concatenate(parts).astype(np.float32)


def run(cell: Cell) -> dict[str, Any]:
    """Return the honest accuracy under each mean, and the success of the attack, in percent."""
    fleet, seed = fleet_of(cell.data, cell.partition, cell.seed, cell.devices), cell.seed
    ids, classes = sorted(fleet.devices), len(fleet.classes)
    attack: Attack | None = None
    if cell.attack:
        text = f"{ATTACKS[cell.attack]}:share={cell.share}"
        attack = make_attack(read_attack(text), fleet, seed)
    liars = attack.attackers if attack else frozenset()
    windows = {
        d: attack.poison(w) if attack and d in liars else w for d, w in fleet.devices.items()
    }
    clean = torch.cat([features(fleet.devices[d].train_x) for d in ids])
    mean, spread = clean.mean(0), clean.std(0) + 0.1
    rng = np.random.default_rng([seed, 2])
    x: list[Tensor] = []
    y: list[Tensor] = []
    for d in ids:  # a device with fewer windows repeats some of them
        rows = np.resize(rng.permutation(windows[d].num_train), EXAMPLES)
        x.append((features(windows[d].train_x[rows]) - mean) / spread)
        y.append(torch.from_numpy(windows[d].train_y[rows].astype(np.int64)))
    xs, ys = torch.stack(x), torch.stack(y)
    counts = np.array([windows[d].num_train for d in ids])
    models = np.stack([initial(xs.shape[-1], classes, seed)] * len(CANDIDATES))
    for number in range(ROUNDS):
        flat = torch.from_numpy(models)[:, None, :].repeat(1, len(ids), 1)
        speed = torch.zeros_like(flat)
        for _ in range(EPOCHS):
            order = torch.from_numpy(rng.permutation(EXAMPLES))
            for start in range(0, EXAMPLES, BATCH):
                batch = order[start : start + BATCH]
                flat.requires_grad_(True)
                out = logits(flat, xs[:, batch], classes)
                target = ys[:, batch].expand(len(models), -1, -1)
                loss = cross_entropy(out.flatten(0, 2), target.flatten(), reduction="sum") / BATCH
                (gradient,) = torch.autograd.grad(loss, flat)
                with torch.no_grad():
                    speed = MOMENTUM * speed + gradient
                    flat = flat.detach() - RATE * speed
        trained = flat.numpy()
        for i, combine in enumerate(CANDIDATES.values()):
            models[i] = step(trained[i], models[i], ids, counts, attack, number, combine)
    return measured(cell, fleet, attack, torch.from_numpy(models), (mean, spread))


def step(
    trained: Any,
    start: Any,
    ids: Sequence[str],
    counts: Any,
    attack: Attack | None,
    number: int,
    combine: Combine,
) -> Any:
    """Return the next model of a mean, from the updates that are within the service's bounds."""
    updates = {d: {names.delta("w"): row - start} for d, row in zip(ids, trained, strict=True)}
    if attack:
        false = (
            attack.collude(updates)
            if attack.name in COLLUDING
            else {d: attack.tamper(updates[d], d, number) for d in sorted(attack.attackers)}
        )
        updates |= false
    changes = np.stack([updates[d][names.delta("w")] for d in ids])
    norms = np.linalg.norm(changes, axis=1)
    counted = norms <= max(FLOOR, NORM_CAP * statistics.median_low(norms.tolist()))
    return combine((start + changes[counted]).astype(np.float32), start, counts[counted])


def measured(
    cell: Cell,
    fleet: FleetData,
    attack: Attack | None,
    models: Tensor,
    scale: tuple[Tensor, Tensor],
) -> dict[str, Any]:
    """Return the line of a cell."""
    honest = [d for d in sorted(fleet.devices) if not attack or d not in attack.attackers]
    classes = len(fleet.classes)

    def answers(x: Any) -> Any:
        return logits(models, (features(x) - scale[0]) / scale[1], classes).argmax(-1).numpy()

    right = np.zeros((len(honest), len(models)))
    shown, labels = [], []
    for i, d in enumerate(honest):
        w = fleet.devices[d]
        right[i] = (answers(w.test_x) == w.test_y).mean(1) if w.num_test else np.nan
        if attack and w.num_test:
            shown.append(answers(stamped(w.test_x) if attack.name == "backdoor" else w.test_x))
            labels.append(w.test_y)
    line: dict[str, Any] = {
        "data": cell.data,
        "partition": cell.partition,
        "seed": cell.seed,
        "attack": cell.attack,
        "share": cell.share,
        "devices": cell.devices,
        "accuracy": dict(
            zip(CANDIDATES, (100 * np.nanmean(right, 0)).round(1).tolist(), strict=True)
        ),
    }
    if attack and attack.name in ("label-flip", "backdoor"):
        predicted, truth = np.concatenate(shown, 1), np.concatenate(labels)
        rates = [success_rate(attack.targets, truth, row) for row in predicted]
        line["success"] = dict(
            zip(CANDIDATES, [round(100 * (r or 0), 1) for r in rates], strict=True)
        )
    return line


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete cells of a file."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def key_of(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the identity of a line's cell."""
    return tuple(line[key] for key in ("data", "partition", "seed", "attack", "share", "devices"))


def averaged(lines: Sequence[Mapping[str, Any]], what: str = "accuracy") -> list[str]:
    """Return the mean of each candidate over these cells, as columns of a table."""
    return [
        f"{statistics.fmean(line[what][name] for line in lines):.1f}" if lines else "-"
        for name in CANDIDATES
    ]


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as Markdown."""
    whole = [line for line in lines if line["devices"] == DEVICES]
    usual = [line for line in whole if not line["attack"]]
    heads = ["no liar", *(f"{name}, 20 %" for name in ATTACKS)]
    rows = [
        usual,
        *(
            [line for line in whole if line["attack"] == a and line["share"] == 0.2]
            for a in ATTACKS
        ),
    ]
    for share in SHARES:
        heads.append(f"all attacks, {share:.0%}".replace("%", " %"))
        rows.append([line for line in whole if line["attack"] and line["share"] == share])
    for count in FEW:
        for attack in ("", "louder"):
            heads.append(f"{count} devices, {'one *louder*' if attack else 'no liar'}")
            rows.append([x for x in lines if (x["devices"], x["attack"]) == (count, attack)])
    marked = [line for line in whole if line["attack"] == "backdoor" and line["share"] == 0.2]
    columns = " | ".join(CANDIDATES)
    body = [
        f"| {head} | {len(cells_of)} | {' | '.join(averaged(cells_of))} |"
        for head, cells_of in zip(heads, rows, strict=True)
    ]
    places = sorted({(line["data"], line["partition"]) for line in usual})
    by_place = []
    for place in places:
        here = [line for line in whole if (line["data"], line["partition"]) == place]
        for head, some in (
            ("no liar", [line for line in here if not line["attack"]]),
            ("all attacks, 20 %", [line for line in here if line["share"] == 0.2]),
        ):
            by_place.append(f"| {', '.join(place)} | {head} | {' | '.join(averaged(some))} |")
    return "\n".join(
        [
            f"Machine: {describe_machine()}. {len(lines)} of {len(cells())} cells of "
            "`python -m benchmarks.liars` are measured.",
            "",
            f"{DEVICES} devices with at most {EXAMPLES} windows train a perceptron of {HIDDEN} "
            f"units, {ROUNDS} rounds of {EPOCHS} epochs, with data and partitions of Shoal. The "
            "liars of `--attack` know the",
            "changes of all others, and stay inside the service's bounds. Numbers are the mean "
            "accuracy of honest devices (%), over data (watch, UCI HAR, MNIST), partitions (IID, "
            "by user,",
            "Dirichlet 0.5) and seeds. *louder* is `ipm:scale=9.9`. `geometric`, `clipped` and "
            "`agreement` are no part of Shoal: Weiszfeld's geometric median, centred clipping "
            "about the median,",
            "and FLTrust's weights with the median's direction in place of a server's.",
            "",
            f"| liars | cells | {columns} |",
            "|---" * (2 + len(CANDIDATES)) + "|",
            *body,
            f"| success of *backdoor*, 20 % | {len(marked)} "
            f"| {' | '.join(averaged(marked, 'success'))} |",
            "",
            f"| data | liars | {columns} |",
            "|---" * (2 + len(CANDIDATES)) + "|",
            *by_place,
            "",
            *WHY,
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cells that are missing, and put the table into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines, began = read_lines(options.out), time.monotonic()
    complete = {key_of(line) for line in lines}
    todo = [cell for cell in cells() if cell.key not in complete]
    for number, cell in enumerate(todo, 1):
        if time.monotonic() - began > options.seconds:
            break
        lines.append(run(cell))
        with options.out.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        spent = time.monotonic() - began
        print(f"{number}/{len(todo)} cells, {spent:.0f} s, {cell.key}", flush=True)
    text = table(lines)
    if options.out == OUT:
        put("liars", f"## Liars inside the bounds\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
