"""Account of a fleet's data in words: what was taken for what, and what each device has."""

import math

from edge_client.data.labels import are_one_hot, has_classes
from simulation.datasets.doubts import doubts
from simulation.datasets.windows import FleetData, task_of_labels
from wire.tasks import CLASSIFICATION, MULTI_LABEL, RECONSTRUCTION, REGRESSION

FEW_WINDOWS = 8
"""Number of labelled windows below which a device has a note that they are few."""
MOST_DEVICES = 30
"""Maximum number of devices of a description."""
BYTES = 4
"""Size of a number in a window."""
Rows = list[tuple[str, ...]]


def column_rows(data: FleetData) -> Rows:
    """Return name, role, unit and reason of each column of recordings, after a row of headings."""
    rows: Rows = [("column", "role", "unit", "why")]
    if data.reading is not None:
        rows += [(c.name or "''", c.role, c.unit, c.reason) for c in data.reading.columns]
    return rows


def device_rows(data: FleetData) -> Rows:
    """Return rate, gaps and numbers of windows of each device, after a row of headings.

    The windows of each class are counted in both parts together. A note says if they are few.
    """
    of_classes = has_classes(data.sample()[1]) and bool(data.classes)
    classes = data.classes if of_classes else ()
    rows: Rows = [("device", "rate", "gaps", "training", "test", "unlabelled", *classes, "note")]
    for device_id, w in list(data.devices.items())[:MOST_DEVICES]:
        rate = data.reading.rates.get(device_id, 0.0) if data.reading else 0.0
        gaps = str(data.reading.gaps.get(device_id, 0)) if data.reading else ""
        counts = (
            str(int((w.train_y == i).sum() + (w.test_y == i).sum())) for i in range(len(classes))
        )
        sizes = map(str, (w.num_train, w.num_test, w.num_unlabelled))
        is_few = bool(data.classes) and w.num_train + w.num_test < FEW_WINDOWS
        note = f"fewer than {FEW_WINDOWS} windows" if is_few else ""
        rows.append((device_id, f"{rate:g} Hz" if rate else "", gaps, *sizes, *counts, note))
    return rows


def summary_line(data: FleetData) -> str:
    """Return one line about the devices, channels, classes, and size of the windows of a fleet."""
    w = data.window
    count = sum(each.num_train + each.num_test for each in data.devices.values())
    rate = f" at {w.rate_hz:g} Hz" if w.rate_hz else ""
    every = count + sum(each.num_unlabelled for each in data.devices.values())
    size_mib = every * math.prod(w.shape) * BYTES / 2**20
    return (
        f"{len(data.devices)} devices, {count} labelled windows of {w.length} samples{rate}, one "
        f"every {w.stride}; channels {', '.join(w.channels)}; classes "
        f"{', '.join(data.classes) or 'none'}; all windows take {size_mib:.3g} MiB"
    )


def labels_line(data: FleetData) -> str:
    """Return one line about the kind of a fleet's labels, and the task that they mean."""
    y, task = data.sample()[1], task_of_labels(data)
    of_classes = (
        ""
        if data.reading is not None or task != CLASSIFICATION
        else "a column for each class, as y.argmax(1), or "
        if are_one_hot(y)
        else "whole numbers with a point: classes as y.astype(int), or "
    )
    if not data.classes:
        return f"labels: none (the task {RECONSTRUCTION} needs none)"
    if task == RECONSTRUCTION:
        return f"labels: usual and anomalous windows (task {RECONSTRUCTION})"
    if y.dtype.kind == "f":
        return f"labels: {of_classes}quantities (task {REGRESSION})"
    if data.window.steps:
        return f"labels: a class for each of {data.window.steps} steps of a window (task {task})"
    if y.ndim > 1:
        return f"labels: {of_classes}names that each apply or not (task {MULTI_LABEL})"
    return f"labels: one class for each window (task {CLASSIFICATION})"


def described(data: FleetData) -> str:
    """Return a fleet's data as text, with the warnings."""
    parts = [f"{summary_line(data)}\n{labels_line(data)}"]
    for rows in (column_rows(data), device_rows(data)):
        if len(rows) > 1:
            parts.append(_table(rows))
    if len(data.devices) > MOST_DEVICES:
        parts.append(f"... and {len(data.devices) - MOST_DEVICES} more devices")
    return "\n\n".join([*parts, *(f"warning: {doubt}" for doubt in doubts(data))])


def _table(rows: Rows) -> str:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
