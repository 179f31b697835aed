"""FedAvg, whole, in plain PyTorch; and beside it the one that Shoal has, which ends with the same model within rounding.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep Networks from Decentralized Data.
AISTATS 2017, Algorithm 1. Inputs are divided by each channel's size, and batches are drawn, as Shoal does it.
"""

import zlib
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import shoal


def train(
    model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator, epochs: int, batch_size: int, lr: float, momentum: float
) -> None:
    """A device's part of a round: SGD over its own windows. The momentum starts anew in every round."""
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
    model.train()
    for _ in range(epochs):
        order = rng.permutation(len(y))
        batches = [order[at : at + batch_size] for at in range(0, len(y), batch_size)]
        if len(batches) > 1 and len(batches[-1]) < batch_size / 2:  # BatchNorm learns nothing good of a few windows
            batches[-2:] = np.array_split(np.concatenate(batches[-2:]), 2)
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def average(states: list[dict[str, Tensor]], sizes: list[int]) -> dict[str, Tensor]:
    """The server's part: the mean of all models, where each counts by its device's number of windows."""
    share = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    return {name: torch.stack([s * state[name] for s, state in zip(share, states, strict=True)]).sum(0) for name in states[0]}


def fedavg(model: nn.Module, data: shoal.FleetData, rounds: int, epochs: int = 1, batch_size: int = 32, seed: int = 0) -> nn.Module:
    """All of FedAvg."""
    model, size = deepcopy(model), torch.from_numpy(data.channel_size()).reshape(-1, 1)
    for number in range(1, rounds + 1):
        states, sizes = [], []
        for device_id, windows in sorted(data.devices.items()):
            local = deepcopy(model)
            rng = np.random.default_rng([seed * 1_000_003 + number, zlib.crc32(device_id.encode())])
            x, y = torch.from_numpy(windows.train_x) / size, torch.from_numpy(windows.train_y)
            train(local, x, y, rng, epochs, batch_size, lr=0.005, momentum=0.9)
            states.append(dict(local.state_dict()))
            sizes.append(len(y))
        model.load_state_dict(average(states, sizes))
    return model.eval()


def network(channels: int, classes: int) -> nn.Sequential:
    """A small network for time windows."""
    convolution = (nn.Conv1d(channels, 16, 5), nn.BatchNorm1d(16), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten())
    return nn.Sequential(*convolution, nn.Linear(128, classes))


def main(rounds: int = 5) -> float:
    """Run both on six watches; returns the largest difference between their parameters."""
    data = shoal.load("watch", devices=6)
    torch.manual_seed(0)
    start = network(len(data.window.channels), len(data.classes))
    own, registered = fedavg(start, data, rounds), shoal.simulate(data, algorithm="fedavg", model=start, rounds=rounds)
    pairs = zip(own.parameters(), registered.model().parameters(), strict=True)
    largest = max(float((one - other).detach().abs().max()) for one, other in pairs)
    print(f"accuracy {registered.accuracy.mean:.4f}; the parameters differ by at most {largest:.1e}")
    return largest


if __name__ == "__main__":
    main()
