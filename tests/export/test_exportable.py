"""Obstacles to an export are found before a simulation trains, by layer and operator."""

import re
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from algorithms.composition import make_objective, read_algorithm
from algorithms.models.adoption.from_file import as_classifier
from algorithms.objectives.supervised import Supervised
from benchmarks.models import objective_of
from benchmarks.usual_models import USUAL
from export.bundle import RUNTIMES, capture_graphs
from export.exportable import obstacles
from host.threads import one_thread
from tests.export.sample_calls import OF_INPUTS, SAMPLES, Call, Sample
from wire.bundle import Window
from wire.errors import ConfigError

CLASSES = 4


def objective_with(
    layer: nn.Module, shape: tuple[int, ...] = (3, 8), *, behind: bool = True
) -> Supervised:
    """Return FedAvg on a model with this layer in its middle."""
    window = Window(("a", "b", "c"), shape[-1], 1, height=shape[1] if len(shape) > 2 else 0)
    sample = Sample(layer, shape, CLASSES, behind=behind)
    model = as_classifier("m", sample, window, CLASSES, torch.ones(3))
    objective = make_objective(read_algorithm("fedavg"), model)
    graphs = {"step": objective.graphs()["step"]}
    objective.graphs = lambda: graphs  # type: ignore[method-assign]
    return objective


UNSEEN = ("examples halved", "take along dim")
"""Samples with a number that depends on the examples' number, which only an export sees."""


def seconds_of_check(objective: Supervised, shape: tuple[int, ...]) -> float:
    """Return the processor's seconds of a check that finds nothing."""
    start = time.process_time()
    assert obstacles(objective, shape) == []
    return time.process_time() - start


@pytest.mark.parametrize("name", USUAL)
def test_a_usual_model_has_no_obstacle_and_is_checked_in_a_second(name: str) -> None:
    objective, shape = objective_of(name), USUAL[name].shape
    with one_thread():
        assert any(seconds_of_check(objective, shape) < 1 for _ in range(3))


@pytest.mark.parametrize(
    ("layer", "kind", "operator", "substitute"),
    [
        (nn.ConvTranspose1d(4, 4, 5), "ConvTranspose1d", "ConvTranspose1d", "use Conv1d"),
        (nn.AdaptiveAvgPool1d(5), "AdaptiveAvgPool1d", r"\[1, 8\] to \[1, 5\]", "or AvgPool"),
        (nn.AvgPool1d(3, ceil_mode=True), "AvgPool1d", "ceil_mode=True", "use none of them"),
        (nn.AvgPool1d(5, 2, 2, count_include_pad=False), "AvgPool1d", "pad=False", "use none"),
        (Call(torch.exp2), "Call", r"exp2\.default", r"torch\.exp"),
        (Call(lambda x: x.median(2).values), "Call", r"median\.dim", "mean"),
        (Call(lambda x: x.sort(1).values), "Call", "sort", "amax"),
        (
            Call(lambda x: x * torch.ones(3).mean().item()),
            "Call",
            "_local_scalar_dense",
            r"torch\.where",
        ),
        (Call(lambda x: -x if x.sum() > 1 else x), "Call", "_local_scalar_dense", "where"),
        (Call(lambda x: torch.linalg.inv(x[:, :2, :2])), "Call", "linalg_inv", "constant"),
        (Call(lambda x: x.flatten(1).cummax(1).values), "Call", "cummax", "amax"),
    ],
)
def test_an_obstacle_says_layer_operator_and_substitute(
    layer: nn.Module, kind: str, operator: str, substitute: str
) -> None:
    (text, *_) = obstacles(objective_with(layer), (3, 8))
    assert text.startswith(f"layer extractor.middle ({kind}): ")
    assert re.search(operator, text)
    assert re.search(substitute, text)


def shifted(x: Tensor) -> Tensor:
    result = torch.zeros_like(x)
    result[:, :, 1:] = x[:, :, :-1]
    return result


def marked(x: Tensor) -> Tensor:
    x = x * 1
    x[:, 0] = 0.0
    return x


def doubled(x: Tensor) -> Tensor:
    x = x * 1
    x[:, 1:] *= 2
    return x


@pytest.mark.parametrize(
    ("function", "assigned"),
    [
        (shifted, True),
        (marked, True),
        (doubled, True),
        (SAMPLES["stft"][0]().forward, False),
        (lambda x: x.as_strided((x.shape[0], 3, 4), (x.stride(0), 8, 2)), False),
        (torch.fft.rfft2, False),
    ],
)
def test_the_advice_about_assignments_is_that_of_assignments(
    function: Callable[[Tensor], Tensor], assigned: bool
) -> None:
    """Their gradients have the same operators. On the input, which has no gradient, all train."""
    layer = Call(lambda x: function(x).abs())
    texts = obstacles(objective_with(layer), (3, 8))
    assert texts
    assert all(text.startswith("layer extractor.middle (Call): ") for text in texts)
    assert {"assignments to slices" in text for text in texts} == {assigned}
    assert obstacles(objective_with(layer, behind=False), (3, 8)) == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(len(x), -1),
        lambda x: x.reshape(len(x), 2, -1),
        lambda x: torch.stack([row.tanh() for row in x]),
        lambda x: torch.cat([x[i : i + 1] * 2 for i in range(x.shape[0])]),
        lambda x: sum(x.unbind(0)) + x,
    ],
)
def test_a_model_that_depends_on_the_number_of_examples_has_an_obstacle(
    function: Callable[[Tensor], Tensor],
) -> None:
    objective = objective_with(nn.Tanh())
    layer = objective.model.get_submodule("extractor.middle")
    layer.forward = function  # adoption would refuse some of them
    (text,) = obstacles(objective, (3, 8))
    assert text.startswith("layer extractor.middle (Tanh): The model's computation depends on")


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "behind"),
    [*((name, True) for name in SAMPLES), *((name, False) for name in OF_INPUTS)],
)
def test_obstacles_are_those_of_the_real_exporters(name: str, behind: bool) -> None:
    pytest.importorskip(
        "executorch",
        reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
    )
    make, shape = SAMPLES[name]
    try:
        objective = objective_with(make(), shape, behind=behind)
    except ConfigError:  # a simulation refuses it, too
        return
    found = obstacles(objective, shape) or name in UNSEEN
    try:
        capture_graphs(objective, shape, RUNTIMES)
    except ConfigError:
        assert found
    else:
        assert not found


class Doubled(nn.Module):
    """A model with an operator that no device has."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(shape[0] * shape[1], 8)
        self.power = Call(torch.exp2)
        self.out = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.power(self.body(x.flatten(1))))
        return answer


class TestSettings:
    TEXT = r"layer extractor\.power \(Call\): .*exp2"

    @staticmethod
    def data() -> shoal.FleetData:
        drawing = np.random.default_rng(0)
        x = drawing.standard_normal((40, 3, 8)).astype(np.float32)
        return shoal.load(x, np.arange(40) % 2, np.arange(40) // 20)

    def test_require_refuses_before_training(self) -> None:
        with pytest.raises(ConfigError, match=self.TEXT):
            shoal.simulate(self.data(), model=Doubled, rounds=10**6, exportable="require")

    def test_warn_is_the_default_and_trains(self) -> None:
        with pytest.warns(UserWarning, match=self.TEXT) as seen:
            result = shoal.simulate(self.data(), model=Doubled, algorithm="fedavg", rounds=1)
        assert result.summary.rounds == 1
        assert [each.filename for each in seen if "exp2" in str(each.message)] == [__file__]

    def test_off_says_nothing(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            shoal.simulate(
                self.data(), model=Doubled, algorithm="fedavg", rounds=1, exportable="off"
            )

    def test_a_model_of_devices_passes_require(self) -> None:
        shoal.simulate(self.data(), algorithm="fedavg", rounds=1, exportable="require")

    def test_a_comparison_refuses_it_too(self) -> None:
        with pytest.raises(ConfigError, match=self.TEXT):
            shoal.compare("fedavg", self.data(), model=Doubled, rounds=1, exportable="require")

    def test_another_word_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="exportable must be one of"):
            shoal.simulate(self.data(), exportable="maybe")
