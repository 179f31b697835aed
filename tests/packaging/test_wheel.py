"""The wheel: what is in it, and that each extra by itself installs what its commands need, on a machine without the checkout."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import start_program, stop_processes, write_device_folder
from tests.conftest import Exported
from tests.packaging.conftest import PACKAGES, PROJECT, ROOT, VERSION


def test_wheel_has_every_file_of_the_packages_the_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        metadata = packed.read(f"shoal-{VERSION}.dist-info/METADATA").decode()
        licence = packed.read(f"shoal-{VERSION}.dist-info/licenses/LICENSE")
    files = {str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    assert {name for name in names if not name.startswith(f"shoal-{VERSION}.dist-info/")} == files
    assert {f"{name}/py.typed" for name in PACKAGES} <= names
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_every_top_level_package_is_checked() -> None:
    """setuptools, mypy and the import contracts each have a list of the packages."""
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert set(PACKAGES) == folders
    assert set(PROJECT["tool"]["mypy"]["packages"]) >= folders
    assert set(PROJECT["tool"]["importlinter"]["root_packages"]) == folders


ALONE = {"PYTHONPATH": "", "SHOAL_DATA": "", "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
"""What commands of an installed wheel run with: no module and no data from elsewhere, bytecode kept for the next one, one thread each as
in all tests."""


@dataclass(frozen=True)
class Installed:
    """The wheel with one extra in an environment of its own; commands run in a folder that was empty."""

    environment: Path
    folder: Path

    def command(self, name: str) -> list[str]:
        """The beginning of a command line that runs an installed command."""
        return ["env", *(f"{variable}={value}" for variable, value in ALONE.items()), str(self.environment / "bin" / name)]

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run an installed command to its end."""
        return subprocess.run([*self.command(name), *arguments], cwd=self.folder, capture_output=True, text=True, timeout=400)

    def succeeds(self, name: str, *arguments: str) -> str:
        """Run an installed command, which must end well; returns what it printed."""
        done = self.run(name, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def fails(self, *arguments: str) -> str:
        """Run `shoal`, which must end with status 2 and, after its log, one line about the error; returns the line."""
        done = self.run("shoal", *arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert [line for line in done.stderr.splitlines() if line.startswith("error:")] == done.stderr.splitlines()[-1:], done.stderr
        return done.stderr.splitlines()[-1]

    def has(self, package: str) -> bool:
        """Whether a package is installed."""
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        return self.run("python", "-c", code).returncode == 0


Install = Callable[[str], Installed]


@pytest.fixture
def install(wheel: Path, tmp_path: Path, setup_script: dict[str, Any]) -> Install:
    """Installs the wheel with an extra and looks at both commands; skipped where uv or the package index is missing."""
    if importlib.util.find_spec("uv") is None:
        pytest.skip("uv is not installed: pip install uv would run this")
    told = setup_script["uv_environment"](setup_script["pip_settings"](Path(sys.prefix)), os.environ)

    def uv(*arguments: str) -> None:
        command = [sys.executable, "-m", "uv", "--quiet", *arguments]
        done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True, timeout=280)
        if done.returncode and ("Failed to fetch" in done.stderr or "error sending request" in done.stderr):
            pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr

    def install(extra: str) -> Installed:
        environment, folder = tmp_path / "environment", tmp_path / "empty"
        folder.mkdir()
        uv("venv", "--python", sys.executable, str(environment))
        constraints = str(setup_script["CONSTRAINTS"])
        uv("pip", "install", "--python", str(environment), "-c", constraints, f"shoal[{extra}] @ {wheel.as_uri()}")
        installed = Installed(environment, folder)
        for name in ("shoal", "shoal-edge"):
            assert installed.succeeds(name, "--version") == f"shoal {VERSION}\n"
            assert f"usage: {name}" in installed.succeeds(name, "--help")
        return installed

    return install


def run_a_round(fleet: FleetData, exported: Exported, folder: Path, shoal: list[str], edge: list[str], *options: str) -> str:
    """One round between an aggregator and two devices, each started with its own command; returns the aggregator's log."""
    with EmbeddedBroker() as broker:
        served = ["--folder", str(folder / "served"), "--bundle", str(exported.folder), "--broker", broker.url, "--rounds", "1"]
        processes = [start_program([*shoal, "serve", *served, "--no-stay", "--port", "0", *options], folder / "serve.log")]
        for device_id in ("d0", "d1"):
            write_device_folder(fleet, device_id, folder / device_id)
            own = ["--id", device_id, "--data", str(folder / device_id), "--state", str(folder / f"state-{device_id}")]
            trust = ["--trust", str(exported.folder / "trust.pem")]
            processes.append(start_program([*edge, "run", *own, *trust, "--broker", broker.url], folder / f"{device_id}.log"))
        try:
            assert processes[0].wait(120) == 0, (folder / "serve.log").read_text()
        finally:
            stop_processes(processes)
    return (folder / "serve.log").read_text()


@pytest.fixture
def recordings(fleet: FleetData, tmp_path: Path) -> str:
    """The path of a ``.npz`` with the windows of four people."""
    people = list(fleet.devices.values())
    x, y = np.concatenate([p.train_x for p in people]), np.concatenate([p.train_y for p in people])
    np.savez(tmp_path / "recordings.npz", X=x, y=y, subject=np.repeat(np.arange(len(people)), [p.num_train for p in people]))
    return str(tmp_path / "recordings.npz")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_edge_extra_trains_without_torch_and_says_which_extra_another_command_needs(
    install: Install, fleet: FleetData, exported: Exported, tmp_path: Path
) -> None:
    board = install("edge")
    assert [name for name in ("torch", "typer", "scipy", "onnx") if board.has(name)] == []
    assert "--trust" in board.succeeds("shoal-edge", "run", "--help")
    assert board.fails("simulate") == "error: shoal simulate needs the package typer: pip install 'shoal[simulation]'"
    refused = board.run("python", "-c", "import shoal; shoal.simulate")
    assert refused.stderr.splitlines()[-1].startswith("ImportError: shoal.simulate needs the package "), refused.stderr
    assert board.fails("serve", "--help") == "error: shoal serve needs the package typer: pip install 'shoal[aggregator]'"
    log = run_a_round(fleet, exported, tmp_path, [sys.executable, "-m", "shoal"], board.command("shoal-edge"))
    assert "run run-1: finished" in log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_aggregator_extra_serves_a_round_with_noise(install: Install, fleet: FleetData, exported: Exported, tmp_path: Path) -> None:
    server = install("aggregator")
    assert not server.has("sklearn")
    assert "--min-devices" in server.succeeds("shoal", "serve", "--help")
    assert "distfl" in server.succeeds("shoal", "algorithms")
    nowhere = f"mqtt://127.0.0.1:{free_port()}"
    line = server.fails("serve", "--folder", "nowhere", "--bundle", str(exported.folder), "--broker", nowhere)
    assert line.startswith(f"error: broker {nowhere}")
    edge = [sys.executable, "-m", "edge_client.main"]
    log = run_a_round(fleet, exported, tmp_path, server.command("shoal"), edge, "--algorithm", "fedavg", "--privacy", "gaussian")
    assert "run run-1: finished" in log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_export_extra_exports_files_and_the_watches(install: Install, recordings: str) -> None:
    desk = install("export")
    assert [name for name in ("sqlalchemy", "matplotlib", "opacus") if desk.has(name)] == []
    for data, out in ((recordings, "own"), ("watch", "watch")):
        desk.succeeds("shoal", "export", "--data", data, "--out", out)
        assert "step" in desk.succeeds("shoal", "export", "inspect", out)
    assert desk.fails("serve").startswith("error: shoal serve needs the package ")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_simulation_extra_simulates_a_round(install: Install, recordings: str) -> None:
    desk = install("simulation")
    desk.succeeds("shoal", "simulate", "--data", recordings, "--rounds", "1", "--out", "out")
    assert {"summary.json", "report.html"} <= {path.name for path in (desk.folder / "out").iterdir()}
    program = f"import shoal; print(shoal.simulate({recordings!r}, rounds=1, algorithm='fedavg').save('models')[0].files)"
    assert "group-0.onnx" in desk.succeeds("python", "-c", program)
    desk.succeeds("shoal", "compare", "--data", recordings, "--algorithms", "fedavg,distfl", "--rounds", "1", "--out", "compared")
    assert (desk.folder / "compared" / "compare.png").exists()
