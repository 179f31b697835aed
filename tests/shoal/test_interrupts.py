"""Ctrl-C while a command works: status 130, no traceback, and what was finished is kept.
tests/shoal/test_commands.py has the same of a comparison in several processes and of the
demonstration."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from shoal.waiting import rounds, steps

SHOAL = [sys.executable, "-m", "shoal"]


def interrupted(words: list[str], folder: Path, is_time: Callable[[], bool]) -> tuple[int, str]:
    """Start a command, send it SIGINT when it is time, and return its status and what it wrote to
    stderr."""
    process = subprocess.Popen(
        [*SHOAL, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    end_s = time.monotonic() + 200
    while time.monotonic() < end_s and process.poll() is None and not is_time():
        time.sleep(0.05)
    assert process.poll() is None, "it ended before it could be interrupted"
    assert is_time()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.full
def test_a_simulation_goes_on_where_ctrl_c_ended_it(tmp_path: Path) -> None:
    words = [
        "simulate",
        "--algorithm",
        "fedavg",
        "--devices",
        "3",
        "--models",
        "none",
        "--rounds",
        "60",
        "--out",
        "out",
    ]
    words += ["--checkpoint", "kept"]
    kept = tmp_path / "kept" / "run.safetensors"  # put in place when it is whole
    status, errors = interrupted(words, tmp_path, kept.is_file)
    assert (status, errors) == (130, "")
    assert not (tmp_path / "out" / "summary.json").exists(), "no half of a result"
    done = subprocess.run(
        [*SHOAL, *words], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    said = re.search(r"kept has (\d+) rounds; the run continues after them", done.stdout)
    assert said is not None, done.stdout
    assert 0 < int(said[1]) < 60
    assert (
        len(json.loads((tmp_path / "out" / "summary.json").read_text())["accuracy_by_round"]) == 60
    )


@pytest.mark.full
def test_an_export_that_is_interrupted_leaves_no_bundle_and_is_made_again(tmp_path: Path) -> None:
    words = ["export", "--out", "bundle", "--algorithm", "fedavg"]
    key = tmp_path / "bundle"
    status, errors = interrupted(words, tmp_path, key.is_dir)
    assert (status, errors) == (130, "")
    assert not (tmp_path / "bundle" / "device.shoal").exists()
    done = subprocess.run(
        [*SHOAL, *words], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bundle" / "device.shoal").exists()


@pytest.mark.full
def test_the_processes_of_a_comparison_that_is_killed_end_with_it(tmp_path: Path) -> None:
    words = [
        "compare",
        "--algorithms",
        "fedavg,fedprox",
        "--workers",
        "2",
        "--devices",
        "2",
        "--rounds",
        "500",
        "--out",
        "out",
    ]
    with subprocess.Popen(
        [*SHOAL, *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        started = psutil.Process(process.pid)
        others: list[psutil.Process] = []
        end_s = time.monotonic() + 100
        while (
            sum(other.cpu_times().user > 1 for other in others) < 2
        ):  # both train, the manager only waits
            assert process.poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.2)
            others = started.children(recursive=True)
        process.kill()
    _, alive = psutil.wait_procs(others, timeout=30)
    assert alive == []


@pytest.mark.full
def test_a_comparison_in_one_process_keeps_the_runs_that_were_finished(tmp_path: Path) -> None:
    words = [
        "compare",
        "--algorithms",
        "fedavg,fedprox",
        "--workers",
        "1",
        "--devices",
        "3",
        "--rounds",
        "1",
        "--seeds",
        "200",
        "--out",
        "out",
    ]
    runs = tmp_path / "out" / "runs"
    status, errors = interrupted(
        words, tmp_path, lambda: runs.is_dir() and any(runs.glob("*.json"))
    )
    assert (status, errors) == (130, "")
    kept = sorted(runs.glob("*.json"))
    assert all(json.loads(path.read_text())["accuracy"]["mean"] is not None for path in kept)
    assert not (tmp_path / "out" / "report.html").exists()


def test_a_log_is_told_what_takes_long_and_how_much_is_left(tmp_path: Path) -> None:
    now = [0.0]
    with (tmp_path / "log").open("w") as file:
        console = Console(file=file)
        with steps(console, "making the model", lambda: now[0]) as say:
            say("first")
            now[0] = 3.0
            say("second")
        now[0] = 10.0
        with rounds(console, "fedavg", 4, lambda: now[0]) as tell:
            for done, now_s in ((0, 10.0), (1, 11.0), (2, 13.0), (4, 13.5)):
                now[0] = now_s
                tell(done, "groups 1")
    assert (tmp_path / "log").read_text().splitlines() == [
        "making the model",
        "3 s: second",
        "fedavg: 4 rounds",
        "fedavg: round 2 of 4, 3 s, 3 s left; groups 1",
        "fedavg: round 4 of 4, 4 s, 0 s left; groups 1",
    ]
