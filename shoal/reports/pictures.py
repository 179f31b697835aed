"""Pictures of a run and of its data, for slides and papers."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from aggregator.http.pages.distances import in_two_dimensions, read_views
from aggregator.ports import Blobs
from aggregator.view.round_record import RoundRecord
from aggregator.view.summary import Summary
from edge_client.data.labels import has_classes
from simulation.datasets.windows import FleetData
from wire.arrays.tensors import Array

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.collections import EllipseCollection
from matplotlib.ticker import MaxNLocator

SHAPES = "os^Dvp"
"""Markers of devices on a map, the next one after all colours."""
COLOURS = ("#1b7f79", "#d1495b", "#edae49", "#30638e", "#8d5b9f", "#5c946e", "#a44a3f", "#3d405b")
INK, GRID = "#22313a", "#d7dee2"
plt.rcParams.update(
    {
        "font.size": 10,
        "axes.edgecolor": INK,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)
NAMED_DEVICES = 60
"""Maximum number of devices whose names stand under their columns."""
NAMED_ON_MAP = 40
"""Maximum number of devices whose names stand on a map."""
MOST_NAMES = 24
"""Maximum number of entries of a map's legend."""
MOST_MATRICES = 9
"""Maximum number of confusion matrices in a picture."""
CELL_IN, ROOM_IN = (0.15, 0.4), 13.0
"""Smallest and largest width of a device's column, and width of all columns, in inches."""


def draw_accuracy(path: Path, summary: Summary) -> Path:
    """Draw mean and worst accuracy over rounds, with those of the comparison if there is one."""
    figure, axes = plt.subplots(figsize=(7.2, 4), layout="constrained")
    lines = {summary.algorithm: summary.accuracy_by_round}
    for name, other in summary.comparison.items():
        lines[name] = other.accuracy_by_round
    for colour, (name, rounds) in zip(COLOURS, lines.items(), strict=False):
        numbers = np.arange(1, len(rounds) + 1)
        for label, style, accuracies in (
            ("mean", "-", [r.mean for r in rounds]),
            ("worst device", ":", [r.worst for r in rounds]),
        ):
            values = [np.nan if accuracy is None else 100 * accuracy for accuracy in accuracies]
            axes.plot(
                numbers,
                values,
                style,
                color=colour,
                lw=2,
                label=f"{name}, {label}",
                marker="o" if len(rounds) < 3 else None,
                markerfacecolor=colour if label == "mean" else "white",
            )
    axes.set(xlabel="round", ylabel="accuracy on the devices' own test windows in %")
    whole_rounds(axes, max(map(len, lines.values())))
    axes.grid(color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def whole_rounds(axes: Any, count: int) -> None:
    """Label the axis of rounds with whole numbers, also for a single round."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if count < 3:
        axes.set(xlim=(0.5, count + 0.5), xticks=range(1, count + 1))


def draw_map(
    path: Path,
    matrices: Mapping[str, Array],
    ids: Sequence[str],
    values: Mapping[str, Any],
    title: str,
) -> Path:
    """Draw devices in a plane by the distances of their surveys, and return the path.

    There is a map for each view: devices with similar data are near each other. `values` colours
    them: numbers by a scale, others by a legend. Devices without a value are grey.
    """
    figure, all_axes = plt.subplots(
        1,
        len(matrices),
        figsize=(0.9 + 5.1 * len(matrices), 4.9),
        layout="constrained",
        squeeze=False,
    )
    numbers = [values.get(d) for d in ids]
    is_scale = all(isinstance(v, float | np.floating) for v in numbers if v is not None)
    names = [] if is_scale else sorted({v for v in numbers if v is not None}, key=_natural)
    maps = {name: np.array(in_two_dimensions(matrix)) for name, matrix in matrices.items()}
    height = 0.08 + max(float(np.ptp(places[:, 1])) for places in maps.values()) / 2
    for axes, (name, places) in zip(all_axes[0], maps.items(), strict=True):
        places += 0.5 - (places.min(0) + places.max(0)) / 2
        grey = [i for i, value in enumerate(numbers) if value is None]
        axes.scatter(*places[grey].T, s=46, color="#b4bdc2", zorder=2)
        if is_scale:
            some = [i for i, value in enumerate(numbers) if value is not None]
            points = axes.scatter(
                *places[some].T, s=52, c=[numbers[i] for i in some], cmap="viridis", zorder=2
            )
        for at, value in enumerate(names):
            members = [i for i, number in enumerate(numbers) if number == value]
            marker = SHAPES[at // len(COLOURS) % len(SHAPES)]
            colour = COLOURS[at % len(COLOURS)]
            label = str(value) if at < MOST_NAMES else None
            axes.scatter(
                *places[members].T, s=52, color=colour, marker=marker, label=label, zorder=2
            )
        if len(ids) <= NAMED_ON_MAP:
            _write_ids(axes, ids, places)
        axes.set(xlim=(-0.08, 1.22), ylim=(0.5 - height, 0.5 + height), xticks=[], yticks=[])
        axes.set_aspect("equal")
        axes.spines[:].set_color(GRID)
        axes.set_title(f"by {name}", loc="left")
    if is_scale and any(value is not None for value in numbers):
        figure.colorbar(points, ax=all_axes[0, -1], shrink=0.7, label=title)
    elif names:
        figure.legend(
            *all_axes[0, 0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=min(len(names), 8),
            frameon=False,
            title=title if len(names) <= MOST_NAMES else f"{title}, the first {MOST_NAMES}",
        )
    figure.suptitle("Devices with similar data are near each other", x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _write_ids(axes: Any, ids: Sequence[str], places: Array) -> None:
    """Write the ids of devices beside them, but for those that would cover something."""
    boxes = [(x - 0.01, x + 0.01, y) for x, y in places.tolist()]
    for device_id, (x, y) in sorted(zip(ids, places.tolist(), strict=True)):
        box = x + 0.011, x + 0.02 + 0.015 * len(device_id), y
        if all(abs(y - b) > 0.035 or a > box[1] or c < box[0] for a, c, b in boxes):
            boxes.append(box)
            axes.annotate(device_id, (x, y), (6, -3), textcoords="offset points", fontsize=7)


def _natural(value: Any) -> tuple[bool, Any]:
    """Return a key by which numbers come before texts, each in their order."""
    return isinstance(value, str), value


def draw_confusion(path: Path, matrices: Mapping[str, Array], classes: Sequence[str]) -> Path:
    """Draw confusion matrices (true classes are rows) side by side, and return the path."""
    shown = dict(list(matrices.items())[:MOST_MATRICES])
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    side = 1.6 + 0.36 * max(4, len(classes))
    figure, all_axes = plt.subplots(
        rows,
        columns,
        figsize=(side * columns, 0.4 + side * rows),
        layout="constrained",
        squeeze=False,
    )
    small = 8 if len(classes) <= 12 else 6
    for i, axes in enumerate(all_axes.flat):
        if i >= len(shown):
            axes.set_axis_off()
            continue
        name, counts = list(shown.items())[i]
        shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
        axes.imshow(shares, cmap="YlGnBu", vmin=0, vmax=1)
        if len(classes) <= 20:
            for (row, column), count in np.ndenumerate(counts):
                colour = "white" if shares[row, column] > 0.6 else INK
                if count:
                    axes.text(
                        *(column, row, f"{count:,}"),
                        ha="center",
                        va="center",
                        fontsize=small - 1,
                        color=colour,
                    )
        axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=small)
        axes.set_yticks(range(len(classes)), classes, fontsize=small)
        axes.tick_params(length=0)
        right = np.trace(counts) / max(1, counts.sum())
        axes.set_title(f"{name}: {100 * right:.1f} % right", loc="left", fontsize=10)
        axes.set(xlabel="predicted class", ylabel="true class" if i % columns == 0 else "")
        axes.spines[:].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def draw_similarity(
    out: Path, summary: Summary, records: Sequence[RoundRecord], blobs: Blobs
) -> list[Path]:
    """Draw the distance matrices of the last grouping side by side, and return the picture's path.

    The devices are in the order of their groups. The list is empty if no grouping used distances.
    """
    seen = [record for record in records if record.views]
    if not seen:
        return []
    matrices, ids = read_views(blobs.get(seen[-1].views))
    groups = [summary.devices[d].group for d in ids]
    by_group = [(-1 if group is None else group, d) for group, d in zip(groups, ids, strict=True)]
    order = sorted(range(len(ids)), key=by_group.__getitem__)
    figure, all_axes = plt.subplots(
        1,
        len(matrices),
        figsize=(1.4 + 4.6 * len(matrices), 5.2),
        layout="constrained",
        squeeze=False,
    )
    for i, (axes, (name, matrix)) in enumerate(zip(all_axes[0], matrices.items(), strict=True)):
        _draw_matrix(
            axes,
            matrix[np.ix_(order, order)],
            [ids[k] if i == 0 else "" for k in order],
            [groups[k] for k in order],
        )
        axes.set_title(f"by {name}, round {seen[-1].round}")
    path = out / "similarity.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return [path]


def _draw_matrix(
    axes: Any, matrix: Array, labels: Sequence[str], groups: Sequence[int | None]
) -> None:
    off_diagonal = matrix[~np.eye(len(matrix), dtype=bool)]
    high = float(np.quantile(off_diagonal, 0.98)) if off_diagonal.size else 1.0
    image = axes.imshow(matrix, cmap="YlGnBu_r", vmin=0, vmax=high or 1.0)
    for at in (i for i in range(1, len(groups)) if groups[i] != groups[i - 1]):
        axes.axhline(at - 0.5, color="white", lw=2)
        axes.axvline(at - 0.5, color="white", lw=2)
    if len(labels) <= 60:
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
    else:
        axes.set_yticks([])
    axes.set_xticks([])
    axes.figure.colorbar(image, ax=axes, shrink=0.75, label="distance (dark: similar data)")


def draw_holdings(
    path: Path, fleet: FleetData, run_groups: Mapping[str, str] | None = None
) -> Path:
    """Draw the number of training examples of each class on each device, and return the path.

    A column is a device, a row a class, and the area of a circle the number of examples. Devices
    are in the order of their true groups (`fleet.truth`), or of those that the run found if there
    are none, each with a colour.
    """
    group_of = fleet.truth or run_groups or {}
    order = sorted(fleet.devices, key=lambda d: (group_of.get(d, ""), d))
    groups = [group_of.get(d, "") for d in order]
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
    title = f"{fleet.name}: {int(counts.sum()):,} training windows on {len(order)} devices"
    axes.set_title(title, loc="left", fontsize=11, pad=34 if len(names) > 1 else 10)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


def class_counts(y: Array, num_names: int, steps: int) -> Array:
    """Return the number of examples with each name.

    An example has a name as its class, as the class of one of its steps, or as one of several
    labels. Every example has every quantity.
    """
    if y.dtype.kind == "f":
        return np.full(num_names, len(y))
    if steps:
        return np.array([(y == number).any(1).sum() for number in range(num_names)])
    return np.bincount(y, minlength=num_names) if has_classes(y) else y.sum(0)


def _circles(
    axes: Any, x: Array, y: Array, counts: Array, most: int, colours: Sequence[str]
) -> None:
    """Draw circles whose areas are the counts; the count `most` fills its cell."""
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
    """Draw three circles beside the picture with their counts."""
    numbers = set()
    for share in (1, 4, 16):
        digits = 10 ** max(0, len(str(int(most / share))) - 1)  # 4,237 becomes 4,000
        numbers.add(max(1, int(most / share // digits * digits)))
    rounded = sorted(numbers, reverse=True)
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
        words = f"{count:,}" + ("" if row else " windows")
        axes.text(x + 0.5 + 0.06 / cell, 1.1 * row, words, fontsize=8, va="center")


def _draw_groups(axes: Any, groups: Sequence[str], num_classes: int, cell: float) -> None:
    """Draw a bar over each group with its name, if that fits, and a line between groups."""
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
