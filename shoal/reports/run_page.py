"""The report of a run: the models' accuracy by device, the groups, and the cost for a phone."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aggregator.http.pages.charts import bar_chart, sizes_of
from aggregator.http.pages.distances import DistanceView, compare, picture, read_views
from aggregator.http.pages.rendering import render
from aggregator.http.pages.words import number, untested
from aggregator.ports import Blobs
from aggregator.view.round_record import RoundRecord
from aggregator.view.summary import DeviceSummary, Summary
from algorithms.personalisation.keeping import Recipe
from algorithms.personalisation.kept import NOT_TOLD, kept_text
from shoal.asked import OptionValue
from shoal.reports.pages import Line, Shade, changed_first, chart_pair, kind_of, line_of, shades
from shoal.reports.words import (
    backend_text,
    margin_text,
    names_text,
    rule_text,
    scenario_text,
    time_text,
    verdict,
)
from simulation import cost
from wire.arrays.tensors import Array

MOST_DEVICES = 200
"""Maximum number of devices in a report's table: the worst ones."""
MOST_ROWS = 60
"""Maximum number of devices in the table of training examples."""


@dataclass(frozen=True)
class Extras:
    """Parts of a report besides a run's summary and records; each may be missing."""

    recipe: Recipe | None = None
    """Recipe by which devices choose their personal models; None if they do not choose by one."""
    confusion: Array | None = None
    """Number of windows by true class (rows) and predicted class (columns), (classes, classes)."""
    confused: int = 0
    """Number of devices whose windows `confusion` counts."""
    group_confusions: Mapping[int, Array] = field(default_factory=dict)
    """Matrices of the devices of each group, by its number."""
    distances: Mapping[str, Array] = field(default_factory=dict)
    """Distances (devices, devices) of surveys, by view."""
    surveyed: tuple[str, ...] = ()
    """Ids of the devices in `distances`."""
    classes: tuple[str, ...] = ()
    holdings: Mapping[str, Array] | None = None
    """Number of training examples of each class, by device."""
    counted: cost.RoundWork | None = None
    settings: Sequence[OptionValue] = ()
    readings: Sequence[Sequence[tuple[str, ...]]] = ()
    """Tables of what was taken for what in recordings; the first row of each has the headings."""
    remarks: Sequence[str] = ()
    """Decisions about recordings that may be wrong."""


def run_page(summary: Summary, records: Sequence[RoundRecord], blobs: Blobs, extras: Extras) -> str:
    """Return the report as HTML."""
    over_rounds, over_bytes = chart_pair(lines_of(summary))
    trained = [record for record in records if record.phase == "training"]
    every = {i: sizes_of(record.groups) for i, record in enumerate(trained, 1)}
    sizes = {i: each for i, each in every.items() if each}
    rows = worst_first(summary)
    viewed, views = _views(summary, records, blobs)
    return render(
        "run.html",
        summary=summary,
        verdict=verdict(summary),
        backend_text=backend_text,
        scenario=scenario_text(summary),
        time=time_text(summary.time) if summary.time else "",
        over_rounds=over_rounds,
        over_bytes=over_bytes,
        rows=rows[:MOST_DEVICES],
        num_devices=len(rows),
        number=number,
        kept_text=kept_text,
        margin_text=margin_text,
        rule=rule_text(extras.recipe),
        names_of_candidates=names_text(extras.recipe),
        kept_rows=[
            *summary.personal_models.candidates.items(),
            (NOT_TOLD, summary.personal_models.not_told),
        ]
        if summary.personal_models
        else [],
        candidates=list(summary.personal_models.candidates) if summary.personal_models else [],
        is_placed=any(device.placed for device in summary.devices.values()),
        sizes=sizes[max(sizes)] if sizes else {},
        columns_chart=bar_chart(sizes),
        tests=[test for record in records for test in record.notes.get("tests", ())][:12],
        untested=untested(record.notes for record in records),
        views=views,
        viewed=viewed,
        classes=extras.classes,
        confusion=shades(extras.confusion, by_row=True) if extras.confusion is not None else [],
        group_confusions={
            number: shades(counts, by_row=True)
            for number, counts in extras.group_confusions.items()
            if len(extras.group_confusions) > 1
        },
        confused=extras.confused,
        holdings=_holdings(summary, extras.holdings or {}),
        counted=extras.counted,
        estimates=cost.estimates(extras.counted) if extras.counted else [],
        assumed=cost,
        settings=changed_first(extras.settings),
        readings=extras.readings,
        remarks=extras.remarks,
    )


def lines_of(summary: Summary) -> dict[tuple[str, str], Line]:
    """Return mean and worst accuracy of a run and of its comparison, as lines of a chart."""
    sent = summary.bytes_by_round
    lines: dict[tuple[str, str], Line] = {
        (f"{summary.algorithm}, mean", "g0"): line_of(summary.accuracy_by_round, "mean", sent),
        (f"{summary.algorithm}, worst device", "g0 dashed"): line_of(
            summary.accuracy_by_round, "worst", sent
        ),
    }
    for i, (name, other) in enumerate(summary.comparison.items(), 1):
        lines[f"{name}, mean", kind_of(i)] = line_of(other.accuracy_by_round, "mean")
    return lines


def worst_first(summary: Summary) -> list[tuple[str, DeviceSummary]]:
    """Return the devices by accuracy, the lowest first; devices without one come last."""
    return sorted(
        summary.devices.items(),
        key=lambda item: (item[1].accuracy is None, item[1].accuracy or 0.0, item[0]),
    )


def _views(
    summary: Summary, records: Sequence[RoundRecord], blobs: Blobs
) -> tuple[int, dict[str, tuple[DistanceView, str]]]:
    """Return the round of the last grouping by distances, and the distances by name.

    Each distance has its view and the address of its picture. Without such a grouping the round is
    0.
    """
    seen = [record for record in records if record.views]
    if not seen:
        return 0, {}
    matrices, ids = read_views(blobs.get(seen[-1].views))
    starts = {d: str(summary.devices[d].group) for d in ids if d in summary.devices}
    views = {}
    for name, matrix in matrices.items():
        compared = compare(matrix, ids, starts)
        source = "data:image/png;base64," + base64.b64encode(picture(compared)).decode()
        views[name] = compared, source
    return seen[-1].round, views


def _holdings(
    summary: Summary, columns: Mapping[str, Array]
) -> list[tuple[str, int | None, list[Shade]]]:
    """Return the rows of the table of training examples, by group.

    The rows are at most `MOST_ROWS`, evenly spread over the groups.
    """

    groups = {d: summary.devices[d].group if d in summary.devices else None for d in columns}
    order = [
        d
        for d, _ in sorted(
            groups.items(), key=lambda item: (item[1] or -(item[1] is None), item[0])
        )
    ]
    chosen = [
        order[i] for i in np.linspace(0, len(order) - 1, min(MOST_ROWS, len(order))).astype(int)
    ]
    if not chosen:
        return []
    cells = shades(np.stack([columns[d] for d in chosen]), by_row=False)
    return [(d, groups[d], row) for d, row in zip(chosen, cells, strict=True)]
