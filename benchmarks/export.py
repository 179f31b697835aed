"""``python -m benchmarks.export``: what an export takes: the watch model with DistFL, for ONNX
alone and for ONNX and ExecuTorch.

Workload: `export.bundle.capture_graphs` of the four graphs of ``distfl`` on the watch data, each
time in a process of its own, so that what is loaded and prepared once counts. Seconds are medians
over turns, by the clock and of the processor, one thread; packing, the check against eager torch
and the probe are not among them. Writes ``benchmarks/results/export.json`` and its section of
``benchmarks/RESULTS.md``.

``python -m benchmarks.export --long``: FedAvg on recurrent layers of 16 units, windows of
3 x 128, with a part of the graph for every step, as torch's own operators have it, and with loops.
An export is stopped after `LIMIT_S`. Writes ``benchmarks/results/long.json`` and its
section.
"""

import argparse
import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.results.report import describe_machine, keep
from wire.bundle import EXECUTORCH

OUT = Path(__file__).parent / "results" / "export.json"
CHOICES = {"ONNX": ("onnx",), "ONNX and ExecuTorch": ("onnx", EXECUTORCH)}
"""Runtimes of the exports, as the table names them."""
LONG = OUT.with_name("long.json")
LIMIT_S = 300
"""Seconds of the processor after which an export of a long window is stopped."""
STEPS = 128
LAYERS = ("LSTM", "GRU")


def export_once(runtimes: tuple[str, ...]) -> dict[str, Any]:
    """One export in this process: seconds in all and by stage, and every file's size and
    operators."""
    import torch

    from algorithms.composition import read_algorithm
    from export.bundle import capture_graphs
    from export.lowering.onnx_graph import count_operators
    from simulation.datasets.watch import load_watch
    from simulation.objective import objective_for_fleet

    torch.set_num_threads(1)
    data = load_watch()
    objective = objective_for_fleet(data, read_algorithm("distfl"), 0)
    stages: list[tuple[str, float]] = []
    clock, processor = time.perf_counter(), time.process_time()
    exported = capture_graphs(
        objective,
        data.window.shape,
        runtimes,
        on_progress=lambda text: stages.append((text, time.perf_counter())),
    )
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    ends = [at for _, at in stages[1:]] + [clock + seconds]
    files = {
        f"{name}.onnx": (len(graph.onnx), sum(count_operators(graph.onnx).values()), 0)
        for name, graph in exported.graphs.items()
    }
    for name, programs in exported.programs.items():
        for runtime, (program, payload) in programs.items():
            delegated = sum(
                count
                for operator, count in program.operators.items()
                if operator.startswith("delegated/")
            )
            files[f"{name}, {runtime}"] = (
                len(payload),
                sum(program.operators.values()),
                delegated,
            )
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "stages": {text: end - at for (text, at), end in zip(stages, ends, strict=True)},
        "files": {
            name: dict(zip(("bytes", "operators", "delegated"), row, strict=True))
            for name, row in files.items()
        },
    }


def measure(turns: int) -> dict[str, Any]:
    """Every choice in turns."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CHOICES}
    for _ in range(turns):
        for name, runtimes in CHOICES.items():
            command = [sys.executable, "-m", "benchmarks.export", "--once", ",".join(runtimes)]
            found[name].append(
                json.loads(
                    subprocess.run(
                        command, capture_output=True, text=True, check=True
                    ).stdout.splitlines()[-1]
                )
            )
    rows = {name: _medians(results) for name, results in found.items()}
    return {
        "turns": turns,
        "machine": describe_machine(),
        "exports": rows,
        "files": found["ONNX and ExecuTorch"][0]["files"],
    }


def _medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = {
        key: statistics.median(result[key] for result in results)
        for key in ("seconds", "cpu_seconds")
    }
    stages = {
        stage: statistics.median(result["stages"][stage] for result in results)
        for stage in results[0]["stages"]
    }
    return {
        **seconds,
        "best_cpu_seconds": min(result["cpu_seconds"] for result in results),
        "stages": stages,
    }


def export_long(layer: str, loops: bool) -> dict[str, Any]:
    """One export of a model of long windows in this process: seconds, memory, and the step's
    operators, or none if it was stopped."""
    import torch
    from torch import nn

    import export.recurrent
    from algorithms.composition import make_objective, read_algorithm
    from algorithms.models.adoption.from_file import as_classifier
    from export.bundle import RUNTIMES, capture_graphs
    from export.lowering.onnx_graph import count_operators
    from wire.bundle import Window

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(nn, layer)(3, 16, batch_first=True)
            self.out = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            last: torch.Tensor = self.out(self.layer(x.transpose(1, 2))[0][:, -1])
            return last

    class Stopped(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    torch.set_num_threads(1)
    if not loops:
        export.recurrent.LOOP_FROM = sys.maxsize
    window = Window(("a", "b", "c"), STEPS, STEPS)
    objective = make_objective(
        read_algorithm("fedavg"), as_classifier(layer, Last(), window, 4, torch.ones(3))
    )
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    start, operators = time.process_time(), 0
    try:
        graphs = capture_graphs(objective, window.shape, RUNTIMES).graphs
        operators = sum(count_operators(graphs["step"].onnx).values())
    except Stopped:
        pass
    return {
        "layer": layer,
        "loops": loops,
        "cpu_seconds": time.process_time() - start,
        "memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "operators": operators,
    }


def long_table(results: dict[str, Any]) -> str:
    """The exports of long windows as Markdown."""
    lines = [
        f"Machine: {results['machine']}; one thread; windows of 3 x {STEPS}; made by "
        "`python -m benchmarks.export --long`. Every graph of FedAvg for ONNX and ExecuTorch; "
        "seconds of the processor.",
        "",
        "| layer | a part for every step (before) | memory | loops (now) | memory | operators of "
        "the step in ONNX |",
        "|---|---|---|---|---|---|",
    ]
    rows = {(row["layer"], row["loops"]): row for row in results["rows"]}
    for layer in LAYERS:
        before, now = rows[layer, False], rows[layer, True]
        cells = [
            f"{row['cpu_seconds']:.0f} s | {row['memory_gb']:.1f} GB"
            if row["operators"]
            else f"stopped after {LIMIT_S} s | {row['memory_gb']:.1f} GB"
            for row in (before, now)
        ]
        lines.append(f"| {layer} | {cells[0]} | {cells[1]} | {now['operators']} |")
    return "\n".join(lines)


def measure_long() -> dict[str, Any]:
    """Every layer before and now, each in a process of its own."""
    rows = []
    for layer in LAYERS:
        for loops in (True, False):
            words = ["--layer", layer, *(["--loops"] if loops else [])]
            run = subprocess.run(
                [sys.executable, "-m", "benchmarks.export", *words],
                capture_output=True,
                text=True,
                check=True,
            )
            rows.append(json.loads(run.stdout.splitlines()[-1]))
            print(rows[-1], file=sys.stderr, flush=True)
    return {"machine": describe_machine(), "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    about = "seconds by the clock include what else the machine did"
    lines = [
        f"Machine: {results['machine']}; one thread; medians of {results['turns']} turns; {about}.",
        "",
    ]
    lines += [
        "| exported for | seconds by the clock | of the processor | best turn | longest stage |",
        "|---|---|---|---|---|",
    ]
    for name, row in results["exports"].items():
        stage, longest = max(row["stages"].items(), key=lambda item: item[1])
        numbers = f"{row['seconds']:.1f} | {row['cpu_seconds']:.1f} | {row['best_cpu_seconds']:.1f}"
        lines.append(f"| {name} | {numbers} | {stage}: {longest:.1f} s |")
    lines += ["", "| graph | bytes | operators | of these XNNPACK's |", "|---|---|---|---|"]
    for name, file in results["files"].items():
        lines.append(
            f"| {name} | {file['bytes']:,} | {file['operators']} | {file['delegated'] or ''} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description="What an export takes.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        help="the page of results is written with the usual file alone",
    )
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--long", action="store_true", help="recurrent layers of long windows")
    parser.add_argument("--layer", help=argparse.SUPPRESS)
    parser.add_argument("--loops", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.once:
        print(json.dumps(export_once(tuple(chosen.once.split(",")))))
        return
    if chosen.layer:
        print(json.dumps(export_long(chosen.layer, chosen.loops)))
        return
    if chosen.long:
        long = measure_long()
        keep(long, LONG, LONG, "long", f"## Export of long windows\n\n{long_table(long)}")
        print(long_table(long))
        return
    results = measure(chosen.turns)
    keep(results, chosen.out, OUT, "export", f"## Export\n\n{table(results)}")
    print(table(results))


if __name__ == "__main__":
    main()
