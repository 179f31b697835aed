"""``python -m benchmarks.edge``: what training costs a device: onnxruntime, ExecuTorch and torch,
each in a process of its own.

Workload: that of `benchmarks.peers`, batches of 32 windows of 9 x 128, one thread. Clients are
started one after the other and stay; then they take turns of some steps each, so that what else the
machine does meets all alike. ms per step are medians over turns; start-up is from the start of the
process to the end of its first step; memory is the process's peak, inputs included. Besides, the
memory of a whole edge process by stage (`benchmarks.board`). Writes
``benchmarks/results/edge.json`` and its section of ``benchmarks/RESULTS.md``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import board
from benchmarks.results.report import describe_machine, keep
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.bundle import EXECUTORCH, PORTABLE, Bundle, unpack

OUT = Path(__file__).parent / "results" / "edge.json"
WINDOW, CLASSES, BATCH = (9, 128), 6, 32
EAGER = "torch, eager"
CLIENTS: dict[str, tuple[str, ...]] = {
    EAGER: ("torch",),
    "onnxruntime, Python": ("python", "onnx"),
    "ExecuTorch with XNNPACK, Python": ("python", EXECUTORCH),
    "ExecuTorch, portable, Python": ("python", PORTABLE),
    "ExecuTorch with XNNPACK, C++": ("plain", EXECUTORCH),
    "ExecuTorch, portable, C++": ("plain", PORTABLE),
}
"""Each client, and how it is started."""

Step = Callable[[], None]


def write_workload(folder: Path) -> None:
    """The bundle, and for the plain runner the program's inputs as bytes and what each of them
    is."""
    import torch

    from algorithms.models.adoption.adopt import adopt
    from algorithms.objectives.fedavg import FedAvg
    from benchmarks.peers.workload import make_model
    from export.bundle import RUNTIMES, capture_graphs, make_bundle
    from wire.bundle import Window

    torch.set_num_threads(1)

    class Workload(FedAvg):
        def graphs(self) -> Any:
            return {"step": super().graphs()["step"]}

    model = adopt("workload", make_model(), WINDOW, CLASSES, torch.nn.Identity())
    objective = Workload(model)
    window = Window(tuple(f"c{i}" for i in range(WINDOW[0])), WINDOW[1], WINDOW[1])
    exported = capture_graphs(objective, WINDOW, RUNTIMES, BATCH)
    classes = tuple(map(str, range(CLASSES)))
    payload = make_bundle(
        exported,
        name="workload",
        bundle_version=1,
        objective=objective,
        classes=classes,
        window=window,
    )
    (folder / "bundle.shoal").write_bytes(payload)
    bundle, inputs = unpack(payload), inputs_of(unpack(payload))
    graph = bundle.manifest.graphs["step"]
    words = {
        n: f"state:{graph.outputs.index(names.following(n))}"
        for n in graph.inputs
        if names.following(n) in graph.outputs
    }
    words |= {n: f"batch:{BATCH}" for n in graph.inputs if names.role_of(n) == names.BATCH}
    (folder / "words").write_text(" ".join(words.get(n, "fixed") for n in graph.inputs))
    (folder / "state").write_bytes(
        b"".join(inputs[n].tobytes() for n in graph.inputs if names.role_of(n) != names.BATCH)
    )
    (folder / "batch").write_bytes(
        b"".join(inputs[n].tobytes() for n in graph.inputs if names.role_of(n) == names.BATCH)
    )
    for runtime in (EXECUTORCH, PORTABLE):
        (folder / f"{runtime}.pte").write_bytes(bundle.program("step", runtime)[1])


def inputs_of(bundle: Bundle) -> Tensors:
    """Everything that the step reads, at its start."""
    rng = np.random.default_rng(0)
    hyper = {
        names.hyper(name): np.asarray(value, np.float32)
        for name, value in bundle.manifest.hyper.items()
    }
    batch: Tensors = {
        names.X: rng.standard_normal((BATCH, *WINDOW), np.float32),
        names.Y: rng.integers(0, CLASSES, BATCH),
    }
    return {**bundle.initial, **hyper, **batch}


def python_client(runtime: str, folder: Path) -> Step:
    """The client's own adapter for a runtime."""
    bundle = unpack((folder / "bundle.shoal").read_bytes())
    if runtime == "onnx":
        from edge_client.graphs.onnx import OnnxGraphs

        run = OnnxGraphs(bundle).run
    else:
        from edge_client.graphs.executorch import ExecutorchGraphs

        run = ExecutorchGraphs(bundle, runtimes=(runtime,)).run
    state = inputs_of(bundle)

    def step() -> None:
        state.update(names.part(run("step", state), names.NEXT))

    return step


def torch_client(folder: Path) -> Step:
    """A plain loop in torch."""
    import torch
    import torch.nn.functional as F

    from benchmarks.peers.workload import make_model

    torch.set_num_threads(1)
    model = make_model().train()
    inputs = inputs_of(unpack((folder / "bundle.shoal").read_bytes()))
    optimizer = torch.optim.SGD(
        model.parameters(), float(inputs[names.hyper("lr")]), float(inputs[names.hyper("momentum")])
    )
    x, y = torch.from_numpy(inputs[names.X]), torch.from_numpy(inputs[names.Y])

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def serve(kind: str, runtime: str, folder: Path) -> None:
    """In a process of its own: a first step, then as many as each line of the input asks for;
    answers are seconds and the peak in MB."""
    step = torch_client(folder) if kind == "torch" else python_client(runtime, folder)
    step()
    print(json.dumps({"peak_mb": peak_mb()}), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(
            json.dumps({"seconds": time.perf_counter() - began, "peak_mb": peak_mb()}), flush=True
        )


def peak_mb() -> float:
    """The most memory this process has had, from the kernel."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class Served:
    """A client in Python, started and through its first step."""

    def __init__(self, words: tuple[str, ...], folder: Path) -> None:
        began = time.perf_counter()
        kind, runtime = words[0], words[-1]
        command = [sys.executable, "-m", "benchmarks.edge", "--serve", kind, runtime, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.peak_mb = self._answer()["peak_mb"]
        self.start_s = time.perf_counter() - began

    def turn(self, steps: int) -> float:
        """Milliseconds per step."""
        assert self._process.stdin is not None
        print(steps, file=self._process.stdin, flush=True)
        answer = self._answer()
        self.peak_mb = answer["peak_mb"]
        return answer["seconds"] * 1e3 / steps

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer


class Plain:
    """The plain C++ runner; a process for each turn."""

    def __init__(self, words: tuple[str, ...], folder: Path) -> None:
        from host.executorch.build import RUNNER, build

        self._runner, self._program, self._folder = (
            build().with_name(RUNNER),
            folder / f"{words[1]}.pte",
            folder,
        )
        self.peak_mb = 0.0
        began = time.perf_counter()
        self.turn(1)
        self.start_s = time.perf_counter() - began

    def turn(self, steps: int) -> float:
        """Milliseconds per step."""
        (self._folder / "batches").write_bytes((self._folder / "batch").read_bytes() * steps)
        words = (self._folder / "words").read_text().split()
        files = self._program, self._folder / "state", self._folder / "out"
        command: list[str | Path] = [
            self._runner,
            *files,
            str(steps),
            self._folder / "batches",
            *words,
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.peak_mb = max(self.peak_mb, int(said.partition("VmHWM:")[2].split()[0]) / 1024)
        return float(said.split()[0])

    def close(self) -> None:
        """Nothing is left running."""


def installed_mb() -> dict[str, float]:
    """Return the sizes (MB) of the packages that a device needs besides Python and Shoal's own
    requirements."""
    from host.executorch.build import LIBRARY, RUNTIME, build, find_executorch

    def package(name: str) -> float:
        return (
            sum(
                path.stat().st_size
                for f in files(name) or []
                if (path := Path(str(f.locate()))).exists()
            )
            / 1e6
        )

    libraries = [
        build().with_name(LIBRARY),
        *(find_executorch()[0] / "lib" / f"lib{name}.so" for name in RUNTIME),
    ]
    return {
        "torch": package("torch"),
        "onnx": package("onnxruntime"),
        "executorch": sum(p.stat().st_size for p in libraries) / 1e6,
    }


def measure(turns: int, steps: int) -> dict[str, Any]:
    """A row for every client."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_workload(folder)
        started: dict[str, Served | Plain] = {}
        for name, words in CLIENTS.items():
            started[name] = Plain(words, folder) if words[0] == "plain" else Served(words, folder)
        times: dict[str, list[float]] = {name: [] for name in started}
        for _ in range(turns):
            for name, client in started.items():
                times[name].append(client.turn(steps))
        sizes = installed_mb()
        rows = {}
        for name, client in started.items():
            client.close()
            rows[name] = {
                "ms_per_step": statistics.median(times[name]),
                "best_ms_per_step": min(times[name]),
                "peak_mb": client.peak_mb,
                "start_s": client.start_s,
                "installed_mb": sizes[CLIENTS[name][-1].removesuffix("-portable")],
            }
    return {"turns": turns, "steps": steps, "machine": describe_machine(), "clients": rows}


def measure_stages(processes: int, before: Path | None) -> dict[str, Any]:
    """Return the memory of an edge process by stage, and beside it what `before`, results of an
    earlier commit, has."""
    found = board.measure(board.make_workload(), processes)
    held = json.loads(before.read_text())["stages"]["now"] if before is not None else {}
    return {"processes": processes, "now": found, "before": held}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = results["clients"]
    eager = rows[EAGER]["ms_per_step"]
    lines = [
        f"Machine: {results['machine']}; one thread; {results['turns']} turns of "
        f"{results['steps']} steps.",
        "",
        "| client | ms per step | best turn | x eager torch | peak MB | start to first step, s | "
        "needs MB installed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        times = (
            f"{row['ms_per_step']:.2f} | {row['best_ms_per_step']:.2f} | "
            f"{row['ms_per_step'] / eager:.2f}"
        )
        lines.append(
            f"| {name} | {times} | {row['peak_mb']:.0f} | {row['start_s']:.2f} | "
            f"{row['installed_mb']:.0f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description="What training costs a device.")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        help="the page of results is written with the usual file alone",
    )
    parser.add_argument("--stages", action="store_true", help="only the memory by stage")
    parser.add_argument("--before", type=Path, help="results of an earlier commit, to stand beside")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        serve(chosen.serve[0], chosen.serve[1], Path(chosen.serve[2]))
        return {}
    results = json.loads(OUT.read_text()) if chosen.stages else measure(chosen.turns, chosen.steps)
    results["stages"] = measure_stages(3, chosen.before)
    text = f"{table(results)}\n\n{board.table(results['stages'])}"
    keep(results, chosen.out, OUT, "edge", f"## Training on a device\n\n{text}")
    print(text)
    return results


if __name__ == "__main__":
    main()
