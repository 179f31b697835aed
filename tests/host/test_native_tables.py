"""Positions, class tokens and heads cut by hand in the native engine against torch, and dropout by
the numbers that a batch brings."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.composition import make_objective, read_algorithm
from algorithms.models.classifier import Classifier, Scale
from algorithms.models.reading.network import Unsupported, network_of
from algorithms.objectives.supervised import Supervised
from benchmarks.usual_models import USUAL
from export.describe import example_inputs
from host.native.trainer import NativeTrainer
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.graphs.hybrid import HybridGraphs
from simulation.engine.graphs.native import NativeGraphs
from tests.host.native_cases import Calls, check_all, classifier_of
from wire.arrays import names
from wire.errors import ConfigError

WINDOW, WIDTH = (3, 9), 6


class Tabled(nn.Module):
    """Samples, what is done to them with parameters and constants, and their mean."""

    constants: Tensor

    def __init__(self, act: "Callable[[Tabled, Tensor], Tensor]", *sizes: int) -> None:
        super().__init__()
        self.act, self.embed, self.qkv = act, nn.Linear(3, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.table = nn.Parameter(torch.randn(*sizes))
        self.register_buffer("constants", torch.randn(1, 20, WIDTH))
        self.behind = nn.Conv1d(WIDTH, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.behind(
            self.act(self, self.embed(x.transpose(1, 2))).transpose(1, 2)
        ).mean(2)
        return made


def heads(qkv: Tensor) -> Tensor:
    batch, samples, width = qkv.shape
    q, k, v = qkv.reshape(batch, samples, 3, 2, width // 6).permute(2, 0, 3, 1, 4)
    return (
        F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, samples, width // 3)
    )


def chunked(qkv: Tensor) -> Tensor:
    q, k, v = qkv.chunk(3, -1)
    made = F.scaled_dot_product_attention(
        *(part.unflatten(2, (2, -1)).transpose(1, 2) for part in (q, k, v))
    )
    return made.permute(0, 2, 1, 3).flatten(2)


TAKEN: dict[str, tuple[Callable[[Tabled, Tensor], Tensor], tuple[int, ...]]] = {
    "learned positions": (lambda m, x: x + m.table, (9, WIDTH)),
    "of channels first": (
        lambda m, x: (m.table + x.transpose(1, 2)).transpose(1, 2),
        (1, WIDTH, 9),
    ),
    "parameters that are transposed": (lambda m, x: x + m.table.transpose(0, 1), (WIDTH, 9)),
    "constants, as many as there are samples": (
        lambda m, x: x + m.constants[:, : x.size(1)] + m.table,
        (1, 9, WIDTH),
    ),
    "a class token": (
        lambda m, x: torch.cat([m.table.expand(x.shape[0], -1, -1), x], dim=1),
        (1, 1, WIDTH),
    ),
    "two tokens, repeated": (
        lambda m, x: torch.cat((m.table.unsqueeze(0).repeat(x.size(0), 1, 1), x), 1),
        (2, WIDTH),
    ),
    "a token of constants": (
        lambda m, x: torch.cat([m.constants[:, :1].expand(x.shape[0], -1, -1), x], 1) + m.table,
        (10, WIDTH),
    ),
    "heads by reshape": (lambda m, x: x + m.table + heads(m.qkv(x)), (9, WIDTH)),
    "heads by chunk": (lambda m, x: chunked(m.qkv(x)) + m.table, (9, WIDTH)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_it_equals_torch(name: str) -> None:
    torch.manual_seed(0)
    act, sizes = TAKEN[name]
    made = Tabled(act, *sizes)
    if "heads" not in name:
        del made.qkv
    check_all(classifier_of([made], WINDOW, 3), WINDOW, 4, 0)


@pytest.mark.parametrize(
    "act", [lambda x: x.view(x.size(0), -1), lambda x: x.reshape((x.shape[0], -1))]
)
def test_values_in_a_row_are_those_of_flatten(act: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    check_all(classifier_of([nn.Conv1d(3, 5, 2), nn.ReLU(), Calls(act)], WINDOW, 3), WINDOW, 4, 0)


REFUSED: dict[str, tuple[Callable[[Tabled, Tensor], Tensor], tuple[int, ...], str]] = {
    "a part": (lambda m, x: x + m.table[:9], (12, WIDTH), "of a part of extractor.0.table"),
    "one for all samples": (
        lambda m, x: x + m.table,
        (1, WIDTH),
        "of a part of extractor.0.table, or of values of it that are repeated",
    ),
    "twice": (
        lambda m, x: x + m.table + m.table,
        (9, WIDTH),
        "extractor.0.table is used more than once",
    ),
    "another size": (lambda m, x: x + m.table.mean(), (9, WIDTH), "calls mean"),
    "behind": (
        lambda m, x: torch.cat([x, m.table.expand(x.shape[0], -1, -1)], 1),
        (1, 1, WIDTH),
        "calls cat of anything but one parameter",
    ),
    "no heads": (
        lambda m, x: x + F.scaled_dot_product_attention(x, x, x) + m.table,
        (9, WIDTH),
        "of values that are not heads",
    ),
    "three of each head": (
        lambda m, x: chunked(m.qkv(x).unflatten(2, (-1, 3)).transpose(2, 3).flatten(2)) + m.table,
        (9, WIDTH),
        "not lie one",
    ),
    "heads in another order": (
        lambda m, x: m.qkv(x).unflatten(2, (3, -1)).transpose(2, 3).flatten(2) + m.table,
        (9, 3 * WIDTH),
        "a value that is not the result of a layer",
    ),
    "a product": (
        lambda m, x: x * x.shape[1] + m.table,
        (9, WIDTH),
        "calls mul with values that are not sizes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_does_not_have_is_named(name: str) -> None:
    act, sizes, said = REFUSED[name]
    model = Classifier(nn.Identity(), nn.Sequential(Tabled(act, *sizes)), nn.Linear(4, 3))
    with pytest.raises(Unsupported, match=said):
        network_of(model, WINDOW)


def layers_that_drop() -> nn.Module:
    return nn.Sequential(
        *(
            nn.Conv1d(3, 5, 3),
            nn.Dropout(0.3),
            nn.ReLU(),
            nn.Dropout1d(0.4),
            nn.BatchNorm1d(5),
            nn.Flatten(),
            nn.Dropout(0.2),
        ),
        *(nn.Linear(110, 7), nn.ReLU(), nn.Dropout(0.5)),
    )


def images_that_drop() -> nn.Module:
    return nn.Sequential(
        *(
            nn.Conv2d(3, 5, 3, padding=1),
            nn.Dropout(0.3),
            nn.Conv2d(5, 17, 3, padding=1),
            nn.Dropout2d(0.4),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
    )


def encoder_that_drops() -> nn.Module:
    made = USUAL["transformer encoder"].make((3, 24), 4)
    made.set_submodule("out", nn.Identity())
    return made


DROPPING: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (layers_that_drop, (3, 24)),
    "images": (images_that_drop, (3, 6, 7)),
    "an encoder, everywhere": (encoder_that_drops, (3, 24)),
}


def dropping(name: str, algorithm: str = "fedavg") -> tuple[Supervised, dict[str, Any]]:
    """An objective on a model that drops, and the inputs of a step."""
    torch.manual_seed(0)
    make, shape = DROPPING[name]
    extractor, rng = make(), np.random.default_rng(0)
    with torch.no_grad():
        head = nn.Linear(extractor(torch.zeros(2, *shape)).shape[1], 4)
    model = Classifier(Scale(torch.full((3,), 2.0), len(shape) - 1), extractor, head)
    model.shape = shape
    objective = make_objective(read_algorithm(algorithm), model)
    inputs = {key: np.asarray(value) for key, value in example_inputs(objective, shape, 8).items()}
    inputs |= {
        key: rng.random(value.shape, np.float32)
        for key, value in inputs.items()
        if key.startswith("batch/uniform/")
    }
    inputs |= {
        names.X: rng.standard_normal((8, *shape)).astype(np.float32),
        names.Y: rng.integers(0, 4, 8),
    }
    return objective, inputs | {names.hyper("lr"): np.asarray(0.05, np.float32)}


def assert_same_step(
    graph: str, objective: Supervised, native: NativeGraphs, inputs: dict[str, Any]
) -> None:
    assert not native.trains(graph), "each batch brings its random numbers"
    expected, made = EagerGraphs(objective).run(graph, inputs), native.run(graph, inputs)
    assert made.keys() == expected.keys()
    for key, value in expected.items():
        moved = np.abs(value - inputs.get(key.removeprefix(names.following.text), 0)).max()
        np.testing.assert_allclose(made[key], value, rtol=0, atol=1e-4 * moved + 1e-7, err_msg=key)


@pytest.mark.parametrize(
    "algorithm", ["fedper", "fedrep", "fedbabu", "fedbn", "ditto", "local", "fedfomo"]
)
def test_what_an_objective_moves_alone_is_moved_with_the_same_values_dropped(
    algorithm: str,
) -> None:
    objective, inputs = dropping("layers", algorithm)
    graphs = sorted(objective.sgd())
    native = NativeGraphs(objective, DROPPING["layers"][1], graphs)
    for graph in graphs:
        assert_same_step(graph, objective, native, inputs)


@pytest.mark.parametrize("name", DROPPING)
def test_a_step_drops_what_that_of_torch_drops(name: str) -> None:
    objective, inputs = dropping(name)
    native = NativeGraphs(objective, DROPPING[name][1], ["step"])
    assert_same_step("step", objective, native, inputs)
    made = native.run("step", inputs)
    others = inputs | {
        key: 1 - value for key, value in inputs.items() if key.startswith("batch/uniform/")
    }
    assert native.run("step", others)[names.LOSS_SUM] != made[names.LOSS_SUM]
    for graph in ("evaluate", "predict"):
        for key, value in EagerGraphs(objective).run(graph, inputs).items():
            np.testing.assert_allclose(native.run(graph, inputs)[key], value, rtol=1e-4, atol=1e-5)
    with pytest.raises(Unsupported, match="is dropout in the extractor"):
        HybridGraphs(objective, DROPPING[name][1], ["step"])


def test_every_batch_has_its_own_numbers() -> None:
    objective, inputs = dropping("an encoder, everywhere")
    trainer = NativeTrainer(network_of(objective.model, (3, 24)))
    state = objective.model.state_dict()
    start = np.concatenate([state[n].numpy().ravel() for n in trainer.names])
    drawn = [inputs[names.batch(names.uniform(name))] for name in trainer.network.dropouts]
    x, y, order = inputs[names.X], inputs[names.Y], np.array([5, 1, 7, 0, 2, 3, 6, 4])

    def trained(
        bounds: list[int], numbers: list[Any], chosen: Any, flat: Any, momentum: Any
    ) -> None:
        trainer.train(flat, momentum, x, y, chosen, np.array(bounds), 0.05, 0.9, drawn=numbers)

    whole, whole_v, parts, parts_v = (
        start.copy(),
        np.zeros_like(start),
        start.copy(),
        np.zeros_like(start),
    )
    trained([0, 3, 8], drawn, order, whole, whole_v)
    trained([0, 3], [numbers[:3] for numbers in drawn], order[:3], parts, parts_v)
    trained([0, 5], [numbers[3:] for numbers in drawn], order[3:], parts, parts_v)
    np.testing.assert_array_equal(whole, parts)
    with pytest.raises(
        ConfigError,
        match=r"random numbers must be for the dropout layers "
        r"extractor\.encoder\.layers\.0\.self_attn\.drop",
    ):
        trained([0, 8], [], order, whole, whole_v)
    with pytest.raises(
        ConfigError,
        match=r"random numbers of extractor\.encoder\.layers\.0\.self_attn\.drop must be a "
        r"C-ordered float32 array of shape \(8, 4, 24, 24\), got float32 \(7, 4, 24, 24\)",
    ):
        trained([0, 8], [numbers[:7] for numbers in drawn], order, whole, whole_v)
