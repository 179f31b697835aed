"""FedDisk's graphs: each step against a plain PyTorch reference, and in ONNX against itself."""

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from algorithms.models.made import Made
from algorithms.objectives.feddisk import FedDisk
from algorithms.objectives.feddisk_ab import FedDiskAb
from algorithms.objectives.supervised import Supervised
from export.bundle import capture_graphs
from export.describe import example_inputs, named
from tests.algorithms.feddisk_cases import HYPER, SHAPE, advance, make_batch, small_model
from wire.errors import ConfigError


def test_the_density_step_is_plain_sgd_on_made() -> None:
    objective = FedDisk(small_model(), density_units=6)
    tensors, hyper = objective.initial(), HYPER
    reference = Made(32, 6)
    reference.load_state_dict(
        {
            k.removeprefix("shared/made."): v
            for k, v in tensors.items()
            if k.startswith("shared/made.")
        },
        strict=False,
    )
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.02)
    for i in range(5):
        batch = make_batch(8, i)
        x = torch.sigmoid(2 * objective.model.scale(batch["x"])).flatten(1)
        loss = F.binary_cross_entropy_with_logits(reference(x), x, reduction="sum") / 8
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs = objective.graphs()["density"](tensors, batch, hyper)
        assert float(outputs["metric/loss_sum"]) == pytest.approx(
            float(loss.detach()) * 8, rel=1e-5
        )
        tensors = advance(tensors, outputs)
    for name, value in reference.named_parameters():
        torch.testing.assert_close(tensors[f"shared/made.{name}"], value.detach())


def test_the_weighted_step_equals_a_pytorch_loop() -> None:
    model = small_model()
    objective = FedDisk(model)
    tensors, reference = objective.initial(), small_model()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    reference.train()
    for i in range(5):
        batch = make_batch(9, i)
        losses = F.cross_entropy(reference(batch["x"]), batch["y"], reduction="none")
        optimizer.zero_grad()
        (losses * batch["weight"]).mean().backward()
        optimizer.step()
        tensors = advance(tensors, objective.graphs()["step"](tensors, batch, HYPER))
    for name, value in reference.named_parameters():
        torch.testing.assert_close(tensors[f"shared/{name}"], value.detach(), rtol=1e-4, atol=1e-6)


def test_the_binary_classifier_learns_as_a_pytorch_loop_over_both_outputs() -> None:
    objective = FedDisk(small_model(), density_units=6)
    tensors = objective.initial()
    tensors["slot/best_made.output.bias"] = torch.randn(32)
    reference = nn.Sequential(nn.Linear(32, 100), nn.ReLU(), nn.Linear(100, 2))
    reference.load_state_dict(
        {
            k.removeprefix("slot/ratio."): v
            for k, v in tensors.items()
            if k.startswith("slot/ratio.")
        }
    )
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for i in range(4):
        batch = make_batch(8, i)
        u = torch.cat(
            [
                objective.outputs(tensors, batch, prefix)
                for prefix in ("shared/made.", "slot/best_made.")
            ]
        )
        labels = torch.cat([torch.ones(8), torch.zeros(8)]).long()
        logits = reference(u)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs = objective.graphs()["ratio"](tensors, batch, HYPER)
        assert float(outputs["metric/loss_sum"]) == pytest.approx(
            float(loss.detach()) * 8, rel=1e-5
        )
        assert float(outputs["metric/num_correct"]) * 2 == float((logits.argmax(1) == labels).sum())
        tensors = advance(tensors, outputs)
    for name, value in reference.named_parameters():
        torch.testing.assert_close(
            tensors[f"slot/ratio.{name}"], value.detach(), rtol=1e-4, atol=1e-6
        )
    p = torch.softmax(reference(objective.outputs(tensors, batch, "slot/best_made.")), 1)[:, 1]
    found = objective.graphs()["weigh"](tensors, batch, HYPER)["output/weight"]
    torch.testing.assert_close(found, (p / (1 - p)).detach(), rtol=1e-4, atol=1e-6)
    mean = objective.graphs()["mean_weight"](tensors, batch, HYPER)["metric/mean"] / 8
    to_one = objective.graphs()["weigh_to_mean_one"](
        {**tensors, "response/mean_weight.mean": mean}, batch, HYPER
    )["output/weight"]
    assert float(to_one.mean()) == pytest.approx(1.0, abs=1e-5)


def test_the_best_local_density_model_is_kept() -> None:
    objective = FedDisk(small_model(), density_units=6)
    tensors = objective.initial()
    keep = objective.graphs()["keep_best"]
    for loss, mark in ((5.0, 1.0), (3.0, 2.0), (4.0, 3.0), (float("nan"), 4.0)):
        tensors["slot/local_made.output.bias"] = torch.full((32,), mark)
        tensors = advance(
            tensors, keep({**tensors, "response/local_validate.loss": torch.tensor(loss)}, {}, {})
        )
    assert float(tensors["slot/least_loss"]) == 3.0
    assert tensors["slot/best_made.output.bias"].tolist() == [2.0] * 32


def test_a_bound_keeps_weights_finite() -> None:
    objective = FedDisk(small_model(), max_weight=10.0)
    tensors = objective.initial()
    for sign, expected in ((1.0, 10.0), (-1.0, 0.1)):
        tensors["slot/ratio.2.bias"] = torch.tensor([-300.0, 300.0]) * sign
        weights = objective.graphs()["weigh"](tensors, make_batch(5), HYPER)["output/weight"]
        np.testing.assert_allclose(weights.detach().numpy(), expected, rtol=1e-5)


def test_what_a_graph_changes_and_what_leaves_the_device() -> None:
    objective = FedDisk(small_model())
    tensors, batch = objective.initial(), make_batch(6)
    roles: dict[str, set[str]] = {}
    for name in ("step", "density", "local_density", "ratio"):
        outputs = objective.graphs()[name](tensors, batch, HYPER)
        roles[name] = {k.removeprefix("next/") for k in outputs if k.startswith("next/")}
    made = {k for k in tensors if k.startswith("shared/made.")}
    assert roles["density"] == made
    assert {k for k in roles["step"] if k.startswith("shared/")} == {
        k for k in tensors if k.startswith("shared/")
    } - made
    assert all(k.startswith("slot/local_made.") for k in roles["local_density"])
    assert all(k.startswith("slot/ratio.") for k in roles["ratio"])
    assert not any(k.startswith("private/") for k in tensors)


def test_made_does_not_touch_the_random_state() -> None:
    made = []
    for seed in (1, 2):
        model = small_model()
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        made.append(FedDisk(model).initial())
        assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(value, made[1][key]) for key, value in made[0].items())


def test_what_cannot_be_made_is_refused() -> None:
    model = small_model()
    model.shape = ()
    with pytest.raises(
        ConfigError, match=r"feddisk needs the shape of one example. Set the model's `shape`"
    ):
        FedDisk(model)


def check_graphs(objective: Supervised, window: tuple[int, ...]) -> None:
    """Every graph's ONNX equals the function itself, for several batch sizes."""
    exported = capture_graphs(objective, window)
    inputs = example_inputs(objective, window)
    functions: dict[str, Callable[[TorchTensors], TorchTensors]] = {
        n: named(f) for n, f in objective.graphs().items()
    }
    assert set(exported.graphs) == set(functions)
    for name, captured in exported.graphs.items():
        session = onnxruntime.InferenceSession(captured.onnx, providers=["CPUExecutionProvider"])
        for size in (2, 7, 32):
            generator = torch.Generator().manual_seed(size)
            given = dict(inputs)
            given |= {
                f"response/{g}.{n}": torch.rand(v.shape) + 0.5
                for g, c in exported.graphs.items()
                for n, v in metrics_of(c.shapes)
            }
            given |= {
                key: torch.randn(v.shape, generator=generator) / 10
                for key, v in inputs.items()
                if key.startswith("received/")
            }
            given["batch/x"] = torch.randn(size, *window, generator=generator)
            given["batch/y"] = torch.randint(0, 2, (size,), generator=generator)
            for key, shape in (*objective.columns.items(), *objective.random.items()):
                given[f"batch/{key}"] = torch.rand(size, *shape, generator=generator)
            with torch.no_grad():
                expected = functions[name](given)
            found = session.run(None, {k: given[k].numpy() for k in captured.inputs})
            for key, value in zip(captured.outputs, found, strict=True):
                np.testing.assert_allclose(
                    value,
                    expected[key].numpy(),
                    rtol=2e-3,
                    atol=2e-5,
                    err_msg=f"{name} {key} {size}",
                )


def metrics_of(outputs: TorchTensors) -> list[tuple[str, Tensor]]:
    return [(k.removeprefix("metric/"), v) for k, v in outputs.items() if k.startswith("metric/")]


@pytest.mark.slow
def test_graphs_of_feddisk_run_on_a_device() -> None:
    check_graphs(FedDisk(small_model(), density_units=5, density_features=16), SHAPE)


@pytest.mark.full
def test_graphs_of_the_ablation_run_on_a_device() -> None:
    check_graphs(FedDiskAb(small_model()), SHAPE)
