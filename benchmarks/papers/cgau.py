"""CGAU's experiments. L. Rieger, R. M. Th. Høegh, L. K. Hansen. Client Adaptation improves Federated Learning with Simulated Non-IID
Clients. FL-ICML workshop 2020, section 4, Table 1 and appendix A.

The paper's extractors, trained on AudioSet and ImageNet, and its audio are not here. As CIFAR-10 is to a network of ImageNet, MNIST is here
to a network of Fashion-MNIST: its extractor is frozen, cuts MNIST's classes into clients, and carries the two layers that are
federated. Nothing of it fits `Table`, whose runs begin with a fresh model: `extra` runs it and writes the section. Paper settings of
Experiment II: 10 clients, 128 units, dropout 0.5, SGD at 0.01 without momentum in effect, 10 steps of 32 a round, 500 rounds, five seeds.
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from algorithms.models.classifier import Classifier
from algorithms.models.gated import GatedClassifier, OnFrozen, PlainClassifier
from algorithms.models.registry import default_model, make_model
from algorithms.objectives.cgau import Cgau
from algorithms.registry import make_objective, read_algorithm
from benchmarks.papers.table import Table
from benchmarks.papers.xor import switched_off, xor_clients
from simulation.datasets.catalog import load
from simulation.datasets.pool import Pool
from simulation.datasets.windows import FleetData
from simulation.heterogeneity import DIMENSIONS, gamma, measure
from simulation.partition import partition, read_partition
from simulation.partitions.assignment import assign_pool
from simulation.partitions.embedding import Embedding, embedding, fit_components
from simulation.pretrain import pretrain
from simulation.simulate import SimulationSettings, simulate
from wire import names
from wire.tensors import Array

TABLES: list[Table] = []

SHUFFLES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
TABLE_1 = (1784.4, 980.0, 550.5, 271.0, 91.8, 19.9)
CLIENTS, UNITS = 10, 128
HEADS = {f"cgau:units={UNITS}": "CGAU", f"cgau:units={UNITS}:gated=false": "ReLU units (baseline)"}
HEADS |= {f"cgau:units={UNITS}:conditioned=false": "gated units without conditioning"}


@dataclass(frozen=True)
class Small:
    """Experiment II in small: at most `examples` of a pool of so many to a client, so that an epoch is the paper's 10 steps of 32."""

    shuffles: tuple[float, ...] = (0.0, 0.5, 1.0)
    rounds: int = 60
    examples: int = 320
    seeds: int = 1
    pool: int = 6000
    pretrained_on: int = 6000
    epochs: int = 2


SMALL = Small()


def extra(out: Path = Path("runs/papers/cgau.json")) -> str:
    """The section on CGAU, in Markdown. What is measured is kept in `out` and not measured again."""
    torch.set_num_threads(1)
    found = json.loads(out.read_text()) if out.exists() else {}
    parts: dict[str, tuple[Any, Callable[[], Any]]] = {
        "table 1": (SHUFFLES, heterogeneity),
        "experiment 2": ([*asdict(SMALL).items(), *HEADS], experiment),
        "xor": ("appendix A", xor),
    }
    for name, (asked, work) in parts.items():
        if found.get(name, {}).get("asked") != json.loads(json.dumps(asked)):
            found[name] = {"asked": asked, "found": work()}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(found, indent=1) + "\n")
    results = {name: found[name]["found"] for name in parts}
    return "\n".join([_show_table_1(results["table 1"]), _show_experiment(results["experiment 2"]), _show_xor(results["xor"])])


# Table 1


def heterogeneity() -> dict[str, list[float]]:
    """Gamma at every proportion that is shuffled, by what the examples are embedded with."""
    pools = {
        "MNIST, principal components": _some(_images("mnist"), SMALL.pool),
        "CIFAR-10, principal components": _some(_images("cifar10-5k"), 4000),
    }
    found = {}
    for name, pool in pools.items():
        project = fit_components(pool.train_x, DIMENSIONS)
        fleets = (partition(pool, read_partition(f"embedding:devices={CLIENTS}:shuffle={s}"), 0) for s in SHUFFLES)
        found[name] = [measure(fleet, project)["gamma"] for fleet in fleets]
    pool, _, embed = _prepared(0)
    features = embed(pool.train_x)
    projected = fit_components(features, DIMENSIONS)(features)
    own = []
    for shuffle in SHUFFLES:
        assignment = embedding(pool, np.random.default_rng(0), devices=CLIENTS, shuffle=shuffle, embed=embed)
        own.append(gamma([projected[at] for at in assignment.train]))
    return {**found, "MNIST, network of Fashion-MNIST": own}


def _show_table_1(found: dict[str, list[float]]) -> str:
    rows = {"the paper: audio, YamNet": TABLE_1, **found}
    lines = ["### CGAU, Table 1: heterogeneity by the proportion of examples that is shuffled, 10 clients", ""]
    lines += [f"| Gamma (share of that at 0) | {' | '.join(map(str, SHUFFLES))} |", "|---" * (len(SHUFFLES) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(f'{g:.4g} ({g / values[0]:.2f})' for g in values)} |" for name, values in rows.items()]
    about = f"Its unit is the embedding's own; ours has {DIMENSIONS} dimensions, the paper's 1024. It falls with every step, as it must."
    return "\n".join([*lines, "", about, ""])


# Experiment II


def experiment() -> dict[str, dict[str, list[float]]]:
    """Mean accuracy over clients by head and shuffled proportion, one number for each seed."""
    found: dict[str, dict[str, list[float]]] = {label: {str(s): [] for s in SMALL.shuffles} for label in HEADS.values()}
    for seed in range(SMALL.seeds):
        pool, network, embed = _prepared(seed)
        for shuffle in SMALL.shuffles:
            fleet = _assign(pool, embed, shuffle, seed, SMALL.examples)
            for algorithm, label in HEADS.items():
                torch.manual_seed(seed)
                settings = SimulationSettings(read_algorithm(algorithm), SMALL.rounds, seed=seed)
                outcome = simulate(fleet, settings, objective=make_objective(read_algorithm(algorithm), network))
                mean = outcome.summary.accuracy.mean
                assert mean is not None, "clients without test examples"
                found[label][str(shuffle)].append(mean)
    return found


@lru_cache(maxsize=1)
def _prepared(seed: int) -> tuple[Pool, Classifier, Embedding]:
    """A part of MNIST, a network trained on Fashion-MNIST, and what its extractor makes of images."""
    pool, other = _images("mnist"), _images("fashion-mnist")
    torch.manual_seed(seed)
    network = make_model(default_model(other.window), other.window, len(other.classes), torch.ones(len(other.window.channels)))
    pretrain(network, other.train_x[: SMALL.pretrained_on], other.train_y[: SMALL.pretrained_on], epochs=SMALL.epochs, seed=seed)

    def extract(x: Array) -> Array:
        with torch.no_grad():
            parts = [network.extractor(network.scale(part)).flatten(1).numpy() for part in torch.from_numpy(x).split(500)]
        return np.concatenate(parts)

    pool = _some(pool, SMALL.pool)
    train, test = extract(pool.train_x), extract(pool.test_x)
    return pool, network, lambda x: train if x is pool.train_x else test if x is pool.test_x else extract(x)


def _images(name: str) -> Pool:
    pool = load(name)
    assert isinstance(pool, Pool)
    return pool


def _some(pool: Pool, count: int) -> Pool:
    x, y, tests = pool.train_x[:count], pool.train_y[:count], count // 4
    return replace(pool, train_x=x, train_y=y, test_x=pool.test_x[:tests], test_y=pool.test_y[:tests])


def _assign(pool: Pool, embed: Embedding, shuffle: float, seed: int, examples: int) -> FleetData:
    """The partition `embedding`, in the space of a network."""
    rules: dict[str, Any] = {"examples": examples, "tests": 0, "imbalance": "", "split": "own", "test": 0.25}
    assign = partial(embedding, embed=embed)
    return assign_pool(pool, np.random.default_rng([seed, 0x11D]), assign, devices=CLIENTS, shuffle=shuffle, **rules)


def _show_experiment(found: dict[str, dict[str, list[float]]]) -> str:
    columns = list(next(iter(found.values())))
    lines = ["### CGAU, Experiment II: accuracy by the proportion that is shuffled, here on MNIST", ""]
    lines += [f"| accuracy, % | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {label} | {' | '.join(f'{100 * statistics.fmean(values[c]):.1f}' for c in columns)} |" for label, values in found.items()]
    about = (
        f"{SMALL.rounds} rounds of at most 10 steps, {SMALL.seeds} seed; frozen extractor trained on {SMALL.pretrained_on} "
        "pieces of clothing. The paper's curves (CIFAR-10, a network of ImageNet, 500 rounds) are only drawn: CGAU is above the baseline "
        "at every proportion and most where nothing is shuffled; at 1.0 the text has 78.5 and 78.0 %."
    )
    return "\n".join([*lines, "", about, ""])


# Appendix A


class First(nn.Module):
    """The first feature alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1]


def xor(rounds: int = 250) -> dict[str, float]:
    """Accuracy on the worse of the two clients, by model; the best of several initial weights, as the problem has bad ones."""
    both: Callable[[], Classifier] = lambda: Classifier(nn.Identity(), nn.Identity(), nn.Linear(2, 2))  # noqa: E731
    first: Callable[[], Classifier] = lambda: Classifier(nn.Identity(), First(), nn.Linear(1, 2))  # noqa: E731
    models: dict[str, Callable[[], OnFrozen]] = {
        "x1 and x2: one CGAU": lambda: GatedClassifier(both(), 2, units=1, layers=1),
        "x1 and x2: one gated unit without conditioning": lambda: GatedClassifier(both(), 2, units=1, layers=1, conditioned=False),
        "x1 and x2: two ReLU units": lambda: PlainClassifier(both(), 2, units=2, layers=1),
        "x1 and x2: one ReLU unit": lambda: PlainClassifier(both(), 2, units=1, layers=1),
        "x1 alone: one CGAU": lambda: GatedClassifier(first(), 2, units=1, layers=1),
        "x1 alone: one gated unit without conditioning": lambda: GatedClassifier(first(), 2, units=1, layers=1, conditioned=False),
    }
    found: dict[str, float] = {}
    for name, make in models.items():
        tried = []
        plain = "ReLU" in name
        for seed in range(12 if plain else 3):
            torch.manual_seed(seed)
            tried.append(federate(make(), rounds, lr=0.3 if plain else 3.0))
        objective, own = max(tried, key=lambda pair: least_accuracy(*pair))
        found[name] = least_accuracy(objective, own)
        if "CGAU" in name:
            for off, (modulation, expression) in {"modulation": (True, False), "expression": (False, True)}.items():
                without = {client: switched_off(tensors, modulation, expression) for client, tensors in own.items()}
                found[f"{name}, {off} switched off"] = least_accuracy(objective, without)
    return found


def federate(model: OnFrozen, rounds: int = 250, lr: float = 3.0) -> tuple[Cgau, dict[str, TorchTensors]]:
    """FedAvg of the two clients with one step a round: each one's tensors at the end."""
    objective = Cgau(model)
    clients = {name: (torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in xor_clients(100, seed=0).items()}
    hyper = {"lr": torch.tensor(lr), "momentum": torch.tensor(0.0), "dropout": torch.tensor(0.0)}
    own = {name: objective.initial() for name in clients}
    for _ in range(rounds):
        for name, (x, y) in clients.items():
            drawn = {key: torch.ones(len(y), *shape) for key, shape in objective.random.items()}
            with torch.no_grad():
                outputs = objective.step(own[name], {"x": x, "y": y, **drawn}, hyper)
            own[name] = own[name] | {k: v.detach() for k, v in names.part(outputs, names.NEXT).items()}
        for key in own["up"]:
            if names.role_of(key) == names.SHARED:
                own["up"][key] = own["down"][key] = (own["up"][key] + own["down"][key]) / 2
    return objective, own


def least_accuracy(objective: Cgau, own: dict[str, TorchTensors]) -> float:
    """The worse client's accuracy, on examples of which none was trained on."""
    clients = xor_clients(100, seed=1)
    right = {name: objective.predict(own[name], torch.from_numpy(x)).argmax(1).numpy() == y for name, (x, y) in clients.items()}
    return float(min(r.mean() for r in right.values()))


def _show_xor(found: dict[str, float]) -> str:
    lines = ["### CGAU, appendix A: XOR between two clients", "", "| the worse client's accuracy, % |  |", "|---|---|"]
    lines += [f"| {name} | {100 * value:.0f} |" for name, value in found.items()]
    about = (
        "The best of 3 initial weights, of 12 for ReLU units. The paper: two ReLU units or one CGAU solve it, and not "
        "the CGAU with its conditioning off. With both features, one gated unit can solve it without conditioning, too; the conditioning "
        "is needed where x2, which tells the clients apart, is hidden."
    )
    return "\n".join([*lines, "", about, ""])
