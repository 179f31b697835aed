"""The grid of means against liars: what a cell measures, and how the grid goes on."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import liars
from benchmarks.liars import ATTACKS, CANDIDATES, SHARES, Cell, cells, main, run, step, table
from simulation.engine.workers.attacks import Attack


def test_every_cell_is_measured_once_and_a_fifth_of_liars_first() -> None:
    keys = [cell.key for cell in cells()]
    assert len(keys) == len(set(keys))
    places = sum(map(len, liars.DATA.values()))
    assert len([c for c in cells() if c.share in SHARES and c.devices == 20]) == (
        places * 3 * len(SHARES) * len(ATTACKS)
    )
    assert {c.share for c in cells()[: places * 9]} == {0.0, 0.2}


def test_an_update_beyond_the_services_bound_does_not_count_and_one_inside_does() -> None:
    start, ids = np.zeros(4, np.float32), ["a", "b", "c", "d"]
    trained = np.full((4, 4), 1.0, np.float32)

    def moved(scale: float) -> float:
        attack = Attack("sign-flip", frozenset("d"), scale, {})
        counts = np.full(4, 8)
        return float(step(trained, start, ids, counts, attack, 1, CANDIDATES["weighted"]).mean())

    assert moved(10.1) == pytest.approx(1.0)
    assert moved(9.9) == pytest.approx((3 - 9.9) / 4)


def test_a_cell_has_a_number_for_each_mean_and_the_grid_goes_on_where_it_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(liars, "ROUNDS", 1)
    some = [Cell("watch", "user", 0, "backdoor", 0.25, 4), Cell("watch", "user", 0, "", 0.0, 4)]
    monkeypatch.setattr(liars, "cells", lambda: some)
    out = tmp_path / "liars.jsonl"
    out.write_text(json.dumps(run(some[0])) + "\n")
    before = out.read_text()
    main(["--out", str(out)])
    lines = [json.loads(text) for text in out.read_text().splitlines()]
    assert out.read_text().startswith(before)
    assert [line["attack"] for line in lines] == ["backdoor", ""]
    assert all(line["accuracy"].keys() == CANDIDATES.keys() for line in lines)
    assert lines[0]["success"].keys() == CANDIDATES.keys()
    assert "| no liar | 0 |" in table(lines)
    assert "2 of 2 cells" in table(lines)
