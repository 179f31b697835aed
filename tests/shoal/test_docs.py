"""Every command in the README and the docs is run here, and what they say of files and options is
there."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from algorithms.composition import read_algorithm
from simulation.datasets.catalog import load_data
from simulation.datasets.watch import load_watch
from simulation.local.broker import EmbeddedBroker
from simulation.local.fleet import start_process, stop_processes, write_device_folder
from tests.support.forked import run_command
from tests.support.known import known
from tests.support.pages import (
    ADDING,
    COMMANDS,
    FENCES,
    PAGES,
    PROGRAMS,
    ROOT,
    RUNS,
    WRITTEN,
    blocks,
    not_named,
    page,
)
from tests.support.waiting import wait_until

FIRST = "".join(page.read_text() for page in PAGES if page.name.startswith(("README", "start-")))
"""The README and the quick starts, whose commands `make test` runs."""
CHECKS = ("shoal check",)
"""Commands that tests/examples runs."""
PAGES_OF_RUNS = ("shoal ui",)
"""Commands that tests/shoal/test_reports.py runs."""
FIELD = ("shoal export", "shoal serve", "shoal-edge run")
OPERATOR = (
    "shoal init",
    "shoal enrol",
    "mosquitto -c",
    "shoal backup",
    "shoal restore",
    "shoal vouch",
    "shoal acl",
    "shoal campaign",
    "shoal doctor",
    "shoal models",
    "shoal devices",
    "shoal token",
    "curl ",
)
"""Commands of whoever runs a service: tests/shoal/test_operate_page.py runs them,
tests/shoal/test_devices.py those on devices, and tests/shoal/test_token_page.py those on tokens."""
SLOW = ("shoal demo",)
"""Commands that take minutes."""


def test_every_command_is_of_a_kind_that_is_tested() -> None:
    known = (
        *WRITTEN,
        "shoal algorithms",
        "shoal data show boards",
        *FIELD,
        "shoal-edge check",
        "shoal-edge enrol",
        "shoal-edge predict",
        "shoal-edge record",
        "shoal-edge status",
        "shoal-helper ",
        *OPERATOR,
        *SLOW,
        *CHECKS,
        *PAGES_OF_RUNS,
        "shoal completion",
        "shoal download watch",
        "make ",
        "pip install 'shoal[",
    )
    for kind in (*WRITTEN, "shoal algorithms"):
        assert any(c.startswith(kind) for c in RUNS)
    assert [c for c in COMMANDS if not c.startswith(known)] == []


def test_every_command_that_writes_results_says_where() -> None:
    assert [c for c in RUNS if c.startswith(tuple(WRITTEN)) and "--out " not in c] == []


def write_program(name: str, number: int) -> Callable[[Path], object]:
    """A function that runs a page's program, which writes a file of data."""
    return lambda folder: exec(PROGRAMS.findall(page(name))[number], {})


def write_model(folder: Path) -> None:
    """Write the models of their page into one file."""
    (folder / "model.py").write_text("\n".join(PROGRAMS.findall(page("models"))))


def write_labels(name: str, y: "np.ndarray") -> Callable[[Path], object]:
    """A function that writes windows of four devices with labels of some task."""
    x = np.random.default_rng(0).standard_normal((len(y), 3, 64)).astype(np.float32)
    owner = np.arange(len(y)) // 40
    return lambda folder: np.savez(folder / name, X=x, y=y, subject=owner)


FILES: Mapping[str, Callable[[Path], object]] = {
    "boards": lambda folder: run_command(
        shlex.split("shoal download watch --to boards"), folder, folder / "said"
    ),
    "own.npz": write_program("own-data", 0),
    "events.npz": write_program("own-data", 1),
    "model.py": write_model,
    "faults.npz": write_labels("faults.npz", np.arange(160)[:, None] // [1, 2] % 2),
    "gait.npz": write_labels("gait.npz", np.linspace(0.5, 2.5, 160)),
}
"""Writer of each file, from the programs and commands of the pages, by the name in commands."""


@pytest.mark.parametrize(
    "command", [c if c in FIRST else pytest.param(c, marks=pytest.mark.full) for c in RUNS]
)
def test_simulations_run_as_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, write in FILES.items():
        if re.search(rf" {re.escape(name)}\b", command):
            write(tmp_path)
    done = run_command(shlex.split(command), tmp_path, tmp_path / "said")
    assert done.returncode == 0, done.stderr
    written = next((file for kind, file in WRITTEN.items() if command.startswith(kind)), None)
    if written is not None:
        out = re.search(r"--out (\S+)", command)
        assert out is not None
        assert (tmp_path / out[1] / written).exists()


def test_the_real_fleet_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """export, serve and shoal-edge with the README's words; only the broker's address and the two
    folders are filled in."""
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    export, serve, edge = (
        known(re.search(rf"^    ({start}.+)$", readme, re.MULTILINE))[1] for start in FIELD
    )
    subprocess.run(
        [sys.executable, "-m", *shlex.split(export)], check=True, timeout=200, capture_output=True
    )
    data = load_watch()
    modules = {"shoal": "shoal", "shoal-edge": "edge_client.main"}
    with EmbeddedBroker() as broker:

        def start(command: str, log: str) -> "subprocess.Popen[bytes]":
            name, *rest = shlex.split(command.replace("mqtt://localhost", broker.url))
            return start_process(["-m", modules[name], *rest], tmp_path / log)

        processes = [start(serve + " --no-stay --port 0", "serve.log")]
        for device_id in ("p01-left", "p02-left"):
            write_device_folder(data, device_id, tmp_path / device_id)
            filled = (
                edge.replace("pi-1", device_id)
                .replace("DATA", device_id)
                .replace("STATE", f"state-{device_id}")
            )
            processes.append(start(filled, f"{device_id}.log"))
        try:
            assert processes[0].wait(120) == 0, (tmp_path / "serve.log").read_text()
            (predict,) = re.findall(r"^    (shoal-edge predict .+?) +#", readme, re.MULTILINE)
            words = shlex.split(predict.replace("DATA", "p01-left"))[1:]
            words[words.index("STATE")] = "state-p01-left"

            def predicted() -> "subprocess.CompletedProcess[str] | None":
                done = subprocess.run(
                    [sys.executable, "-m", "edge_client.main", *words],
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                return None if done.returncode else done

            done = wait_until(predicted)  # the device puts its last model in use
        finally:
            stop_processes(processes)
    assert "Campaign finished: campaign=run-1 " in (tmp_path / "serve.log").read_text()
    assert done is not None
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert (len(answers), {answer["class"] for answer in answers} <= set(data.classes)) == (
        data.devices["p01-left"].num_test,
        True,
    )


def test_the_recording_of_the_page_is_read(tmp_path: Path) -> None:
    from edge_client.data.windows import load_folder

    (block,) = blocks("docs/own-data.md", "csv")
    (tmp_path / "one.csv").write_text(block.text)
    (tmp_path / "classes.txt").write_text("walking\n")
    windows = load_folder(tmp_path, 1, 1, 0)
    assert (windows.train_x.shape, windows.train_y.tolist()) == ((2, 3, 1), [0, 0])


@pytest.mark.full
def test_a_recording_as_the_page_of_live_data_has_it(tmp_path: Path) -> None:
    """`record`, of lines like the one on the page, into a state folder of its own; the settings on
    the page are read as they stand."""
    from edge_client.live.settings import live_settings
    from edge_client.options import parser

    text = page("live")
    (command,) = (c for c in COMMANDS if c.startswith("shoal-edge record"))
    sample = json.loads(known(re.search(r"`(\{\"t\": .+?\})`", text))[1])
    begin_s = sample["t"] // 300 * 300  # five blocks of a minute, of which one is held out
    lines = [
        json.dumps(sample | {"t": begin_s + i / 50, "label": "walking"}) for i in range(15_000)
    ]
    words, _, name = command.partition(" < ")
    (tmp_path / name).write_text("\n".join(lines))
    with (tmp_path / name).open() as file:
        run = [sys.executable, "-m", "edge_client.main", *shlex.split(words)[1:]]
        done = subprocess.run(
            run, cwd=tmp_path, stdin=file, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    found = re.search(
        r"steps=15000 .*: (\d+) training windows, (\d+) held out, 0 without", done.stdout
    )
    assert found is not None, done.stdout
    assert int(found[1]) > 2 * int(found[2]) > 20
    (tmp_path / "live.toml").write_text(
        known(re.search(r"```toml\n(\[window\].+?)```", text, re.DOTALL))[1]
    )
    arguments = parser().parse_args(
        ["record", "--state", "STATE", "--source", str(tmp_path / "live.toml")]
    )
    assert live_settings(arguments).source.addresses == {
        "ax": "accel/x",
        "ay": "accel/y",
        "az": "accel/z",
    }


def test_the_watches_become_folders_of_devices(tmp_path: Path) -> None:
    (command,) = (c for c in COMMANDS if c.startswith("shoal download"))
    done = run_command(shlex.split(command), tmp_path, tmp_path / "said")
    assert done.returncode == 0, done.stderr
    read, known = load_data(str(tmp_path / "boards")), load_watch()
    assert read.devices.keys() == known.devices.keys()
    assert (read.window.channels, read.window.shape) == (known.window.channels, known.window.shape)
    one, same = (data.devices["p03-right"] for data in (read, known))
    assert (one.train_x.tolist(), one.test_y.tolist()) == (
        same.train_x.tolist(),
        same.test_y.tolist(),
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(SLOW)])
def test_demonstrations_run_as_written(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "demo" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_bundle_for_executorch_as_its_page_has_it(tmp_path: Path) -> None:
    export, inspect = (
        c for c in COMMANDS if c.startswith("shoal export") and "bundle-executorch" in c
    )
    for command in (export, inspect):
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(command)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr
    assert re.search(r"^ *step +executorch-portable +\d", done.stdout, re.MULTILINE)


def test_other_lines_name_commands_and_options_that_exist() -> None:
    from edge_client.options import parser
    from helper.main import parser as helper_parser

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        if command.startswith("pip install"):
            assert set(known(re.search(r"shoal\[([\w,]+)\]", command))[1].split(",")) <= set(extras)
        elif command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE)
        elif command.startswith("shoal-helper"):
            helper_parser().parse_args(shlex.split(command)[1:])
        elif command.startswith("shoal-edge"):
            parser().parse_args(shlex.split(command.partition(" < ")[0])[1:])
        elif command.startswith(("shoal demo", "shoal export", "shoal serve")):
            check_options(command)


def check_options(command: str) -> None:
    """Every option of a command stands in its help."""
    words = shlex.split(command)[1:]
    told = help_of(words[0])
    assert [word for word in words if word.startswith("--") and word not in told] == []


@cache
def help_of(command: str) -> str:
    """Return the output of ``shoal COMMAND --help``."""
    asked = [sys.executable, "-m", "shoal", command, "--help"]
    return subprocess.run(
        asked, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"}
    ).stdout


SITE = ROOT / "docs" / "site"
MADE = {"runs", "build", "dist"}
"""Folders that commands make in a checkout."""


def folders() -> list[Path]:
    """The top-level folders of the repository."""
    found = [
        path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))
    ]
    return sorted(path for path in found if path.name not in MADE and path.suffix != ".egg-info")


def test_links_between_pages_lead_somewhere() -> None:
    assert {
        ROOT / "README.md",
        ROOT / "docs" / "index.md",
        ROOT / "android_bridge" / "README.md",
    } <= set(PAGES)
    generated = set(
        re.findall(
            r'^    "(reference-\w+\.md)": ', (SITE / "generated.py").read_text(), re.MULTILINE
        )
    )
    assert len(generated) >= 7
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", FENCES.sub("", page.read_text()))
        if not (page.parent / target).exists()
        and not (page.parent == ROOT / "docs" and target in generated)
    ]
    assert broken == []


def test_readme_and_map_have_every_folder() -> None:
    names, house = [folder.name for folder in folders()], page("house")
    assert set(names) == set(
        re.findall(r"^\| `(\w+)/`", (ROOT / "README.md").read_text(), re.MULTILINE)
    )
    assert [
        name for name in names if not re.search(rf"^(## |\| `){name}/", house, re.MULTILINE)
    ] == []
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "root_packages"
    ]
    inner = sorted(path.parent for name in packages for path in (ROOT / name).glob("*/__init__.py"))
    assert inner != []
    assert [path for path in inner if f"`{path.relative_to(ROOT)}/`" not in house] == []


@pytest.mark.parametrize("names", [("house",), ("round",), ("extend", *ADDING)])
def test_files_and_functions_that_pages_name_exist(names: tuple[str, ...]) -> None:
    top = {folder.name for folder in folders()}
    text = "".join(map(page, names))
    named = re.findall(r"`([\w./-]+/[\w./-]*)(?:: ([\w.]+))?`", text)
    places = {(place, function) for place, function in named if place.split("/")[0] in top}
    assert len(places) >= 5
    assert [place for place, _ in sorted(places) if not (ROOT / place).exists()] == []
    assert [
        f"{place}: {function}"
        for place, function in sorted(places)
        if function and not defines(ROOT / place, function)
    ] == []


def defines(file: Path, name: str) -> bool:
    """Return True if a Python file has a function of this name, ``CLASS.METHOD`` or a class."""
    body = ast.parse(file.read_text()).body
    for part in name.split("."):
        found = [
            n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == part
        ]
        if not found:
            return False
        body = found[0].body
    return True


def test_reasons_of_the_spec_are_those_of_the_messages() -> None:
    from typing import get_args

    from wire.messages import DeclineReason, Reason

    after = (ROOT / "wire" / "SPEC.md").read_text().split("first reason that fits")[1]
    refusals, declines = (
        set(re.findall(r"^\| `([a-z-]+)` \|", part, re.MULTILINE))
        for part in after.split("## Policy")[0].split("## Declines")
    )
    assert set(get_args(Reason)) - refusals == {
        "unknown-topic",
        "unknown-blob",
        "unknown-device",
        "second-device",
    }
    assert (refusals - set(get_args(Reason)), declines) == (set(), set(get_args(DeclineReason)))


@pytest.mark.full
def test_pages_name_every_field_of_the_summary_every_partition_and_every_model() -> None:
    from aggregator.view.summary import (
        Baseline,
        DeviceSummary,
        EdgeSummary,
        Groups,
        Heterogeneity,
        MessageBytes,
        PhonesSummary,
        Spread,
        Summary,
        TimeSummary,
    )
    from algorithms.models.registry import MODELS
    from simulation.partition import PARTITIONS
    from simulation.settings import SimulationSettings
    from simulation.simulate import simulate
    from tests.support.fleets import synthetic_fleet

    settings = SimulationSettings(
        read_algorithm("fedavg"), 1, attack="sign-flip:count=1", newcomers=1
    )
    attack = simulate(synthetic_fleet(4), settings).summary.attack
    assert (
        not_named([*Summary.__struct_fields__, *Baseline.__struct_fields__], page("summary")) == []
    )
    for part in (
        DeviceSummary,
        Spread,
        Groups,
        MessageBytes,
        Heterogeneity,
        EdgeSummary,
        PhonesSummary,
    ):
        assert not_named(part.__struct_fields__, page("summary")) == []
    assert not_named(TimeSummary.__struct_fields__, page("speeds")) == []
    assert not_named(PARTITIONS, page("partitions")) == []
    assert not_named(MODELS, page("models")) == []
    options = {key for partition in PARTITIONS.values() for key in partition.options}
    named = page("partitions")
    assert [key for key in sorted(options) if not re.search(f"`{key}[=`]", named)] == []
    assert attack is not None
    assert not_named(attack.__struct_fields__, page("attacks")) == []


def test_comparison_page_names_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.reports.files import write_csv
    from simulation.comparison import runs as compare
    from simulation.comparison.table import tabulate
    from simulation.settings import SimulationSettings
    from tests.support.fleets import synthetic_fleet

    monkeypatch.setattr(compare, "fleet_of", lambda *_: synthetic_fleet(4))
    settings = SimulationSettings(
        read_algorithm("fedavg+gaussian"), 1, attack="label-flip:count=1", newcomers=1
    )
    rows = tabulate([compare.run_job(compare.Job("synthetic", settings))])
    assert {"attack", "newcomers"} <= rows[0].keys()
    write_csv(tmp_path / "compare.csv", rows)
    columns = (tmp_path / "compare.csv").read_text().splitlines()[0].split(",")
    assert not_named(columns, page("compare")) == []


def test_other_pages_name_every_choice_every_mechanism_and_every_attack() -> None:
    from algorithms.composition import listing
    from algorithms.registry import CHOICES
    from simulation.engine.workers.attacks import ATTACKS

    assert not_named([row["name"] for row in listing()], page("algorithms")) == []
    assert not_named(CHOICES["privacy"], page("privacy")) == []
    assert not_named(ATTACKS, page("attacks")) == []
