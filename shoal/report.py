"""A finished run as files: ``summary.json``, pictures, and one HTML page that shows them."""

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import msgspec
import numpy as np
from jinja2 import Environment, PackageLoader
from rich.table import Table

from aggregator.core.ports import Blobs
from aggregator.core.record import RoundRecord
from aggregator.core.summary import Summary, TimeSummary
from algorithms.personalisation.keeping import Recipe
from shoal.kept_words import kept_text, margin_text, rule_text
from wire.tensors import Array, decode_tensors

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

COLOURS = ("#1b7f79", "#d1495b", "#edae49", "#30638e", "#8d5b9f", "#5c946e", "#a44a3f", "#3d405b")
INK, GRID = "#22313a", "#d7dee2"
plt.rcParams.update(
    {"font.size": 10, "axes.edgecolor": INK, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
)


def slug(name: str) -> str:
    """A name as it may stand in file names and run ids."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name)[:64]


def write_report(
    out: Path,
    summary: Summary,
    records: Sequence[RoundRecord],
    blobs: Blobs,
    holdings: Path | None = None,
    recipe: Recipe | None = None,
) -> list[Path]:
    """Write everything a run leaves for people into `out`; returns the files. `holdings` is a picture of who holds what; `recipe` as in
    `AlgorithmSpec.recipe`."""
    written = [write_summary(out / "summary.json", summary)]
    pictures = [("How close the devices are", path) for path in draw_similarity(out, summary, records, blobs)]
    pictures.insert(0, ("Accuracy over rounds", draw_accuracy(out / "accuracy.png", summary)))
    if holdings is not None:
        pictures.append(("Who holds what", holdings))
    written += [path for _, path in pictures]
    written.append(_write_page(out / "report.html", summary, pictures, records, recipe))
    return written


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
        for label, style, accuracies in (("mean", "-", [r.mean for r in rounds]), ("worst", ":", [r.worst for r in rounds])):
            values = [np.nan if accuracy is None else 100 * accuracy for accuracy in accuracies]
            axes.plot(numbers, values, style, color=colour, lw=2, label=f"{name}, {label}", marker="." if len(rounds) < 3 else None)
    axes.set(xlabel="round", ylabel="accuracy on the devices' own test windows, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def draw_similarity(out: Path, summary: Summary, records: Sequence[RoundRecord], blobs: Blobs) -> list[Path]:
    """One picture of the distance matrices by which devices were last grouped, devices in the order of their groups."""
    seen = [record for record in records if record.views]
    if not seen:
        return []
    matrices, text = decode_tensors(blobs.get(seen[-1].views))
    ids = json.loads(text)["device_ids"]
    groups = [summary.devices[d].group for d in ids]
    order = sorted(range(len(ids)), key=lambda i: _by_group(groups[i], ids[i]))
    figure, all_axes = plt.subplots(1, len(matrices), figsize=(1.4 + 4.6 * len(matrices), 5.2), layout="constrained", squeeze=False)
    for i, (axes, (name, matrix)) in enumerate(zip(all_axes[0], sorted(matrices.items(), reverse=True), strict=True)):
        _draw_matrix(axes, matrix[np.ix_(order, order)], [ids[k] if i == 0 else "" for k in order], [groups[k] for k in order])
        axes.set_title(f"{name}, round {seen[-1].round}")
    path = out / "similarity.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return [path]


def _draw_matrix(axes: Any, matrix: Array, labels: Sequence[str], groups: Sequence[int | None]) -> None:
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


def device_table(summary: Summary) -> Table:
    """One row per device, by group."""
    table = Table(title=None, header_style="bold")
    for heading, side in (("device", "left"), ("group", "right"), ("train", "right"), ("test", "right"), ("accuracy", "right")):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
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
        table.add_row(device_id, group, str(device.num_train), str(device.num_test), percent(device.accuracy), *cells)
    return table


def time_text(time: TimeSummary) -> str:
    """What a run cost on the virtual clock, in a line."""
    devices = ", ".join(f"{count:,} {what}" for what, count in msgspec.structs.asdict(time.devices).items())
    reached = ", ".join(f"{percent(float(a))} after {s / 3600:.2f} h" for a, s in time.time_to_accuracy_s.items() if s is not None)
    return f"virtual time: {time.virtual_s / 3600:.2f} h; {devices}" + (f"; {reached}" if reached else "")


def percent(value: float | None) -> str:
    """A fraction as per cent with one digit; a dash for none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """A loss with three digits; a dash for none."""
    return "-" if value is None else f"{value:.3g}"


def megabytes(count: int) -> str:
    """Bytes as MB with one digit."""
    return f"{count / 1e6:.1f} MB"


def verdict(summary: Summary) -> str:
    """What came out, in one or two sentences."""
    groups, accuracy = summary.groups.count, summary.accuracy
    devices = len(summary.devices)
    found = f"{groups} groups among {devices} devices" if groups > 1 else f"{devices} devices in one group"
    worst = f"worst tenth {percent(accuracy.worst_tenth)}, worst device {percent(accuracy.worst)}"
    text = f"{summary.algorithm}: {found}, mean accuracy {percent(accuracy.mean)}, {worst}."
    if summary.accuracy_is:
        losses = [device.loss for device in summary.devices.values() if device.loss is not None]
        text += f" Accuracy is the share of {summary.accuracy_is}. Mean loss {number(fmean(losses) if losses else None)}."
    if summary.macro_f1:
        text += f" Mean macro F1 {percent(summary.macro_f1.mean)}, worst tenth {percent(summary.macro_f1.worst_tenth)}."
    if summary.auc:
        text += f" Mean AUC {percent(summary.auc.mean)}, worst tenth {percent(summary.auc.worst_tenth)}."
    for name, error in (summary.mae or {}).items():
        text += f" Mean absolute error of {name} {number(error.mean)}, worst tenth {number(error.worst_tenth)}."
    if summary.epsilon is not None:
        text += f" Epsilon {summary.epsilon:.2f}."
    if attack := summary.attack:
        apart = "apart from" if attack.told_apart else "among"
        text += f" {len(attack.attackers)} attackers ({attack.attack}) ended {apart} the honest devices, whose accuracy is"
        text += f" {percent(attack.honest_accuracy.mean)}"
        text += "." if attack.success_rate is None else f"; the attack succeeds in {percent(attack.success_rate)}."
    if placed := [device.placed for device in summary.devices.values() if device.placed]:
        told = sum(held.neighbours > 0 for held in placed)
        text += f" Devices without labels: {len(placed)}, of which {told} were placed by their inputs."
    if summary.newcomers:
        without = " without labels" if summary.labels == "none" else ""
        text += f" {len(summary.newcomers.devices)} newcomers{without} reach {percent(summary.newcomers.mean)}."
    for name, other in summary.comparison.items():
        if other.mean is not None and accuracy.mean is not None:
            gain = 100 * (accuracy.mean - other.mean)
            text += f" {name} on the same data: {percent(other.mean)}, {abs(gain):.1f} points {'less' if gain >= 0 else 'more'}."
    return text


def scenario_text(summary: Summary) -> str:
    """What devices had of the data, where that is not all of it as it is; empty where it is."""
    labels = {"": "", "all": "", "none": "newcomers without labels"}.get(
        summary.labels, f"at most {summary.labels} labelled windows of each class on a device"
    )
    split = f"training and test parts by {summary.split}" if summary.split not in ("", "own") else ""
    return "; ".join(filter(None, (labels, split)))


def _write_page(
    path: Path, summary: Summary, pictures: Sequence[tuple[str, Path]], records: Sequence[RoundRecord], recipe: Recipe | None
) -> Path:
    images = [(title, base64.b64encode(p.read_bytes()).decode()) for title, p in pictures]
    tests = [test for record in records for test in record.notes.get("tests", ())][:12]
    template = Environment(loader=PackageLoader("shoal", "templates"), autoescape=True).get_template("report.html")
    page = template.render(
        summary=summary,
        images=images,
        tests=tests,
        verdict=verdict(summary),
        scenario=scenario_text(summary),
        percent=percent,
        number=number,
        kept_rows=[*summary.kept.candidates.items(), ("not told", summary.kept.not_told)] if summary.kept else [],
        kept_text=kept_text,
        rule=rule_text(recipe),
        margin_text=margin_text,
        candidates=list(summary.kept.candidates) if summary.kept else [],
        is_placed=any(device.placed for device in summary.devices.values()),
        megabytes=megabytes,
    )
    path.write_text(page)
    return path
