"""``python -m benchmarks.native``: the native engine beside the peak of a core.

Workload: one device's update, an epoch of 256 examples in batches of 32 of SGD with momentum, on
one thread, by its CPU time; the engine and a plain loop in torch take turns, and the shortest of
the turns counts. Beside them stand the peaks of this machine's core: products and sums in registers
(`peak.cpp`), a product of two matrices by torch, and copies of memory. `torch.utils.flop_counter`
counts the operations of a model. Where Linux's `perf` is installed, it tells in which parts of the
engine the time goes. Writes ``benchmarks/results/native.json`` and its section of
``benchmarks/RESULTS.md``.
"""

import argparse
import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from algorithms.models.adoption.adopt import adopt
from algorithms.models.adoption.dropout import replace_dropouts
from algorithms.models.reading.network import Unsupported, network_of
from benchmarks.results.report import describe_machine, keep
from benchmarks.speed_models import (
    BATCH,
    CLASSES,
    EXAMPLES,
    MODELS,
    MOMENTUM,
    RATE,
    device,
    train_plainly,
)
from host.compiler import compile_all, find_compiler
from host.native.library import ARM, OTHER, X86
from host.native.plan import available_targets
from host.native.trainer import NativeTrainer

OUT, PEAK = Path(__file__).parent / "results" / "native.json", Path(__file__).parent / "peak.cpp"
PARTS = {
    "products": ("multiply",),
    "activations": ("activation", "moments", "mean_"),
    "rest": ("",),
}
"""Parts of the engine, and what the names of their functions contain."""


def peak_of(target: str, turns: int) -> float:
    """GFLOP/s of products and sums in registers by an instruction set."""
    flags = next(t[target] for t in (X86, ARM, OTHER) if target in t)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "peak.so"
        options = ["-O3", "-fPIC", "-shared", "-ffp-contract=fast", *flags]
        compile_all(find_compiler()[0], [[*options, str(PEAK), "-o", str(library)]])
        loaded = ctypes.CDLL(str(library))
        loaded.shoal_peak.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.c_float]
        count = 2_000_000
        spent = least(lambda: loaded.shoal_peak(count, 0.5, 1.0), turns)
        return float(count * loaded.shoal_peak_operations() / spent / 1e9)


def peaks(turns: int) -> dict[str, float]:
    """Return the peaks of a core, in GFLOP/s and GB/s."""
    ones = torch.ones(1024, 1024)
    source, target = np.ones(2**25, np.float32), np.ones(2**25, np.float32)
    rates = {f"registers, {name}": peak_of(name, turns) for name in available_targets()}
    rates["product of 1,024 x 1,024, torch"] = 2 * 1024**3 / least(lambda: ones @ ones, turns) / 1e9
    copied = least(lambda: np.copyto(target, source), turns)
    return rates | {"copies of 128 MiB, GB/s": 2 * source.nbytes / copied / 1e9}


def least(call: Callable[[], Any], turns: int) -> float:
    """Return the shortest CPU time of a call, in seconds."""
    spent = []
    for _ in range(turns):
        began = time.thread_time()
        call()
        spent.append(time.thread_time() - began)
    return min(spent)


def flop_of(name: str) -> int:
    """Operations of a step on one example: products and sums, forward and backward."""
    make, shape = MODELS[name]
    model = make().train()
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(torch.ones(2, *shape)), torch.zeros(2, dtype=torch.int64)).backward()
    return int(counter.get_total_flops()) // 2


def engine_of(name: str, target: str | None = None) -> tuple[Callable[[], Any], float]:
    """An update by the engine, and its workspace in MiB.

    Raises:
        Unsupported: the engine does not know a layer.
    """
    make, shape = MODELS[name]
    model = adopt(name, make(), shape, CLASSES, nn.Identity())
    if replace_dropouts(model, shape):
        raise Unsupported("dropout")
    network = network_of(model, shape)
    tensors = model.state_dict()
    start = np.concatenate([tensors[n].numpy().ravel() for n in network.shapes], dtype=np.float32)
    trainer, (x, y) = NativeTrainer(network, target=target), device(0, shape)
    order = np.random.default_rng(0).permutation(EXAMPLES)
    bounds = np.arange(0, EXAMPLES + 1, BATCH)
    workspace = trainer.library.shoal_workspace_size(trainer.handle, BATCH) / 2**18
    return (
        lambda: trainer.train(start.copy(), None, x, y, order, bounds, RATE, MOMENTUM),
        workspace,
    )


def loop_of(name: str) -> Callable[[], None]:
    """An update by a plain loop in torch."""
    make, shape = MODELS[name]
    model, (x, y) = make().train(), device(0, shape)
    data = [(torch.from_numpy(x), torch.from_numpy(y))]
    return lambda: train_plainly(model, data, 1)


def measure(name: str, turns: int) -> dict[str, Any]:
    """One model, by the engine with each instruction set and by the plain loop, in turns."""
    flop = EXAMPLES * flop_of(name)
    engines = {target: engine_of(name, target) for target in available_targets()}
    ways = {target: update for target, (update, _) in engines.items()} | {"torch": loop_of(name)}
    spent = {way: least(update, 1) for way, update in ways.items()}  # caches are there from now on
    for _ in range(turns):
        spent |= {way: min(spent[way], least(update, 1)) for way, update in ways.items()}
    return {
        "model": name,
        "mflop": flop / EXAMPLES / 1e6,
        "workspace_mib": next(size for _, size in engines.values()),
        "ms": {way: 1000 * s for way, s in spent.items()},
        "gflop_per_s": {way: flop / s / 1e9 for way, s in spent.items()},
    }


def parts_of(name: str, seconds: float) -> dict[str, float]:
    """Share of the engine's time in each of its parts; nothing without `perf`."""
    if shutil.which("perf") is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "perf.data")
        updates = [sys.executable, "-m", "benchmarks.native", "--run", name]
        updates += ["--seconds", str(seconds)]
        record = ["perf", "record", "-F", "499", "-o", file, "--", *updates]
        subprocess.run(record, check=True, capture_output=True)
        columns = ["-F", "overhead,dso,sym", "-t", "|"]
        report = ["perf", "report", "-i", file, "--no-children", *columns]
        text = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    shares = dict.fromkeys(PARTS, 0.0)
    for share, symbol in _functions(text):
        shares[next(p for p, words in PARTS.items() if any(w in symbol for w in words))] += share
    return {part: share / sum(shares.values()) for part, share in shares.items()}


def _functions(report: str) -> Iterator[tuple[float, str]]:
    """The functions of the engine in perf's report, with their share of the samples."""
    for line in report.splitlines():
        cells = [cell.strip() for cell in line.split("|", 2)]
        if len(cells) == 3 and cells[1].startswith("engine-"):
            yield float(cells[0].rstrip("%")), cells[2].partition("(anonymous namespace)::")[2]


def section(kept: dict[str, Any]) -> str:
    """The results as Markdown."""
    targets = [t for t in kept["rows"][0]["ms"] if t != "torch"]
    best = targets[-1]
    top = kept["peaks"][f"registers, {best}"]
    lines = [
        "## The native engine",
        "",
        f"Machine: {kept['machine']}. One device's update ({EXAMPLES} examples in batches of "
        f"{BATCH}) on one thread, by CPU time, the shortest of {kept['turns']} turns. Made by "
        f"`python -m benchmarks.native --turns {kept['turns']}`. The peak is that of products and "
        "sums in registers.",
        "",
        "| peak of a core | |",
        "|---|---|",
        *(
            f"| {name.removesuffix(', GB/s')} | {value:.0f} "
            f"{'GB/s' if name.endswith('GB/s') else 'GFLOP/s'} |"
            for name, value in kept["peaks"].items()
        ),
        "",
        f"| model | MFLOP an example | workspace, MiB | {' | '.join(f'{t}, ms' for t in targets)} "
        f"| torch, ms | torch / {best} | {best}, GFLOP/s | {best} / peak | torch / peak "
        f"| {' | '.join(PARTS)} |",
        f"|{'---|' * (8 + len(targets) + len(PARTS))}",
    ]
    for row in kept["rows"]:
        ms, speed = row["ms"], row["gflop_per_s"]
        cells = [row["model"], f"{row['mflop']:.1f}", f"{row['workspace_mib']:.0f}"]
        cells += [*(f"{ms[t]:.0f}" for t in targets), f"{ms['torch']:.0f}"]
        cells += [f"{ms['torch'] / ms[best]:.1f}", f"{speed[best]:.0f}"]
        cells += [f"{speed[way] / top:.0%}" for way in (best, "torch")]
        cells += [f"{row['parts'][p]:.0%}" if row["parts"] else "" for p in PARTS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(prog="benchmarks.native")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--run", metavar="MODEL", help="do nothing but the engine's updates")
    parser.add_argument("--seconds", type=float, default=10.0, help="of --run, and under perf")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.run:
        update, _ = engine_of(options.run)
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            update()
        return
    kept: dict[str, Any] = {
        "machine": describe_machine(),
        "turns": options.turns,
        "peaks": peaks(options.turns),
        "rows": [],
    }
    print(json.dumps(kept["peaks"], indent=1), flush=True)
    for name in MODELS:
        try:
            row = measure(name, options.turns)
        except Unsupported:
            continue
        kept["rows"].append(row | {"parts": parts_of(name, options.seconds)})
        print(json.dumps(kept["rows"][-1]), flush=True)
    keep(kept, options.out, OUT, "native", section(kept))
    print(section(kept))


if __name__ == "__main__":
    main()
