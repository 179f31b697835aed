"""Workload of every system: a small CNN, windows of 9 channels x 128 samples, one epoch of SGD per
device and round.

1.246 GFLOP per update. Needs numpy and torch only, because it is imported in every system's own
environment.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

CHANNELS, SAMPLES, CLASSES = 9, 128, 6
WINDOWS = 256
"""Windows of each device."""
BATCH, EPOCHS, RATE, MOMENTUM = 32, 1, 0.01, 0.9
SIGNAL = 0.7
"""Size of a class's pattern beside noise of size 1: after five rounds the loss is still falling, so
it tells how much work was done."""


@dataclass(frozen=True)
class Job:
    """Request to a runner."""

    devices: int
    rounds: int
    data: Path
    """Folder that `write_data` filled."""
    processes: int
    threads: int


def read_job() -> Job:
    """The command line of a runner. Limits torch to the threads asked for."""
    parser = argparse.ArgumentParser()
    for name, kind in (
        ("devices", int),
        ("rounds", int),
        ("data", Path),
        ("processes", int),
        ("threads", int),
    ):
        parser.add_argument(f"--{name}", type=kind, required=True)
    job = Job(**vars(parser.parse_args()))
    torch.set_num_threads(job.threads)
    return job


class Net(nn.Sequential):
    """2 x (convolution of 5, BatchNorm, ReLU, max-pool 2), average-pool 4, two linear layers;
    45,190 parameters.

    x (batch, 9, 128) float32 -> logits (batch, 6).
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(CHANNELS, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(32, 64, 5, padding=2), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(2),
            nn.AvgPool1d(4), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, CLASSES),
        )  # fmt: skip


def make_model() -> Net:
    """The model with its initial weights, the same ones in every process."""
    torch.manual_seed(0)
    return Net()


def make_device(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows x (256, 9, 128) float32 and classes y (256,) int64 of one device: a pattern per
    class, in noise."""
    patterns = np.random.default_rng(7).standard_normal((CLASSES, CHANNELS, SAMPLES))
    generator = np.random.default_rng(1000 + number)
    y = generator.integers(0, CLASSES, WINDOWS)
    x = SIGNAL * patterns[y] + generator.standard_normal((WINDOWS, CHANNELS, SAMPLES))
    return x.astype(np.float32), y.astype(np.int64)


def write_data(folder: Path, devices: int) -> None:
    """Two files with every device's windows, so that processes share the pages instead of each
    holding a copy."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = zip(*(make_device(number) for number in range(devices)), strict=True)
    np.save(folder / "x.npy", np.stack(x))
    np.save(folder / "y.npy", np.stack(y))


class Fleet:
    """Every device's windows, read where they are used. `fleet[3]` is device 3's x (256, 9, 128)
    and y (256,)."""

    def __init__(self, folder: Path) -> None:
        # 'c' (copy on write): torch wants arrays it may write to; nothing here does, so the pages
        # stay shared
        self.x = np.load(folder / "x.npy", mmap_mode="c")
        self.y = np.load(folder / "y.npy", mmap_mode="c")

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.x[number]), torch.from_numpy(self.y[number])


def batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch in a fresh random order. Slices of tensors: a `DataLoader` would stack single
    examples and cost every system the same."""
    order = torch.randperm(len(y))
    for start in range(0, len(y), BATCH):
        at = order[start : start + BATCH]
        yield x[at], y[at]


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """One update of one device: EPOCHS epochs of SGD with fresh momentum, in place."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    model.train()
    for _ in range(EPOCHS):
        for batch_x, batch_y in batches(x, y):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch_x), batch_y).backward()
            optimizer.step()


def final_loss(model: nn.Module, fleet: Fleet, devices: int) -> float:
    """Mean cross-entropy of the trained model on up to ten devices' windows: equal work must give
    about the same number.

    BatchNorm uses the statistics of the batch, because not every system averages the running ones.
    """
    model.train()
    with torch.no_grad():
        parts = [fleet[number] for number in range(min(10, devices))]
        return float(np.mean([nn.functional.cross_entropy(model(x), y).item() for x, y in parts]))


def report(rounds_s: Sequence[float], model: nn.Module, job: Job, version: str) -> None:
    """A runner's last line on standard output: seconds per round, the loss, and the version of what
    was run."""
    loss = final_loss(model, Fleet(job.data), job.devices)
    line = {
        "rounds_s": [round(s, 4) for s in rounds_s],
        "final_loss": round(loss, 5),
        "version": version,
    }
    print(json.dumps(line), flush=True)


def durations(stamps: Sequence[float]) -> list[float]:
    """Seconds between moments that follow each other."""
    return [later - earlier for earlier, later in pairwise(stamps)]


def timed(rounds: int, one_round: Callable[[], None]) -> list[float]:
    """Seconds that each of so many calls took."""
    stamps = [time.perf_counter()]
    for _ in range(rounds):
        one_round()
        stamps.append(time.perf_counter())
    return durations(stamps)
