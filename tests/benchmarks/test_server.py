"""The benchmark of combining models: what is compared computes the same, and its table shows every
number."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.server import LAYOUT, SIZE, contestants, main, make_arena, table


def test_what_is_compared_computes_the_same() -> None:
    arena = make_arena(12)
    results = {name: work() for name, work in contestants(arena).items()}
    assert SIZE == 45190 == LAYOUT[-1].stop
    for one, two in (
        ("weighted", "plain weighted"),
        ("weighted, streaming", "plain weighted"),
        ("median", "plain median"),
    ):
        assert results[one] == pytest.approx(results[two], rel=1e-5, abs=1e-6), one
    assert results["trimmed"] == pytest.approx(results["plain trimmed"], rel=1e-5, abs=1e-6)
    assert np.array_equal(results["krum"], results["plain krum"])


def test_the_table_has_a_row_for_each_and_says_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = main(["--numbers", "4", "--turns", "2", "--out", str(tmp_path / "server.json")])
    assert (tmp_path / "server.json").stat().st_size > 500
    assert capsys.readouterr().out.count("\n") == len(contestants(make_arena(4))) + 2
    results["models"]["8"] = {}
    assert "| irls | " in table(results)
    assert table(results).count("left out") == len(results["models"]["4"])
