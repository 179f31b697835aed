"""A frozen body that was trained on one data set, with adapters and a head that a fleet trains on
another.

The body processes each channel separately, so that it fits sensors with another number of channels.
Devices get it once, with the bundle, and no round exchanges it. The adapters are bottlenecks beside
it: N. Houlsby et al. Parameter-Efficient Transfer Learning for NLP. ICML 2019.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import shoal


class Body(nn.Module):
    """Features (n, 64) of windows x (n, channels, time): mean and variance over the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Conv1d(1, 32, 7, padding=3),
                nn.ReLU(),
                nn.MaxPool1d(2),
                nn.Conv1d(32, 32, 7, padding=3),
                nn.ReLU(),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        each = self.layers(x.reshape(-1, 1, x.shape[2])).mean(2).reshape(-1, x.shape[1], 32)
        mean = each.mean(1)
        return torch.cat([mean, (each - mean.unsqueeze(1)).square().mean(1)], 1)


class Adapted(nn.Module):
    """The frozen body with a trainable adapter and head."""

    def __init__(self, body: Body, classes: int) -> None:
        super().__init__()
        self.body = body.requires_grad_(False)
        self.adapter = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 64))
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        answer: Tensor = self.head(features + self.adapter(features))
        return answer


def trained_body(data: shoal.FleetData, epochs: int) -> Body:
    """Return a body that was trained centrally, with its own head, on all windows of a data set."""
    body, head = Body(), nn.Linear(64, len(data.classes))
    x = torch.from_numpy(
        np.concatenate([w.train_x for w in data.devices.values()])
        / data.channel_size().reshape(-1, 1)
    )
    y = torch.from_numpy(np.concatenate([w.train_y for w in data.devices.values()]))
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.002)
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(64):
            optimizer.zero_grad()
            cross_entropy(head(body(x[batch])), y[batch]).backward()
            optimizer.step()
    return body


def main(
    first: str | shoal.FleetData = "watch",
    second: str | shoal.FleetData = "uci-har",
    rounds: int = 10,
    epochs: int = 10,
) -> shoal.Result:
    """Train the body on the first data set, and the rest on the second.

    Print the bytes that a round exchanges, and those of the whole model.
    """
    one, fleet = (shoal.load(data) if isinstance(data, str) else data for data in (first, second))
    torch.manual_seed(0)
    model = Adapted(trained_body(one, epochs), len(fleet.classes))
    result = shoal.simulate(fleet, algorithm="fedavg", model=model, rounds=rounds, lr=0.02)
    exchanged = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    whole = 4 * sum(p.numel() for p in model.parameters())
    print(
        f"accuracy {result.accuracy.mean:.3f}; a device sends {exchanged:,} bytes a round, the "
        f"whole model would be {whole:,}"
    )
    return result


if __name__ == "__main__":
    main()
