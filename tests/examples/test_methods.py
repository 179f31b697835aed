"""The methods of docs/tutorial.md, from a folder outside of the repository: simulated, compared,
exported, on boards and on a phone."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.composition import read_algorithm
from export.bundle import capture_graphs
from simulation.datasets.watch import load_watch
from simulation.local.broker import EmbeddedBroker
from simulation.local.fleet import start_process, stop_processes, write_device_folder
from simulation.objective import objective_for_fleet
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.android.steps import draw_batches, eager, on_the_jvm
from tests.end_to_end.boards import check_on_devices
from tests.support.bundles import pack_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.pages import FENCES, ROOT, page
from wire.arrays.tensors import decode_tensors
from wire.bundle import unpack

pytestmark = pytest.mark.full

METHODS = ("mixup.py:MixupHead", "simclr.py:SimClr", "opposed.py:Opposed")
BLOCKS = re.compile(r"^```python\n(.+?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    (shoal .+)$", FENCES.sub("", page("tutorial")), re.MULTILINE)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of the examples, which is the current one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "examples"


def shoal(*words: str, timeout: float = 250) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_shows_what_the_files_hold() -> None:
    trees = (
        ast.parse((ROOT / "examples" / name.partition(":")[0]).read_text()) for name in METHODS
    )
    written = {
        ast.unparse(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.stmt)
    }
    blocks = [ast.parse(textwrap.dedent(block)) for block in BLOCKS.findall(page("tutorial"))]
    assert len(blocks) >= len(METHODS)
    statements = {ast.unparse(statement) for block in blocks for statement in block.body}
    assert statements - written == set()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mixup.py:MixupHead", marks=pytest.mark.slow),
        pytest.param("simclr.py:SimClr", marks=pytest.mark.slow),
        "opposed.py:Opposed",
    ],
)
def test_each_keeps_the_contract_of_every_choice(elsewhere: Path, name: str) -> None:
    assert f"shoal check examples/{name}" in COMMANDS
    told = shoal("check", f"examples/{name}", "--no-phones").splitlines()
    assert re.fullmatch(r"(\d+) of \1 checks passed", told[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("trimmed:share=0.2", "mean"),
        ("gaussian", "privacy"),
        ("knn-per:memory=16", "personalisation"),
    ],
)
def test_registered_choices_of_other_kinds_keep_it_too_with_options(name: str, kind: str) -> None:
    told = shoal("check", name, "--no-phones").splitlines()
    assert told[1].startswith(f"{name}: the {kind} {name.partition(':')[0]}, ")
    assert re.fullmatch(r"(\d+) of \1 checks passed", told[-1])


def test_a_broken_method_is_told_what_is_wrong(elsewhere: Path) -> None:
    text = (elsewhere / "opposed.py").read_text()
    (elsewhere / "broken.py").write_text(
        text.replace("int(value * component[0] < 0)", "int(np.random.default_rng().random() < 0.5)")
    )
    words = ["check", "examples/broken.py:Opposed"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 1
    (failed,) = (line for line in done.stdout.splitlines() if line.startswith("FAILED"))
    assert re.match(
        r"FAILED  three rounds repeat to the bit.*: a second run with the same seed gives a "
        r"different result: ",
        failed,
    )


def test_a_run_says_which_backend_it_takes_and_why_no_faster_one(elsewhere: Path) -> None:
    data = synthetic_fleet(4, shift=1.0)
    summaries = [
        simulate(data, SimulationSettings(read_algorithm(f"examples/{name}"), 1)).summary
        for name in METHODS
    ]
    assert [summary.backend for summary in summaries] == ["hybrid", "hybrid", "native"]
    assert (summaries[0].backend_reason or "").startswith(
        "The engine in C++ does not have this model or step: "
        "graph 'step' of mixup-head is more than plain SGD on the cross-entropy"
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        "examples/mixup.py:MixupHead:lr=0.01+examples/opposed.py:Opposed",
        "examples/simclr.py:SimClr",
    ],
)
def test_boards_reach_what_the_simulation_does(elsewhere: Path, algorithm: str) -> None:
    check_on_devices(algorithm, elsewhere)


@pytest.mark.slow
def test_a_real_fleet_of_processes_trains_with_it_and_a_service_finds_it_again(
    elsewhere: Path,
) -> None:
    """Export, serve and shoal-edge as the page has them; the service is then started again from
    another folder."""
    export, serve = (
        next(c for c in COMMANDS if c.startswith(f"shoal {kind}")) for kind in ("export", "serve")
    )
    shoal(*shlex.split(export)[1:])
    data, here = load_watch(), elsewhere.parent
    with EmbeddedBroker() as broker:
        words = shlex.split(serve.replace("mqtt://localhost", broker.url))[1:]
        processes = [
            start_process(["-m", "shoal", *words, "--no-stay", "--port", "0"], here / "serve.log")
        ]
        for device_id in ("p01-left", "p02-right"):
            write_device_folder(data, device_id, here / device_id)
            edge = [
                "--id",
                device_id,
                "--data",
                device_id,
                "--state",
                f"state-{device_id}",
                "--trust",
                "runs/bundle/trust.pem",
            ]
            processes.append(
                start_process(
                    ["-m", "edge_client.main", "run", *edge, "--broker", broker.url],
                    here / f"{device_id}.log",
                )
            )
        try:
            assert processes[0].wait(150) == 0, (here / "serve.log").read_text()
            assert "Campaign finished: campaign=run-1 " in (here / "serve.log").read_text()
            again = [
                "-m",
                "shoal",
                "serve",
                "--folder",
                str(here / "runs/served"),
                "--broker",
                broker.url,
                "--no-stay",
                "--port",
                "0",
            ]
            found = subprocess.run(
                [sys.executable, *again], cwd="/", capture_output=True, text=True, timeout=100
            )
            assert found.returncode == 0, found.stderr
            (elsewhere / "mixup.py").rename(elsewhere / "moved.py")
            lost = subprocess.run(
                [sys.executable, *again], cwd="/", capture_output=True, text=True, timeout=100
            )
            assert f"algorithm file {elsewhere / 'mixup.py'}: there is no such file" in lost.stderr
        finally:
            stop_processes(processes)


@pytest.mark.slow
def test_a_service_says_what_its_bundle_was_exported_for(elsewhere: Path) -> None:
    shoal(
        "export",
        "--algorithm",
        "examples/mixup.py:MixupHead",
        "--runtimes",
        "onnx",
        "--out",
        "bundle",
    )
    words = ["serve", "--folder", "served", "--bundle", "bundle", "--broker", "mqtt://localhost"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert (
        "it was exported for 'mixup-head', which is not registered here; name its file with "
        "--algorithm FILE.py:CLASS"
    ) in done.stderr


@pytest.mark.slow
def test_twenty_steps_on_a_phones_runtime_are_those_of_torch(elsewhere: Path) -> None:
    """The Kotlin client's own code, on this machine's JVM."""
    pytest.importorskip(
        "executorch",
        reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
    )
    data = synthetic_fleet(2, num_windows=96)
    objective = objective_for_fleet(data, read_algorithm("examples/mixup.py:MixupHead"), 0)
    path = elsewhere / "device.shoal"
    path.write_bytes(
        pack_graphs(
            capture_graphs(objective, data.window.shape, ("onnx", "executorch")), data, objective
        )
    )
    bundle, batches = unpack(path.read_bytes()), draw_batches(objective, data.devices["d0"])
    done = on_the_jvm(path, bundle, batches)
    assert done.returncode == 0, done.stderr
    found = decode_tensors(path.with_name("outputs.safetensors").read_bytes())[0]
    single, double = (
        eager(objective, bundle, batches, dtype) for dtype in (torch.float32, torch.float64)
    )
    moved = [key for key in single if key.startswith(("shared/", "private/head"))]
    assert len(moved) >= len(bundle.manifest.of_role("shared"))
    for key in moved:
        rounding = float(np.abs(single[key] - double[key]).max())
        assert float(np.abs(found[f"next/{key}"] - single[key]).max()) <= max(2 * rounding, 1e-6), (
            key
        )
