"""FedDisk: the density model, the weights, the server's phases; each step against a plain PyTorch reference."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.contract import NEWCOMER, Context, LocalModel, TorchTensors, Work
from algorithms.models.classifier import Classifier, Scale
from algorithms.models.made import Made, UnitInputs, negative_log_likelihood
from algorithms.objectives.feddisk import (
    DensityRatioServer,
    FedDisk,
    FedDiskAb,
    FedDiskServer,
    WeightedServer,
    effective_cost,
    effective_rounds,
)
from algorithms.objectives.supervised import Supervised
from export.bundle import capture_graphs
from export.describe import example_inputs, named
from wire.errors import ConfigError
from wire.messages import Annotate, Apply, Evaluate, Train

SHAPE = (2, 16)
HYPER = {"lr": torch.tensor(0.05), "momentum": torch.tensor(0.9), "density_lr": torch.tensor(0.02), "ratio_lr": torch.tensor(0.1)}


def small_model() -> Classifier:
    torch.manual_seed(3)
    return linear_model(SHAPE, torch.tensor([1.0, 2.0]))


def linear_model(shape: tuple[int, ...], size: Tensor) -> Classifier:
    model = Classifier(Scale(size), nn.Flatten(), nn.Linear(prod(shape), 3))
    model.shape = shape
    return model


def make_batch(size: int, seed: int = 0) -> TorchTensors:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, *SHAPE, generator=generator)
    return {"x": x, "y": torch.arange(size) % 3, "weight": torch.rand(size, generator=generator) * 2}


def advance(tensors: TorchTensors, outputs: TorchTensors) -> TorchTensors:
    return tensors | {k.removeprefix("next/"): v.detach() for k, v in outputs.items() if k.startswith("next/")}


# The density model


@pytest.mark.parametrize(("num_values", "num_hidden"), [(2, 3), (9, 4), (12, 40)])
def test_an_output_of_made_depends_on_earlier_inputs_only(num_values: int, num_hidden: int) -> None:
    torch.manual_seed(0)
    made = Made(num_values, num_hidden)
    slope = torch.zeros(num_values, num_values)
    for _ in range(20):  # at several places, because a ReLU may be off at one
        slope += torch.autograd.functional.jacobian(made, torch.rand(num_values).reshape(1, -1)).reshape(num_values, num_values).abs()
    assert torch.equal(slope, torch.tril(slope, diagonal=-1))
    assert (slope[1:].sum(1) > 0).sum() >= min(num_values - 1, num_hidden) // 2


def test_the_masks_of_made_are_those_of_its_paper() -> None:
    made = Made(5, 4)
    last_seen = [1, 2, 3, 4]
    hidden = [[float(m >= d) for d in range(1, 6)] for m in last_seen]
    output = [[float(d > m) for m in last_seen] for d in range(1, 6)]
    assert made.hidden_mask.tolist() == hidden
    assert made.output_mask.tolist() == output


def test_the_loss_of_made_is_the_bernoulli_cross_entropy() -> None:
    torch.manual_seed(0)
    made, x = Made(6, 8), torch.rand(3, 6)
    expected = []
    for row in x:
        probabilities = [float(p) for p in torch.sigmoid(made(row[None]).detach())[0]]
        expected.append(-sum(float(v) * np.log(p) + (1 - float(v)) * np.log(1 - p) for v, p in zip(row, probabilities, strict=True)))
    np.testing.assert_allclose(negative_log_likelihood(made(x), x).detach().numpy(), expected, rtol=1e-5)


def test_probabilities_of_made_sum_to_one() -> None:
    """It is a density: over all binary vectors."""
    torch.manual_seed(1)
    made = Made(5, 7)
    every = torch.tensor([[(i >> d) & 1 for d in range(5)] for i in range(32)], dtype=torch.float32)
    assert float(torch.exp(-negative_log_likelihood(made(every), every)).sum().detach()) == pytest.approx(1.0, abs=1e-5)


def test_inputs_lie_between_zero_and_one_and_are_averaged_to_fit() -> None:
    image = UnitInputs(nn.Identity(), (1, 28, 28), 784)
    x = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(image(x), x.flatten(1))
    assert float(image(x * 9 - 4).min()) == 0.0
    assert float(image(x * 9 - 4).max()) == 1.0
    halved = UnitInputs(nn.Identity(), (3, 32, 32), 784)
    y = torch.rand(2, 3, 32, 32)
    assert halved.num_values == 768
    torch.testing.assert_close(halved(y), F.avg_pool2d(y, 2).flatten(1))
    model = small_model()
    window = UnitInputs(model.scale, (2, 15), 16)
    z = torch.randn(4, 2, 15) * 3
    expected = torch.sigmoid(2 * z / torch.tensor([[1.0], [2.0]]))[:, :, :14].reshape(4, 2, 7, 2).mean(3).flatten(1)
    torch.testing.assert_close(window(z), expected)
    assert (window.factor, window.num_values) == (2, 14)


# Steps against references


def test_the_density_step_is_plain_sgd_on_made() -> None:
    objective = FedDisk(small_model(), density_units=6)
    tensors, hyper = objective.initial(), HYPER
    reference = Made(32, 6)
    reference.load_state_dict({k.removeprefix("shared/made."): v for k, v in tensors.items() if k.startswith("shared/made.")}, strict=False)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.02)
    for i in range(5):
        batch = make_batch(8, i)
        x = torch.sigmoid(2 * objective.model.scale(batch["x"])).flatten(1)
        loss = F.binary_cross_entropy_with_logits(reference(x), x, reduction="sum") / 8
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs = objective.graphs()["density"](tensors, batch, hyper)
        assert float(outputs["metric/loss_sum"]) == pytest.approx(float(loss.detach()) * 8, rel=1e-5)
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
    reference.load_state_dict({k.removeprefix("slot/ratio."): v for k, v in tensors.items() if k.startswith("slot/ratio.")})
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for i in range(4):
        batch = make_batch(8, i)
        u = torch.cat([objective.outputs(tensors, batch, prefix) for prefix in ("shared/made.", "slot/best_made.")])
        labels = torch.cat([torch.ones(8), torch.zeros(8)]).long()
        logits = reference(u)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs = objective.graphs()["ratio"](tensors, batch, HYPER)
        assert float(outputs["metric/loss_sum"]) == pytest.approx(float(loss.detach()) * 8, rel=1e-5)
        assert float(outputs["metric/num_correct"]) * 2 == float((logits.argmax(1) == labels).sum())
        tensors = advance(tensors, outputs)
    for name, value in reference.named_parameters():
        torch.testing.assert_close(tensors[f"slot/ratio.{name}"], value.detach(), rtol=1e-4, atol=1e-6)
    p = torch.softmax(reference(objective.outputs(tensors, batch, "slot/best_made.")), 1)[:, 1]
    found = objective.graphs()["weigh"](tensors, batch, HYPER)["output/weight"]
    torch.testing.assert_close(found, (p / (1 - p)).detach(), rtol=1e-4, atol=1e-6)
    mean = objective.graphs()["mean_weight"](tensors, batch, HYPER)["metric/mean"] / 8
    to_one = objective.graphs()["weigh_to_mean_one"]({**tensors, "response/mean_weight.mean": mean}, batch, HYPER)["output/weight"]
    assert float(to_one.mean()) == pytest.approx(1.0, abs=1e-5)


def test_the_best_local_density_model_is_kept() -> None:
    objective = FedDisk(small_model(), density_units=6)
    tensors = objective.initial()
    keep = objective.graphs()["keep_best"]
    for loss, mark in ((5.0, 1.0), (3.0, 2.0), (4.0, 3.0), (float("nan"), 4.0)):
        tensors["slot/local_made.output.bias"] = torch.full((32,), mark)
        tensors = advance(tensors, keep({**tensors, "response/local_validate.loss": torch.tensor(loss)}, {}, {}))
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
    assert {k for k in roles["step"] if k.startswith("shared/")} == {k for k in tensors if k.startswith("shared/")} - made
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


# The weights


def train(objective: Supervised, graph: str, tensors: TorchTensors, x: Tensor, epochs: int, seed: int = 0, **hyper: float) -> TorchTensors:
    generator = torch.Generator().manual_seed(seed)
    scalars = HYPER | {k: torch.tensor(v) for k, v in hyper.items()}
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=generator).split(64):
            batch = {"x": x[part], "y": torch.zeros(len(part), dtype=torch.int64)}
            batch |= {name: torch.rand(len(part), *shape, generator=generator) for name, shape in objective.random.items()}
            with torch.no_grad():
                tensors = advance(tensors, objective.graphs()[graph](tensors, batch, scalars))
    return tensors


def two_values(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two values: the device's examples come from N(+1, 1) in the first, the rest of the fleet's, as many, from N(-1, 1)."""
    generator = torch.Generator().manual_seed(seed)
    own, other = (torch.randn(count, 1, 2, generator=generator) for _ in range(2))
    own[:, 0, 0] += 1
    other[:, 0, 0] -= 1
    return own, other


def moments_of(objective: FedDiskAb, x: Tensor) -> np.ndarray:
    return (objective.graphs()["moments"]({}, {"x": x}, {})["metric/second"] / len(x)).numpy()


def test_weights_from_raw_examples_recover_a_known_density_ratio() -> None:
    own, other = two_values(2000, 0)
    objective, server = FedDiskAb(linear_model((1, 2), torch.ones(1))), DensityRatioServer()
    tensors = objective.initial()
    context = server.begin({k: v.numpy() for k, v in tensors.items()})
    answers = [
        LocalModel(d, 2000, 0, NEWCOMER, {}, {"response/moments.second": moments_of(objective, x)}) for d, x in (("a", own), ("b", other))
    ]
    context = absorb(server, context, answers)
    tensors |= {k: torch.from_numpy(v) for k, v in server.received(context, {}, NEWCOMER).items()}
    tensors = train(objective, "ratio", tensors, own, epochs=10, ratio_lr=0.01)
    found = objective.graphs()["weigh"](tensors, {"x": own}, HYPER)["output/weight"].detach()
    truth = 0.5 + 0.5 * torch.exp(-2 * own[:, 0, 0])  # (q(x) + q'(x)) / 2 q(x)
    usual = (own[:, 0, 0] > -0.5) & (own[:, 0, 0] < 2.0)
    assert float((found / truth - 1)[usual].abs().mean()) < 0.1
    assert float(found.mean()) == pytest.approx(float(truth.mean()), abs=0.1)
    assert np.corrcoef(found.log(), truth.log())[0, 1] > 0.97


def test_the_fleets_moments_are_those_of_its_pooled_examples() -> None:
    objective, server = FedDiskAb(small_model()), DensityRatioServer()
    parts = {f"d{i}": make_batch(size, i)["x"] for i, size in enumerate((3, 40, 200))}
    answers = [LocalModel(d, len(x), 0, NEWCOMER, {}, {"response/moments.second": moments_of(objective, x)}) for d, x in parts.items()]
    given = server.received(absorb(server, server.begin({}), answers), {}, NEWCOMER)
    units = objective.units({"x": torch.cat(list(parts.values()))}).numpy()
    seen = units @ given["received/whitening"].T
    np.testing.assert_allclose(seen.mean(0), given["received/fleet_mean"], atol=1e-3)
    second = seen.T @ seen / len(seen)
    np.testing.assert_allclose(second - np.diag(np.diag(second)), 0, atol=2e-3)
    assert (np.diag(second) < 1.001).all()
    assert (np.diag(second) > 0.9).sum() > 3


def test_the_binary_classifier_of_raw_examples_minimises_the_squared_loss_over_the_pool() -> None:
    """The gradient from moments is that of a loss over examples of both kinds."""
    own, other = two_values(64, 1)
    objective, server = FedDiskAb(linear_model((1, 2), torch.ones(1))), DensityRatioServer()
    pool = torch.cat([own, other])
    answer = [LocalModel("pool", 128, 0, NEWCOMER, {}, {"response/moments.second": moments_of(objective, pool)})]
    given = server.received(absorb(server, server.begin({}), answer), {}, NEWCOMER)
    tensors = objective.initial() | {k: torch.from_numpy(v) for k, v in given.items()} | {"slot/ratio": torch.randn(101) * 0.1}
    whitened = objective.units({"x": pool}) @ tensors["received/whitening"].T
    kept = torch.from_numpy(np.diag((whitened.T @ whitened / 128).numpy()) > 0.99)  # the others are damped
    weights = torch.where(kept, tensors["slot/ratio"], 0.0).requires_grad_()
    loss = (1 - whitened @ weights).square().mean() + (whitened[:64] @ weights).square().mean()
    (gradient,) = torch.autograd.grad(loss, weights)
    only = {**tensors, "slot/ratio": weights.detach()}
    outputs = objective.graphs()["ratio"](only, {"x": own}, {**HYPER, "ratio_lr": torch.tensor(1.0)})
    assert float(outputs["metric/loss_sum"]) / 64 == pytest.approx(float(loss.detach()), abs=0.02)
    torch.testing.assert_close((weights.detach() - outputs["next/slot/ratio"])[kept], gradient[kept], atol=0.02, rtol=0.02)


def two_kinds(share: float, seed: int) -> tuple[Tensor, Tensor]:
    """600 images of 4 x 4 black or white pixels of two opposite patterns, a tenth of the pixels wrong; which are of the second kind."""
    generator = torch.Generator().manual_seed(seed)
    second = torch.rand(600, generator=generator) < share
    pattern = (torch.arange(16) % 2).float()
    wanted = torch.where(second[:, None], pattern, 1 - pattern) * 0.8 + 0.1
    return (torch.rand(600, 16, generator=generator) < wanted).float().reshape(600, 1, 4, 4), second


def test_examples_that_a_device_has_too_few_of_count_more() -> None:
    """A fifth of the device's examples are of the second kind, and half of the fleet's. The weights have the right order; their size
    (0.625 and 2.5 in truth) is not found: the binary classifier sees two networks' outputs for the same examples."""
    own, second = two_kinds(0.2, 0)
    fleet = torch.cat([own, two_kinds(0.8, 1)[0]])
    objective = FedDisk(linear_model((1, 4, 4), torch.ones(1)))
    tensors = train(objective, "density", objective.initial(), fleet, epochs=15, density_lr=0.02)
    tensors = train(objective, "local_density", tensors, own, epochs=30, density_lr=0.02)
    tensors |= {k.replace("local_made", "best_made"): v for k, v in tensors.items() if "local_made" in k}
    tensors = train(objective, "ratio", tensors, own, epochs=10, ratio_lr=0.01)
    weights = objective.graphs()["weigh"](tensors, {"x": own}, HYPER)["output/weight"].detach()
    assert float(weights[second].mean() / weights[~second].mean()) > 1.1
    assert 0.8 < float(weights.mean()) < 1.1


# The server


WORK = Work(16, 2, {"lr": 0.1})


def answered(losses: Mapping[str, float], counts: Mapping[str, int] | None = None) -> list[LocalModel]:
    return [
        LocalModel(d, (counts or {}).get(d, 10), 1, NEWCOMER, {}, {"response/validate.loss": np.float32(loss)})
        for d, loss in sorted(losses.items())
    ]


def absorb(server: WeightedServer, context: Context, models: list[LocalModel]) -> Context:
    return server.absorb(context, models, {m.device_id: NEWCOMER for m in models}, {})


def test_preparations_go_on_until_the_validation_loss_rises() -> None:
    server = FedDiskServer(holdout=0.2)
    context = server.begin({})
    for loss in (9.0, 7.0, 6.5):
        assert server.preparing(context)
        (validate, fit) = server.programs(context, WORK)[""]
        assert validate == Evaluate("holdout", "validate", holdout=0.2)
        assert fit == Train(16, 2, hyper={"lr": 0.1}, graph="density", holdout=0.2)
        context = absorb(server, context, answered({"a": loss, "b": loss}))
    context = absorb(server, context, answered({"a": 6.6, "b": 6.6}))
    assert not server.preparing(context)
    assert context.info["losses"] == pytest.approx([9.0, 7.0, 6.5, 6.6])


def test_validation_losses_count_by_examples_and_must_be_finite() -> None:
    server = FedDiskServer()
    context = absorb(server, server.begin({}), answered({"a": 4.0, "b": 1.0, "c": float("nan")}, {"a": 10, "b": 30, "c": 99}))
    assert context.info["losses"] == [pytest.approx(1.75)]
    context = absorb(server, context, answered({"c": float("inf")}))
    assert context.info["losses"][1] is None
    assert server.preparing(context)


def test_preparations_end_by_patience_and_by_number() -> None:
    server = FedDiskServer(patience=2)
    context = server.begin({})
    for loss, more in ((5.0, True), (6.0, True), (4.0, True), (4.5, True), (4.2, False)):
        context = absorb(server, context, answered({"a": loss}))
        assert server.preparing(context) == more
    server = FedDiskServer(preparations=2)
    context = absorb(server, server.begin({}), answered({"a": 5.0}))
    assert server.preparing(context)
    assert not server.preparing(absorb(server, context, answered({"a": 4.0})))


def prepared(server: FedDiskServer) -> Context:
    context = server.begin({})
    while server.preparing(context):
        context = absorb(server, context, answered({"a": 1.0, "b": 1.0}))
    return context


def test_devices_find_their_weights_once_and_late_joiners_catch_up() -> None:
    server = FedDiskServer(local_checks=2, local_epochs=3, ratio_epochs=7, holdout=0.25)
    context = prepared(server)
    (first,) = server.programs(context, WORK).values()
    local = Train(16, 3, hyper={"lr": 0.1}, graph="local_density", report=False, holdout=0.25)
    check = (local, Evaluate("holdout", "local_validate", holdout=0.25, report=False), Apply("keep_best"))
    assert first == (
        Evaluate(),
        *check,
        *check,
        Train(16, 7, hyper={"lr": 0.1}, graph="ratio", report=False),
        Evaluate("train", "mean_weight", report=False),
        Annotate("weigh_to_mean_one", "weight"),
        Train(16, 2, hyper={"lr": 0.1}),
    )
    context = absorb(server, context, answered({"a": 1.0, "b": 1.0}))
    programs = server.programs(context, WORK)
    assert programs == {"": first, "device:a": (Evaluate(), WORK.train()), "device:b": (Evaluate(), WORK.train())}
    context = absorb(server, context, answered({"a": 1.0, "late": 1.0}))
    assert set(server.programs(context, WORK)) == {"", "device:a", "device:b", "device:late"}


def test_weights_as_they_are_when_asked_for() -> None:
    server = FedDiskServer(mean_one=False)
    verbs = server.programs(prepared(server), WORK)[""]
    assert verbs[-2] == Annotate("weigh", "weight")


def test_the_ablation_prepares_once() -> None:
    server = DensityRatioServer(ratio_epochs=4)
    zeros = np.zeros((2, 2), np.float32)
    context = server.begin({"received/whitening": zeros, "shared/w": zeros})
    assert server.preparing(context)
    assert server.programs(context, WORK) == {"": (Evaluate("train", "moments"),)}
    assert set(server.received(context, {}, NEWCOMER)) == {"received/whitening"}
    answer = LocalModel("a", 5, 0, NEWCOMER, {}, {"response/moments.second": np.eye(2, dtype=np.float32)})
    context = absorb(server, context, [answer])
    assert not server.preparing(context)
    assert server.programs(context, WORK)[""][1] == Train(16, 4, hyper={"lr": 0.1}, graph="ratio", report=False)
    context = absorb(server, context, answered({"a": 1.0}))
    assert set(server.programs(context, WORK)) == {"", "device:a"}


@pytest.mark.parametrize("options", [{"holdout": 0.0}, {"patience": 0}, {"preparations": 0}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="feddisk"):
        FedDiskServer(**options)


def test_what_cannot_be_made_is_refused() -> None:
    model = small_model()
    model.shape = ()
    with pytest.raises(ConfigError, match="feddisk: expected a model whose `shape`"):
        FedDisk(model)


def test_cost_is_that_of_the_papers_tables() -> None:
    """FEMNIST in Tables I and II: 112 million for FedDisk, 907 million for FedROD."""
    assert round(effective_cost(447_000, 105, 614_000, 15), -6) == 112_000_000
    assert round(effective_cost(447_000, 1015), -6) == 907_000_000
    assert effective_rounds([0.1, 0.5, 0.4, 0.6], 0.5) == 2
    assert effective_rounds([0.1], 0.5) is None


# Graphs


def check_graphs(objective: Supervised, window: tuple[int, ...]) -> None:
    """Every graph's ONNX equals the function itself, for several batch sizes."""
    exported = capture_graphs(objective, window)
    inputs = example_inputs(objective, window)
    functions: dict[str, Callable[[TorchTensors], TorchTensors]] = {n: named(f) for n, f in objective.graphs().items()}
    assert set(exported.graphs) == set(functions)
    for name, captured in exported.graphs.items():
        session = onnxruntime.InferenceSession(captured.onnx, providers=["CPUExecutionProvider"])
        for size in (2, 7, 32):
            generator = torch.Generator().manual_seed(size)
            given = dict(inputs)
            given |= {f"response/{g}.{n}": torch.rand(v.shape) + 0.5 for g, c in exported.graphs.items() for n, v in metrics_of(c.shapes)}
            given |= {key: torch.randn(v.shape, generator=generator) / 10 for key, v in inputs.items() if key.startswith("received/")}
            given["batch/x"] = torch.randn(size, *window, generator=generator)
            given["batch/y"] = torch.randint(0, 2, (size,), generator=generator)
            for key, shape in (*objective.columns.items(), *objective.random.items()):
                given[f"batch/{key}"] = torch.rand(size, *shape, generator=generator)
            with torch.no_grad():
                expected = functions[name](given)
            found = session.run(None, {k: given[k].numpy() for k in captured.inputs})
            for key, value in zip(captured.outputs, found, strict=True):
                np.testing.assert_allclose(value, expected[key].numpy(), rtol=2e-3, atol=2e-5, err_msg=f"{name} {key} {size}")


def metrics_of(outputs: TorchTensors) -> list[tuple[str, Tensor]]:
    return [(k.removeprefix("metric/"), v) for k, v in outputs.items() if k.startswith("metric/")]


def test_graphs_of_feddisk_run_on_a_device() -> None:
    check_graphs(FedDisk(small_model(), density_units=5, density_features=16), SHAPE)


def test_graphs_of_the_ablation_run_on_a_device() -> None:
    check_graphs(FedDiskAb(small_model()), SHAPE)
