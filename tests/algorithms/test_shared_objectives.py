"""The steps of objectives that train one shared model, and of DBE on top of them, against slow,
ordinary PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.models.classifier import Classifier
from algorithms.objectives.dbe import MeanRegulariser, PrivateBias
from algorithms.objectives.fedavg import FedAvg
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
)
from tests.support.known import known


def classifier_with_layers() -> Classifier:
    """A representation of 6 values and a head of two layers."""
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.ReLU())
    return Classifier(
        nn.Identity(), extractor, nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    )


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
            tie = sum(
                (p - s).square().sum() for p, s in zip(module.parameters(), starts, strict=True)
            )
            descend(optimiser, F.cross_entropy(module(batch["x"]), batch["y"]) + 0.25 * tie)
        assert_holds(device.tensors, module)

    def test_scaffold(self) -> None:
        device, module = Device(make("scaffold"), lr=0.05, momentum=0.5), small_model().train()
        device.scatter("private/control.", 1)
        device.scatter("received/control.", 2)
        own = {n: device.tensors[f"private/control.{n}"] for n, _ in module.named_parameters()}
        server = {n: device.tensors[f"received/control.{n}"] for n, _ in module.named_parameters()}
        sums, optimiser = (
            {n: torch.zeros_like(p) for n, p in module.named_parameters()},
            sgd(module, momentum=0.5),
        )
        for batch in batches():
            device.run("step", batch)
            optimiser.zero_grad()
            F.cross_entropy(module(batch["x"]), batch["y"]).backward()
            for n, p in module.named_parameters():
                gradient = known(p.grad)
                sums[n] += gradient
                gradient += server[n] - own[n]
            optimiser.step()
        assert_holds(device.tensors, module)
        device.run("conclude")
        for n in own:
            torch.testing.assert_close(
                device.tensors[f"private/control.{n}"], sums[n] / len(SIZES), rtol=1e-4, atol=1e-6
            )
            torch.testing.assert_close(
                device.tensors[f"response/conclude.change.{n}"],
                sums[n] / len(SIZES) - own[n],
                rtol=1e-4,
                atol=1e-6,
            )

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
            torch.testing.assert_close(
                device.tensors[f"private/control.{n}"], expected, rtol=1e-3, atol=1e-4
            )

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
                z_received, z_previous = (
                    features_of(received, batch["x"]),
                    features_of(previous, batch["x"]),
                )
            similar = (
                torch.stack(
                    [F.cosine_similarity(z, z_received), F.cosine_similarity(z, z_previous)], 1
                )
                / 0.5
            )
            contrast = F.cross_entropy(similar, torch.zeros(len(z), dtype=torch.int64))
            descend(optimiser, F.cross_entropy(module.head(z), batch["y"]) + 2.0 * contrast)
        assert_holds(device.tensors, module)
        device.run("remember")
        assert_holds(device.tensors, module, "private/previous.")

    def test_fedgen(self) -> None:
        device, module = Device(make("fedgen"), lr=0.05, alpha=2.0, beta=3.0), small_model().train()
        bank = torch.randn(
            4, CLASSES, module.head.in_features, generator=torch.Generator().manual_seed(4)
        )
        device.tensors |= {
            "received/bank": bank,
            "received/classes": torch.tensor([1.0, 1.0, 0.0]),
            "received/strength": torch.tensor(0.5),
        }
        has, optimiser = torch.tensor([True, True, False]), sgd(module)
        for number, batch in enumerate(batches()):
            device.run("step", batch)
            logits = module(batch["x"])
            rows = [(2 * number + i) % 4 for i in range(2)]
            drawn = torch.cat([bank[row][has] for row in rows])
            on_drawn = F.cross_entropy(module.head(drawn), torch.tensor([0, 1, 0, 1]))
            alike: Tensor | float = 0.0
            for i, y in enumerate(batch["y"].tolist()):
                if has[y]:
                    target = torch.softmax(module.head(bank[(number + i) % 4, y]), 0).detach()
                    alike = alike + F.kl_div(
                        torch.log_softmax(logits[i], 0), target, reduction="sum"
                    )
            descend(
                optimiser,
                F.cross_entropy(logits, batch["y"])
                + 0.5 * (2.0 * on_drawn + 3.0 * alike / len(logits)),
            )
        assert_holds(device.tensors, module)

    @pytest.mark.parametrize("name", ["fedavg+dbe", "fedper+mr"])
    def test_domain_bias(self, name: str) -> None:
        device, module = (
            Device(make(name), lr=0.05, kappa=3.0, mean_momentum=0.4),
            small_model().train(),
        )
        device.scatter("received/consensus", 4, size=0.5)
        consensus, mean = device.tensors["received/consensus"], torch.zeros(module.head.in_features)
        bias = nn.Parameter(
            torch.zeros(module.head.in_features), requires_grad=name.endswith("dbe")
        )
        optimiser = torch.optim.SGD(
            [*module.parameters(), *([bias] if bias.requires_grad else [])], lr=0.05, momentum=0.9
        )
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
            torch.testing.assert_close(
                device.tensors["private/bias"], bias.detach(), rtol=1e-4, atol=1e-6
            )
            module.eval()
            batch = batches()[0]
            expected = torch.softmax(module.head(features_of(module, batch["x"]) + bias), 1)
            torch.testing.assert_close(
                device.run("predict", batch)["output/probabilities"],
                expected.detach(),
                rtol=1e-4,
                atol=1e-6,
            )

    def test_domain_bias_before_a_head_of_several_layers(self) -> None:
        model = classifier_with_layers()
        objective = FedAvg(model)
        PrivateBias(objective)
        MeanRegulariser(objective)
        device, module = (
            Device(objective, lr=0.05, kappa=3.0, mean_momentum=0.4),
            classifier_with_layers(),
        )
        device.scatter("received/consensus", 4, size=0.5)
        consensus, mean, bias = (
            device.tensors["received/consensus"],
            torch.zeros(6),
            nn.Parameter(torch.zeros(6)),
        )
        optimiser = torch.optim.SGD([*module.parameters(), bias], lr=0.05, momentum=0.9)
        for batch in batches():
            device.run("step", batch)
            z = module.extractor(batch["x"])
            mean = 0.6 * mean.detach() + 0.4 * z.mean(0)
            descend(
                optimiser,
                F.cross_entropy(module.head(z + bias), batch["y"])
                + 3.0 * F.mse_loss(mean, consensus) / 2,
            )
        assert device.tensors["private/bias"].abs().max() > 0
        torch.testing.assert_close(
            device.tensors["private/bias"], bias.detach(), rtol=1e-4, atol=1e-6
        )
        assert_holds(device.tensors, module)
        batch = batches()[0]
        assert_used(device, module.head(module.extractor(batch["x"]) + bias), batch)

    def test_the_consensus_is_what_a_pass_in_training_leaves(self) -> None:
        device, module = (
            Device(make("fedavg+dbe"), lr=0.05, mean_momentum=0.4),
            small_model().train(),
        )
        mean, optimiser = torch.zeros(module.head.in_features), sgd(module)
        for batch in batches():
            device.run("warm", batch)
            z = features_of(module, batch["x"])
            mean = 0.6 * mean + 0.4 * z.mean(0).detach()
            descend(optimiser, F.cross_entropy(module.head(z), batch["y"]))
        device.run("represent")
        torch.testing.assert_close(
            device.tensors["response/represent.mean"], mean, rtol=1e-4, atol=1e-6
        )
        with torch.no_grad():
            stale = features_of(module.eval(), torch.cat([b["x"] for b in batches()])).mean(0)
        assert (device.tensors["response/represent.mean"] - stale).abs().max() > 0.01

    @pytest.mark.parametrize("base", ["fedavg", "fedprox", "scaffold", "moon", "fedgen"])
    def test_warm_is_a_step_of_the_objective_alone(self, base: str) -> None:
        device, alone = Device(make(f"{base}+dbe")), Device(make(base))
        device.scatter("received/consensus", 4)
        for batch in batches():
            device.run("warm", batch)
            alone.run("step", batch)
        for key, value in alone.tensors.items():
            if key.startswith(("shared/", "statistic/")):
                torch.testing.assert_close(device.tensors[key], value, rtol=1e-4, atol=1e-6)
        assert not device.tensors["private/bias"].any()
