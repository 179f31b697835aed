"""The command line as a user meets it: the demonstration, clear errors, and a clean end."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from algorithms.core.stack import cuda_devices
from shoal import load
from shoal.cli import main
from wire.bundle import unpack

SHOAL = [sys.executable, "-m", "shoal"]


def shoal(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*SHOAL, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, **environment},
    )


@pytest.mark.full
def test_demo(tmp_path: Path) -> None:
    done = shoal("demo", "--devices", "4", "--rounds", "2", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["algorithm"], summary["data"], summary["rounds"]) == ("personal", "watch", 2)
    assert sorted(summary["devices"])[:2] == ["p01-left", "p01-right"]
    assert all(0 <= device["accuracy"] <= 1 for device in summary["devices"].values())
    assert (
        0
        <= summary["comparison"]["fedavg"]["worst"]
        <= summary["comparison"]["fedavg"]["mean"]
        <= 1
    )
    assert summary["edge"]["processes"] == 4
    assert summary["edge"]["max_rss_bytes"] > 0
    assert summary["edge"]["torch_loaded"] is False
    for name in ("accuracy.png", "similarity.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "report.html").read_text()
    assert (
        page.count("data:image/png;base64,") == page.count("<h2>Distances between devices by ") > 0
    ), "a picture of each view"
    assert "p02-right" in page
    assert "mean accuracy" in done.stdout
    assert left_running(tmp_path) == []


@pytest.mark.full
def test_ctrl_c_stops_everything_the_demo_started(tmp_path: Path) -> None:
    words = ["--devices", "3", "--algorithm", "fedavg"]
    process = subprocess.Popen(
        [*SHOAL, "demo", *words, "--rounds", "500", "--out", "out"],
        cwd=tmp_path,
        start_new_session=True,
    )
    end_s = time.monotonic() + 240
    while time.monotonic() < end_s and process.poll() is None and len(left_running(tmp_path)) < 5:
        time.sleep(0.2)
    started = len(left_running(tmp_path))
    time.sleep(3)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(40) == 130
    assert started >= 5  # three devices, the aggregator, and the simulations beside them
    assert left_running(tmp_path) == []


def test_a_command_leaves_the_interpreter_nothing_to_collect_at_the_end() -> None:
    code = """if True:
        import atexit, gc, sys
        atexit.register(lambda: print("frozen", gc.get_freeze_count() > 0))
        sys.argv = ["shoal", "algorithms", "--help"]
        from shoal.cli import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "frozen True")


@pytest.mark.full
def test_ctrl_c_ends_a_comparison_without_a_word(tmp_path: Path) -> None:
    command = [
        *SHOAL,
        "compare",
        "--algorithms",
        "fedavg,fedprox",
        "--workers",
        "2",
        "--rounds",
        "500",
        "--devices",
        "4",
        "--out",
        "out",
    ]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end_s = time.monotonic() + 240
    while time.monotonic() < end_s and process.poll() is None and len(members(process.pid)) < 5:
        time.sleep(0.05)
    started = len(members(process.pid))
    os.killpg(process.pid, signal.SIGINT)
    assert started >= 5  # itself, what keeps its queue, what cleans up after it, and two workers
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    end_s = time.monotonic() + 10
    while members(process.pid) and time.monotonic() < end_s:  # what cleans up goes last
        time.sleep(0.05)
    assert members(process.pid) == []


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if state != "Z" and int(its_group) == group:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def left_running(folder: Path) -> list[str]:
    """Command lines of processes, other than the demonstration itself, that work in a folder's
    `out`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink() == folder:
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    parts = ("edge_client.main", " serve ", "popen_loky")
    return [line for line in found if any(part in line for part in parts)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["simulate", "--data", "nothing"],
            "error: No data set 'nothing'. Known data sets: watch, watch-session, uci-har, ",
        ),
        (["simulate", "--algorithm", "magic"], "error: No algorithm 'magic'."),
        (
            ["simulate", "--algorithm", "distfl:signature=x"],
            "'distfl:signature=x': signature must be responses or",
        ),
        (["simulate", "--attack", "x"], "error: No attack 'x'."),
        (["simulate", "--model", "x"], "error: No model 'x'. Known models: har-cnn, "),
        (
            ["simulate", "--hyper", "lr"],
            "error: hyper must be NAME=VALUE with a number, got 'lr' (--hyper)",
        ),
        (["simulate", "--lr", "-1"], "error: lr must be between 0 and 1000000, got -1 (--lr)"),
        (
            ["simulate", "--hyper", "momentum=1"],
            "error: algorithm 'personal': momentum must be a number from 0 below 1, got '1'",
        ),
        (["simulate", "--hyper", "mu=1"], "error: hyper-parameter 'mu' (--hyper)"),
        (
            ["simulate", "--algorithm", "pfedme:inner_steps=0"],
            "inner_steps must be a whole number from 1",
        ),
        (
            ["simulate", "--algorithm", "ifca:k=65"],
            "k must be a whole number from 1 to 64, got '65'",
        ),
        (
            ["compare", "--algorithms", "fedavg,fedavg"],
            "error: --algorithms must be different names separated by commas, got 'fedavg,fedavg'",
        ),
        (
            ["compare", "--algorithms", "fedavg,magic"],
            "error: No algorithm 'magic'.",
        ),
        (
            ["compare", "--workers", "2", "--algorithms", "fedavg", "--data", "missing.npz"],
            "error: No data set 'missing.npz'.",
        ),
        (
            ["compare", "--workers", "2", "--algorithms", "fedavg", "--hyper", "momentumm=1"],
            "error: hyper-parameter 'momentumm'",
        ),
        (["simulate", "--newcomers", "20"], "error: newcomers must be less than the 20 devices"),
        (
            ["simulate", "--backend", "batched", "--device", "tpu"],
            "error: device must be auto, cpu or a CUDA device "
            f"({', '.join(cuda_devices()) or 'torch finds no GPU here'}), got 'tpu'",
        ),
        (
            ["simulate", "--backend", "batched", "--cluster", "any"],
            "error: cluster 'any': backend batched runs in one process only",
        ),
        (["simulate", "--partition", "x"], "error: No partition 'x'."),
        (
            ["simulate", "--devices", "21"],
            "error: devices must be between 1 and 20, the devices of data watch, got 21",
        ),
        (["simulate", "--out", "/proc/nothing"], "error: out /proc/nothing"),
        (
            ["export", "--out", "o", "--key", "missing.key"],
            "error: key missing.key: no such file",
        ),
        (["serve", "--folder", "f", "--bundle", "none"], "error: bundle file none/trust.pem"),
        (
            ["serve", "--folder", "f", "--bundle", "b", "--broker", "localhost"],
            "error: broker address 'localhost'",
        ),
        (
            ["demo", "--devices", "21"],
            "error: devices must be between 1 and 20, the devices of data watch, got 21",
        ),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    tmp_path: Path,
    arguments: list[str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process: a process for each would take most of its time to import torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["shoal", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert error in capsys.readouterr().err.replace("\n", " ")


def test_a_process_ends_with_that_line_and_status(tmp_path: Path) -> None:
    done = shoal("simulate", "--data", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: No data set 'nothing'.")
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.full
def test_a_failed_export_leaves_nothing_behind(tmp_path: Path) -> None:
    done = shoal("export", "--out", "o", "--runtimes", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: runtimes must be onnx, or onnx and executorch, got nothing" in done.stderr
    assert list((tmp_path / "o").iterdir()) == []


@pytest.mark.full
def test_simulate_writes_its_summary(tmp_path: Path) -> None:
    options = [
        "--data",
        "watch",
        "--algorithm",
        "fedavg",
        "--rounds",
        "1",
        "--local-epochs",
        "1",
        "--seed",
        "3",
        "--out",
        "out",
        "--devices",
        "4",
    ]
    done = shoal("simulate", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["algorithm"], summary["seed"], len(summary["devices"])) == ("fedavg", 3, 4)
    assert (tmp_path / "out" / "report.html").exists()
    with (tmp_path / "out" / "rounds.csv").open(newline="") as file:
        assert [(row["round"], row["phase"]) for row in csv.DictReader(file)] == [
            ("1", "training"),
            ("1", "evaluating"),
        ]


def recording(folder: Path, hz: int, count: int) -> None:
    """A folder of two devices, each with one recording of two activities."""
    for device in ("a", "b"):
        rows = [f"{i / hz},{i * 7 % 11},{i % 5},{'ab'[2 * i // count]}" for i in range(count)]
        (folder / device).mkdir(parents=True)
        (folder / device / "all.csv").write_text("\n".join(["t,ax,ay,label", *rows]))


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (128, 64, 50.0)),
        ({"window": 32}, (32, 16, 50.0)),
        ({"window": 32, "stride": 5}, (32, 5, 50.0)),
        ({"stride": 100}, (128, 100, 50.0)),
        ({"window": 40, "rate": 25}, (40, 20, 25.0)),
    ],
)
def test_windows_are_cut_as_options_say(
    tmp_path: Path, options: dict[str, int], shape: tuple[int, int, float]
) -> None:
    recording(tmp_path / "data", 50, 3000)
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process = shoal("data", "show", "data", "--json", *words, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    shown = json.loads(process.stdout)
    assert (shown["length"], shown["stride"], shown["rate_hz"]) == shape


def test_a_simulation_and_a_bundle_have_the_windows_of_the_options(tmp_path: Path) -> None:
    recording(tmp_path / "data", 50, 1500)
    words = ("--data", "data", "--algorithm", "fedavg", "--window", "32", "--stride", "8")
    process = shoal("simulate", *words, "--rounds", "1", "--out", "out", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    devices = json.loads((tmp_path / "out" / "summary.json").read_text())["devices"]
    fleet = load(tmp_path / "data", length=32, stride=8)
    counts = {device_id: windows.num_test for device_id, windows in fleet.devices.items()}
    assert {device_id: device["num_test"] for device_id, device in devices.items()} == counts
    process = shoal("export", *words, "--out", "bundle", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (bundle,) = (tmp_path / "bundle").glob("*.shoal")
    window = unpack(bundle.read_bytes()).manifest.window
    assert (window.length, window.stride, window.rate_hz) == (32, 8, 50)
