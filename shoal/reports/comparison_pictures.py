"""Pictures of a comparison and of a grid of scenarios."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from shoal.reports.comparison_page import mean_line
from shoal.reports.pictures import COLOURS, GRID, INK, whole_rounds
from simulation.comparison.grid import Cell
from wire.arrays.tensors import Array

STYLES = ("-", "--", ":", "-.")
FULL = 10.0
"""Points below the best of a cell from which the colour is the darkest."""
DARK = 6.0
"""Points below the best of a cell from which the number is white."""


def draw_comparison(
    path: Path, results: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> Path:
    """Draw the accuracies of a comparison, and return the path.

    Left: mean accuracy over devices and seeds after each round. Right: the final accuracy, with a
    dot per seed and a bar for the mean.
    """
    names = [row["algorithm"] for row in rows]
    height = max(3.6, 0.8 + 0.3 * len(names))
    figure, (over, final) = plt.subplots(
        1, 2, figsize=(11, height), width_ratios=(1.5, 1), layout="constrained"
    )
    for at, name in enumerate(names):
        colour, style = COLOURS[at % len(COLOURS)], STYLES[at // len(COLOURS) % len(STYLES)]
        runs = [r for r in results if r["algorithm"] == name]
        means = [accuracy for _, _, accuracy in mean_line(runs)]
        mean = np.array([np.nan if value is None else value for value in means])
        over.plot(
            np.arange(1, len(mean) + 1),
            100 * mean,
            style,
            color=colour,
            lw=1.8,
            marker="." if len(mean) < 3 else None,
            label=name,
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
    final.set(
        xlim=(low, max(ends, default=100.0) + 1), xlabel="final accuracy in %, a dot per seed"
    )
    final.set_yticks(range(len(names)), names, fontsize=9)
    final.invert_yaxis()
    if rows:
        target = 100 * rows[0]["target"]
        over.axhline(target, color="#888888", lw=0.8, ls=(0, (2, 3)))
        words, across = f"target {target:.1f}", over.get_yaxis_transform()
        over.text(0.01, target, words, va="bottom", fontsize=8, color="#666666", transform=across)
    over.set(xlabel="round", ylabel="mean accuracy of the devices' models in %")
    whole_rounds(over, max((len(line.get_xdata()) for line in over.lines[: len(names)]), default=0))
    if names:
        over.legend(frameon=False, fontsize=8, ncols=1 + (len(names) - 1) // 12)
    for axes in (over, final):
        axes.grid(color=GRID)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def draw_grid(
    path: Path,
    cells: Mapping[Cell, Sequence[Mapping[str, Any]]],
    overall: Sequence[Mapping[str, Any]],
) -> Path:
    """Draw the accuracies of a grid, and return the path.

    The picture has a row per algorithm, a column per cell and one for all cells. The number is the
    mean accuracy, the colour how far it is below the best of its column. A frame marks the best. A
    dash means that no run ended with a model.
    """
    names = [row["algorithm"] for row in overall]
    columns = [_column(rows, names) for rows in cells.values()] + [_column(overall, names)]
    values = np.array(columns, np.float64).T
    place = _places(list(cells))
    width, height = 2.6 + 0.095 * max(map(len, names)) + 0.58 * place[-1], 2.1 + 0.34 * len(names)
    figure, axes = plt.subplots(figsize=(max(7.0, width), height), layout="constrained")
    best = np.array(
        [np.nanmax(column) if np.isfinite(column).any() else np.nan for column in values.T]
    )
    colours = plt.get_cmap("YlOrRd")
    for column, x in enumerate(place):
        for y, value in enumerate(values[:, column]):
            below = best[column] - value
            is_finite = np.isfinite(value)
            face = colours(min(1.0, below / FULL)) if is_finite else "#eeeeee"
            axes.add_patch(
                Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white", lw=1)
            )
            colour = "white" if is_finite and below > DARK else INK
            axes.text(
                x,
                y,
                f"{value:.1f}" if is_finite else "-",
                ha="center",
                va="center",
                fontsize=8,
                color=colour,
            )
        for winner in np.flatnonzero(values[:, column] == best[column]):
            axes.add_patch(
                Rectangle((x - 0.46, winner - 0.46), 0.92, 0.92, fill=False, edgecolor=INK, lw=1.4)
            )
    axes.set(xlim=(-0.55, place[-1] + 0.55), ylim=(len(names) - 0.45, -0.55))
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_xticks(place, [*(str(cell.labels) for cell in cells), "mean"], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    newcomers = (
        " (none: newcomers without labels)" if any(cell.labels == "none" for cell in cells) else ""
    )
    axes.set_xlabel(f"labelled windows of each class{newcomers}", fontsize=9)
    _head(axes, list(cells), place)
    axes.annotate(
        "all cells",
        (place[-1], 1),
        (0, 20),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="center",
    )
    bar = figure.colorbar(
        plt.cm.ScalarMappable(Normalize(0, FULL), colours),
        ax=axes,
        extend="max",
        pad=0.01,
        fraction=0.03,
        aspect=12,
    )
    bar.set_label("points below the best", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    axes.set_title("Mean accuracy of devices in %", loc="left", fontsize=11, pad=40)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _column(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[float]:
    means = {row["algorithm"]: row["accuracy"]["mean"] for row in rows}
    return [np.nan if means.get(name) is None else 100 * means[name] for name in names]


def _places(cells: Sequence[Cell]) -> Array:
    """Return the positions of the columns, the last of which is that of all cells.

    The gap is a little wider where the split changes, wider where the data do, widest before the
    last.
    """
    at, places = 0.0, []
    for i, cell in enumerate(cells):
        if i:
            before = cells[i - 1]
            at += 1.5 if cell.data != before.data else 1.2 if cell.split != before.split else 1.0
        places.append(at)
    return np.array([*places, at + 1.6])


def _head(axes: Any, cells: Sequence[Cell], place: Array) -> None:
    """Write data sets and splits over their columns."""
    numbered = list(enumerate(cells))
    for key, height, size in (
        (lambda c: (c.data, str(c.split)), 1.5, 9),
        (lambda c: (c.data,), 20, 10),
    ):
        for words, members in groupby(numbered, key=lambda pair: key(pair[1])):
            at = [place[i] for i, _ in members]
            axes.annotate(
                Path(words[-1]).name, ((at[0] + at[-1]) / 2, 1), (0, height),
                xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="center", va="bottom", fontsize=size,
            )  # fmt: skip
            if height > 10:
                axes.plot(
                    [at[0] - 0.5, at[-1] + 0.5], [-0.5 - 0.02] * 2, color=INK, lw=0.8, clip_on=False
                )
