"""``python -m benchmarks.usual_speed``: what backend `auto` makes of usual models, beside `eager` and beside a plain loop in torch.

Workload: 256 examples on each of 20 devices, FedAvg, one epoch in batches of 32 of SGD with momentum, so many rounds that there are at
least 20,000 steps (STEPS for others). An update is one device's epoch. Everything runs on two cores: the simulation as it is started by
`simulate`, the plain loop as two processes of one thread that share the devices. The seconds are those of a process from its start to its
end, one way after the other for each model; CPU seconds are those of the process and of its children.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.results.report import describe_machine, put

OUT = Path(__file__).parent / "results" / "usual_speed.json"
CLASSES, EXAMPLES, BATCH, DEVICES = 6, 256, 32, 20
STEPS = 20_000
WAYS = ("auto", "eager", "plain")


class Gru(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(9, 64, layers, batch_first=True), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.gru(x.transpose(1, 2))[0][:, -1])
        return made


class Dilated(nn.Module):
    """The layers of the registered `tcn`, written apart from it."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        wide = nn.Conv1d(32, 32, 3, padding=dilation, dilation=dilation, bias=False)
        self.layers = nn.Sequential(wide, nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 32, 1))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.layers(x)
        return made


def cnn(channels: int, features: int, widths: tuple[int, int] = (32, 64), kernel: int = 5) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, widths[0]), widths):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, CLASSES))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation="gelu", batch_first=True)
        self.embed, self.encoder, self.out = nn.Linear(9, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.encoder(self.embed(x.transpose(1, 2))).mean(1))
        return made


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "2-D CNN, 1 x 28 x 28": (lambda: cnn(1, 64 * 49), (1, 28, 28)),
    "2-D CNN, 3 x 32 x 32": (lambda: cnn(3, 64 * 64), (3, 32, 32)),
    "TCN, 9 x 128": (
        lambda: nn.Sequential(
            nn.Conv1d(9, 32, 1), *(Dilated(2**n) for n in range(6)), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, CLASSES)
        ),
        (9, 128),
    ),
    "GRU of 64, 9 x 128": (lambda: Gru(1), (9, 128)),
    "2 GRUs of 64, 9 x 128": (lambda: Gru(2), (9, 128)),
    "Transformer, 9 x 128": (Transformer, (9, 128)),
}


def device(number: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Examples x (256, \\*shape) float32 and classes y (256,) int64 of one device."""
    generator = np.random.default_rng(number)
    return generator.standard_normal((EXAMPLES, *shape)).astype(np.float32), generator.integers(0, CLASSES, EXAMPLES)


def by_shoal(name: str, backend: Any, rounds: int) -> None:
    """A simulation as a user starts it; prints the backend that it took."""
    from algorithms.models.adopt import adopt
    from algorithms.registry import make_objective, read_algorithm
    from edge_client.core.ports import Windows
    from simulation.datasets.windows import FleetData
    from simulation.engine.options import EngineOptions
    from simulation.simulate import SimulationSettings, simulate
    from wire.bundle import Window

    make, shape = MODELS[name]
    none = np.zeros((0, *shape), np.float32), np.zeros(0, np.int64)
    windows = {f"d{n:02d}": Windows(*device(n, shape), *none) for n in range(DEVICES)}
    height = shape[1] if len(shape) == 3 else 0
    window = Window(tuple(f"c{n}" for n in range(shape[0])), shape[-1], shape[-1] if not height else 1, height=height)
    fleet = FleetData("usual", window, tuple(f"k{n}" for n in range(CLASSES)), windows)
    objective = make_objective(read_algorithm("fedavg"), adopt(name, make(), shape, CLASSES, nn.Identity()))
    settings = SimulationSettings(read_algorithm("fedavg"), rounds, 1, batch_size=BATCH, hyper={"lr": 0.01, "momentum": 0.9})
    print(simulate(fleet, settings, lambda _progress: None, objective, EngineOptions(backend)).summary.backend)


def by_loop(name: str, first: int, rounds: int) -> None:
    """Half of the devices of a plain loop; without the other half's models, whose sum costs nothing beside training."""
    torch.set_num_threads(1)
    make, shape = MODELS[name]
    model = make().train()
    data = {n: tuple(map(torch.from_numpy, device(n, shape))) for n in range(first, DEVICES, 2)}
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    for _ in range(rounds):
        total = {key: torch.zeros_like(value, dtype=torch.float32) for key, value in weights.items()}
        for x, y in data.values():
            model.load_state_dict(weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            order = torch.randperm(EXAMPLES)
            for at in order.split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(x[at]), y[at]).backward()
                optimizer.step()
            for key, value in model.state_dict().items():
                total[key] += value / len(data)
        weights = {key: value.to(weights[key].dtype) for key, value in total.items()}


def timed(commands: list[list[str]]) -> tuple[float, float, str]:
    """Wall and CPU seconds of processes that run side by side, and what the first one says last."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    running = [subprocess.Popen([sys.executable, "-m", "benchmarks.usual_speed", *c], stdout=subprocess.PIPE, text=True) for c in commands]
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit(f"{commands[0]} ended with {running[0].returncode}")
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, (said[0].split() or [""])[-1]


def measure(name: str, steps: int) -> dict[str, Any]:
    """One model by all ways, in turns."""
    rounds = -(-steps // (DEVICES * EXAMPLES // BATCH))
    updates, row = rounds * DEVICES, {"model": name, "load": os.getloadavg()[0]}
    for way in WAYS:
        commands = [["loop", name, str(n), str(rounds)] for n in (0, 1)] if way == "plain" else [["shoal", name, way, str(rounds)]]
        wall, cpu, said = timed(commands)
        row |= {way: updates / wall, f"{way}_cpu": updates / cpu}
        if way == "auto":
            row["backend"] = said
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| model | `auto` takes | updates/s, auto | eager | plain loop | auto / plain | the same by CPU time | load before |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        speeds = " | ".join(f"{row[way]:.1f}" for way in WAYS)
        ratios = f"{row['auto'] / row['plain']:.1f} | {row['auto_cpu'] / row['plain_cpu']:.1f}"
        lines.append(f"| {row['model']} | {row['backend']} | {speeds} | {ratios} | {row['load']:.0f} |")
    return "\n".join(lines)


def main(steps: int = STEPS, *names: str) -> None:
    """Measure, print and keep; `names`: some of the models."""
    rows = []
    for name in names or MODELS:
        rows.append(measure(name, steps))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        machine = describe_machine()
        OUT.write_text(json.dumps({"machine": machine, "steps": steps, "rows": rows}, indent=1) + "\n")
        note = f"Machine: {machine}. {steps:,} steps of each, start included; ways one after the other for each model. Where others work"
        note += (
            " on the machine too, the load says so, and the ratio by CPU time is the surer one. Made by `python -m benchmarks.usual_speed`."
        )
        put("usual-speed", f"## Usual models, and plain PyTorch\n\n{note}\n\n{table(rows)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["shoal"]:
        by_shoal(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["loop"]:
        by_loop(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS, *sys.argv[2:])
