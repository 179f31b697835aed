"""The table of a comparison can be read in a terminal of 80 columns."""

from typing import Any

import pytest
from rich.console import Console

from shoal.reports.tables import comparison_columns, tables


def row(name: str, **others: Any) -> dict[str, Any]:
    return {
        "algorithm": name,
        "seeds": 3,
        "accuracy": {
            "mean": 0.9123,
            "std": 0.012,
            "ci95": 0.024,
            "worst": 0.71,
            "worst_tenth": 0.73,
        },
        "macro_f1": {"mean": 0.8987, "std": 0.01, "ci95": 0.02, "worst": 0.6, "worst_tenth": 0.65},
        "groups": {"count": 2.5, "ari": 0.95},
        "bytes": {"up": 123.4e6, "down": 1234e6},
        "target": 0.856,
        "rounds_to_target": 12.5,
        "time_to_target_s": None,
        "epsilon": None,
        "wall_s": 12.0,
        **others,
    }


EVERYTHING = {
    "against": {"reference": "x", "difference": -0.0123, "ci95": 0.004, "p": 0.00123, "pairs": 40},
    "time_to_target_s": 3600.0,
    "epsilon": 1.25,
    "attack": {"success_rate": 0.3, "told_apart": 1},
    "newcomers": {"mean": 0.5},
}


def printed(rows: list[dict[str, Any]], width: int) -> list[list[str]]:
    """The lines of each table."""
    console = Console(width=width)
    found = []
    for table in tables(rows, comparison_columns(rows), width):
        with console.capture() as shown:
            console.print(table)
        found.append(shown.get().splitlines())
    return found


def test_the_usual_columns_are_one_table_with_a_line_for_each_algorithm() -> None:
    (lines,) = printed([row("fedavg"), row("dbe+distfl+irls")], 100)
    headings = [
        "algorithm",
        "accuracy",
        "%",
        "worst",
        "%",
        "tenth",
        "%",
        "F1",
        "%",
        "groups",
        "ARI",
        "MB",
        "up",
        "MB",
        "down",
        "to",
        "85.6",
        "%",
        "time",
        "s",
    ]
    assert lines[0].split() == headings
    assert lines[3].split() == [
        "dbe+distfl+irls",
        "91.2",
        "±2.4",
        "71.0",
        "73.0",
        "89.9",
        "2.5",
        "0.95",
        "123.4",
        "1234.0",
        "12.5",
        "12",
    ]
    assert len(lines) == 4


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_is_cut_off_with_every_column_and_a_long_name(width: int) -> None:
    name = "fedprox:mu=0.1+dbe+distfl:signature=responses:cut=gap+irls"
    tables = printed([row("fedavg", **EVERYTHING), row(name)], width)
    assert len(tables) == {60: 4, 80: 3, 200: 1}[width]
    for lines in tables:
        assert max(map(len, lines)) <= width
        assert lines[0].startswith("algorithm ")
        column = max(len("algorithm"), min(len(name), width // 4))
        assert "".join(line[:column].strip() for line in lines[3:]) == name
    words = " ".join(line for lines in tables for line in lines)
    assert [
        cell
        for cell in ("91.2 ±2.4", "-1.2 ±0.4", "0.0012", "30.0", "1/3", "50.0", "1.25", "12.5")
        if cell not in words
    ] == []
    assert "…" not in words
    headings = [
        "accuracy %",
        "worst %",
        "tenth %",
        "F1 %",
        "gain",
        "p",
        "groups",
        "ARI",
        "MB up",
        "MB down",
        "to 85.6 %",
        "hours",
        "epsilon",
        "attack %",
        "apart",
        "newcomers %",
    ]
    assert [heading for heading in headings if heading not in words] == []


def test_a_run_without_a_model_has_dashes() -> None:
    empty = {"mean": None, "std": None, "ci95": None, "worst": None, "worst_tenth": None}
    (lines,) = printed(
        [
            row("fedavg"),
            row("krum", accuracy=empty, macro_f1=empty, failed="why", rounds_to_target=None),
        ],
        100,
    )
    assert lines[3].split()[:5] == ["krum", "-", "-", "-", "-"]


@pytest.mark.parametrize("name", ["accuracy", "gain"])
def test_two_values_have_no_interval(name: str) -> None:
    """Student's t makes it 12.7 standard errors wide: ±51 points say nothing."""
    against = {"reference": "x", "difference": 0.1, "ci95": 0.51, "p": 1.0, "pairs": 2}
    others = {"seeds": 2} if name == "accuracy" else {"against": against}
    (lines,) = printed([row("fedavg", **others)], 140)
    assert ("±51.0" in lines[2], "±2.4" in lines[2]) == (False, name == "gain")


def test_one_seed_has_no_interval() -> None:
    (lines,) = printed(
        [
            row(
                "fedavg",
                accuracy={"mean": 0.9, "std": 0.0, "ci95": None, "worst": 0.7, "worst_tenth": 0.75},
            )
        ],
        100,
    )
    assert lines[2].split()[:3] == ["fedavg", "90.0", "70.0"]
