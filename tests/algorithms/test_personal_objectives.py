"""The steps of objectives that give every device a model of its own, against slow, ordinary PyTorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from algorithms.models.har_cnn import HarCnn
from algorithms.objectives.apple import Apple
from algorithms.objectives.fedpcl import FedPCL
from algorithms.objectives.perfedavg import PerFedAvg
from tests.contracts.objective import (
    CLASSES,
    SIZES,
    Device,
    assert_holds,
    assert_metrics,
    batches,
    descend,
    features_of,
    make,
    sgd,
    small_model,
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


def test_unknown_hessian_is_refused() -> None:
    with pytest.raises(ConfigError, match="hessian 'exact': expected none or free"):
        PerFedAvg(small_model(), hessian="exact")  # type: ignore[arg-type]
