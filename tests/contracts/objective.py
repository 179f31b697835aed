"""A workbench for objectives: every one of them on a tiny model, run by hand, and what an optimiser
does to a module."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from algorithms.models.har_cnn import HarCnn
from algorithms.objectives.apfl import Apfl
from algorithms.objectives.apple import Apple, AppleServer
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.dbe import MeanRegulariser, MeanRegulariserServer, PrivateBias
from algorithms.objectives.ditto import Ditto, DittoServer
from algorithms.objectives.fedala import FedAla, FedAlaServer
from algorithms.objectives.fedavg import FedAvg
from algorithms.objectives.fedbabu import FedBABU, FedBabuServer
from algorithms.objectives.fedbn import FedBN
from algorithms.objectives.fedfomo import FedFomo, FedFomoServer
from algorithms.objectives.fedgen import FedGen, FedGenServer
from algorithms.objectives.fedpcl import FedPCL, FedPclServer
from algorithms.objectives.fedper import FedPer
from algorithms.objectives.fedprox import FedProx
from algorithms.objectives.fedrep import FedRep, FedRepServer
from algorithms.objectives.fedrod import FedRod, FedRodServer
from algorithms.objectives.lgnet import FineTuned, LgNet
from algorithms.objectives.local import Local
from algorithms.objectives.moon import Moon, MoonServer
from algorithms.objectives.perfedavg import PerFedAvg, PerFedAvgServer
from algorithms.objectives.pfedme import PFedMe, PFedMeServer
from algorithms.objectives.scaffold import Scaffold, ScaffoldServer
from algorithms.objectives.supervised import Supervised

CLASSES, WINDOW = 3, (2, 16)
SIZES = (8, 8, 3, 8, 5)

Halves = tuple[type[Supervised], dict[str, Any], Callable[[], DefaultCoordinator]]

PLAIN: dict[str, Halves] = {
    "fedavg": (FedAvg, {}, DefaultCoordinator),
    "fedprox": (FedProx, {}, DefaultCoordinator),
    "scaffold": (Scaffold, {}, ScaffoldServer),
    "moon": (Moon, {}, MoonServer),
    "local": (Local, {}, DefaultCoordinator),
    "fedbn": (FedBN, {}, DefaultCoordinator),
    "fedper": (FedPer, {}, DefaultCoordinator),
    "fedrep": (FedRep, {}, FedRepServer),
    "fedbabu": (FedBABU, {}, lambda: FedBabuServer(fine_tune_epochs=1)),
    "lgnet": (LgNet, {}, lambda: FineTuned(fine_tune_epochs=1)),
    "fedrod": (FedRod, {}, FedRodServer),
    "ditto": (Ditto, {}, DittoServer),
    "pfedme": (PFedMe, {"inner_steps": 2}, PFedMeServer),
    "perfedavg": (PerFedAvg, {}, PerFedAvgServer),
    "perfedavg-free": (PerFedAvg, {"hessian": "free"}, PerFedAvgServer),
    "apfl": (Apfl, {}, DefaultCoordinator),
    "fedfomo": (FedFomo, {"num_others": 2}, FedFomoServer),
    "apple": (Apple, {"num_others": 2}, AppleServer),
    "fedala": (FedAla, {}, FedAlaServer),
    "fedpcl": (FedPCL, {"num_others": 2}, FedPclServer),
    "fedgen": (
        FedGen,
        {"bank_size": 12, "generated_batch": 6},
        lambda: FedGenServer(generator_steps=3, generator_batch=16),
    ),
}


def regularised(server: Callable[[], DefaultCoordinator]) -> DefaultCoordinator:
    """The server's half of an objective with MR."""
    made = server()
    MeanRegulariserServer(made)
    return made


OBJECTIVES: dict[str, Halves] = {
    **PLAIN,
    **{
        f"{name}+{'dbe' if 'prbm' in device.wrapped_by else 'mr'}": (
            device,
            options,
            partial(regularised, server),
        )
        for name, (device, options, server) in PLAIN.items()
        if device.wrapped_by
    },
}


def small_model(seed: int = 0) -> HarCnn:
    torch.manual_seed(seed)
    return HarCnn(2, 16, CLASSES, torch.tensor([2.0, 1.0]))


def make(name: str) -> Supervised:
    device, options, _ = OBJECTIVES[name]
    made = device(small_model(), **options)
    if name.endswith("+dbe"):
        PrivateBias(made)
    if name.endswith(("+dbe", "+mr")):
        MeanRegulariser(made)
    return made


def batches(seed: int = 1) -> list[TorchTensors]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(n, *WINDOW, generator=generator),
            "y": torch.randint(0, CLASSES, (n,), generator=generator),
        }
        for n in SIZES
    ]


class Device:
    """Runs graphs by hand; keeps tensors and responses as the executor does."""

    def __init__(self, objective: Supervised, **hyper: float) -> None:
        self.graphs = objective.graphs()
        self.tensors = dict(objective.initial())
        self.hyper = {k: torch.tensor(float(v)) for k, v in {**objective.hyper, **hyper}.items()}

    def run(self, graph: str, batch: TorchTensors | None = None) -> TorchTensors:
        outputs = self.graphs[graph](self.tensors, batch or {}, self.hyper)
        self.tensors |= {
            k.removeprefix("next/"): v.detach() for k, v in outputs.items() if k.startswith("next/")
        }
        size = len(batch["y"]) if batch else 1
        self.tensors |= {
            f"response/{graph}.{k.removeprefix('metric/')}": v / size
            for k, v in outputs.items()
            if k.startswith("metric/")
        }
        return outputs

    def scatter(self, prefix: str, seed: int, size: float = 0.05) -> None:
        """Move the tensors of this prefix a little, so that they differ from those they began
        as."""
        generator = torch.Generator().manual_seed(seed)
        for key in sorted(
            k for k in self.tensors if k.startswith(prefix) and not k.endswith("running_var")
        ):
            self.tensors[key] = self.tensors[key] + size * torch.randn(
                self.tensors[key].shape, generator=generator
            )

    def load(self, module: nn.Module, prefix: str = "") -> None:
        """Give a module this device's values: shared, statistic or private/NAME, or PREFIXNAME."""
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                keys = (
                    [f"{prefix}{name}"]
                    if prefix
                    else [f"{role}/{name}" for role in ("shared", "statistic", "private")]
                )
                for key in keys:
                    if key in self.tensors:
                        value.copy_(self.tensors[key])


def features_of(module: HarCnn, x: Tensor) -> Tensor:
    features: Tensor = module.extractor(module.scale(x))
    return features


def assert_holds(tensors: Mapping[str, Tensor], module: nn.Module, prefix: str = "") -> None:
    """A module's parameters and statistics are what the tensors say; at least the parameters are
    there."""
    met = 0
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        for key in (
            [f"{prefix}{name}"]
            if prefix
            else [f"{role}/{name}" for role in ("shared", "statistic", "private")]
        ):
            if key in tensors:
                torch.testing.assert_close(
                    tensors[key],
                    value.detach(),
                    rtol=2e-4,
                    atol=2e-6,
                    msg=partial("{}: {}".format, key),
                )
                met += 1
    assert met >= len(list(module.parameters()))


def sgd(module: nn.Module, lr: float = 0.05, momentum: float = 0.9) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def step_both(
    device: Device,
    graph: str,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    given: list[TorchTensors],
) -> None:
    """Run a graph of the device on every batch; beside it, descend a module's cross-entropy."""
    for batch in given:
        device.run(graph, batch)
        descend(optimiser, F.cross_entropy(module(batch["x"]), batch["y"]))


def assert_metrics(outputs: TorchTensors, loss: Tensor, logits: Tensor, y: Tensor) -> None:
    assert float(outputs["metric/loss_sum"]) == pytest.approx(
        float(loss.detach()) * len(y), rel=1e-4
    )
    assert float(outputs["metric/num_correct"]) == float((logits.argmax(1) == y).sum())


def assert_used(device: Device, logits: Tensor, batch: TorchTensors) -> None:
    """`evaluate` and `predict` speak of the model that gave these logits."""
    probabilities = device.run("predict", batch)["output/probabilities"]
    torch.testing.assert_close(
        probabilities, torch.softmax(logits, 1).detach(), rtol=2e-3, atol=1e-5
    )
    outputs = device.run("evaluate", batch)
    assert float(outputs["metric/loss_sum"]) == pytest.approx(
        float(F.cross_entropy(logits, batch["y"], reduction="sum").detach()), rel=1e-3
    )
    assert float(outputs["metric/num_correct"]) == float((logits.argmax(1) == batch["y"]).sum())
