"""CGAU: its units against a plain module, what leaves the device, dropout, the frozen extractor,
and the XOR of appendix A."""

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from algorithms.core.contract import TorchTensors
from algorithms.models.adoption.dropout import dropping
from algorithms.models.classifier import Classifier, Scale
from algorithms.models.gated import GatedUnits, OnFrozen, freeze
from algorithms.objectives.cgau import Cgau
from algorithms.objectives.supervised import Supervised
from benchmarks.papers.cgau import First, federate, least_accuracy
from benchmarks.papers.xor import switched_off, xor_clients
from export.bundle import capture_graphs
from export.describe import example_inputs, named
from simulation.datasets.pool import Pool
from simulation.pretrain import pretrain
from tests.support.known import known
from wire.bundle import Window
from wire.errors import ConfigError

SHAPE = (2, 16)
HYPER = {"lr": torch.tensor(0.05), "momentum": torch.tensor(0.9), "dropout": torch.tensor(0.5)}
PRIVATE = {
    f"private/extractor.units{i}.{kind}_shift" for i in (1, 2) for kind in ("filter", "gate")
}


def pretrained(seed: int = 0) -> Classifier:
    """A network with everything that freezing must change: BatchNorm with statistics of its own,
    dropout, convolutions."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(4)
    extractor = nn.Sequential(
        nn.Conv1d(2, 4, 3), norm, nn.ReLU(), nn.Dropout(0.3), nn.AvgPool1d(2), nn.Flatten()
    )
    with torch.no_grad():
        known(norm.running_mean).copy_(torch.randn(4))
        known(norm.running_var).copy_(torch.rand(4) + 0.5)
        norm.weight.copy_(torch.rand(4) + 0.5)
        norm.bias.copy_(torch.randn(4))
    return Classifier(Scale(torch.tensor([1.0, 2.0])), extractor, nn.Linear(28, 5))


def make_batch(objective: Supervised, size: int, seed: int = 0) -> TorchTensors:
    generator = torch.Generator().manual_seed(seed)
    drawn = {
        name: torch.rand(size, *shape, generator=generator)
        for name, shape in objective.random.items()
    }
    return {
        "x": torch.randn(size, *SHAPE, generator=generator),
        "y": torch.arange(size) % 3,
        **drawn,
    }


def advance(tensors: TorchTensors, outputs: TorchTensors) -> TorchTensors:
    return tensors | {
        k.removeprefix("next/"): v.detach() for k, v in outputs.items() if k.startswith("next/")
    }


# Models


def test_a_gated_unit_is_what_its_equation_says() -> None:
    torch.manual_seed(0)
    units = GatedUnits(5, 3)
    with torch.no_grad():
        for parameter in units.parameters():
            parameter.copy_(torch.randn_like(parameter))
    own = {name: value.detach().numpy() for name, value in units.named_parameters()}
    x = torch.randn(4, 5)
    filtered = x.numpy() @ own["filter.weight"].T + own["filter.bias"] + own["filter_shift"]
    gated = x.numpy() @ own["gate.weight"].T + own["gate.bias"] + own["gate_shift"]
    np.testing.assert_allclose(
        units(x).detach().numpy(), np.tanh(filtered) / (1 + np.exp(-gated)), rtol=1e-5
    )


def test_freezing_keeps_what_a_network_does_outside_training() -> None:
    model = pretrained().eval()
    frozen = freeze(model.extractor)
    x = torch.randn(6, *SHAPE)
    for training in (True, False):
        frozen.train(training)
        torch.testing.assert_close(frozen(x), model.extractor(x))
    assert not list(frozen.parameters())
    assert isinstance(model.extractor.get_submodule("1"), nn.BatchNorm1d)
    assert len(list(model.parameters())) == 6


def test_freezing_takes_other_shapes_of_networks() -> None:
    layer = nn.BatchNorm2d(3, affine=False)
    layer(torch.randn(5, 3, 4, 4))
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(freeze(layer)(x), layer.eval()(x))
    with pytest.raises(ConfigError, match="no running statistics"):
        freeze(nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)))
    with pytest.raises(ConfigError, match="not BatchNorm"):
        freeze(nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True)))


def test_a_classifier_on_a_frozen_extractor_has_its_parts() -> None:
    model = OnFrozen(pretrained(), 3, units=7)
    x = torch.randn(4, *SHAPE)
    torch.testing.assert_close(model.head(model.extractor(model.scale(x))), model(x))
    features = pretrained().eval().extractor(x / torch.tensor([[1.0], [2.0]]))
    units1, units2 = (model.extractor.get_submodule(f"units{i}") for i in (1, 2))
    torch.testing.assert_close(model(x), model.head(units2(units1(features))))
    assert not any("frozen" in name for name, _ in model.named_parameters())
    wide = OnFrozen(pretrained(), 3, units=7, layers=1, conditioned=False)
    assert {n for n, _ in wide.named_parameters() if "shift" in n} == set()


def test_without_conditioning_nothing_is_private() -> None:
    for model in (
        OnFrozen(pretrained(), 3, conditioned=False),
        OnFrozen(pretrained(), 3, gated=False),
    ):
        assert {k.split("/")[0] for k in Cgau(model).initial()} == {"shared", "slot"}


def test_the_baseline_is_a_network_of_relu() -> None:
    model = OnFrozen(pretrained(), 3, gated=False, units=6)
    x = torch.randn(4, *SHAPE)
    features = pretrained().eval().extractor(x / torch.tensor([[1.0], [2.0]]))
    first, second = (model.extractor.get_submodule(f"units{i}.linear") for i in (1, 2))
    torch.testing.assert_close(model(x), model.head(F.relu(second(F.relu(first(features))))))


# The objective


def test_what_a_step_changes_and_what_leaves_the_device() -> None:
    objective = Cgau(OnFrozen(pretrained(), 3, units=8))
    tensors = objective.initial()
    changed = {
        k.removeprefix("next/")
        for k in objective.step(tensors, make_batch(objective, 6), HYPER)
        if k.startswith("next/")
    }
    assert {k for k in changed if k.startswith("private/")} == PRIVATE
    shared = {
        f"shared/extractor.units{i}.{n}.{p}"
        for i in (1, 2)
        for n in ("filter", "gate")
        for p in ("weight", "bias")
    }
    assert {k for k in changed if k.startswith("shared/")} == shared | {
        "shared/head.weight",
        "shared/head.bias",
    }
    assert {k for k in tensors if not k.startswith("slot/")} == PRIVATE | shared | {
        "shared/head.weight",
        "shared/head.bias",
    }
    assert all(float(tensors[k].abs().sum()) == 0 for k in PRIVATE)


@pytest.mark.parametrize("gated", [True, False])
def test_the_step_equals_a_pytorch_loop_with_dropout(gated: bool) -> None:
    def build() -> OnFrozen:
        torch.manual_seed(1)
        return (
            OnFrozen(pretrained(), 3, units=8)
            if gated
            else OnFrozen(pretrained(), 3, gated=False, units=8)
        )

    objective, reference = Cgau(build()), build()
    tensors = objective.initial()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    features = pretrained().eval()
    for i in range(6):
        batch = make_batch(objective, 9, i)
        hidden = features.extractor(features.scale(batch["x"])).detach()
        for name in ("units1", "units2"):
            hidden = (
                reference.extractor.get_submodule(name)(hidden)
                * (batch[f"uniform/{name}"] >= 0.5)
                * 2
            )
        loss = F.cross_entropy(reference.head(hidden), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs = objective.step(tensors, batch, HYPER)
        assert float(outputs["metric/loss_sum"]) == pytest.approx(
            float(loss.detach()) * 9, rel=1e-4
        )
        tensors = advance(tensors, outputs)
    for name, value in reference.named_parameters():
        torch.testing.assert_close(
            tensors[objective.role(name) + "/" + name], value.detach(), rtol=1e-4, atol=1e-6
        )


def test_nothing_is_dropped_outside_training() -> None:
    model = OnFrozen(pretrained(), 3, units=8)
    objective = Cgau(model)
    tensors, batch = objective.initial(), make_batch(objective, 6)
    model.eval()
    torch.testing.assert_close(
        objective.predict(tensors, batch["x"]), torch.softmax(model(batch["x"]), 1).detach()
    )
    assert float(objective.evaluate(tensors, batch)["metric/loss_sum"]) == pytest.approx(
        float(F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum").detach()), rel=1e-5
    )
    survey = objective.survey(tensors, batch)
    assert set(survey) == {"metric/gradient"}
    assert survey["metric/gradient"].shape == (3, 8)


def test_dropping_ends_with_its_context() -> None:
    model = OnFrozen(pretrained(), 3, units=8)
    x = torch.randn(2, *SHAPE)
    before = model(x)
    with dropping(model, {"extractor.units2": [torch.zeros(2, 8)]}):
        torch.testing.assert_close(model(x), model.head.bias.expand(2, 3))
    torch.testing.assert_close(model(x), before)


def test_any_classifier_can_be_stood_on() -> None:
    network = pretrained()
    network.shape = SHAPE
    objective = Cgau(network, units=9, layers=3)
    assert isinstance(objective.model.extractor.units1, GatedUnits)
    assert objective.model.shape == SHAPE
    assert objective.random == {f"uniform/units{i}": (9,) for i in (1, 2, 3)}
    assert objective.model.head.out_features == 5
    assert isinstance(Cgau(network, gated=False).model.extractor.units1, nn.Sequential)
    assert not any(k.startswith("private/") for k in Cgau(network, conditioned=False).initial())
    ready = OnFrozen(network, 3)
    assert Cgau(ready).model is ready


@pytest.mark.slow
@pytest.mark.parametrize("gated", [True, False])
def test_graphs_run_on_a_device(gated: bool) -> None:
    objective: Supervised = Cgau(
        OnFrozen(pretrained(), 3, units=8)
        if gated
        else OnFrozen(pretrained(), 3, gated=False, units=8, layers=1)
    )
    exported = capture_graphs(objective, SHAPE)
    assert not any("frozen" in spec.name for spec in exported.tensors)
    inputs = example_inputs(objective, SHAPE)
    for name, captured in exported.graphs.items():
        assert any(key.startswith("batch/uniform/") for key in captured.inputs) == (name == "step")
        session = onnxruntime.InferenceSession(captured.onnx, providers=["CPUExecutionProvider"])
        for size in (2, 7, 32):
            given = inputs | {f"batch/{k}": v for k, v in make_batch(objective, size, size).items()}
            with torch.no_grad():
                expected = named(objective.graphs()[name])(given)
            found = session.run(None, {k: given[k].numpy() for k in captured.inputs})
            for key, value in zip(captured.outputs, found, strict=True):
                np.testing.assert_allclose(
                    value,
                    expected[key].numpy(),
                    rtol=2e-3,
                    atol=2e-5,
                    err_msg=f"{name} {key} {size}",
                )


# Appendix A


def points(extractor: nn.Module, num_features: int) -> Classifier:
    return Classifier(nn.Identity(), extractor, nn.Linear(num_features, 2))


def test_each_client_of_the_xor_is_separable_and_contradicts_the_other() -> None:
    clients = xor_clients(50, seed=2)
    for name, sign in (("up", -1), ("down", 1)):
        x, y = clients[name]
        assert np.array_equal(x[:, 0] * sign > 0, y == 1)
        assert (x[:, 1] > 0).all() == (name == "up")


@pytest.mark.full
def test_one_gated_unit_solves_the_xor_of_two_clients() -> None:
    """With the conditioning, and here without one, too: a product of filter and gate is not
    monotonic."""
    for conditioned in (True, False):
        torch.manual_seed(0)
        model = OnFrozen(points(nn.Identity(), 2), 2, units=1, layers=1, conditioned=conditioned)
        assert least_accuracy(*federate(model)) == 1.0


@pytest.mark.full
def test_one_relu_unit_does_not_solve_the_xor() -> None:
    for seed in (0, 1):
        torch.manual_seed(seed)
        assert (
            least_accuracy(
                *federate(OnFrozen(points(nn.Identity(), 2), 2, gated=False, units=1, layers=1))
            )
            < 0.8
        )


@pytest.mark.full
def test_only_the_conditioning_tells_clients_apart_that_look_the_same() -> None:
    """Without the second feature the clients have the same examples and contrary labels."""
    torch.manual_seed(0)
    objective, own = federate(OnFrozen(points(First(), 1), 2, units=1, layers=1))
    assert least_accuracy(objective, own) == 1.0
    kept = own["up"]["private/extractor.units1.filter_shift"]
    for modulation, expression in ((True, False), (False, True), (True, True)):
        off = {name: switched_off(tensors, modulation, expression) for name, tensors in own.items()}
        assert least_accuracy(objective, off) < 0.9
    assert torch.equal(own["up"]["private/extractor.units1.filter_shift"], kept)
    torch.manual_seed(0)
    assert (
        least_accuracy(
            *federate(OnFrozen(points(First(), 1), 2, units=1, layers=1, conditioned=False))
        )
        <= 0.5
    )


# Pre-training


def patterns(num: int, seed: int) -> Pool:
    """Waves of four frequencies."""
    rng = np.random.default_rng(seed)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % 4
        x = np.sin(
            (y[:, None, None] + 1) * 0.4 * np.arange(16) + rng.uniform(0, 6.28, (count, 2, 1))
        ) + rng.normal(0, 0.1, (count, 2, 16))
        return x.astype(np.float32), y.astype(np.int64)

    return Pool(
        "waves", Window(("a", "b"), 16, 16), ("w", "x", "y", "z"), *part(num), *part(num // 4)
    )


def test_an_extractor_is_trained_on_other_classes_and_then_stays() -> None:
    pool = patterns(400, 0)
    some, others, tested = pool.train_y < 2, pool.train_y >= 2, pool.test_y >= 2
    torch.manual_seed(0)
    network = pretrained()
    network.head = nn.Linear(28, 2)
    assert pretrain(network, pool.train_x[some], pool.train_y[some], epochs=20, lr=0.05) > 0.9
    state = {k: v.clone() for k, v in network.state_dict().items()}
    objective = Cgau(OnFrozen(network, 2, units=16))
    tensors, x, y = (
        objective.initial(),
        torch.from_numpy(pool.train_x[others]),
        torch.from_numpy(pool.train_y[others] - 2),
    )
    for i in range(60):
        drawn = {
            k: v for k, v in make_batch(objective, len(y), i).items() if k.startswith("uniform/")
        }
        with torch.no_grad():
            tensors = advance(tensors, objective.step(tensors, {"x": x, "y": y, **drawn}, HYPER))
    right = (
        objective.predict(tensors, torch.from_numpy(pool.test_x[tested])).argmax(1).numpy()
        == pool.test_y[tested] - 2
    )
    assert right.mean() > 0.8
    assert all(torch.equal(v, state[k]) for k, v in network.state_dict().items())


def test_pretraining_is_repeatable() -> None:
    pool, found = patterns(64, 0), []
    for _ in range(2):
        head = nn.Linear(32, 4)
        with torch.no_grad():
            head.weight.zero_()
            head.bias.zero_()
        pretrain(
            Classifier(nn.Identity(), nn.Flatten(), head),
            pool.train_x,
            pool.train_y,
            epochs=2,
            batch_size=20,
            seed=4,
        )
        found.append(head.weight.detach().clone())
    assert torch.equal(found[0], found[1])
