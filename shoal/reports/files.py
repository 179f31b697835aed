"""A finished run as files: ``summary.json``, pictures for slides and papers, and the report
(`shoal.reports`)."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import msgspec
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from aggregator.core.ports import Blobs
from aggregator.core.record import RoundRecord
from aggregator.core.summary import Newcomers, Summary
from aggregator.http.pages.words import number, percent
from algorithms.personalisation.kept import kept_text
from shoal.reports.run_page import Extras, run_page
from wire.arrays.tensors import Array, decode_tensors

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

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


def slug(name: str) -> str:
    """A name as it may stand in file names and run ids."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name)[:64]


def write_report(
    out: Path,
    summary: Summary,
    records: Sequence[RoundRecord],
    blobs: Blobs,
    extras: Extras = Extras(),  # noqa: B008  # frozen
) -> list[Path]:
    """Write everything a run leaves for people into `out`; returns the files."""
    written = [
        write_summary(out / "summary.json", summary),
        draw_accuracy(out / "accuracy.png", summary),
    ]
    written += draw_similarity(out, summary, records, blobs)
    page = out / "report.html"
    page.write_text(run_page(summary, records, blobs, extras))
    return [*written, page]


def write_summary(path: Path, summary: Summary) -> Path:
    """Write a summary as JSON; parts that it does not have are left out."""
    path.write_text(json.dumps(msgspec.to_builtins(summary), indent=1) + "\n")
    return path


def draw_accuracy(path: Path, summary: Summary) -> Path:
    """Mean and worst accuracy over rounds, beside the comparison's where there is one."""
    figure, axes = plt.subplots(figsize=(7.2, 4), layout="constrained")
    lines = {summary.algorithm: summary.accuracy_by_round}
    for name, other in summary.comparison.items():
        lines[name] = other.accuracy_by_round
    for colour, (name, rounds) in zip(COLOURS, lines.items(), strict=False):
        numbers = np.arange(1, len(rounds) + 1)
        for label, style, accuracies in (
            ("mean", "-", [r.mean for r in rounds]),
            ("worst", ":", [r.worst for r in rounds]),
        ):
            values = [np.nan if accuracy is None else 100 * accuracy for accuracy in accuracies]
            axes.plot(
                numbers,
                values,
                style,
                color=colour,
                lw=2,
                label=f"{name}, {label}",
                marker="." if len(rounds) < 3 else None,
            )
    axes.set(xlabel="round", ylabel="accuracy on the devices' own test windows, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def draw_similarity(
    out: Path, summary: Summary, records: Sequence[RoundRecord], blobs: Blobs
) -> list[Path]:
    """One picture of the distance matrices by which devices were last grouped, devices in the order
    of their groups."""
    seen = [record for record in records if record.views]
    if not seen:
        return []
    matrices, text = decode_tensors(blobs.get(seen[-1].views))
    ids = json.loads(text)["device_ids"]
    groups = [summary.devices[d].group for d in ids]
    order = sorted(range(len(ids)), key=lambda i: _by_group(groups[i], ids[i]))
    figure, all_axes = plt.subplots(
        1,
        len(matrices),
        figsize=(1.4 + 4.6 * len(matrices), 5.2),
        layout="constrained",
        squeeze=False,
    )
    for i, (axes, (name, matrix)) in enumerate(
        zip(all_axes[0], sorted(matrices.items(), reverse=True), strict=True)
    ):
        _draw_matrix(
            axes,
            matrix[np.ix_(order, order)],
            [ids[k] if i == 0 else "" for k in order],
            [groups[k] for k in order],
        )
        axes.set_title(f"{name}, round {seen[-1].round}")
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
    axes.figure.colorbar(image, ax=axes, shrink=0.75, label="distance (dark: close)")


def _by_group(group: int | None, device_id: str) -> tuple[int, str]:
    """Sorts devices by their groups, those without one first."""
    return -1 if group is None else group, device_id


MOST_ROWS = 100
"""A table for people has at most so many devices."""
WIDEST_ID = 24
"""A longer name of a device may take several lines of a narrow table."""


def _table(what: str, ids: Iterable[str], numbers: Sequence[str]) -> Table:
    """A table without rows, for devices of these ids: a column for them, which may be folded, and
    one for each of these numbers."""
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
    )
    table.add_column(what, overflow="fold", min_width=min(WIDEST_ID, max(map(len, ids), default=0)))
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def device_table(summary: Summary) -> Table:
    """One row per device, by group."""
    table = _table("device", summary.devices, ("group", "train", "test", "accuracy"))
    if summary.macro_f1:
        table.add_column("macro F1", justify="right")
    if summary.auc:
        table.add_column("AUC", justify="right")
    for name in summary.mae or {}:
        table.add_column(f"error of {name}", justify="right")
    if summary.accuracy_is:
        table.add_column("loss", justify="right")
    for name in summary.comparison:
        table.add_column(name, justify="right")
    if summary.kept:
        table.add_column("keeps")
    is_placed = any(device.placed for device in summary.devices.values())
    if is_placed:
        table.add_column("sure", justify="right")
    rows = sorted(summary.devices.items(), key=lambda item: _by_group(item[1].group, item[0]))
    if len(rows) > MOST_ROWS:
        table.caption = f"and {len(rows) - MOST_ROWS:,} more in summary.json"
    for device_id, device in rows[:MOST_ROWS]:
        group = "-" if device.group is None else str(device.group)
        cells = [percent(device.macro_f1)] if summary.macro_f1 else []
        cells += [percent(device.auc)] if summary.auc else []
        cells += [number((device.mae or {}).get(name)) for name in summary.mae or {}]
        cells += [number(device.loss)] if summary.accuracy_is else []
        cells += [percent(other.devices.get(device_id)) for other in summary.comparison.values()]
        cells += [kept_text(device.kept)] if summary.kept else []
        cells += [percent(device.placed.sure) if device.placed else ""] if is_placed else []
        table.add_row(
            device_id,
            group,
            str(device.num_train),
            str(device.num_test),
            percent(device.accuracy),
            *cells,
        )
    return table


def newcomer_table(came: Newcomers, keeps: bool) -> Table:
    """One row per device that came when training was over. `keeps`: whether devices choose what
    they keep."""
    table = _table("newcomer", came.devices, ("group", "sure", "accuracy"))
    if keeps:
        table.add_column("keeps")
    for device_id, accuracy in list(came.devices.items())[:MOST_ROWS]:
        cells = [kept_text(came.kept[device_id])] if keeps else []
        table.add_row(
            device_id,
            came.groups[device_id],
            percent(came.sure[device_id]),
            percent(accuracy),
            *cells,
        )
    return table
