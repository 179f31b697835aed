"""Upper bound of the value of FedDisk's weights: FedAvg with the *true* density ratio as weights,
with the same weights in another order, and with the ratio that two density models estimate.

H. Nguyen, P. Wu, J. M. Chang. Federated Learning for Distribution Skewed Data Using Sample Weights.
IEEE TAI 2023. Its classifier is shown the outputs of two networks for the *same* examples, which
identifies no ratio of densities: the better it is trained, the better it distinguishes the
networks. Here nothing is estimated. Device k adds noise of variance v_k = k * x / N to its images
and cuts them to [0, 1], so that the density of an image x that was made from a clean one c is
known: a product over pixels of censored normal densities. The fleet's density is the mean of the
devices'. Other clean images are too far away to count. The device without noise has only one
weight, 1.

Every row is the same federated training, with weights of mean 1 on each device: weights alone
differ.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_ndtr, logsumexp
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.models.made import Made, negative_log_likelihood
from algorithms.models.registry import make_model
from algorithms.objectives.fedavg import FedAvg
from algorithms.objectives.gradients import tape
from benchmarks.papers.intervals import estimate, paired
from simulation.datasets.windows import FleetData
from simulation.partition import make_fleet, read_partition
from wire.arrays import names
from wire.arrays.tensors import Array

FAVG, ORACLE, SHUFFLED, TEMPERED = (
    "FedAvg",
    "the true ratio",
    "the true ratio, shuffled",
    "log p - log q of two MADEs, tempered",
)

ROWS = (FAVG, ORACLE, SHUFFLED, TEMPERED)


@dataclass(frozen=True)
class Size:
    """Size of a run."""

    seeds: int = 3
    devices: int = 20
    x: float = 0.3
    examples: int = 100
    tests: int = 400
    rounds: int = 20
    density_epochs: int = 40
    temperature: float = 100.0


HOUR, NIGHT = Size(), Size(seeds=5, examples=200, rounds=30)


class Section:
    """The rows, kept seed by seed in a file."""

    def measure(self, out: Path, night: bool) -> dict[str, Any]:
        """Accuracy in per cent by row, one number for each seed."""
        size = NIGHT if night else HOUR
        path = out / f"feddisk-oracle-{'night' if night else 'hour'}.json"
        held = json.loads(path.read_text()) if path.exists() else {}
        if held.get("size") != asdict(size):
            held = {"size": asdict(size), "rows": {}}
        for seed in range(size.seeds):
            for name in ROWS:
                row = held["rows"].setdefault(name, [])
                if len(row) == seed:
                    row.append(accuracy_with(name, size, seed))
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(json.dumps(held, indent=1) + "\n")
        return {"size": held["size"], "rows": held["rows"]}

    def markdown(self, found: dict[str, Any]) -> str:
        """The rows as a table."""
        size, rows = Size(**found["size"]), found["rows"]
        lines = [
            "### FedDisk: what true weights are worth, MNIST",
            "",
            "| weights | accuracy, % | less FedAvg, same seeds |",
            "|---|---|---|",
        ]
        for name, values in rows.items():
            less = "" if name == FAVG else paired(values, rows[FAVG]).show(signed=True)
            lines.append(f"| {name} | {estimate(values).show()} | {less} |")
        about = (
            f"{size.devices} devices with {size.examples} examples and {size.tests} for testing, "
            f"noise of variance k x {size.x:g} / "
            f"{size.devices}, {size.rounds} rounds of one pass. The MADEs' ratio is taken to the "
            f"power 1 / {size.temperature:g}; the "
            "fleet's MADE has seen all devices' examples, which is the best that federated "
            "training of it could give."
        )
        return "\n".join([*lines, "", about, ""])


def accuracy_with(name: str, size: Size, seed: int) -> float:
    """Mean accuracy over devices, in per cent, of FedAvg with these weights."""
    torch.set_num_threads(1)
    noisy, clean = (fleet_with(size, seed, x) for x in (size.x, 0.0))
    weights = {device: np.ones(w.num_train) for device, w in noisy.devices.items()}
    if name in (ORACLE, SHUFFLED):
        weights = true_weights(noisy, clean, size)
    if name == SHUFFLED:
        rng = np.random.default_rng([seed, 1])
        weights = {device: rng.permutation(w) for device, w in weights.items()}
    if name == TEMPERED:
        weights = tempered_weights(noisy, size, seed)
    return federate(
        noisy,
        {d: torch.from_numpy((w / w.mean()).astype(np.float32)) for d, w in weights.items()},
        size.rounds,
        seed,
    )


def fleet_with(size: Size, seed: int, x: float) -> FleetData:
    """The devices' images with this much noise; without any, those that they were made from, in the
    same order."""
    return make_fleet(
        "mnist",
        read_partition(
            f"noise:devices={size.devices}:x={x:g}:examples={size.examples}:tests={size.tests}"
        ),
        None,
        seed,
    )


def log_density(x: Array, clean: Array, variance: float) -> Array:
    """log p(x | c) (n,) of images that were made from clean ones by noise of this variance, cut to
    [0, 1]."""
    x, clean, spread = x.astype(np.float64), clean.astype(np.float64), np.sqrt(variance)
    inside = -((x - clean) ** 2) / (2 * variance) - 0.5 * np.log(2 * np.pi * variance)
    each = np.where(
        x <= 0, log_ndtr(-clean / spread), np.where(x >= 1, log_ndtr((clean - 1) / spread), inside)
    )
    return np.asarray(each.reshape(len(x), -1).sum(1))


def true_weights(noisy: FleetData, clean: FleetData, size: Size) -> dict[str, Array]:
    """The fleet's density divided by the device's own, of each training image."""
    variances = [k * size.x / size.devices for k in range(size.devices)]
    weights = {}
    for k, device in enumerate(sorted(noisy.devices)):
        x, c = noisy.devices[device].train_x, clean.devices[device].train_x
        if k == 0:
            weights[device] = np.ones(len(x))
            continue
        logs = np.stack([log_density(x, c, v) for v in variances[1:]])
        weights[device] = np.exp(logsumexp(logs, axis=0) - logs[k - 1])
    return weights


def tempered_weights(noisy: FleetData, size: Size, seed: int) -> dict[str, Array]:
    """(p / q)^(1 / T), p by a MADE of all devices' images, q by one of the device's own."""
    flat = {device: torch.from_numpy(w.train_x).flatten(1) for device, w in noisy.devices.items()}
    fleet = fit_density(torch.cat(list(flat.values())), size.density_epochs, seed)
    weights = {}
    for device, x in flat.items():
        own = fit_density(x, size.density_epochs, seed)
        with torch.no_grad():
            ratio = (
                negative_log_likelihood(own(x), x) - negative_log_likelihood(fleet(x), x)
            ) / size.temperature
        weights[device] = np.exp(ratio.numpy().astype(np.float64))
    return weights


def fit_density(x: Tensor, epochs: int, seed: int, holdout: float = 0.15) -> Made:
    """A MADE of 30 units, as it was after the pass with the least loss on what is held out."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    held, rest = x[order[: int(holdout * len(x))]], x[order[int(holdout * len(x)) :]]
    torch.manual_seed(seed)
    model = Made(x.shape[1], 30)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    best, kept = np.inf, {k: v.clone() for k, v in model.state_dict().items()}
    for _ in range(epochs):
        for part in torch.randperm(len(rest), generator=generator).split(32):
            optimiser.zero_grad()
            negative_log_likelihood(model(rest[part]), rest[part]).mean().backward()
            optimiser.step()
        with torch.no_grad():
            loss = float(negative_log_likelihood(model(held), held).mean())
        if loss < best:
            best, kept = loss, {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(kept)
    return model


def federate(fleet: FleetData, weights: dict[str, Tensor], rounds: int, seed: int) -> float:
    """FedAvg of one pass a round in batches of 32, lr 0.01, momentum 0.9, on the weighted
    cross-entropy; mean accuracy in per cent."""
    torch.manual_seed(seed)
    objective = FedAvg(
        make_model(
            "cnn2-bn", fleet.window, len(fleet.classes), torch.from_numpy(fleet.channel_size())
        )
    )
    hyper = {"lr": torch.tensor(0.01), "momentum": torch.tensor(0.9)}
    model = objective.initial()
    generator = torch.Generator().manual_seed(seed)
    examples = {
        d: (torch.from_numpy(w.train_x), torch.from_numpy(w.train_y))
        for d, w in fleet.devices.items()
    }
    total = sum(len(y) for _, y in examples.values())
    for _ in range(rounds):
        following = {k: torch.zeros_like(v) for k, v in model.items()}
        for device, (x, y) in examples.items():
            own = dict(model)
            for part in torch.randperm(len(y), generator=generator).split(32):
                if len(part) > 1:  # BatchNorm cannot train on a single example
                    own |= _step(
                        objective.step,
                        own,
                        {"x": x[part], "y": y[part], "weight": weights[device][part]},
                        hyper,
                    )
            for key, value in own.items():
                following[key] += value * (len(y) / total)
        model = {
            k: v if names.role_of(k) in names.EXCHANGED else model[k] for k, v in following.items()
        }
    right = []
    for windows in fleet.devices.values():
        with torch.no_grad():
            said = objective.predict(model, torch.from_numpy(windows.test_x)).argmax(1).numpy()
        right.append(float((said == windows.test_y).mean()))
    return 100 * float(np.mean(right))


def _step(
    step: Callable[[TorchTensors, TorchTensors, TorchTensors], TorchTensors],
    own: TorchTensors,
    batch: TorchTensors,
    hyper: TorchTensors,
) -> TorchTensors:
    with tape():
        return names.part(step(own, batch, hyper), names.NEXT)
