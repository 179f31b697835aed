"""Methods that Shoal does not offer, beside what it keeps by default: ``python -m
benchmarks.rivals``.

FedPAC (Xu et al., ICLR 2023), FedCP (Zhang et al., KDD 2023) and GPFL (Zhang et al., ICCV 2023),
each in plain torch with the model, the devices, the batches and the learning rate of
`benchmarks.personal`, whose numbers stand beside theirs. FedAvg in the same few lines says whether
they are to be believed. A run is a file in the folder, and is not made again.
"""

import argparse
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aggregator.view.summary import spread
from algorithms.composition import read_algorithm
from algorithms.core.contract import USUAL_PASSES
from algorithms.models.classifier import Classifier
from benchmarks.personal import OUT as GRID
from benchmarks.results.report import describe_machine, keep
from edge_client.core.ports import Windows
from host.threads import one_thread
from simulation.datasets.catalog import load_data
from simulation.objective import objective_for_fleet
from simulation.scenario import Scenario, read_labels, set_scene
from simulation.splits import read_split
from wire.arrays.tensors import Array

OUT = Path(__file__).parent / "results" / "rivals.json"
CELLS = (("watch", "time", "all"), ("uci-har", "time", "all"))
ROUNDS, EPOCHS, SEEDS, BATCH, RATE, MOMENTUM = 12, 2, 3, 32, 0.005, 0.9
OURS = ("fedavg", "lg-net", "personal")
PULL = 1.0
"""Strength with which FedPAC pulls features to the fleet's mean of their class, and FedCP their
distribution to the shared extractor's."""
NEAR = 1e-4
"""Strength with which GPFL pulls features to the embedding of their class."""
SOLVED = 500
"""Steps of the projected gradient by which FedPAC weighs heads."""
WIDTHS = (10.0, 15.0, 20.0, 50.0)
"""The bandwidths of FedCP's kernel."""


@dataclass(frozen=True)
class Device:
    """Windows x (n, channels, samples) and classes y (n,), those for testing, and the batches of an
    epoch."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    batches: int

    def drawn(self, epochs: int, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of so many epochs; each window comes once before any comes again."""
        rows: Array = np.zeros(0, np.int64)
        for _ in range(epochs * self.batches):
            while len(rows) < min(BATCH, len(self.y)):
                rows = np.concatenate([rows, rng.permutation(len(self.y))])
            at, rows = torch.from_numpy(rows[:BATCH]), rows[BATCH:]
            yield self.x[at], self.y[at]

    def shares(self, classes: int) -> Tensor:
        """Return the share of windows of each class (classes,)."""
        return torch.bincount(self.y, minlength=classes) / len(self.y)


class Method(ABC):
    """A fleet that is trained round by round. Model s and d are the shared one and a device's."""

    def __init__(self, model: Classifier, devices: Sequence[Device], seed: int) -> None:
        self.model, self.devices, self.rng = model, devices, np.random.default_rng(seed)
        self.weights = [len(device.y) / sum(len(d.y) for d in devices) for device in devices]

    @abstractmethod
    def round(self) -> None:
        """Train one round."""

    @abstractmethod
    def logits(self, number: int, x: Tensor) -> Tensor:
        """Return the answers (n, classes) of the device of this number to windows x."""

    def accuracy(self) -> list[float]:
        """Return the accuracy of every device."""
        with torch.no_grad():
            return [
                float((self.logits(i, d.test_x).argmax(1) == d.test_y).double().mean())
                for i, d in enumerate(self.devices)
            ]

    def average(self, modules: Sequence[nn.Module], into: nn.Module) -> None:
        """Put the mean of modules, weighted by windows, into another of the kind."""
        states = [module.state_dict() for module in modules]

        def mean(key: str) -> Tensor:
            weighted: Tensor = sum(
                (w * s[key] for w, s in zip(self.weights, states, strict=True)), torch.zeros(())
            )
            return weighted

        into.load_state_dict(
            {
                key: mean(key) if value.is_floating_point() else value
                for key, value in states[0].items()
            }
        )


def descend(
    modules: Sequence[nn.Module],
    batches: Iterator[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Train what these modules learn on batches."""
    optimizer = torch.optim.SGD(
        [p for module in modules for p in module.parameters()], RATE, MOMENTUM
    )
    for x, y in batches:
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()


class FedAvg(Method):
    """The check: as `fedavg` of Shoal."""

    def round(self) -> None:
        trained = []
        for device in self.devices:
            model = deepcopy(self.model).train()
            descend([model], device.drawn(EPOCHS, self.rng), partial(self._loss, model))
            trained.append(model)
        self.average(trained, self.model)

    @staticmethod
    def _loss(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    def logits(self, number: int, x: Tensor) -> Tensor:
        answer: Tensor = self.model.eval()(x)
        return answer


class FedPac(Method):
    """The extractor is averaged, and trained towards the fleet's mean features of each class; each
    device's head is first trained by itself, and then mixed with those of the devices with like
    features (Algorithm 1)."""

    def __init__(self, model: Classifier, devices: Sequence[Device], seed: int) -> None:
        super().__init__(model, devices, seed)
        self.heads: list[nn.Module] = [deepcopy(model.head) for _ in devices]
        self.means: Tensor | None = None

    def round(self) -> None:
        classes = self.model.num_classes
        told = [self._statistics(self.model, device) for device in self.devices]
        trained = [
            self._trained(device, head)
            for device, head in zip(self.devices, self.heads, strict=True)
        ]
        shares = torch.stack([device.shares(classes) for device in self.devices])
        sums = torch.stack(
            [
                self._statistics(model, device)[1]
                for model, device in zip(trained, self.devices, strict=True)
            ]
        )
        there = (shares > 0)[:, :, None]
        self.means = torch.where(there, sums / shares.clamp(min=1e-9)[:, :, None], 0).sum(
            0
        ) / there.sum(0).clamp(min=1)
        self.average([model.extractor for model in trained], self.model.extractor)
        heads = [model.head.state_dict() for model in trained]
        for number, head in enumerate(self.heads):
            mixture = torch.tensor(self._mixture(number, told))
            head.load_state_dict(
                {
                    key: torch.tensordot(mixture, torch.stack([h[key] for h in heads]), 1)
                    for key in heads[0]
                }
            )

    def _trained(self, device: Device, head: nn.Module) -> Classifier:
        """Return the device's model, made from the shared extractor and its head."""
        model, own = deepcopy(self.model), deepcopy(head)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            features = model.extractor(model.scale(x))
            plain = F.cross_entropy(own(features), y)
            return (
                plain
                if self.means is None or not model.training
                else plain + PULL * F.mse_loss(features, self.means[y])
            )

        model.eval()
        descend([own], device.drawn(1, self.rng), loss)
        model.train()
        descend([model.extractor], device.drawn(EPOCHS, self.rng), loss)
        model.head.load_state_dict(own.state_dict())
        return model

    @staticmethod
    def _statistics(model: Classifier, device: Device) -> tuple[float, Tensor]:
        """The variance of a device's features by class, and its mean features of each class
        (classes, K) times the class's share."""
        with torch.no_grad():
            features = model.eval().extractor(model.scale(device.x))
        one_hot = F.one_hot(device.y, model.num_classes).to(features.dtype)
        sums = one_hot.T @ features / len(device.y)
        squares = (one_hot.T @ features.square().sum(1)) / len(device.y)
        return float((squares - sums.square().sum(1)).sum() / len(device.y)), sums

    @staticmethod
    def _mixture(number: int, told: Sequence[tuple[float, Tensor]]) -> list[float]:
        """The weights of all heads for one device: the least of a quadratic form on the simplex."""
        apart = torch.stack([(told[number][1] - mean).flatten() for _, mean in told]).double()
        form = (
            torch.diag(torch.tensor([variance for variance, _ in told], dtype=torch.float64))
            + apart @ apart.T
        )
        step = 1 / (2 * float(torch.linalg.matrix_norm(form, 2)))
        alpha = torch.full((len(told),), 1 / len(told), dtype=torch.float64)
        for _ in range(SOLVED):
            alpha = onto_simplex(alpha - step * 2 * (form @ alpha))
        found: list[float] = alpha.tolist()
        return found

    def logits(self, number: int, x: Tensor) -> Tensor:
        model = self.model.eval()
        answer: Tensor = self.heads[number](model.extractor(model.scale(x)))
        return answer


def onto_simplex(v: Tensor) -> Tensor:
    """The nearest weights that are at least 0 and sum to 1."""
    ordered = v.sort(descending=True).values
    over = (ordered.cumsum(0) - 1) / torch.arange(1, len(v) + 1)
    return (v - over[int((ordered > over).sum()) - 1]).clamp(min=0)


class FedCp(Method):
    """A net that is shared says of each feature of a window how much goes to the device's own head,
    and how much to the shared one (section 3, Algorithm 1)."""

    def __init__(self, model: Classifier, devices: Sequence[Device], seed: int) -> None:
        super().__init__(model, devices, seed)
        size = model.num_features
        self.policy = nn.Sequential(nn.Linear(size, 2 * size), nn.LayerNorm(2 * size), nn.ReLU())
        self.heads: list[nn.Module] = [deepcopy(model.head) for _ in devices]

    def round(self) -> None:
        trained = [self._trained(number) for number in range(len(self.devices))]
        for into, modules in zip(
            (self.model.extractor, self.policy, self.model.head),
            zip(*trained, strict=True),
            strict=True,
        ):
            self.average(modules, into)

    def _trained(self, number: int) -> tuple[nn.Module, nn.Module, nn.Module]:
        """A device's extractor, its net, and the mean of its heads. Its own head stays with it."""
        model, head, policy = (
            deepcopy(self.model).train(),
            self.heads[number],
            deepcopy(self.policy),
        )
        context, base = self._context(number), deepcopy(self.model.extractor).eval()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            features = model.extractor(model.scale(x))
            with torch.no_grad():
                shared = base(model.scale(x))
            return F.cross_entropy(
                divided(features, context, policy, head, model.head), y
            ) + PULL * discrepancy(features, shared)

        descend([model.extractor, head, policy], self.devices[number].drawn(EPOCHS, self.rng), loss)
        sent, own = deepcopy(model.head), head.state_dict()
        sent.load_state_dict(
            {key: (value + own[key]) / 2 for key, value in sent.state_dict().items()}
        )
        return model.extractor, policy, sent

    def _context(self, number: int) -> Tensor:
        return F.normalize(next(self.heads[number].parameters()).detach().sum(0), dim=0)

    def logits(self, number: int, x: Tensor) -> Tensor:
        model = self.model.eval()
        return divided(
            model.extractor(model.scale(x)),
            self._context(number),
            self.policy,
            self.heads[number],
            model.head,
        )


def divided(
    features: Tensor, context: Tensor, policy: nn.Module, own: nn.Module, shared: nn.Module
) -> Tensor:
    """The sum of what both heads say of their parts of features (batch, K)."""
    parts = policy(features * context).reshape(len(features), 2, -1).softmax(1)
    answer: Tensor = own(features * parts[:, 0]) + shared(features * parts[:, 1])
    return answer


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """The maximum mean discrepancy between the rows of a and b (batch, K)."""

    def kernel(u: Tensor, v: Tensor) -> Tensor:
        apart = torch.cdist(u, v).square()
        return torch.stack([torch.exp(-apart / (2 * width)) for width in WIDTHS]).sum(0)

    return (kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)).mean()


class Gpfl(Method):
    """Embeddings of the classes, which are shared, shift and scale features: by all of them towards
    what is global, by the device's classes for its own head (section 3, Algorithm 1)."""

    def __init__(self, model: Classifier, devices: Sequence[Device], seed: int) -> None:
        super().__init__(model, devices, seed)
        size = model.num_features
        self.embeddings = nn.Embedding(model.num_classes, size)
        self.valve = nn.ModuleList(
            nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.LayerNorm(size)) for _ in range(2)
        )
        self.heads: list[nn.Module] = [deepcopy(model.head) for _ in devices]

    def round(self) -> None:
        trained = [self._trained(number) for number in range(len(self.devices))]
        for into, modules in zip(
            (self.model.extractor, self.embeddings, self.valve),
            zip(*trained, strict=True),
            strict=True,
        ):
            self.average(modules, into)

    def _trained(self, number: int) -> tuple[nn.Module, nn.Module, nn.Module]:
        """A device's extractor, its embeddings and its nets. Its head stays with it."""
        model, head, received = (
            deepcopy(self.model).train(),
            self.heads[number],
            self.embeddings.weight.detach(),
        )
        embeddings, valve = deepcopy(self.embeddings), deepcopy(self.valve)
        general, own = received.mean(0), self._own(number)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            features = model.extractor(model.scale(x))
            shared = conditioned(features, general, valve)
            angle = F.cross_entropy(F.normalize(shared) @ F.normalize(embeddings.weight).T, y)
            magnitude = torch.linalg.vector_norm(shared - received[y])
            total: Tensor = (
                F.cross_entropy(head(conditioned(features, own, valve)), y)
                + angle
                + NEAR * magnitude
            )
            return total

        descend(
            [model.extractor, head, embeddings, valve],
            self.devices[number].drawn(EPOCHS, self.rng),
            loss,
        )
        return model.extractor, embeddings, valve

    def _own(self, number: int) -> Tensor:
        return self.devices[number].shares(self.model.num_classes) @ self.embeddings.weight.detach()

    def logits(self, number: int, x: Tensor) -> Tensor:
        model = self.model.eval()
        answer: Tensor = self.heads[number](
            conditioned(model.extractor(model.scale(x)), self._own(number), self.valve)
        )
        return answer


def conditioned(features: Tensor, condition: Tensor, valve: nn.Module) -> Tensor:
    """Features (batch, K), scaled and shifted by what two nets make of a condition (K,)."""
    scale, shift = valve.children()
    shifted: Tensor = features * (scale(condition) + 1) + shift(condition)
    return shifted.relu()


METHODS: dict[str, type[Method]] = {
    "FedAvg": FedAvg,
    "FedPAC": FedPac,
    "FedCP": FedCp,
    "GPFL": Gpfl,
}


def run(
    method: str, data: str, split: str, labels: str, seed: int, rounds: int = ROUNDS
) -> list[float]:
    """The accuracies of a fleet's devices in the end."""
    fleet = set_scene(load_data(data), Scenario(read_labels(labels), read_split(split)), seed)
    model = objective_for_fleet(fleet, read_algorithm("fedavg"), seed).model
    torch.manual_seed(seed)
    trained = METHODS[method](
        model, [device_of(windows) for _, windows in sorted(fleet.devices.items())], seed
    )
    for _ in range(rounds):
        trained.round()
    return trained.accuracy()


def device_of(windows: Windows) -> Device:
    """A device of a fleet. With few labels an epoch is as long as that of Shoal's methods."""
    examples = min(windows.num_train + windows.num_unlabelled, USUAL_PASSES * windows.num_train)
    train_x, train_y, test_x, test_y = map(
        torch.from_numpy, (windows.train_x, windows.train_y, windows.test_x, windows.test_y)
    )
    return Device(train_x, train_y, test_x, test_y, -(-examples // BATCH))


def told(accuracies: Sequence[Sequence[float]]) -> str:
    """The mean over devices and the mean of their worst tenth, in %, mean of the seeds."""
    means, tenths = zip(
        *((found.mean, found.worst_tenth) for found in map(spread, accuracies)), strict=True
    )
    return f"{100 * fmean(means):.1f} ({100 * fmean(tenths):.1f})"


def text(results: dict[str, Any], grid: dict[str, Any]) -> str:
    """The results as Markdown, beside those of the grid."""
    said = (
        "Personalised methods that Shoal does not offer, in plain torch with the model, the "
        "devices, the learning rate and the rounds "
        "of the grid of what devices keep; mean accuracy over devices, and in brackets the worst "
        "tenth, in %, mean of the seeds. FedAvg "
        "made in the same way says whether the others are to be believed. FedPAC trains its head "
        "for an epoch more in each round. FedCP "
        "and GPFL have nets of 8.4 million weights beside a model of 25 thousand, and send them "
        "in every round. No constant is tuned. "
        "With one seed this ranks nothing among them, but none comes near what is offered."
    )
    lines = [
        f"Machine: {results['machine']}. Made by `python -m benchmarks.rivals`; numbers in "
        "`results/rivals.json`.",
        "",
        said,
        "",
    ]
    lines += [
        f"| data, split, labels | seeds | {' | '.join(METHODS)} | "
        f"{' | '.join(f'`{name}`' for name in OURS)} |"
    ]
    lines += ["|---" * (2 + len(METHODS) + len(OURS)) + "|"]
    cells = {
        (cell["data"], cell["split"], cell["labels"]): {
            row["algorithm"]: row for row in cell["algorithms"]
        }
        for cell in grid["cells"]
    }
    for key in CELLS:
        found = {
            row["method"]: row["accuracies"] for row in results["rows"] if tuple(row["cell"]) == key
        }
        ours = [cells[key][name]["accuracy"] for name in OURS]
        shown = [told(found[name]) if name in found else "-" for name in METHODS]
        shown += [f"{100 * row['mean']:.1f} ({100 * row['worst_tenth']:.1f})" for row in ours]
        lines.append(
            f"| {', '.join(key)} | {min(map(len, found.values()))} | {' | '.join(shown)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Make the runs that are not there yet, write the results, print the table."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument(
        "--folder", type=Path, default=Path("runs/rivals"), help="where finished runs are kept"
    )
    reader.add_argument("--seeds", type=int, default=SEEDS, help="runs of each method in each cell")
    options = reader.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows: dict[tuple[str, tuple[str, str, str]], list[list[float]]] = {}
    for seed in range(options.seeds):
        for cell in CELLS:
            for method in METHODS:
                path = options.folder / f"{method}-{'-'.join(cell)}-{seed}.json"
                if not path.exists():
                    with one_thread():
                        path.write_text(json.dumps(run(method, *cell, seed)))
                    print(path.stem, flush=True)
                rows.setdefault((method, cell), []).append(json.loads(path.read_text()))
    found = [
        {"method": method, "cell": cell, "accuracies": accuracies}
        for (method, cell), accuracies in rows.items()
    ]
    results = {"machine": describe_machine(), "rows": found}
    shown = text(results, json.loads(GRID.read_text()))
    keep(results, OUT, OUT, "rivals", f"## Other personalised methods\n\n{shown}")
    print(shown)


if __name__ == "__main__":
    main()
