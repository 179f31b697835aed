"""Complete FedAvg in plain PyTorch, compared with Shoal's FedAvg.

Both end with the same model within rounding.

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
    """Train a device's model in a round: SGD over its own windows, with new momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    model.train()
    for _ in range(epochs):
        order = rng.permutation(len(y))
        batches = [order[at : at + batch_size] for at in range(0, len(y), batch_size)]
        if len(batches) > 1 and len(batches[-1]) < batch_size / 2:  # too few for BatchNorm
            batches[-2:] = np.array_split(np.concatenate(batches[-2:]), 2)
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def fedavg(
    model: nn.Module, data: shoal.FleetData, rounds: int, epochs: int, batch_size: int, seed: int
) -> nn.Module:
    """Run FedAvg and return the model: a mean of the devices' models, weighted by windows."""
    model, size = deepcopy(model), torch.from_numpy(data.channel_size()).reshape(-1, 1)
    total = sum(windows.num_train for windows in data.devices.values())
    for number in range(1, rounds + 1):
        mean = dict.fromkeys(model.state_dict(), torch.zeros((), dtype=torch.float64))
        for name, windows in sorted(data.devices.items()):
            rng = np.random.default_rng([seed * 1_000_003 + number, zlib.crc32(name.encode())])
            x, y = torch.from_numpy(windows.train_x) / size, torch.from_numpy(windows.train_y)
            local = deepcopy(model)
            train(local, x, y, rng, epochs, batch_size)
            for key, value in local.state_dict().items():
                mean[key] = mean[key] + value.double() * len(y) / total
        model.load_state_dict(mean)
    return model.eval()


def main(rounds: int = 5) -> float:
    """Run both on six watches, and return the largest difference between their parameters."""
    data = shoal.load("watch", devices=6)
    torch.manual_seed(0)
    body = nn.Conv1d(6, 16, 5), nn.BatchNorm1d(16), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten()
    start = nn.Sequential(*body, nn.Linear(128, 7))
    plain = fedavg(start, data, rounds, epochs=1, batch_size=32, seed=0)
    registered = shoal.simulate(data, algorithm="fedavg", model=start, rounds=rounds)
    pairs = zip(plain.parameters(), registered.model().parameters(), strict=True)
    largest = max(float((one - other).detach().abs().max()) for one, other in pairs)
    accuracy = registered.accuracy.mean
    print(f"accuracy {accuracy:.4f}; the parameters differ by at most {largest:.1e}")
    return largest


if __name__ == "__main__":
    main()
