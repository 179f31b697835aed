"""FedAvg, whole, in plain PyTorch; and beside it the one that Shoal has, which ends with the same
model within rounding.

B. McMahan et al. Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS
2017, Algorithm 1.
"""

import zlib
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import shoal


def train(
    model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator, epochs: int, batch_size: int
) -> None:
    """A device's part of a round: SGD over its own windows. The momentum starts anew in every
    round."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    model.train()
    for _ in range(epochs):
        order = rng.permutation(len(y))
        batches = [order[at : at + batch_size] for at in range(0, len(y), batch_size)]
        if (
            len(batches) > 1 and len(batches[-1]) < batch_size / 2
        ):  # BatchNorm learns nothing good of a few windows
            batches[-2:] = np.array_split(np.concatenate(batches[-2:]), 2)
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def fedavg(
    model: nn.Module,
    data: shoal.FleetData,
    rounds: int,
    epochs: int = 1,
    batch_size: int = 32,
    seed: int = 0,
) -> nn.Module:
    """All of FedAvg: the server's model is the mean of the devices', where each counts by its
    number of windows."""
    model, size = deepcopy(model), torch.from_numpy(data.channel_size()).reshape(-1, 1)
    total = sum(windows.num_train for windows in data.devices.values())
    for number in range(1, rounds + 1):
        mean = {
            name: torch.zeros_like(value, dtype=torch.float64)
            for name, value in model.state_dict().items()
        }
        for device_id, windows in sorted(data.devices.items()):
            local, rng = (
                deepcopy(model),
                np.random.default_rng([seed * 1_000_003 + number, zlib.crc32(device_id.encode())]),
            )
            x, y = torch.from_numpy(windows.train_x) / size, torch.from_numpy(windows.train_y)
            train(local, x, y, rng, epochs, batch_size)
            mean = {
                name: mean[name] + value.double() * len(y) / total
                for name, value in local.state_dict().items()
            }
        model.load_state_dict(mean)
    return model.eval()


def main(rounds: int = 5) -> float:
    """Run both on six watches; returns the largest difference between their parameters."""
    data = shoal.load("watch", devices=6)
    torch.manual_seed(0)
    start = nn.Sequential(
        nn.Conv1d(6, 16, 5),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(8),
        nn.Flatten(),
        nn.Linear(128, 7),
    )
    own, registered = (
        fedavg(start, data, rounds),
        shoal.simulate(data, algorithm="fedavg", model=start, rounds=rounds),
    )
    there = registered.model().parameters()
    largest = max(
        float((one - other).detach().abs().max())
        for one, other in zip(own.parameters(), there, strict=True)
    )
    print(
        f"accuracy {registered.accuracy.mean:.4f}; the parameters differ by at most {largest:.1e}"
    )
    return largest


if __name__ == "__main__":
    main()
