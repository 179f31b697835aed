"""The steps of objectives that give every device a model of its own, against slow, ordinary
PyTorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from algorithms.objectives.dpsgd import ClippedExamples
from tests.contracts.objective import (
    CLASSES,
    SIZES,
    Device,
    assert_holds,
    assert_metrics,
    assert_used,
    batches,
    descend,
    features_of,
    make,
    sgd,
    small_model,
    step_both,
)
from wire.errors import ConfigError


class TestSteps:
    """Each step, several in a row, is what autograd and an optimiser do to a module."""

    def test_fedrep(self) -> None:
        device, module = Device(make("fedrep"), lr=0.05), small_model().train()
        optimiser = torch.optim.SGD(module.head.parameters(), lr=0.05, momentum=0.9)
        for batch in batches():
            device.run("head", batch)
            with torch.no_grad():
                z = features_of(
                    copy.deepcopy(module), batch["x"]
                )  # a body that stands still: its statistics do not move
            descend(optimiser, F.cross_entropy(module.head(z), batch["y"]))
        assert_holds(device.tensors, module)
        optimiser = torch.optim.SGD(module.extractor.parameters(), lr=0.05, momentum=0.9)
        step_both(device, "step", module, optimiser, batches(2))
        assert_holds(device.tensors, module)

    def test_fedbabu(self) -> None:
        device, module = Device(make("fedbabu"), lr=0.05), small_model().train()
        head = module.head.weight.detach().clone()
        optimiser = torch.optim.SGD(module.extractor.parameters(), lr=0.05, momentum=0.9)
        step_both(device, "step", module, optimiser, batches())
        assert_holds(device.tensors, module)
        assert torch.equal(device.tensors["private/head.weight"], head)
        device.tensors |= {
            k: torch.zeros_like(v) for k, v in device.tensors.items() if k.startswith("slot/")
        }
        optimiser = sgd(module)
        step_both(device, "tune", module, optimiser, batches(2))
        assert_holds(device.tensors, module)

    def test_fedrod(self) -> None:
        device, module = Device(make("fedrod"), lr=0.05), small_model().train()
        counts = torch.zeros(CLASSES)
        for batch in batches():
            counts += device.run("labels", batch)["metric/share"]
        assert counts.tolist() == [
            sum(int((b["y"] == c).sum()) for b in batches()) for c in range(CLASSES)
        ]
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
        assert_used(device, module.head(z) + personal(z), batch)

    def test_fedrod_with_a_class_that_the_device_lacks_stays_finite(self) -> None:
        device = Device(make("fedrod"), lr=0.05)
        device.tensors["private/share"] = torch.tensor([0.5, 0.5, 0.0])
        for batch in batches():
            device.run("step", batch)  # though it meets one: the count is older than the example
        assert all(torch.isfinite(v).all() for v in device.tensors.values())

    def test_ditto(self) -> None:
        device, shared, personal = (
            Device(make("ditto"), **{"lr": 0.05, "lambda": 0.7}),
            small_model().train(),
            small_model().train(),
        )
        device.scatter("private/personal.", 5)
        device.load(personal, "private/personal.")
        starts, optimiser = [p.detach().clone() for p in shared.parameters()], sgd(personal)
        for batch in batches():
            outputs = device.run("personal", batch)
            tie = sum(
                (p - s).square().sum() for p, s in zip(personal.parameters(), starts, strict=True)
            )
            logits = personal(batch["x"])
            loss = F.cross_entropy(logits, batch["y"]) + 0.35 * tie
            descend(optimiser, loss)
            assert_metrics(outputs, loss, logits, batch["y"])
        assert_holds(device.tensors, shared)
        optimiser = sgd(shared)
        step_both(device, "step", shared, optimiser, batches(2))
        assert_holds(device.tensors, shared)
        assert_holds(device.tensors, personal, "private/personal.")
        assert_used(device, personal.eval()(batches()[0]["x"]), batches()[0])

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
                tie = sum(
                    (t - w.detach()).square().sum()
                    for t, w in zip(theta.parameters(), local.parameters(), strict=True)
                )
                descend(optimiser, F.cross_entropy(theta(batch["x"]), batch["y"]) + 2.5 * tie)
            with torch.no_grad():
                for w, t in zip(local.parameters(), theta.parameters(), strict=True):
                    w.sub_(0.01 * 5.0 * (w - t))
        assert_holds(device.tensors, theta, "private/personal.")
        local.load_state_dict(
            {
                **local.state_dict(),
                **{k: v for k, v in theta.state_dict().items() if "running" in k},
            }
        )
        assert_holds(device.tensors, local)
        assert_used(device, theta.eval()(batches()[0]["x"]), batches()[0])

    def test_fedala(self) -> None:
        device, module = Device(make("fedala"), lr=0.05, toward_lr=0.4), small_model().train()
        device.scatter("private/before.", 8)
        layer = {name: p for name, p in module.named_parameters() if name.startswith("head.")}
        before = {name: device.tensors[f"private/before.{name}"].clone() for name in layer}
        toward = {name: torch.ones_like(p, requires_grad=True) for name, p in layer.items()}
        for batch in batches():
            still = copy.deepcopy(module)  # its statistics do not move
            start = {
                name: before[name] + (p.detach() - before[name]) * toward[name]
                for name, p in layer.items()
            }
            loss = F.cross_entropy(
                F.linear(features_of(still, batch["x"]), start["head.weight"], start["head.bias"]),
                batch["y"],
            )
            gradients = torch.autograd.grad(loss, list(toward.values()))
            device.run("toward", batch)
            with torch.no_grad():
                for weight, gradient in zip(toward.values(), gradients, strict=True):
                    weight.sub_(0.4 * gradient).clamp_(0.0, 1.0)
        assert all(((weight > 0) & (weight < 1)).any() for weight in toward.values()), (
            "nothing was learned between the two layers"
        )
        device.run("start")
        with torch.no_grad():
            for name, p in layer.items():
                p.copy_(before[name] + (p - before[name]) * toward[name])
        assert_holds(device.tensors, module)
        step_both(device, "step", module, sgd(module), batches(2))
        device.run("remember")
        assert_holds(device.tensors, module)
        for name, p in layer.items():
            torch.testing.assert_close(
                device.tensors[f"private/before.{name}"], p.detach(), rtol=1e-4, atol=1e-5
            )

    def test_fedala_with_clipped_examples_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="dp-sgd adds noise only to training steps"):
            ClippedExamples(make("fedala"), 1.0, 1.0)

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
            pairs = list(
                zip(mixture.parameters(), own.parameters(), shared.parameters(), strict=True)
            )
            with torch.no_grad():
                for m, v, w in pairs:
                    m.copy_(alpha * v + (1 - alpha) * w)
            logits = mixture(batch["x"])
            loss = F.cross_entropy(logits, batch["y"])
            assert_metrics(outputs, loss, logits, batch["y"])
            gradients = torch.autograd.grad(loss, list(mixture.parameters()))
            towards = sum(
                float(((v - w) * g).sum().detach())
                for (_, v, w), g in zip(pairs, gradients, strict=True)
            )
            for (_, v, _), g in zip(pairs, gradients, strict=True):
                v.grad = alpha * g
            own_sgd.step()
            descend(shared_sgd, F.cross_entropy(shared(batch["x"]), batch["y"]))
            alpha = min(1.0, max(0.0, alpha - 0.3 * towards))
        assert_holds(device.tensors, shared)
        own.load_state_dict(
            {
                **own.state_dict(),
                **{k: v for k, v in mixture.state_dict().items() if "running" in k},
            }
        )
        assert_holds(device.tensors, own, "private/personal.")
        assert float(device.tensors["private/alpha"]) == pytest.approx(alpha, rel=1e-4)
        assert alpha != 0.5
        with torch.no_grad():
            for m, v, w in zip(
                mixture.parameters(), own.parameters(), shared.parameters(), strict=True
            ):
                m.copy_(alpha * v + (1 - alpha) * w)
        assert_used(device, mixture.eval()(batches()[0]["x"]), batches()[0])
