"""Every objective against slow, ordinary PyTorch; what leaves a device; and whole rounds through the device's own executor."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggregator.core.round import program_for
from algorithms.algorithm import Algorithm, Contribution, decode_memory, encode_memory
from algorithms.contract import NEWCOMER, Context, LocalModel, Objective, TorchTensors, Work
from algorithms.groupings.individual import Individual
from algorithms.groupings.single import SingleGroup
from algorithms.means.weighted import WeightedMean
from algorithms.models.har_cnn import HarCnn
from algorithms.objectives.apfl import Apfl
from algorithms.objectives.apple import Apple, AppleServer
from algorithms.objectives.coordinator import Plain
from algorithms.objectives.dbe import coordinate_domain_bias, with_domain_bias
from algorithms.objectives.ditto import Ditto, DittoServer
from algorithms.objectives.fedavg import FedAvg
from algorithms.objectives.fedbabu import FedBABU, FedBabuServer
from algorithms.objectives.fedbn import FedBN
from algorithms.objectives.fedfomo import FedFomo, FedFomoServer
from algorithms.objectives.fedgen import FedGen, FedGenServer, Generator, diversity, first_generator
from algorithms.objectives.fedpcl import FedPCL, FedPclServer
from algorithms.objectives.fedper import FedPer
from algorithms.objectives.fedprox import FedProx
from algorithms.objectives.fedrep import FedRep, FedRepServer
from algorithms.objectives.fedrod import FedRod, FedRodServer
from algorithms.objectives.lgnet import LgNet, LgNetServer
from algorithms.objectives.local import Local
from algorithms.objectives.moon import Moon, MoonServer
from algorithms.objectives.perfedavg import PerFedAvg, PerFedAvgServer
from algorithms.objectives.pfedme import PFedMe, PFedMeServer
from algorithms.objectives.scaffold import Scaffold, ScaffoldServer
from algorithms.objectives.supervised import Supervised
from algorithms.privacy.none import NoPrivacy
from algorithms.probe import make_probe
from edge_client.executor import Executor
from edge_client.ports import Windows
from export.bundle import describe_bundle, example_inputs, named, responses_of, to_numpy
from export.capture import capture_onnx
from simulation.torch_graphs import TorchGraphs
from wire.bundle import Bundle, Window
from wire.errors import ConfigError
from wire.messages import Evaluate, Plan, Train
from wire.tensors import Tensors

CLASSES, WINDOW = 3, (2, 16)
SIZES = (8, 8, 3, 8, 5)

Halves = tuple[type[Supervised], dict[str, Any], Callable[[], Plain]]

PLAIN: dict[str, Halves] = {
    "fedavg": (FedAvg, {}, Plain),
    "fedprox": (FedProx, {}, Plain),
    "scaffold": (Scaffold, {}, ScaffoldServer),
    "moon": (Moon, {}, MoonServer),
    "local": (Local, {}, Plain),
    "fedbn": (FedBN, {}, Plain),
    "fedper": (FedPer, {}, Plain),
    "fedrep": (FedRep, {}, FedRepServer),
    "fedbabu": (FedBABU, {}, lambda: FedBabuServer(fine_tune_epochs=1)),
    "lgnet": (LgNet, {}, lambda: LgNetServer(fine_tune_epochs=1)),
    "fedrod": (FedRod, {}, FedRodServer),
    "ditto": (Ditto, {}, DittoServer),
    "pfedme": (PFedMe, {"inner_steps": 2}, PFedMeServer),
    "perfedavg": (PerFedAvg, {}, PerFedAvgServer),
    "perfedavg-free": (PerFedAvg, {"hessian": "free"}, PerFedAvgServer),
    "apfl": (Apfl, {}, Plain),
    "fedfomo": (FedFomo, {"num_others": 2}, FedFomoServer),
    "apple": (Apple, {"num_others": 2}, AppleServer),
    "fedpcl": (FedPCL, {"num_others": 2}, FedPclServer),
    "fedgen": (FedGen, {"bank_size": 12, "generated_batch": 6}, lambda: FedGenServer(generator_steps=3, generator_batch=16)),
}


def biased(name: str, *, memory: bool = True) -> Halves:
    """An objective with DBE, or MR alone, on top."""
    device, options, server = PLAIN[name]
    mixed = coordinate_domain_bias(type(server()))
    settings = vars(server())

    def coordinator() -> Plain:
        made = mixed()
        vars(made).update(settings)
        return made

    return with_domain_bias(device, f"dbe-{name}", memory=memory), options, coordinator


OBJECTIVES: dict[str, Halves] = {
    **PLAIN,
    **{f"dbe-{n}": biased(n) for n in ("fedavg", "fedprox", "scaffold", "moon", "fedgen")},
    **{f"mr-{n}": biased(n, memory=False) for n in ("fedper", "fedrep", "fedrod", "fedbabu", "ditto", "apfl")},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads that wait for each other make these small operators fifty times slower where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_model(seed: int = 0) -> HarCnn:
    torch.manual_seed(seed)
    return HarCnn(2, 16, CLASSES, torch.tensor([2.0, 1.0]))


def make(name: str) -> Supervised:
    device, options, _ = OBJECTIVES[name]
    return device(small_model(), **options)


def batches(seed: int = 1) -> list[TorchTensors]:
    generator = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(n, *WINDOW, generator=generator), "y": torch.randint(0, CLASSES, (n,), generator=generator)} for n in SIZES]


class Device:
    """Runs graphs by hand; keeps tensors and responses as the executor does."""

    def __init__(self, objective: Objective, **hyper: float) -> None:
        self.graphs = objective.graphs()
        self.tensors = dict(objective.initial())
        self.hyper = {k: torch.tensor(float(v)) for k, v in {**objective.hyper, **hyper}.items()}

    def run(self, graph: str, batch: TorchTensors | None = None) -> TorchTensors:
        outputs = self.graphs[graph](self.tensors, batch or {}, self.hyper)
        self.tensors |= {k.removeprefix("next/"): v.detach() for k, v in outputs.items() if k.startswith("next/")}
        size = len(batch["y"]) if batch else 1
        self.tensors |= {f"response/{graph}.{k.removeprefix('metric/')}": v / size for k, v in outputs.items() if k.startswith("metric/")}
        return outputs

    def scatter(self, prefix: str, seed: int, size: float = 0.05) -> None:
        """Move the tensors of this prefix a little, so that they differ from those they began as."""
        generator = torch.Generator().manual_seed(seed)
        for key in sorted(k for k in self.tensors if k.startswith(prefix) and not k.endswith("running_var")):
            self.tensors[key] = self.tensors[key] + size * torch.randn(self.tensors[key].shape, generator=generator)

    def load(self, module: nn.Module, prefix: str = "") -> None:
        """Give a module this device's values: shared, statistic or private/NAME, or PREFIXNAME."""
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                keys = [f"{prefix}{name}"] if prefix else [f"{role}/{name}" for role in ("shared", "statistic", "private")]
                for key in keys:
                    if key in self.tensors:
                        value.copy_(self.tensors[key])


def features_of(module: HarCnn, x: Tensor) -> Tensor:
    return module.extractor(module.scale(x))


def assert_holds(tensors: Mapping[str, Tensor], module: nn.Module, prefix: str = "") -> None:
    """A module's parameters and statistics are what the tensors say; at least the parameters are there."""
    met = 0
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        for key in [f"{prefix}{name}"] if prefix else [f"{role}/{name}" for role in ("shared", "statistic", "private")]:
            if key in tensors:
                torch.testing.assert_close(tensors[key], value.detach(), rtol=2e-4, atol=2e-6, msg=lambda text, key=key: f"{key}: {text}")
                met += 1
    assert met >= len(list(module.parameters()))


def sgd(module: nn.Module, lr: float = 0.05, momentum: float = 0.9) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def assert_metrics(outputs: TorchTensors, loss: Tensor, logits: Tensor, y: Tensor) -> None:
    assert float(outputs["metric/loss_sum"]) == pytest.approx(float(loss.detach()) * len(y), rel=1e-4)
    assert float(outputs["metric/num_correct"]) == float((logits.argmax(1) == y).sum())


class TestSteps:
    """Each step, several in a row, is what autograd and an optimiser do to a module."""

    @pytest.mark.parametrize("name", ["fedavg", "local", "fedbn", "fedper", "lgnet"])
    def test_plain_sgd(self, name: str) -> None:
        device, module = Device(make(name), lr=0.05), small_model().train()
        optimiser = sgd(module)
        for batch in batches():
            outputs = device.run("step", batch)
            logits = module(batch["x"])
            loss = F.cross_entropy(logits, batch["y"])
            descend(optimiser, loss)
            assert_metrics(outputs, loss, logits, batch["y"])
        assert_holds(device.tensors, module)

    def test_fedprox(self) -> None:
        device, module = Device(make("fedprox"), lr=0.05, mu=0.5), small_model().train()
        starts, optimiser = [p.detach().clone() for p in module.parameters()], sgd(module)
        for batch in batches():
            device.run("step", batch)
            tie = sum((p - s).square().sum() for p, s in zip(module.parameters(), starts, strict=True))
            descend(optimiser, F.cross_entropy(module(batch["x"]), batch["y"]) + 0.25 * tie)
        assert_holds(device.tensors, module)

    def test_scaffold(self) -> None:
        device, module = Device(make("scaffold"), lr=0.05, momentum=0.5), small_model().train()
        device.scatter("private/control.", 1)
        device.scatter("received/control.", 2)
        own = {n: device.tensors[f"private/control.{n}"] for n, _ in module.named_parameters()}
        server = {n: device.tensors[f"received/control.{n}"] for n, _ in module.named_parameters()}
        sums, optimiser = {n: torch.zeros_like(p) for n, p in module.named_parameters()}, sgd(module, momentum=0.5)
        for batch in batches():
            device.run("step", batch)
            optimiser.zero_grad()
            F.cross_entropy(module(batch["x"]), batch["y"]).backward()
            for n, p in module.named_parameters():
                sums[n] += p.grad
                p.grad += server[n] - own[n]
            optimiser.step()
        assert_holds(device.tensors, module)
        device.run("conclude")
        for n in own:
            torch.testing.assert_close(device.tensors[f"private/control.{n}"], sums[n] / len(SIZES), rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(device.tensors[f"response/conclude.change.{n}"], sums[n] / len(SIZES) - own[n], rtol=1e-4, atol=1e-6)

    def test_scaffold_with_plain_sgd_is_option_two(self) -> None:
        device = Device(make("scaffold"), lr=0.05, momentum=0.0)
        device.scatter("private/control.", 1)
        device.scatter("received/control.", 2)
        before = dict(device.tensors)
        for batch in batches():
            device.run("step", batch)
        device.run("conclude")
        for n, _ in small_model().named_parameters():
            moved = (before[f"shared/{n}"] - device.tensors[f"shared/{n}"]) / (len(SIZES) * 0.05)
            expected = before[f"private/control.{n}"] - before[f"received/control.{n}"] + moved
            torch.testing.assert_close(device.tensors[f"private/control.{n}"], expected, rtol=1e-3, atol=1e-4)

    def test_moon(self) -> None:
        device, module = Device(make("moon"), lr=0.05, mu=2.0, tau=0.5), small_model().train()
        device.scatter("private/previous.", 3)
        received, previous = small_model().train(), small_model().train()
        device.load(previous, "private/previous.")
        optimiser = sgd(module)
        for batch in batches():
            device.run("step", batch)
            z = features_of(module, batch["x"])
            with torch.no_grad():
                z_received, z_previous = features_of(received, batch["x"]), features_of(previous, batch["x"])
            similar = torch.stack([F.cosine_similarity(z, z_received), F.cosine_similarity(z, z_previous)], 1) / 0.5
            contrast = F.cross_entropy(similar, torch.zeros(len(z), dtype=torch.int64))
            descend(optimiser, F.cross_entropy(module.head(z), batch["y"]) + 2.0 * contrast)
        assert_holds(device.tensors, module)
        device.run("remember")
        assert_holds(device.tensors, module, "private/previous.")

    @pytest.mark.parametrize("name", ["dbe-fedavg", "mr-fedper"])
    def test_domain_bias(self, name: str) -> None:
        device, module = Device(make(name), lr=0.05, kappa=3.0, mean_momentum=0.4), small_model().train()
        device.scatter("received/consensus", 4, size=0.5)
        consensus, mean = device.tensors["received/consensus"], torch.zeros(module.head.in_features)
        bias = nn.Parameter(torch.zeros(module.head.in_features), requires_grad=name.startswith("dbe"))
        optimiser = torch.optim.SGD([*module.parameters(), *([bias] if bias.requires_grad else [])], lr=0.05, momentum=0.9)
        for batch in batches():
            outputs = device.run("step", batch)
            z = features_of(module, batch["x"])
            mean = 0.6 * mean.detach() + 0.4 * z.mean(0)
            logits = module.head(z + bias)
            loss = F.cross_entropy(logits, batch["y"]) + 3.0 * F.mse_loss(mean, consensus) / 2
            descend(optimiser, loss)
            assert_metrics(outputs, loss, logits, batch["y"])
        assert_holds(device.tensors, module)
        torch.testing.assert_close(device.tensors["slot/mean"], mean.detach(), rtol=1e-4, atol=1e-6)
        if bias.requires_grad:
            torch.testing.assert_close(device.tensors["private/bias"], bias.detach(), rtol=1e-4, atol=1e-6)
            module.eval()
            batch = batches()[0]
            expected = torch.softmax(module.head(features_of(module, batch["x"]) + bias), 1)
            torch.testing.assert_close(device.run("predict", batch)["output/probabilities"], expected.detach(), rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("base", ["fedavg", "fedprox", "scaffold", "moon", "fedgen"])
    def test_warm_is_a_step_of_the_objective_alone(self, base: str) -> None:
        device, alone = Device(make(f"dbe-{base}")), Device(make(base))
        device.scatter("received/consensus", 4)
        for batch in batches():
            device.run("warm", batch)
            alone.run("step", batch)
        for key, value in alone.tensors.items():
            if key.startswith(("shared/", "statistic/")):
                torch.testing.assert_close(device.tensors[key], value, rtol=1e-4, atol=1e-6)
        assert not device.tensors["private/bias"].any()

    def test_fedrep(self) -> None:
        device, module = Device(make("fedrep"), lr=0.05), small_model().train()
        optimiser = torch.optim.SGD(module.head.parameters(), lr=0.05, momentum=0.9)
        for batch in batches():
            device.run("head", batch)
            with torch.no_grad():
                z = features_of(copy.deepcopy(module), batch["x"])  # a body that stands still: its statistics do not move
            descend(optimiser, F.cross_entropy(module.head(z), batch["y"]))
        assert_holds(device.tensors, module)
        optimiser = torch.optim.SGD(module.extractor.parameters(), lr=0.05, momentum=0.9)
        for batch in batches(2):
            device.run("step", batch)
            descend(optimiser, F.cross_entropy(module(batch["x"]), batch["y"]))
        assert_holds(device.tensors, module)

    def test_fedbabu(self) -> None:
        device, module = Device(make("fedbabu"), lr=0.05), small_model().train()
        head = module.head.weight.detach().clone()
        optimiser = torch.optim.SGD(module.extractor.parameters(), lr=0.05, momentum=0.9)
        for batch in batches():
            device.run("step", batch)
            descend(optimiser, F.cross_entropy(module(batch["x"]), batch["y"]))
        assert_holds(device.tensors, module)
        assert torch.equal(device.tensors["private/head.weight"], head)
        device.tensors |= {k: torch.zeros_like(v) for k, v in device.tensors.items() if k.startswith("slot/")}
        optimiser = sgd(module)
        for batch in batches(2):
            device.run("tune", batch)
            descend(optimiser, F.cross_entropy(module(batch["x"]), batch["y"]))
        assert_holds(device.tensors, module)

    def test_fedrod(self) -> None:
        device, module = Device(make("fedrod"), lr=0.05), small_model().train()
        counts = torch.zeros(CLASSES)
        for batch in batches():
            counts += device.run("labels", batch)["metric/share"]
        assert counts.tolist() == [sum(int((b["y"] == c).sum()) for b in batches()) for c in range(CLASSES)]
        device.tensors["response/labels.share"] = counts / sum(SIZES)
        device.run("keep")
        personal = nn.Linear(module.head.in_features, CLASSES)
        nn.init.zeros_(personal.weight)
        nn.init.zeros_(personal.bias)
        generic_sgd, personal_sgd = sgd(module), sgd(personal)
        for batch in batches():
            outputs = device.run("step", batch)
            z = features_of(module, batch["x"])
            logits = module.head(z)
            balanced = F.cross_entropy(logits + counts.log(), batch["y"])
            descend(generic_sgd, balanced)
            both = logits.detach() + personal(z.detach())
            loss = F.cross_entropy(both, batch["y"])
            descend(personal_sgd, loss)
            assert_metrics(outputs, balanced + loss, both, batch["y"])
        assert_holds(device.tensors, module)
        assert_holds(device.tensors, personal, "private/personal.head.")
        module.eval()
        batch = batches()[0]
        z = features_of(module, batch["x"])
        self.assert_used(device, module.head(z) + personal(z), batch)

    def test_fedrod_with_a_class_that_the_device_lacks_stays_finite(self) -> None:
        device = Device(make("fedrod"), lr=0.05)
        device.tensors["private/share"] = torch.tensor([0.5, 0.5, 0.0])
        for batch in batches():
            device.run("step", batch)  # though it meets one: the count is older than the example
        assert all(torch.isfinite(v).all() for v in device.tensors.values())

    def test_ditto(self) -> None:
        device, shared, personal = Device(make("ditto"), **{"lr": 0.05, "lambda": 0.7}), small_model().train(), small_model().train()
        device.scatter("private/personal.", 5)
        device.load(personal, "private/personal.")
        starts, optimiser = [p.detach().clone() for p in shared.parameters()], sgd(personal)
        for batch in batches():
            outputs = device.run("personal", batch)
            tie = sum((p - s).square().sum() for p, s in zip(personal.parameters(), starts, strict=True))
            logits = personal(batch["x"])
            loss = F.cross_entropy(logits, batch["y"]) + 0.35 * tie
            descend(optimiser, loss)
            assert_metrics(outputs, loss, logits, batch["y"])
        assert_holds(device.tensors, shared)
        optimiser = sgd(shared)
        for batch in batches(2):
            device.run("step", batch)
            descend(optimiser, F.cross_entropy(shared(batch["x"]), batch["y"]))
        assert_holds(device.tensors, shared)
        assert_holds(device.tensors, personal, "private/personal.")
        self.assert_used(device, personal.eval()(batches()[0]["x"]), batches()[0])

    def test_pfedme(self) -> None:
        device, local, theta = (
            Device(make("pfedme"), **{"lr": 0.01, "lambda": 5.0, "personal_lr": 0.02}),
            small_model(),
            small_model().train(),
        )
        device.scatter("private/personal.", 6)
        device.run("begin")
        assert_holds(device.tensors, theta, "private/personal.")
        optimiser = sgd(theta, lr=0.02, momentum=0.0)
        for batch in batches():
            device.run("step", batch)
            for _ in range(2):
                tie = sum((t - w.detach()).square().sum() for t, w in zip(theta.parameters(), local.parameters(), strict=True))
                descend(optimiser, F.cross_entropy(theta(batch["x"]), batch["y"]) + 2.5 * tie)
            with torch.no_grad():
                for w, t in zip(local.parameters(), theta.parameters(), strict=True):
                    w -= 0.01 * 5.0 * (w - t)
        assert_holds(device.tensors, theta, "private/personal.")
        local.load_state_dict({**local.state_dict(), **{k: v for k, v in theta.state_dict().items() if "running" in k}})
        assert_holds(device.tensors, local)
        self.assert_used(device, theta.eval()(batches()[0]["x"]), batches()[0])

    @pytest.mark.parametrize("name", ["perfedavg", "perfedavg-free"])
    def test_perfedavg(self, name: str) -> None:
        device, module = Device(make(name), lr=0.05, momentum=0.5, inner_lr=0.1, delta=0.01), small_model().train()
        optimiser = sgd(module, momentum=0.5)

        def gradients(at: nn.Module, batch: TorchTensors, first: int) -> tuple[list[Tensor], Tensor]:
            logits = at(batch["x"])
            loss = F.cross_entropy(logits[first::2], batch["y"][first::2])
            return [g.detach() for g in torch.autograd.grad(loss, list(at.parameters()))], loss.detach()

        def shifted(by: list[Tensor], size: float) -> HarCnn:
            other = copy.deepcopy(module)
            with torch.no_grad():
                for p, d in zip(other.parameters(), by, strict=True):
                    p += size * d
            return other

        for batch in batches():
            outputs = device.run("step", batch)
            inner, before = gradients(module, batch, 0)
            adapted = shifted(inner, -0.1)
            outer, after = gradients(adapted, batch, 1)
            if name == "perfedavg-free":
                ahead, _ = gradients(shifted(outer, 0.01), batch, 0)
                behind, _ = gradients(shifted(outer, -0.01), batch, 0)
                outer = [g - 0.1 * (a - b) / 0.02 for g, a, b in zip(outer, ahead, behind, strict=True)]
            for p, g in zip(module.parameters(), outer, strict=True):
                p.grad = g
            optimiser.step()
            for buffer, met in zip(module.buffers(), adapted.buffers(), strict=True):
                buffer.copy_(met)
            size = len(batch["y"])
            expected = float(before) * ((size + 1) // 2) + float(after) * (size // 2)
            assert float(outputs["metric/loss_sum"]) == pytest.approx(expected, rel=1e-4)
            if name == "perfedavg-free":  # a difference of gradients magnifies rounding: from here on both start alike
                assert_close_to(device, module, rtol=2e-2)
                device.load(module)
        if name == "perfedavg":
            assert_holds(device.tensors, module)

    def test_hessian_free_is_the_hessian_vector_product(self) -> None:
        """In float64 the difference of gradients is the second derivative."""
        model = small_model().double()
        objective = PerFedAvg(model, hessian="free")
        tensors = {k: v.double() for k, v in objective.initial().items()}
        batch = {k: v.double() if v.is_floating_point() else v for k, v in batches()[0].items()}
        hyper = {k: torch.tensor(v, dtype=torch.float64) for k, v in {"lr": 1.0, "momentum": 0.0, "inner_lr": 0.1, "delta": 1e-8}.items()}
        following = objective.step(tensors, batch, hyper)
        module = copy.deepcopy(model).train()
        parameters = list(module.parameters())

        def loss(at: nn.Module, first: int) -> Tensor:
            return F.cross_entropy(at(batch["x"])[first::2], batch["y"][first::2])

        inner = torch.autograd.grad(loss(module, 0), parameters, create_graph=True)
        adapted = copy.deepcopy(model).train()
        with torch.no_grad():
            for p, g in zip(adapted.parameters(), inner, strict=True):
                p -= 0.1 * g
        outer = torch.autograd.grad(loss(adapted, 1), list(adapted.parameters()))
        curved = torch.autograd.grad(sum((g * v).sum() for g, v in zip(inner, outer, strict=True)), parameters)
        for (name, p), g, h in zip(module.named_parameters(), outer, curved, strict=True):
            torch.testing.assert_close(following[f"next/shared/{name}"], (p - (g - 0.1 * h)).detach(), rtol=1e-4, atol=1e-5)

    def test_perfedavg_adapts_by_plain_sgd(self) -> None:
        device, module = Device(make("perfedavg"), inner_lr=0.05), small_model().train()
        optimiser = sgd(module, momentum=0.0)
        for batch in batches():
            device.run("adapt", batch)
            descend(optimiser, F.cross_entropy(module(batch["x"]), batch["y"]))
        assert_holds(device.tensors, module)

    def test_apfl(self) -> None:
        device, shared, own, mixture = (
            Device(make("apfl"), lr=0.05, alpha_lr=0.3),
            small_model().train(),
            small_model(),
            small_model().train(),
        )
        device.scatter("private/personal.", 7)
        device.load(own, "private/personal.")
        device.load(mixture, "private/personal.")
        alpha, shared_sgd, own_sgd = 0.5, sgd(shared), sgd(own)
        for batch in batches():
            outputs = device.run("step", batch)
            pairs = list(zip(mixture.parameters(), own.parameters(), shared.parameters(), strict=True))
            with torch.no_grad():
                for m, v, w in pairs:
                    m.copy_(alpha * v + (1 - alpha) * w)
            logits = mixture(batch["x"])
            loss = F.cross_entropy(logits, batch["y"])
            assert_metrics(outputs, loss, logits, batch["y"])
            gradients = torch.autograd.grad(loss, list(mixture.parameters()))
            towards = sum(float(((v - w) * g).sum().detach()) for (_, v, w), g in zip(pairs, gradients, strict=True))
            for (_, v, _), g in zip(pairs, gradients, strict=True):
                v.grad = alpha * g
            own_sgd.step()
            descend(shared_sgd, F.cross_entropy(shared(batch["x"]), batch["y"]))
            alpha = min(1.0, max(0.0, alpha - 0.3 * towards))
        assert_holds(device.tensors, shared)
        own.load_state_dict({**own.state_dict(), **{k: v for k, v in mixture.state_dict().items() if "running" in k}})
        assert_holds(device.tensors, own, "private/personal.")
        assert float(device.tensors["private/alpha"]) == pytest.approx(alpha, rel=1e-4)
        assert alpha != 0.5
        with torch.no_grad():
            for m, v, w in zip(mixture.parameters(), own.parameters(), shared.parameters(), strict=True):
                m.copy_(alpha * v + (1 - alpha) * w)
        self.assert_used(device, mixture.eval()(batches()[0]["x"]), batches()[0])

    def test_fedfomo(self) -> None:
        device = Device(make("fedfomo"), lr=0.05)
        for batch in batches():
            device.run("step", batch)
        for key in [k for k in device.tensors if k.startswith("received/others.")]:
            name = key.removeprefix("received/others.")
            own = next(device.tensors[k] for k in (f"shared/{name}", f"statistic/{name}") if k in device.tensors)
            device.tensors[key] = torch.stack([small_model(9).state_dict()[name], own * 1.02])
        device.tensors["received/present"] = torch.ones(2)
        own, stranger, near = small_model().eval(), small_model(9).eval(), small_model().eval()
        device.load(own)
        near.load_state_dict({k: v * 1.02 if v.is_floating_point() and "scale" not in k else v for k, v in own.state_dict().items()})
        held_out = batches(5)[0]
        found = device.run("candidates", held_out)["metric/loss"]
        losses = [F.cross_entropy(m(held_out["x"]), held_out["y"], reduction="sum").detach() for m in (own, stranger, near)]
        torch.testing.assert_close(found, torch.stack(losses), rtol=1e-4, atol=1e-5)
        values = torch.tensor([1.0, 0.9, 0.4])  # as if both others were better
        device.tensors["response/candidates.loss"] = values
        outputs = device.run("mix")
        distances = [
            torch.cat([(a - b).flatten() for a, b in zip(other.parameters(), own.parameters(), strict=True)]).norm()
            for other in (stranger, near)
        ]
        weights = torch.stack([(values[0] - values[n]) / distances[n - 1] for n in (1, 2)]).detach()
        torch.testing.assert_close(outputs["metric/weights"], weights, rtol=1e-4, atol=1e-6)
        shares = weights / weights.sum()
        mixed = small_model()
        mixed.load_state_dict(
            {
                k: v + shares[0] * (stranger.state_dict()[k] - v) + shares[1] * (near.state_dict()[k] - v) if v.is_floating_point() else v
                for k, v in own.state_dict().items()
            }
        )
        assert_holds(device.tensors, mixed)

    def test_fedfomo_takes_nothing_from_worse_or_absent_models(self) -> None:
        device = Device(make("fedfomo"))
        before = dict(device.tensors)
        device.tensors |= {"response/candidates.loss": torch.tensor([0.5, 0.1, 0.9]), "received/present": torch.tensor([0.0, 1.0])}
        outputs = device.run("mix")
        assert outputs["metric/weights"][0] == 0
        assert outputs["metric/weights"][1] < 0
        assert all(torch.equal(before[k], v) for k, v in device.tensors.items() if k in before and k.startswith(("shared/", "statistic/")))

    def test_apple(self) -> None:
        device, core = Device(Apple(small_model(), num_others=3), lr=0.02, momentum=0.9, dr_lr=0.01, mu=0.5), small_model()
        others = [small_model(8), small_model(9)]
        for n, _ in core.named_parameters():
            device.tensors[f"received/others.{n}"] = torch.stack([dict(o.named_parameters())[n].detach() for o in others])
        for key in [k for k in device.tensors if k.startswith("received/others.")]:  # a third is absent, whatever lies in its place
            device.tensors[key] = torch.cat([device.tensors[key], torch.ones_like(device.tensors[key][:1])])
        device.tensors |= {"received/present": torch.tensor([1.0, 1.0, 0.0]), "received/prior": torch.tensor([0.5, 0.2, 0.3, 0.0])}
        device.tensors |= {"received/schedule": torch.tensor(0.8), "private/relation": torch.tensor([0.05, -0.1, 0.02, 0.5])}
        prior, p, personal = torch.tensor([0.5, 0.2, 0.3]), torch.tensor([0.55, 0.1, 0.32]), small_model().train()
        optimiser = sgd(core, lr=0.02, momentum=0.9)
        cores = [core, *others]
        for batch in batches():
            device.run("step", batch)
            with torch.no_grad():
                for m, *parts in zip(personal.parameters(), *(c.parameters() for c in cores), strict=True):
                    m.copy_(sum(weight * part for weight, part in zip(p, parts, strict=True)))
            gradients = torch.autograd.grad(F.cross_entropy(personal(batch["x"]), batch["y"]), list(personal.parameters()))
            towards = torch.stack([sum((g * w).sum() for g, w in zip(gradients, c.parameters(), strict=True)).detach() for c in cores])
            for w, g in zip(core.parameters(), gradients, strict=True):
                w.grad = p[0] * g
            optimiser.step()
            p = p - 0.01 * (towards + 0.8 * 0.5 * (p - prior))
        core.load_state_dict({**core.state_dict(), **{k: v for k, v in personal.state_dict().items() if "running" in k}})
        assert_holds(device.tensors, core)
        torch.testing.assert_close(device.tensors["private/relation"][:3], p - prior, rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            for m, *parts in zip(personal.parameters(), *(c.parameters() for c in cores), strict=True):
                m.copy_(sum(weight * part for weight, part in zip(p, parts, strict=True)))
        self.assert_used(device, personal.eval()(batches()[0]["x"]), batches()[0])

    def test_apple_settles_statistics_alone(self) -> None:
        device, module = Device(make("apple")), small_model().train()
        for batch in batches():
            device.run("settle", batch)
            module(batch["x"])
        assert_holds(device.tensors, module)

    def test_fedpcl(self) -> None:
        device, module = Device(FedPCL(small_model(), num_others=3), lr=0.05), small_model().train()
        width = module.head.in_features
        assert not [key for key in device.tensors if key.startswith("slot/momentum.head.")]
        draw = torch.Generator().manual_seed(4)
        mean, sets = torch.randn(CLASSES, width, generator=draw), torch.randn(3, CLASSES, width, generator=draw)
        device.tensors |= {"received/prototypes": mean, "received/known": torch.ones(CLASSES)}
        device.tensors |= {"received/others.prototypes": sets, "received/others.known": torch.tensor([[1.0, 1, 1], [1, 0, 1], [0, 0, 0]])}
        completed = [sets[0], torch.stack([sets[1, 0], mean[1], sets[1, 2]])]
        optimiser = torch.optim.SGD(module.extractor.parameters(), lr=0.05, momentum=0.9)
        for batch in batches():
            outputs = device.run("step", batch)
            z = F.normalize(features_of(module, batch["x"]), dim=1)
            contrasts = [F.cross_entropy(z @ F.normalize(c, dim=1).T / 0.07, batch["y"]) for c in (mean, *completed)]
            loss = contrasts[0] + (contrasts[1] + contrasts[2]) / 2
            descend(optimiser, loss)
            assert_metrics(outputs, loss, z @ F.normalize(mean, dim=1).T, batch["y"])
        assert_holds(device.tensors, module)

    def test_fedpcl_keeps_the_mean_of_each_class_and_predicts_the_nearest(self) -> None:
        device, module = Device(make("fedpcl")), small_model().eval()
        batch = {"x": batches()[0]["x"], "y": torch.tensor([0, 0, 2, 2, 2, 0, 2, 0])}  # class 1 is not there
        device.run("prototypes", batch)
        device.run("keep")
        with torch.no_grad():
            z = F.normalize(features_of(module, batch["x"]), dim=1)
        means = torch.stack([z[batch["y"] == 0].mean(0), torch.zeros(z.shape[1]), z[batch["y"] == 2].mean(0)])
        torch.testing.assert_close(device.tensors["private/prototypes"], means, rtol=1e-4, atol=1e-6)
        similar = z @ F.normalize(means, dim=1).T / 0.07
        similar[:, 1] = -torch.inf
        probabilities = device.run("predict", batch)["output/probabilities"]
        torch.testing.assert_close(probabilities, torch.softmax(similar, 1), rtol=1e-3, atol=1e-5)
        outputs = device.run("evaluate", batch)
        expected = F.nll_loss(probabilities.clamp(min=1e-6).log(), batch["y"], reduction="sum")
        assert float(outputs["metric/loss_sum"]) == pytest.approx(float(expected), rel=1e-4)

    def test_fedpcl_without_prototypes_learns_nothing_and_stays_finite(self) -> None:
        device = Device(make("fedpcl"))
        before = {k: v for k, v in device.tensors.items() if not k.endswith(("running_mean", "running_var"))}
        device.run("step", batches()[0])
        assert all(torch.equal(v, device.tensors[k]) for k, v in before.items())

    def test_fedgen(self) -> None:
        device, module = Device(make("fedgen"), lr=0.05, alpha=2.0, beta=3.0), small_model().train()
        bank = torch.randn(4, CLASSES, module.head.in_features, generator=torch.Generator().manual_seed(4))
        device.tensors |= {"received/bank": bank, "received/classes": torch.tensor([1.0, 1.0, 0.0]), "received/strength": torch.tensor(0.5)}
        has, optimiser = torch.tensor([True, True, False]), sgd(module)
        for number, batch in enumerate(batches()):
            device.run("step", batch)
            logits = module(batch["x"])
            rows = [(2 * number + i) % 4 for i in range(2)]
            drawn = torch.cat([bank[row][has] for row in rows])
            on_drawn = F.cross_entropy(module.head(drawn), torch.tensor([0, 1, 0, 1]))
            alike = 0.0
            for i, y in enumerate(batch["y"].tolist()):
                if has[y]:
                    target = torch.softmax(module.head(bank[(number + i) % 4, y]), 0).detach()
                    alike = alike + F.kl_div(torch.log_softmax(logits[i], 0), target, reduction="sum")
            descend(optimiser, F.cross_entropy(logits, batch["y"]) + 0.5 * (2.0 * on_drawn + 3.0 * alike / len(logits)))
        assert_holds(device.tensors, module)

    def assert_used(self, device: Device, logits: Tensor, batch: TorchTensors) -> None:
        """`evaluate` and `predict` speak of the model that gave these logits."""
        probabilities = device.run("predict", batch)["output/probabilities"]
        torch.testing.assert_close(probabilities, torch.softmax(logits, 1).detach(), rtol=2e-3, atol=1e-5)
        outputs = device.run("evaluate", batch)
        assert float(outputs["metric/loss_sum"]) == pytest.approx(
            float(F.cross_entropy(logits, batch["y"], reduction="sum").detach()), rel=1e-3
        )
        assert float(outputs["metric/num_correct"]) == float((logits.argmax(1) == batch["y"]).sum())


def assert_close_to(device: Device, module: nn.Module, rtol: float) -> None:
    for name, value in module.named_parameters():
        scale = max(float(value.detach().abs().max()), 1e-2)
        assert float((device.tensors[f"shared/{name}"] - value.detach()).abs().max()) < rtol * scale, name


BODY = {f"extractor.{layer}.{part}" for layer in ("conv1", "norm1", "conv2", "norm2") for part in ("weight", "bias")}
HEAD = {"head.weight", "head.bias"}
STATISTICS = {f"extractor.norm{i}.running_{part}" for i in (1, 2) for part in ("mean", "var")}
NORMS = {name for name in BODY if "norm" in name}

LEAVES = {
    "local": (set(), set()),
    "fedpcl": (set(), set()),
    "fedbn": (BODY - NORMS | HEAD, set()),
    "apple": (BODY | HEAD, set()),
    **dict.fromkeys(("fedper", "fedrep", "fedbabu", "mr-fedper", "mr-fedrep", "mr-fedbabu"), (BODY, STATISTICS)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
class TestEveryObjective:
    def test_what_leaves_the_device(self, name: str) -> None:
        tensors = make(name).initial()
        shared = {k.removeprefix("shared/") for k in tensors if k.startswith("shared/")}
        statistics = {k.removeprefix("statistic/") for k in tensors if k.startswith("statistic/")}
        assert (shared, statistics) == LEAVES.get(name, (BODY | HEAD, STATISTICS))

    def test_graphs_touch_neither_inputs_nor_model_and_share_no_memory(self, name: str) -> None:
        objective = make(name)
        before = {k: v.clone() for k, v in objective.model.state_dict().items()}
        inputs = example_inputs(objective, WINDOW)
        for graph, function in objective.graphs().items():
            given = {k: v.clone() for k, v in inputs.items()}
            with torch.no_grad():
                outputs = named(function)(inputs)
                again = named(function)(inputs)
            assert all(torch.equal(v, inputs[k]) for k, v in given.items()), graph
            assert all(torch.equal(v, again[k]) for k, v in outputs.items()), graph
            places = {v.data_ptr() for v in inputs.values()}
            assert not [k for k, v in outputs.items() if v.numel() and v.data_ptr() in places], graph
            held = {k.removeprefix("next/"): v for k, v in outputs.items() if k.startswith("next/")}
            assert all(v.shape == inputs[k].shape and v.dtype == inputs[k].dtype for k, v in held.items()), graph
            assert not [k for k in held if k.startswith("received/")], graph
            inputs |= {f"response/{graph}.{n}": torch.rand(shape) for n, shape in responses_of(outputs)}
        assert all(torch.equal(before[k], v) for k, v in objective.model.state_dict().items())

    def test_a_fleet_learns(self, name: str) -> None:
        """Three rounds through the executor: every layout fits, state survives serialisation, and the loss falls."""
        fleet = SmallFleet(name)
        losses = [fleet.round() for _ in range(4)]
        final = fleet.close()
        assert all(np.isfinite(loss) for loss in (*losses, final)), losses
        assert final < losses[0], (losses, final)

    @pytest.mark.slow
    def test_every_graph_is_captured_and_runs_alike(self, name: str) -> None:
        """Also for batches of other sizes than the one it was traced with."""
        objective = make(name)
        inputs, draw = example_inputs(objective, WINDOW), torch.Generator().manual_seed(3)
        own = {g: f for g, f in objective.graphs().items() if name == "fedavg" or not _inherited(type(objective), g)}
        for graph, function in objective.graphs().items():
            if graph in own:
                captured = capture_onnx(named(function), inputs)
                session = onnxruntime.InferenceSession(captured.onnx, providers=["CPUExecutionProvider"])
                for size in (2, 5, 9):
                    feed = {k: _drawn(k, v, size, draw) for k, v in inputs.items()}
                    with torch.no_grad():
                        expected = named(function)(feed)
                    found = session.run(None, {k: feed[k].numpy() for k in captured.inputs})
                    for key, value in zip(captured.outputs, found, strict=True):
                        scale = 1e-2 + float(expected[key].abs().max())
                        difference = float((torch.from_numpy(np.asarray(value)) - expected[key]).abs().max())
                        assert difference < 2e-4 * scale, (graph, key, size, difference)
            with torch.no_grad():
                inputs |= {f"response/{graph}.{n}": torch.rand(s, generator=draw) for n, s in responses_of(named(function)(inputs))}


def _inherited(made: type[Supervised], graph: str) -> bool:
    """Whether a graph of an objective is FedAvg's own, which is captured once."""
    same = {"survey": "survey", "evaluate": "evaluate", "predict": "predict"}
    plain = getattr(made, "forward", None) is Supervised.forward
    return graph in same and plain and getattr(made, same[graph]) is getattr(Supervised, same[graph])


def _drawn(key: str, value: Tensor, size: int, draw: torch.Generator) -> Tensor:
    """Another value for a graph's input: a batch of another size, masks of zeros and ones, others moved a little."""
    if key == "batch/y":
        return torch.randint(0, CLASSES, (size,), generator=draw)
    if key.startswith("batch/"):
        return torch.randn(size, *value.shape[1:], generator=draw)
    if key.endswith(("known", "classes", "present")):
        return torch.randint(0, 2, value.shape, generator=draw).to(torch.float32)
    if key.startswith("hyper/") or not value.is_floating_point():
        return value
    return value + 0.1 * torch.rand(value.shape, generator=draw)


def make_bundle(objective: Objective) -> Bundle:
    return describe_bundle(objective, name="small", classes=tuple("abc"), window=Window(("x", "y"), WINDOW[1], WINDOW[1]))


class SmallFleet:
    """Four devices and the server's half of an algorithm, without messages. The last device joins after the first round."""

    def __init__(self, name: str) -> None:
        self.objective, coordinator = make(name), OBJECTIVES[name][2]()
        grouping = Individual() if coordinator.grouping == "individual" else SingleGroup()
        self.algorithm = Algorithm(name, self.objective.name, coordinator, grouping, WeightedMean(), NoPrivacy())
        self.bundle, self.probe = make_bundle(self.objective), make_probe(self.objective.model, WINDOW)
        self.devices = {f"d{i}": Executor(self.bundle, TorchGraphs(self.objective), self._windows(i)) for i in range(4)}
        self.private: dict[str, Tensors] = {d: {} for d in self.devices}
        self.work, self.number = Work(8, 2, {}), 0
        self.state = self.algorithm.begin(self.bundle.initial, self.probe, 0)

    def round(self) -> float:
        """A round, and the preparations before it; the mean loss of what devices evaluated at its start."""
        while self.algorithm.preparing(self.state):
            assert self.number < 3
            self.state = self.algorithm.prepare(self.state, self._work("")[0])
        contributions, losses = self._work("")
        self.state, _ = self.algorithm.apply(self.state, contributions, self.probe, self.number, self.work)
        self.state = decode_memory(encode_memory(self.state), self.state.models)
        return float(np.mean(losses))

    def close(self) -> float:
        """The mean loss of the last evaluations."""
        return float(np.mean(self._work("closing")[1]))

    def _work(self, phase: str) -> tuple[list[Contribution], list[float]]:
        self.number += 1
        received = self.algorithm.received(self.state)
        programs = self.algorithm.programs(self.state, self.work, dict.fromkeys(self.state.models, "0" * 64))
        contributions, losses = [], []
        for device_id, executor in self.devices.items():
            if self.number == 1 and device_id == "d3":
                continue
            start = self.algorithm.start(self.state.memory, device_id)
            verbs = programs[phase] if phase else program_for(programs, device_id, start)
            plan = Plan("run", self.number, device_id, "0" * 64, "0" * 64, verbs, 7, 0.0)
            model = {**self.state.models[start], **received[start]}
            result = executor.execute(plan, model, self.private[device_id], lambda digest: {})
            self.private[device_id] = result.private
            self._check_layout(verbs, result.tensors)
            losses.append(result.evaluated.loss_sum / max(1, result.evaluated.num_examples))
            contributions.append(Contribution(device_id, 24, result.num_steps, start, result.tensors, result.trained.mean_loss))
        return contributions, losses

    def _check_layout(self, verbs: tuple[Any, ...], tensors: Tensors) -> None:
        expected: set[str] = set()
        for verb in verbs:
            if isinstance(verb, Train):
                expected |= {k for k, _, _ in self.bundle.manifest.reported(verb.graph)} if verb.report else set()
            elif not isinstance(verb, Evaluate) or verb.report:
                expected |= {k for k, _, _ in self.bundle.manifest.responses(verb.graph)}
        assert tensors.keys() == expected

    def _windows(self, number: int) -> Windows:
        rng = np.random.default_rng(number)
        weights = [[4, 1, 1], [1, 4, 1], [1, 1, 4], [3, 3, 0]][number]
        y = rng.choice(3, 40, p=np.array(weights) / np.sum(weights))
        x = rng.normal(0, 1, (40, *WINDOW)) + 1.5 * np.stack([np.sin(y[:, None] * np.arange(16) / 2 + 1), y[:, None] - np.ones(16)], 1)
        x, y = x.astype(np.float32), y.astype(np.int64)
        return Windows(x[:24], y[:24], x[24:], y[24:])


def local_model(device_id: str, start: str, num_examples: int = 10, **responses: Any) -> LocalModel:
    held = {f"response/{k.replace('__', '.')}": np.asarray(v, np.float32) for k, v in responses.items()}
    return LocalModel(device_id, num_examples, 1, start, {}, held)


class TestServers:
    def test_fine_tuning_reports_nothing_and_may_be_left_out(self) -> None:
        work = Work(8, 3)
        assert LgNetServer(5).closing(Context(), work) == (work.train(epochs=5, report=False), Evaluate())
        assert FedBabuServer(5).closing(Context(), work) == (work.train("tune", epochs=5, report=False), Evaluate())
        assert PerFedAvgServer().closing(Context(), work) == (work.train("adapt", epochs=1, report=False), Evaluate())
        assert LgNetServer(0).closing(Context(), work) == (Evaluate(),)

    def test_counted_labels_of_fedrod_stay_on_the_device(self) -> None:
        verbs = FedRodServer().training(Context(), Work(8, 1))
        assert Evaluate("train", "labels", report=False) in verbs

    def test_fedfomo_sends_what_was_worth_most(self) -> None:
        server = FedFomoServer(epsilon=0.0)
        context = server.begin(to_numpy(make("fedfomo").initial()))
        membership = {f"d{i}": str(i) for i in range(5)}
        models = {str(i): {"shared/w": np.full(2, float(i), np.float32)} for i in range(5)} | {
            NEWCOMER: {"shared/w": np.zeros(2, np.float32)}
        }
        nothing = [local_model(d, NEWCOMER, mix__weights=[0, 0]) for d in membership]
        context = server.absorb(context, nothing, membership, models)
        assert server.sent(context, "0") == ["1", "2"]
        assert server.sent(context, NEWCOMER) == []
        trained = [local_model(d, k, mix__weights=[-1.0, 2.0] if k == "0" else [0, 0]) for d, k in membership.items()]
        context = server.absorb(context, trained, membership, models)
        assert server.sent(context, "0") == ["2", "3"]
        received = server.received(context, models, "0")
        np.testing.assert_array_equal(received["received/others.w"], [[2, 2], [3, 3]])
        del models["3"]
        np.testing.assert_array_equal(server.received(context, models, "0")["received/present"], [1, 0])
        np.testing.assert_array_equal(server.received(context, models, NEWCOMER)["received/present"], [0, 0])

    def test_fedfomo_looks_at_others_too(self) -> None:
        server = FedFomoServer(epsilon=1.0)
        context = Context(info={"round": 0, "num_others": 1, "known": [str(i) for i in range(6)], "affinity": {"0": {"1": 9.0}}})
        seen = {server.sent(Context(info={**context.info, "round": n}), "0")[0] for n in range(40)}
        assert seen == {"1", "2", "3", "4", "5"}

    def test_apple_keeps_its_places_when_devices_join(self) -> None:
        server = AppleServer(schedule_rounds=4)
        context = server.begin(to_numpy(make("apple").initial()))
        models = {str(i): {"shared/w": np.full(2, float(i), np.float32)} for i in range(4)}
        first = server.received(context, {NEWCOMER: {"shared/w": np.zeros(2, np.float32)}}, NEWCOMER)
        np.testing.assert_array_equal(first["received/prior"], [1, 0, 0])
        membership = {"a": "0", "b": "1"}
        context = server.absorb(context, [local_model("a", NEWCOMER, 10), local_model("b", NEWCOMER, 30)], membership, models)
        assert context.info["others"] == {"0": ["1"], "1": ["0"]}
        received = server.received(context, models, "0")
        np.testing.assert_allclose(received["received/prior"], [0.25, 0.75, 0])
        np.testing.assert_array_equal(received["received/present"], [1, 0])
        assert float(received["received/schedule"]) == pytest.approx((np.cos(np.pi / 4) + 1) / 2)
        membership |= {"c": "2", "d": "3"}
        context = server.absorb(context, [local_model(d, NEWCOMER, 10) for d in "cd"], membership, models)
        assert context.info["others"] == {"0": ["1", "2"], "1": ["0", "2"], "2": ["3", "0"], "3": ["0", "1"]}

    def test_fedpcl_averages_by_examples_of_the_class(self) -> None:
        server = FedPclServer()
        context = server.begin(to_numpy(make("fedpcl").initial()))
        assert server.preparing(context)
        one = local_model("a", NEWCOMER, 10, prototypes__sum=[[0.5, 0], [0, 0.5], [0, 0]], prototypes__share=[0.5, 0.5, 0])
        two = local_model("b", NEWCOMER, 30, prototypes__sum=[[0, 1.0], [0, 0], [0, 0]], prototypes__share=[1.0, 0, 0])
        context = server.absorb(context, [one, two], {"a": NEWCOMER, "b": NEWCOMER}, {})
        assert not server.preparing(context)
        received = server.received(context, {}, "0")
        np.testing.assert_allclose(received["received/prototypes"], [[5 / 35, 30 / 35], [0, 1], [0, 0]], atol=1e-6)
        np.testing.assert_array_equal(received["received/known"], [1, 1, 0])
        np.testing.assert_allclose(received["received/others.prototypes"], [[[1, 0], [0, 1], [0, 0]], [[0, 1], [0, 0], [0, 0]]], atol=1e-6)
        np.testing.assert_array_equal(received["received/others.known"], [[1, 1, 0], [1, 0, 0]])

    def test_fedpcl_hands_on_other_devices_in_every_round(self) -> None:
        server = FedPclServer()
        context = server.begin(to_numpy(make("fedpcl").initial()))
        seen = []
        for _ in range(3):
            models = [local_model(str(i), "0", prototypes__sum=np.full((3, 2), i), prototypes__share=np.ones(3)) for i in range(3)]
            context = server.absorb(context, models, {str(i): "0" for i in range(3)}, {})
            seen.append(server.received(context, {}, "0")["received/others.prototypes"][:, 0, 0].tolist())
        assert seen == [[0, 1], [2, 0], [1, 2]]

    def test_generator_learns_of_a_class_from_the_heads_that_know_it(self) -> None:
        rng = np.random.default_rng(0)
        weight, bias = rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=3).astype(np.float32)
        heads, counts = [(weight, bias), (-weight, -bias)], np.array([[10, 0, 0], [0, 20, 0]])
        generator = Generator(first_generator(rng, 8, 3, 16, 5), 3)
        generator.train(heads, counts, rng, steps=300, lr=0.01, batch=32)
        bank = generator.bank(rng, 50)
        for known, (weight, bias) in enumerate(heads):
            assert ((bank[:, known] @ weight.T + bias).argmax(1) == known).mean() > 0.95
        assert not np.array_equal(bank[0], bank[1])

    def test_diversity_is_the_double_loop(self) -> None:
        noise, made = torch.randn(6, 4), torch.randn(6, 5)
        slow = sum(float((noise[i] - noise[j]).square().mean() * (made[i] - made[j]).abs().mean()) for i in range(6) for j in range(6)) / 36
        assert float(diversity(noise, made)) == pytest.approx(np.exp(-slow), rel=1e-5)

    def test_fedgen_grows_weaker_and_repeats_to_the_bit(self) -> None:
        def run() -> Context:
            server = FedGenServer(generator_steps=4, generator_batch=8)
            context = server.begin(to_numpy(make("fedgen").initial()))
            assert float(server.received(context, {}, "0")["received/strength"]) == 0
            head = {"shared/head.weight": np.ones((3, 256), np.float32), "shared/head.bias": np.arange(3, dtype=np.float32)}
            for _ in range(2):
                model = LocalModel("a", 10, 1, "0", head, {"response/labels.share": np.array([0.5, 0.5, 0], np.float32)})
                context = server.absorb(context, [model], {"a": "0"}, {})
            return context

        context = run()
        received = FedGenServer().received(context, {}, "0")
        assert float(received["received/strength"]) == pytest.approx(0.98**2)
        np.testing.assert_array_equal(received["received/classes"], [1, 1, 0])
        assert all(np.array_equal(v, run().arrays[k]) for k, v in context.arrays.items())


def test_unknown_hessian_is_refused() -> None:
    with pytest.raises(ConfigError, match="hessian 'exact': expected none or free"):
        PerFedAvg(small_model(), hessian="exact")  # type: ignore[arg-type]
