"""The benchmark of devices: every client trains, and its table shows every number."""

import json
from pathlib import Path

import pytest

from benchmarks.edge import CLIENTS, EAGER, main, table


@pytest.mark.slow
def test_every_client_trains(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    results = main(["--turns", "2", "--steps", "3", "--out", str(tmp_path / "edge.json")])
    assert json.loads((tmp_path / "edge.json").read_text()) == results
    assert results["clients"].keys() == CLIENTS.keys()
    for name, row in results["clients"].items():
        assert 0 < row["best_ms_per_step"] <= row["ms_per_step"], name
        assert row["peak_mb"] < results["clients"][EAGER]["peak_mb"] or name == EAGER
    assert table(results).count("\n") == 3 + len(CLIENTS)
