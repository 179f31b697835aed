"""Pictures of data, for people: who holds what, before anything is trained."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import EllipseCollection

from edge_client.data.labels import has_classes
from shoal.reports.files import COLOURS, GRID, INK
from simulation.datasets.windows import FleetData
from wire.arrays.tensors import Array

NAMED_DEVICES = 60
"""So many devices still have their names under their columns."""
CELL_IN, ROOM_IN = (0.15, 0.4), 13.0
"""Smallest and largest distance from device to device, and the width that they should fit in, in
inches."""


def draw_holdings(path: Path, fleet: FleetData) -> Path:
    """One column per device, one row per class: the area of a circle is the number of training
    examples. Devices stand in the order of their groups where there are any (`fleet.truth`), which
    have a colour each."""
    order = sorted(fleet.devices, key=lambda d: (fleet.truth.get(d, ""), d))
    groups = [fleet.truth.get(d, "") for d in order]
    counts = np.stack(
        [
            class_counts(fleet.devices[d].train_y, len(fleet.classes), fleet.window.steps)
            for d in order
        ],
        axis=1,
    )
    cell = min(max(ROOM_IN / len(order), CELL_IN[0]), CELL_IN[1])
    size = (
        2.4 + cell * len(order) + max(0.0, 6 * CELL_IN[1] - cell),
        1.8 + cell * len(fleet.classes),
    )
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    names = sorted(set(groups))
    colours = [COLOURS[names.index(group) % len(COLOURS)] for group in groups]
    devices, classes = (
        places.ravel() for places in np.meshgrid(range(len(order)), range(len(fleet.classes)))
    )
    _circles(
        axes, devices, classes, counts.ravel(), int(counts.max()), colours * len(fleet.classes)
    )
    _draw_scale(axes, int(counts.max()), len(order), cell)
    if len(names) > 1:
        _draw_groups(axes, groups, len(fleet.classes), cell)
    axes.set(
        xlim=(-0.6, len(order) - 0.4),
        ylim=(len(fleet.classes) - 0.4, -0.6),
        aspect="equal",
        ylabel="class",
    )
    small = 8 if cell > 0.2 else 7
    axes.set_yticks(range(len(fleet.classes)), fleet.classes, fontsize=small)
    if len(order) <= NAMED_DEVICES:
        axes.set_xticks(range(len(order)), order, rotation=90, fontsize=small)
    else:
        axes.set(xticks=[], xlabel=f"{len(order)} devices")
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    axes.grid(color=GRID, lw=0.6)
    axes.spines[:].set_visible(False)
    title = f"{fleet.name}: {int(counts.sum()):,} training examples on {len(order)} devices"
    axes.set_title(title, loc="left", fontsize=11, pad=34 if len(names) > 1 else 10)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


def class_counts(y: Array, num_names: int, steps: int) -> Array:
    """How many examples have each name: as their class, as that of a step, as one of several
    labels, or as a quantity, which all have."""
    if y.dtype.kind == "f":
        return np.full(num_names, len(y))
    if steps:
        return np.array([(y == number).any(1).sum() for number in range(num_names)])
    return np.bincount(y, minlength=num_names) if has_classes(y) else y.sum(0)


def _circles(
    axes: Any, x: Array, y: Array, counts: Array, most: int, colours: Sequence[str]
) -> None:
    """Circles whose area says the count; the largest of all fills its cell."""
    width = 0.94 * np.sqrt(counts / max(1, most))
    some = np.flatnonzero(counts)
    axes.add_collection(
        EllipseCollection(
            width[some], width[some], np.zeros(len(some)), units="xy",
            offsets=np.stack([x, y], axis=1)[some],
            facecolors=[colours[int(i)] for i in some], transOffset=axes.transData, clip_on=False,
        )
    )  # fmt: skip


def _draw_scale(axes: Any, most: int, num_devices: int, cell: float) -> None:
    """Three circles beside the picture, and what they stand for."""
    rounded = sorted({max(1, _round_down(most / share)) for share in (1, 4, 16)}, reverse=True)
    x = num_devices + 0.4
    _circles(
        axes,
        np.full(len(rounded), x),
        np.arange(len(rounded)) * 1.1,
        np.array(rounded),
        most,
        [INK] * len(rounded),
    )
    for row, count in enumerate(rounded):
        axes.text(x + 0.5 + 0.06 / cell, 1.1 * row, f"{count:,}", fontsize=8, va="center")


def _round_down(value: float) -> int:
    """To one digit: 4,237 gives 4,000."""
    digits = 10 ** max(0, len(str(int(value))) - 1)
    return int(value // digits * digits)


def _draw_groups(axes: Any, groups: Sequence[str], num_classes: int, cell: float) -> None:
    """A bar over each group with its name, where that fits, and a line between groups."""
    names, start = sorted(set(groups)), 0
    for name, members in groupby(groups):
        count = len(list(members))
        colour = COLOURS[names.index(name) % len(COLOURS)]
        axes.plot(
            [start - 0.4, start + count - 0.6],
            [-0.6 - 0.06 / cell] * 2,
            color=colour,
            lw=3,
            clip_on=False,
            solid_capstyle="butt",
        )
        if 0.075 * len(name) < count * cell:
            axes.text(
                start + (count - 1) / 2,
                -0.6 - 0.13 / cell,
                name,
                ha="center",
                va="bottom",
                fontsize=9,
                color=colour,
            )
        if start:
            axes.axvline(start - 0.5, color=INK, lw=0.8, alpha=0.5)
        start += count
