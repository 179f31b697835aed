"""The steps of Per-FedAvg, with and without the Hessian, against slow, ordinary PyTorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.core.contract import ObjectiveMemory, TorchTensors, Work
from algorithms.models.har_cnn import HarCnn
from algorithms.objectives.perfedavg import PerFedAvg, PerFedAvgServer
from tests.contracts.objective import (
    Device,
    assert_holds,
    batches,
    make,
    sgd,
    small_model,
    step_both,
)
from wire.errors import ConfigError
from wire.messages import Evaluate, Train


class TestSteps:
    """Each step, several in a row, is what autograd and an optimiser do to a module."""

    @pytest.mark.parametrize("name", ["perfedavg", "perfedavg-free"])
    def test_perfedavg(self, name: str) -> None:
        device, module = (
            Device(make(name), lr=0.05, momentum=0.5, inner_lr=0.1, delta=0.01),
            small_model().train(),
        )
        optimiser = sgd(module, momentum=0.5)

        def gradients(
            at: nn.Module, batch: TorchTensors, first: int
        ) -> tuple[list[Tensor], Tensor]:
            logits = at(batch["x"])
            loss = F.cross_entropy(logits[first::2], batch["y"][first::2])
            return [
                g.detach() for g in torch.autograd.grad(loss, list(at.parameters()))
            ], loss.detach()

        def shifted(by: list[Tensor], size: float) -> HarCnn:
            other = copy.deepcopy(module)
            with torch.no_grad():
                for p, d in zip(other.parameters(), by, strict=True):
                    p.add_(size * d)
            return other

        for batch in batches():
            outputs = device.run("step", batch)
            inner, before = gradients(module, batch, 0)
            adapted = shifted(inner, -0.1)
            outer, after = gradients(adapted, batch, 1)
            if name == "perfedavg-free":
                ahead, _ = gradients(shifted(outer, 0.01), batch, 0)
                behind, _ = gradients(shifted(outer, -0.01), batch, 0)
                outer = [
                    g - 0.1 * (a - b) / 0.02 for g, a, b in zip(outer, ahead, behind, strict=True)
                ]
            for p, g in zip(module.parameters(), outer, strict=True):
                p.grad = g
            optimiser.step()
            for buffer, met in zip(module.buffers(), adapted.buffers(), strict=True):
                buffer.copy_(met)
            size = len(batch["y"])
            expected = float(before) * ((size + 1) // 2) + float(after) * (size // 2)
            assert float(outputs["metric/loss_sum"]) == pytest.approx(expected, rel=1e-4)
            if (
                name == "perfedavg-free"
            ):  # a difference of gradients magnifies rounding: from here on both start alike
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
        hyper = {
            k: torch.tensor(v, dtype=torch.float64)
            for k, v in {"lr": 1.0, "momentum": 0.0, "inner_lr": 0.1, "delta": 1e-8}.items()
        }
        following = objective.step(tensors, batch, hyper)
        module = copy.deepcopy(model).train()
        parameters = list(module.parameters())

        def loss(at: nn.Module, first: int) -> Tensor:
            return F.cross_entropy(at(batch["x"])[first::2], batch["y"][first::2])

        inner = torch.autograd.grad(loss(module, 0), parameters, create_graph=True)
        adapted = copy.deepcopy(model).train()
        with torch.no_grad():
            for p, g in zip(adapted.parameters(), inner, strict=True):
                p.sub_(0.1 * g)
        outer = torch.autograd.grad(loss(adapted, 1), list(adapted.parameters()))
        curved = torch.autograd.grad(
            sum(((g * v).sum() for g, v in zip(inner, outer, strict=True)), torch.zeros(())),
            parameters,
        )
        for (name, p), g, h in zip(module.named_parameters(), outer, curved, strict=True):
            torch.testing.assert_close(
                following[f"next/shared/{name}"], (p - (g - 0.1 * h)).detach(), rtol=1e-4, atol=1e-5
            )

    def test_perfedavg_adapts_by_plain_sgd(self) -> None:
        device, module = Device(make("perfedavg"), inner_lr=0.05), small_model().train()
        optimiser = sgd(module, momentum=0.0)
        step_both(device, "adapt", module, optimiser, batches())
        assert_holds(device.tensors, module)


@pytest.mark.parametrize(
    ("options", "epochs", "steps"),
    [({}, 1, None), ({"fine_tune_epochs": 3}, 3, None), ({"adapt_steps": 1}, 1, 1)],
)
def test_devices_adapt_over_passes_or_over_batches(
    options: dict[str, int], epochs: int, steps: int | None
) -> None:
    adapt, evaluate = PerFedAvgServer(**options).closing(ObjectiveMemory(), Work(16, 5))
    assert isinstance(adapt, Train)
    assert (adapt.graph, adapt.epochs, adapt.steps, adapt.report) == ("adapt", epochs, steps, False)
    assert isinstance(evaluate, Evaluate)


def assert_close_to(device: Device, module: nn.Module, rtol: float) -> None:
    for name, value in module.named_parameters():
        scale = max(float(value.detach().abs().max()), 1e-2)
        assert (
            float((device.tensors[f"shared/{name}"] - value.detach()).abs().max()) < rtol * scale
        ), name


def test_unknown_hessian_is_refused() -> None:
    with pytest.raises(ConfigError, match="hessian must be none or free, got 'exact'"):
        PerFedAvg(small_model(), hessian="exact")
