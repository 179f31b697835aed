"""Every command in the README and the docs is run here, and what they say of files and options is there."""

import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from simulation.datasets.watch import load_watch
from simulation.embedded_broker import EmbeddedBroker
from simulation.local_fleet import start_process, stop_processes, write_device_folder

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = sorted({line.split("#")[0].strip() for page in PAGES for line in re.findall(r"^    (.+)$", page.read_text(), re.MULTILINE)})
SIMULATIONS = [c for c in COMMANDS if c.startswith("shoal simulate")]
FIELD = ("shoal export", "shoal serve", "shoal-edge run")


def test_every_command_is_of_a_kind_that_is_tested() -> None:
    known = ("shoal simulate", *FIELD, "make ", "pip install 'shoal[")
    assert SIMULATIONS
    assert [c for c in COMMANDS if not c.startswith(known)] == []


@pytest.mark.parametrize("command", SIMULATIONS)
def test_simulations_run_as_written(command: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", *shlex.split(command)], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    out = re.search(r"--out (\S+)", command)
    assert out is not None
    assert (tmp_path / out[1] / "summary.json").exists()


def test_the_real_fleet_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """export, serve and shoal-edge with the README's words; only the broker's address and the two folders are filled in."""
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    export, serve, edge = (re.search(rf"^    ({start}.+)$", readme, re.MULTILINE)[1] for start in FIELD)  # type: ignore[index]
    subprocess.run([sys.executable, "-m", *shlex.split(export)], check=True, timeout=200, capture_output=True)
    data = load_watch()
    modules = {"shoal": "shoal", "shoal-edge": "edge_client.main"}
    with EmbeddedBroker() as broker:

        def start(command: str, log: str) -> "subprocess.Popen[bytes]":
            name, *rest = shlex.split(command.replace("mqtt://localhost", broker.url))
            return start_process(["-m", modules[name], *rest], tmp_path / log)

        processes = [start(serve + " --no-stay --port 0", "serve.log")]
        for device_id in ("p01-left", "p02-left"):
            write_device_folder(data, device_id, tmp_path / device_id)
            filled = edge.replace("pi-1", device_id).replace("DATA", device_id).replace("STATE", f"state-{device_id}")
            processes.append(start(filled, f"{device_id}.log"))
        try:
            assert processes[0].wait(120) == 0, (tmp_path / "serve.log").read_text()
            time.sleep(1)
        finally:
            stop_processes(processes)
    assert "run run-1: finished" in (tmp_path / "serve.log").read_text()


def test_other_lines_name_commands_and_options_that_exist() -> None:
    from edge_client.main import parser

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        if command.startswith("pip install"):
            assert re.findall(r"shoal\[(\w+)\]", command)[0] in extras
        elif command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE)
        elif command.startswith("shoal-edge"):
            parser().parse_args(shlex.split(command)[1:])


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "android_bridge" / "README.md", ROOT / "wire" / "SPEC.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_map_of_the_tree_is_complete() -> None:
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith((".", "_")) and not p.name.endswith(".egg-info")}
    folders -= {"tests", "runs", "build", "dist"}
    assert folders <= set(re.findall(r"^\| `(\w+)/`", (ROOT / "README.md").read_text(), re.MULTILINE))


def test_reasons_of_the_spec_are_those_of_the_messages() -> None:
    from typing import get_args

    from wire.messages import Reason

    spec = (ROOT / "wire" / "SPEC.md").read_text().split("## Updates")[1].split("## Bundles")[0]
    told = set(re.findall(r"^\| `([a-z-]+)` \|", spec, re.MULTILINE))
    assert told <= set(get_args(Reason))
    assert set(get_args(Reason)) - told == {"unknown-topic", "unknown-blob", "stale-bundle"}


def test_summary_page_names_every_field() -> None:
    from simulation.simulate import SimulationSettings, simulate
    from tests.conftest import synthetic_fleet

    page = (ROOT / "docs" / "simulate.md").read_text()
    summary = simulate(synthetic_fleet(2), SimulationSettings("fedavg", 1)).summary
    assert [name for name in summary if f"`{name}`" not in page] == []
