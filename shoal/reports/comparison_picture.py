"""The picture of a comparison: accuracy over rounds, and what every run ended with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from shoal.reports.files import COLOURS, GRID
from wire.arrays.tensors import Array

STYLES = ("-", "--", ":", "-.")


def draw_comparison(
    path: Path, results: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> Path:
    """Left: mean accuracy over devices and seeds after each round. Right: the final accuracy, a dot
    per seed, a bar for the mean."""
    names = [row["algorithm"] for row in rows]
    height = max(3.6, 0.8 + 0.3 * len(names))
    figure, (over, final) = plt.subplots(
        1, 2, figsize=(11, height), width_ratios=(1.5, 1), layout="constrained"
    )
    for at, name in enumerate(names):
        colour, style = COLOURS[at % len(COLOURS)], STYLES[at // len(COLOURS) % len(STYLES)]
        runs = [r for r in results if r["algorithm"] == name]
        mean = _mean_over_seeds([r["accuracy_by_round"] for r in runs])
        over.plot(
            np.arange(1, len(mean) + 1),
            100 * mean,
            style,
            color=colour,
            lw=1.8,
            marker="." if len(mean) < 3 else None,
        )
        row = rows[at]
        if row["accuracy"]["mean"] is None:
            continue
        final.barh(at, 100 * row["accuracy"]["mean"], color=colour, alpha=0.35, height=0.7)
        ends = [100 * r["accuracy"]["mean"] for r in runs if r["accuracy"]["mean"] is not None]
        final.plot(ends, [at] * len(ends), "o", color=colour, ms=4)
        final.text(
            1,
            at,
            f" {100 * row['accuracy']['mean']:.1f}",
            transform=final.get_yaxis_transform(),
            va="center",
            fontsize=9,
        )
    ends = [100 * r["accuracy"]["mean"] for r in results if r["accuracy"]["mean"] is not None]
    low = max(0.0, 10 * np.floor(min(ends, default=0.0) / 10) - 10)
    final.set(xlim=(low, max(ends, default=100.0) + 1), xlabel="final accuracy, %, a dot per seed")
    final.set_yticks(range(len(names)), names, fontsize=9)
    final.invert_yaxis()
    if rows:
        over.axhline(100 * rows[0]["target"], color="#888888", lw=0.8, ls=(0, (2, 3)))
    over.set(xlabel="round", ylabel="mean accuracy of the devices' models, %")
    over.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (over, final):
        axes.grid(color=GRID)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _mean_over_seeds(curves: Sequence[Sequence[float | None]]) -> Array:
    length = min((len(curve) for curve in curves), default=0)
    values = np.array(
        [[np.nan if v is None else v for v in curve[:length]] for curve in curves], np.float64
    )
    return np.asarray(values.mean(0)) if length else np.zeros(0)
