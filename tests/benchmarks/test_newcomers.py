"""Few labels are never worse than none: newcomers of the watches, with one fixed seed."""

from pathlib import Path

import pytest

from benchmarks.newcomers import LABELS, measure, of, text

pytestmark = pytest.mark.full


def test_with_few_labels_newcomers_are_on_average_and_at_worst_as_good_as_without(
    tmp_path: Path,
) -> None:
    rows = measure("watch", 0, tmp_path)
    mean, worst = of(rows, 0)
    for count in LABELS[1:]:
        assert of(rows, count)[0] >= mean, count
        assert of(rows, count)[1] >= worst, count
    assert "initial" not in {row["group"] for row in rows}
    assert f"{100 * mean:.1f} ({100 * worst:.1f})" in text(
        {"machine": "", "columns": {"now": {"watch-0": rows}}}
    )
