"""``python -m benchmarks.backends``: CPU time of a training step by each backend, on one core.

Workload: 8 devices of 256 examples, one epoch in batches of 32. A run of one round is taken from a
run of several, so that starts do not count. Prints a row for each model; ``--device cuda`` has
backend batched on an accelerator. The table of RESULTS.md is this one.
"""

import argparse
import resource
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
import torch
from torch import nn

from algorithms.composition import make_objective, read_algorithm
from algorithms.models.adoption.adopt import adopt
from benchmarks.speed_models import BATCH, CLASSES, EXAMPLES, MODELS, RATE, device
from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import simulate
from wire.bundle import Window
from wire.errors import ConfigError

DEVICES = 8
SERIES = (9, 128)


def layers(activation: Callable[[], nn.Module]) -> nn.Module:
    """Two convolutions of 5 over time, each with this activation, and a linear head."""
    first = [nn.Conv1d(9, 32, 5), activation(), nn.MaxPool1d(2), nn.Conv1d(32, 64, 5), activation()]
    return nn.Sequential(*first, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def separable() -> nn.Module:
    """Depthwise separable convolutions over images 3 x 32 x 32."""
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1)]
    for inputs, outputs in ((32, 64), (64, 128), (128, 128)):
        deep = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
        wide = nn.Conv2d(inputs, outputs, 1, bias=False)
        parts += [deep, nn.BatchNorm2d(inputs), nn.ReLU6(), wide, nn.BatchNorm2d(outputs)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def perceptron() -> nn.Module:
    """Three linear layers."""
    hidden = [nn.Flatten(), nn.Linear(9 * 128, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(64, CLASSES))


WORKLOADS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "CNN with ReLU, 9 x 128": (lambda: layers(nn.ReLU), SERIES, "fedavg"),
    "CNN with ReLU, 9 x 128, ditto": (lambda: layers(nn.ReLU), SERIES, "ditto"),
    "2-D CNN, 1 x 28 x 28": (*MODELS["2-D CNN, 1 x 28 x 28"], "fedavg"),
    "GRU of 64, 9 x 128": (*MODELS["GRU of 64, 9 x 128"], "fedavg"),
    "GRU of 64, 9 x 128, ditto": (*MODELS["GRU of 64, 9 x 128"], "ditto"),
    "Transformer, 9 x 128": (*MODELS["Transformer, 9 x 128"], "fedavg"),
    "MLP, 9 x 128, ditto": (perceptron, SERIES, "ditto"),
    "CNN with ELU, 9 x 128": (lambda: layers(nn.ELU), SERIES, "fedavg"),
    "separable CNN, 3 x 32 x 32": (separable, (3, 32, 32), "fedavg"),
}
"""Model, shape of an example, and algorithm, by name."""


def fleet_of(shape: tuple[int, ...], devices: int) -> FleetData:
    """Devices with the examples of `benchmarks.speed_models`, and nothing to test."""
    none = np.zeros((0, *shape), np.float32), np.zeros(0, np.int64)
    windows = {f"d{n:04d}": Windows(*device(n, shape), *none) for n in range(devices)}
    height = shape[1] if len(shape) == 3 else 0
    channels = tuple(f"c{n}" for n in range(shape[0]))
    window = Window(channels, shape[-1], 1 if height else shape[-1], height=height)
    return FleetData("speed", window, tuple(f"k{n}" for n in range(CLASSES)), windows)


def cpu_ms(name: str, options: EngineOptions, rounds: int) -> float:
    """CPU milliseconds of a step.

    Raises:
        ConfigError: the backend cannot run the model.
    """
    make, shape, algorithm = WORKLOADS[name]
    fleet = fleet_of(shape, DEVICES)
    spec = read_algorithm(algorithm)

    def spent_s(count: int) -> float:
        objective = make_objective(spec, adopt(name, make(), shape, CLASSES, nn.Identity()))
        settings = SimulationSettings(spec, count, 1, batch_size=BATCH, hyper={"lr": RATE})
        before = resource.getrusage(resource.RUSAGE_SELF)
        simulate(fleet, settings, lambda _progress: None, objective, options)
        after = resource.getrusage(resource.RUSAGE_SELF)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    spent_s(1)  # caches are there from now on
    short_s, long_s = spent_s(1), spent_s(1 + rounds)
    return 1000 * (long_s - short_s) / (rounds * DEVICES * (EXAMPLES // BATCH))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser(prog="benchmarks.backends")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", default="cpu", help="of backend batched")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    names = [name for name in get_args(BackendName) if name not in ("auto", "messages")]
    print(f"| model | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for name in WORKLOADS:
        cells = []
        for backend in names:
            together = backend == "batched"
            try:
                options = EngineOptions(
                    backend,
                    workers=DEVICES if together else 1,
                    device=asked.device if together else "",
                )
                cells.append(f"{cpu_ms(name, options, asked.rounds):.1f}")
            except ConfigError:
                cells.append("")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
