"""The comparison with other systems: its table, its measure of memory, its environments. Nothing is
installed here."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.peers.__main__ import (
    describe,
    is_complete,
    last_line,
    read_options,
    read_result,
    run_once,
)
from benchmarks.peers.environments import MARK, InstallationFailed, _run, install, python_of
from benchmarks.peers.memory import Tree, parse_pss, read_pss
from benchmarks.peers.nvflare_log import moments
from benchmarks.peers.systems import SYSTEMS, System, choose
from benchmarks.peers.table import check_work, markdown, summarize
from benchmarks.peers.workload import (
    BATCH,
    CLASSES,
    WINDOWS,
    Fleet,
    Net,
    batches,
    durations,
    final_loss,
    make_device,
    make_model,
    write_data,
)
from tests.support.known import known

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


def a_run(
    *rounds_s: float, loss: float = 1.0, wall_s: float = 20.0, peak: int = 500_000_000
) -> dict[str, Any]:
    return {
        "rounds_s": list(rounds_s),
        "final_loss": loss,
        "version": "thing 1.2, torch 2",
        "wall_s": wall_s,
        "peak_bytes": peak,
        "busy_before": 1.0,
    }


A = System("a", "A", "a", 1, 1)
SHOAL = System("shoal", "Shoal", "shoal", 2, 1)


# The table


def test_a_row_holds_the_median_of_the_median_rounds() -> None:
    row = summarize(
        A, [a_run(9.0, 2.0, 2.0), a_run(9.0, 4.0, 4.0), a_run(9.0, 5.0, 5.0)], [], asked=100
    )
    assert row["updates_per_s"] == 25.0
    assert row["updates_per_s_runs"] == [50.0, 25.0, 20.0]
    assert row["updates_per_s_with_start"] == pytest.approx(300 / 20)
    assert (row["devices"], row["rounds"], row["processes"], row["runs"]) == (100, 3, 1, 3)


def test_the_ratio_is_the_median_of_the_turns_not_the_ratio_of_medians() -> None:
    ours = [a_run(1.0), a_run(2.0), a_run(4.0)]
    row = summarize(A, [a_run(3.0), a_run(2.0), a_run(20.0)], ours, asked=10)
    assert row["shoal_is_times_as_fast"] == 3.0


def test_a_turn_that_failed_is_told_and_left_out_of_the_medians() -> None:
    row = summarize(A, [a_run(1.0), {"reason": "killed"}, a_run(3.0)], [a_run(1.0)] * 3, asked=6)
    assert row["updates_per_s"] == 4.0
    assert row["reason"] == "1 of 3 runs: killed"
    assert row["shoal_is_times_as_fast"] == 2.0
    assert "killed" in markdown([row])


def test_a_system_without_any_result_is_below_the_table_with_its_reason() -> None:
    rows = [
        summarize(A, [{"reason": "not installed: no such version"}], [], 5),
        summarize(SHOAL, [a_run(1.0)], [a_run(1.0)], 5),
    ]
    assert rows[0]["updates_per_s"] is None
    text = markdown(rows)
    assert "| A" not in text
    assert "- A (a): not installed: no such version" in text


def test_the_table_is_sorted_by_speed_and_compares_with_shoal() -> None:
    rows = [
        summarize(A, [a_run(4.0)], [a_run(1.0)], 10),
        summarize(SHOAL, [a_run(1.0)], [a_run(1.0)], 10),
    ]
    lines = markdown(rows).splitlines()
    assert lines[2] == "| Shoal (thing 1.2) | 2 x 1 | 10.0 | 0.5 |  | 500 | 1.000 |"
    assert lines[3] == "| A (thing 1.2) | 1 x 1 | 2.5 | 0.5 | 4.00 x | 500 | 1.000 |"


@pytest.mark.parametrize(("loss", "same"), [(1.0, True), (1.04, True), (1.06, False), (0.5, False)])
def test_less_work_shows_in_the_loss(loss: float, same: bool) -> None:
    rows = [
        summarize(System("plain-1", "P", "plain", 1, 1), [a_run(1.0)], [], 5),
        summarize(A, [a_run(1.0, loss=loss)], [], 5),
    ]
    check_work(rows)
    assert rows[1]["same_work"] is same
    assert ("not the same work" in markdown(rows)) is not same


def test_rows_can_be_kept_as_json() -> None:
    row = summarize(A, [a_run(1.0)], [a_run(1.0)], 5)
    assert {"name", "updates_per_s", "wall_s", "peak_rss_bytes"} <= json.loads(
        json.dumps(row)
    ).keys()


def test_a_system_with_fewer_devices_is_measured_by_its_own_number() -> None:
    small = System("small", "Small", "a", 0, 1, most_devices=5)
    rows = [
        summarize(small, [a_run(1.0)], [a_run(1.0)], 10),
        summarize(SHOAL, [a_run(1.0)], [a_run(1.0)], 10),
    ]
    assert (rows[0]["devices"], rows[0]["processes"], rows[0]["updates_per_s"]) == (5, 5, 5.0)
    assert rows[0]["shoal_is_times_as_fast"] == 2.0
    assert "| Small (thing 1.2), 5 devices |" in markdown(rows)
    assert summarize(small, [a_run(1.0)], [], 3)["devices"] == 3


# The runs


def test_the_last_line_of_results_is_read_whatever_is_printed_around_it() -> None:
    assert read_result('noise\n{"rounds_s": [1.0]}\n{"rounds_s": [2.0]}\n{"other": 1}\nbye') == {
        "rounds_s": [2.0]
    }
    assert read_result("noise") is None
    assert last_line("one\n two \n\n") == "two"


def test_other_work_on_the_machine_is_told_of() -> None:
    assert "other work" not in describe(a_run(1.0), 5)
    assert "other work kept 60 % of the cores busy" in describe(
        a_run(1.0) | {"busy_before": 60.0}, 5
    )


def test_only_the_whole_comparison_is_kept() -> None:
    whole = read_options([])
    assert is_complete(whole, choose(whole.only))
    for part in (["--devices", "8"], ["--repeats", "1"], ["--rounds", "2"], ["--only", "pfl"]):
        options = read_options(part)
        assert not is_complete(options, choose(options.only))


def test_a_name_chooses_a_row_or_all_rows_of_a_system() -> None:
    assert [s.name for s in choose(["pfl"])] == ["pfl-1", "pfl-2"]
    assert [s.name for s in choose(["plain-2", "shoal"])] == ["shoal", "plain-2"]
    assert choose([]) == list(SYSTEMS)
    with pytest.raises(SystemExit, match="no system is called 'fate'"):
        choose(["fate"])


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    return read_options(
        ["--devices", "2", "--rounds", "1", "--timeout", "60", "--venvs", str(tmp_path)]
    )


def test_a_runner_that_is_not_there_is_a_reason(
    options: argparse.Namespace, tmp_path: Path
) -> None:
    run = run_once(System("x", "X", "nothing", 1, 1), options, tmp_path, tmp_path)
    assert "No module named benchmarks.peers.run_nothing" in run["reason"]


def test_a_runner_that_takes_too_long_is_ended(options: argparse.Namespace, tmp_path: Path) -> None:
    options.timeout = 0.2
    run = run_once(System("plain-1", "P", "plain", 1, 1), options, tmp_path, tmp_path)
    assert run == {"reason": "no result after 0.2 s"}
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in (p.info["cmdline"] or [])
    ]


LOG = """2026-11-21 10:36:10,500 - FedAvg - INFO - [identity=server] -
----------------------------------------
            Round 0 started.
----------------------------------------
2026-11-21 10:36:14,250 - FedAvg - INFO - Aggregated 4/4 results
2026-11-21 10:36:14,500 - FedAvg - INFO - Round 1 started.
2026-11-21 10:36:16,750 - FedAvg - INFO - [identity=server] -
========================================
            Finished FedAvg.
"""


def test_the_times_of_rounds_are_read_from_nvflares_log() -> None:
    assert durations(moments(LOG.splitlines())) == [4.0, 2.25]


@pytest.mark.parametrize("name", ["plain-1", "shoal"])
def test_systems_without_an_environment_run_one_round(
    name: str, options: argparse.Namespace, tmp_path: Path
) -> None:
    write_data(tmp_path / "data", 2)
    system = next(s for s in SYSTEMS if s.name == name)
    run = run_once(system, options, tmp_path / "data", tmp_path)
    assert len(run["rounds_s"]) == 1
    assert run["peak_bytes"] > 50e6
    assert 0 < run["final_loss"] < final_loss(make_model(), Fleet(tmp_path / "data"), 2)


# The workload


def test_the_model_has_the_size_that_is_told() -> None:
    assert sum(p.numel() for p in Net().parameters()) == 45_190
    first, second = make_model().state_dict(), make_model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_process_reads_the_same_windows(tmp_path: Path) -> None:
    write_data(tmp_path, 3)
    x, y = Fleet(tmp_path)[2]
    again_x, again_y = make_device(2)
    assert np.array_equal(x.numpy(), again_x)
    assert np.array_equal(y.numpy(), again_y)
    assert not np.array_equal(again_y, make_device(1)[1])
    assert set(np.unique(again_y)) == set(range(CLASSES))


def test_an_epoch_holds_every_window_once() -> None:
    x = torch.arange(WINDOWS, dtype=torch.float32)[:, None]
    parts = list(batches(x, torch.arange(WINDOWS)))
    assert [len(y) for _, y in parts] == [BATCH] * (WINDOWS // BATCH)
    assert sorted(torch.cat([y for _, y in parts]).tolist()) == list(range(WINDOWS))
    assert all(torch.equal(a[:, 0].long(), b) for a, b in parts)


def test_the_final_loss_does_not_depend_on_running_statistics(tmp_path: Path) -> None:
    write_data(tmp_path, 2)
    model, other = make_model(), make_model()
    for module in other.modules():
        if isinstance(module, nn.BatchNorm1d):
            known(module.running_mean).fill_(5.0)
    assert final_loss(model, Fleet(tmp_path), 2) == final_loss(other, Fleet(tmp_path), 2)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6))
def test_durations_add_up_to_the_whole(stamps: list[float]) -> None:
    stamps = sorted(stamps)
    assert len(durations(stamps)) == len(stamps) - 1
    assert sum(durations(stamps)) == pytest.approx(stamps[-1] - stamps[0])


# Memory


def test_pss_is_read_from_the_kernels_text() -> None:
    assert (
        parse_pss(
            "7f-7f ---p 00 00:00 0 [rollup]\nRss:   900 kB\nPss:      123 kB\nPss_Anon: 7 kB\n"
        )
        == 123 * 1024
    )
    with pytest.raises(ValueError, match="no line 'Pss:'"):
        parse_pss("Rss: 1 kB")


def test_a_process_that_is_gone_has_no_memory() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert read_pss(process.pid) == 0
    assert read_pss(os.getpid()) > 10e6


HOLD = (
    "import time; block = bytearray(b'x') * 60_000_000; print('ready', flush=True); time.sleep(60)"
)
DAEMON = (
    f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {HOLD!r}], "
    "start_new_session=True); import time; time.sleep(60)"
)


def test_a_tree_counts_what_its_root_started_and_leaves_nothing_behind() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        with Tree(process.pid) as tree:
            assert process.stdout.readline() == "ready\n"
            child = psutil.Process(process.pid).children()[0]
            end_s = time.monotonic() + 30
            while (
                tree.peak_bytes <= 60e6 and time.monotonic() < end_s
            ):  # it looks less often where there are many processes
                time.sleep(0.05)
            process.kill()  # the child is an orphan now, in a session of its own
        process.wait()
    assert 60e6 < tree.peak_bytes < 200e6
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


# Environments


def test_an_environment_that_is_there_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(home: Path, **_options: object) -> None:
        made.append(home)
        home.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr("benchmarks.peers.environments.venv.create", make)
    monkeypatch.setattr("benchmarks.peers.environments._run", lambda *_: None)
    system = next(s for s in SYSTEMS if s.environment == "pfl")
    told: list[str] = []
    for _ in range(2):
        install(system, tmp_path, told.append, 10)
    assert made == [tmp_path / "venv-pfl"]
    assert len(told) == 1
    (tmp_path / "venv-pfl" / MARK).write_text("other versions")
    install(system, tmp_path, told.append, 10)
    assert len(made) == 2


def test_an_installation_that_fails_says_what_pip_said() -> None:
    script = (
        "print('Collecting thing'); print('ERROR: No matching distribution found for thing'); "
        "raise SystemExit(1)"
    )
    told: list[str] = []
    with pytest.raises(InstallationFailed, match="ERROR: No matching distribution found for thing"):
        _run([sys.executable, "-c", script], told.append, 30)
    assert told[0] == "Collecting thing"
    with pytest.raises(InstallationFailed, match="not done after 1 s"):
        _run([sys.executable, "-c", "import time; time.sleep(30)"], told.append, 1)


@pytest.mark.parametrize("system", [s for s in SYSTEMS if s.environment], ids=lambda s: s.name)
def test_every_version_of_a_peer_is_pinned(system: System) -> None:
    lines = [
        line for line in system.requirements.read_text().splitlines() if not line.startswith("#")
    ]
    assert all("==" in line for line in lines)
    assert not any(line.startswith(("torch==", "nvidia-cu", "triton")) for line in lines)
    assert (
        python_of(system, Path("here"))
        == Path("here") / f"venv-{system.environment}" / "bin" / "python"
    )


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_every_system_has_a_runner(system: System) -> None:
    assert (ROOT / "benchmarks" / "peers" / f"run_{system.runner}.py").is_file()
