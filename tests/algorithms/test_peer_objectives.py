"""The steps of objectives that give a device its peers' models, against slow, ordinary PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from algorithms.objectives.apple import Apple
from algorithms.objectives.fedpcl import FedPCL
from tests.contracts.objective import (
    CLASSES,
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


class TestSteps:
    """Each step, several in a row, is what autograd and an optimiser do to a module."""

    def test_fedfomo(self) -> None:
        device = Device(make("fedfomo"), lr=0.05)
        for batch in batches():
            device.run("step", batch)
        for key in [k for k in device.tensors if k.startswith("received/others.")]:
            name = key.removeprefix("received/others.")
            mine = next(
                device.tensors[k]
                for k in (f"shared/{name}", f"statistic/{name}")
                if k in device.tensors
            )
            device.tensors[key] = torch.stack([small_model(9).state_dict()[name], mine * 1.02])
        device.tensors["received/present"] = torch.ones(2)
        own, stranger, near = small_model().eval(), small_model(9).eval(), small_model().eval()
        device.load(own)
        near.load_state_dict(
            {
                k: v * 1.02 if v.is_floating_point() and "scale" not in k else v
                for k, v in own.state_dict().items()
            }
        )
        held_out = batches(5)[0]
        found = device.run("candidates", held_out)["metric/loss"]
        losses = [
            F.cross_entropy(m(held_out["x"]), held_out["y"], reduction="sum").detach()
            for m in (own, stranger, near)
        ]
        torch.testing.assert_close(found, torch.stack(losses), rtol=1e-4, atol=1e-5)
        values = torch.tensor([1.0, 0.9, 0.4])  # as if both others were better
        device.tensors["response/candidates.loss"] = values
        outputs = device.run("mix")
        distances = [
            torch.cat(
                [
                    (a - b).flatten()
                    for a, b in zip(other.parameters(), own.parameters(), strict=True)
                ]
            ).norm()
            for other in (stranger, near)
        ]
        weights = torch.stack([(values[0] - values[n]) / distances[n - 1] for n in (1, 2)]).detach()
        torch.testing.assert_close(outputs["metric/weights"], weights, rtol=1e-4, atol=1e-6)
        shares = weights / weights.sum()
        mixed = small_model()
        mixed.load_state_dict(
            {
                k: v
                + shares[0] * (stranger.state_dict()[k] - v)
                + shares[1] * (near.state_dict()[k] - v)
                if v.is_floating_point()
                else v
                for k, v in own.state_dict().items()
            }
        )
        assert_holds(device.tensors, mixed)

    def test_fedfomo_takes_nothing_from_worse_or_absent_models(self) -> None:
        device = Device(make("fedfomo"))
        before = dict(device.tensors)
        device.tensors |= {
            "response/candidates.loss": torch.tensor([0.5, 0.1, 0.9]),
            "received/present": torch.tensor([0.0, 1.0]),
        }
        outputs = device.run("mix")
        assert outputs["metric/weights"][0] == 0
        assert outputs["metric/weights"][1] < 0
        assert all(
            torch.equal(before[k], v)
            for k, v in device.tensors.items()
            if k in before and k.startswith(("shared/", "statistic/"))
        )

    def test_apple(self) -> None:
        device, core = (
            Device(Apple(small_model(), num_others=3), lr=0.02, momentum=0.9, dr_lr=0.01, mu=0.5),
            small_model(),
        )
        others = [small_model(8), small_model(9)]
        for n, _ in core.named_parameters():
            device.tensors[f"received/others.{n}"] = torch.stack(
                [dict(o.named_parameters())[n].detach() for o in others]
            )
        for key in [
            k for k in device.tensors if k.startswith("received/others.")
        ]:  # a third is absent, whatever lies in its place
            device.tensors[key] = torch.cat(
                [device.tensors[key], torch.ones_like(device.tensors[key][:1])]
            )
        device.tensors |= {
            "received/present": torch.tensor([1.0, 1.0, 0.0]),
            "received/prior": torch.tensor([0.5, 0.2, 0.3, 0.0]),
        }
        device.tensors |= {
            "received/schedule": torch.tensor(0.8),
            "private/relation": torch.tensor([0.05, -0.1, 0.02, 0.5]),
        }
        prior, p, personal = (
            torch.tensor([0.5, 0.2, 0.3]),
            torch.tensor([0.55, 0.1, 0.32]),
            small_model().train(),
        )
        optimiser = sgd(core, lr=0.02, momentum=0.9)
        cores = [core, *others]
        for batch in batches():
            device.run("step", batch)
            with torch.no_grad():
                for m, *parts in zip(
                    personal.parameters(), *(c.parameters() for c in cores), strict=True
                ):
                    m.copy_(sum(weight * part for weight, part in zip(p, parts, strict=True)))
            gradients = torch.autograd.grad(
                F.cross_entropy(personal(batch["x"]), batch["y"]), list(personal.parameters())
            )
            towards = torch.stack(
                [
                    sum(
                        ((g * w).sum() for g, w in zip(gradients, c.parameters(), strict=True)),
                        torch.zeros(()),
                    ).detach()
                    for c in cores
                ]
            )
            for w, g in zip(core.parameters(), gradients, strict=True):
                w.grad = p[0] * g
            optimiser.step()
            p = p - 0.01 * (towards + 0.8 * 0.5 * (p - prior))
        core.load_state_dict(
            {
                **core.state_dict(),
                **{k: v for k, v in personal.state_dict().items() if "running" in k},
            }
        )
        assert_holds(device.tensors, core)
        torch.testing.assert_close(
            device.tensors["private/relation"][:3], p - prior, rtol=1e-3, atol=1e-5
        )
        with torch.no_grad():
            for m, *parts in zip(
                personal.parameters(), *(c.parameters() for c in cores), strict=True
            ):
                m.copy_(sum(weight * part for weight, part in zip(p, parts, strict=True)))
        assert_used(device, personal.eval()(batches()[0]["x"]), batches()[0])

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
        mean, sets = (
            torch.randn(CLASSES, width, generator=draw),
            torch.randn(3, CLASSES, width, generator=draw),
        )
        device.tensors |= {"received/prototypes": mean, "received/known": torch.ones(CLASSES)}
        device.tensors |= {
            "received/others.prototypes": sets,
            "received/others.known": torch.tensor([[1.0, 1, 1], [1, 0, 1], [0, 0, 0]]),
        }
        completed = [sets[0], torch.stack([sets[1, 0], mean[1], sets[1, 2]])]
        optimiser = torch.optim.SGD(module.extractor.parameters(), lr=0.05, momentum=0.9)
        for batch in batches():
            outputs = device.run("step", batch)
            z = F.normalize(features_of(module, batch["x"]), dim=1)
            contrasts = [
                F.cross_entropy(z @ F.normalize(c, dim=1).T / 0.07, batch["y"])
                for c in (mean, *completed)
            ]
            loss = contrasts[0] + (contrasts[1] + contrasts[2]) / 2
            descend(optimiser, loss)
            assert_metrics(outputs, loss, z @ F.normalize(mean, dim=1).T, batch["y"])
        assert_holds(device.tensors, module)

    def test_fedpcl_keeps_the_mean_of_each_class_and_predicts_the_nearest(self) -> None:
        device, module = Device(make("fedpcl")), small_model().eval()
        batch = {
            "x": batches()[0]["x"],
            "y": torch.tensor([0, 0, 2, 2, 2, 0, 2, 0]),
        }  # class 1 is not there
        device.run("prototypes", batch)
        device.run("keep")
        with torch.no_grad():
            z = F.normalize(features_of(module, batch["x"]), dim=1)
        means = torch.stack(
            [z[batch["y"] == 0].mean(0), torch.zeros(z.shape[1]), z[batch["y"] == 2].mean(0)]
        )
        torch.testing.assert_close(
            device.tensors["private/prototypes"], means, rtol=1e-4, atol=1e-6
        )
        similar = z @ F.normalize(means, dim=1).T / 0.07
        similar[:, 1] = -torch.inf
        probabilities = device.run("predict", batch)["output/probabilities"]
        torch.testing.assert_close(probabilities, torch.softmax(similar, 1), rtol=1e-3, atol=1e-5)
        outputs = device.run("evaluate", batch)
        expected = F.nll_loss(probabilities.clamp(min=1e-6).log(), batch["y"], reduction="sum")
        assert float(outputs["metric/loss_sum"]) == pytest.approx(float(expected), rel=1e-4)

    def test_fedpcl_without_prototypes_learns_nothing_and_stays_finite(self) -> None:
        device = Device(make("fedpcl"))
        before = {
            k: v
            for k, v in device.tensors.items()
            if not k.endswith(("running_mean", "running_var"))
        }
        device.run("step", batches()[0])
        assert all(torch.equal(v, device.tensors[k]) for k, v in before.items())
