"""Models as users write them, simulated, and exported for both runtimes: twenty steps on a device
are those of eager torch."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from algorithms.models.classifier import Classifier
from algorithms.objectives.fedavg import FedAvg
from benchmarks.models import objective_of, tried
from benchmarks.usual_models import USUAL
from benchmarks.usual_steps import COLUMNS, differences
from export.bundle import RUNTIMES, capture_graphs
from export.capture import trace
from export.describe import example_inputs, named
from export.exportable import obstacles
from export.lowering.onnx_graph import to_onnx
from wire.errors import ConfigError

QUICK = ("lora", "ConvTranspose1d", "torch.linalg.det")
REPRESENTATIVE = "lora, encoder"
TWENTY = [
    pytest.param(name, marks=[] if name == REPRESENTATIVE else pytest.mark.slow) for name in USUAL
]
TYPICAL = 1e-3
"""Maximum difference of a tensor after 20 steps, as a fraction of what plain torch moved it."""
APART: dict[str, float] = {}
"""Larger limits, for models in which a ReLU or a maximum flips in plain float32 too."""
EVERY = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in USUAL]


@pytest.mark.representatives(REPRESENTATIVE)
@pytest.mark.parametrize("name", TWENTY)
def test_twenty_steps_anywhere_are_those_of_plain_torch(name: str) -> None:
    pytest.importorskip(
        "executorch",
        reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
    )
    row = differences(name)
    assert max(row[column] for column in COLUMNS.values()) < APART.get(name, TYPICAL), row


@pytest.mark.full
@pytest.mark.parametrize("name", EVERY)
def test_steps_on_a_device_are_those_of_eager_torch(name: str) -> None:
    pytest.importorskip(
        "executorch",
        reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
    )
    assert obstacles(objective_of(name), USUAL[name].shape) == []
    found = tried(name)
    assert "refused" not in found, found["refused"]
    assert found["step_error"] < 1e-5
    assert bool(found["frozen"]) == (name in ("lora", "lora, encoder", "frozen body"))


class Scored(nn.Module):
    """A linear layer over all states of a recurrent layer."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.before, self.layer, self.after = nn.Linear(4, 5), layer, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.after(self.layer(self.before(x.transpose(1, 2)))[0])
        return answer


@pytest.mark.representatives("LSTM")
@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(nn.LSTM(5, 6, batch_first=True), id="LSTM"),
        pytest.param(nn.GRU(5, 6, batch_first=True), id="GRU"),
        pytest.param(nn.LSTM(5, 3, batch_first=True, bidirectional=True), id="both directions"),
        pytest.param(nn.RNN(5, 6, num_layers=2, batch_first=True), id="two layers"),
    ],
)
def test_a_layer_over_all_states_of_a_recurrent_layer_is_exported(layer: nn.RNNBase) -> None:
    body = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), Scored(layer), nn.Flatten())
    objective = FedAvg(Classifier(nn.Identity(), body, nn.Linear(18, 3)))
    step = named(objective.step)
    example = example_inputs(objective, (2, 6), 5)
    graph = to_onnx(trace(step, example))
    session = onnxruntime.InferenceSession(graph.onnx, providers=["CPUExecutionProvider"])
    inputs = {entry.name: example[entry.name].numpy() for entry in session.get_inputs()}
    expected = step(example)
    for name, value in zip(graph.outputs, session.run(None, inputs), strict=True):
        np.testing.assert_allclose(value, expected[name].detach(), rtol=1e-4, atol=1e-5)


class Determinant(nn.Module):
    """Determinant of nine numbers of a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 9)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.linalg.det(self.linear(x.mean(1)).unflatten(1, (3, 3))).unsqueeze(1)
        return made


class Each(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


PARTS = nn.Unflatten(2, (2, 2, 2))
NO_OPERATOR = (
    r"the graph cannot be written as ONNX: there is no operator for \w+\.[\w.]+\. Use layers that"
)
REFUSED: dict[str, tuple[list[nn.Module], int, str]] = {
    "ConvTranspose1d": (
        [nn.ConvTranspose1d(4, 2, 3)],
        20,
        r"extractor\.1 \(ConvTranspose1d\): ConvTranspose1d cannot be .* use Conv1d",
    ),
    "MaxPool3d": ([PARTS, nn.MaxPool3d(2)], 4, rf"extractor\.2 \(MaxPool3d\): {NO_OPERATOR}"),
    "AdaptiveAvgPool1d(3)": (
        [nn.AdaptiveAvgPool1d(3)],
        12,
        r"extractor\.1 \(AdaptiveAvgPool1d\): AdaptiveAvgPool from .* use sizes that divide them",
    ),
    "torch.linalg.det": ([Determinant()], 1, rf"extractor\.1 \(Determinant\): {NO_OPERATOR}"),
    "cumprod": ([Each(lambda x: x.cumprod(2))], 32, rf"extractor\.1 \(Each\): {NO_OPERATOR}"),
    "sort": (
        [Each(lambda x: x.sort(2).values)],
        32,
        r"extractor\.1 \(Each\): ExecuTorch's runtime cannot run the graph: it has no "
        r"aten::sort\.values\. Use layers that .* boards alone",
    ),
}
"""Layers between a convolution of four channels and the head, the numbers that they give, and the
refusal, by the name in docs/models.md."""
ROWS = re.findall(
    r"^\| `([^`]+)`[^|]* \| trains \| (trains|refused) \| (trains|refused) \|",
    (Path(__file__).parents[2] / "docs" / "models.md").read_text(),
    re.MULTILINE,
)
"""Rows of the table in docs/models.md: name, board, phone."""


def test_the_table_has_every_refusal() -> None:
    assert [name for name, _, _ in ROWS] == list(REFUSED)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "board", "phone"),
    [
        pytest.param(*row, marks=[] if row[0] in QUICK else pytest.mark.slow, id=row[0])
        for row in ROWS
    ],
)
def test_a_layer_that_a_runtime_lacks_is_refused_by_its_name_with_a_way_out(
    name: str, board: str, phone: str
) -> None:
    pytest.importorskip(
        "executorch",
        reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
    )
    layers, features, reason = REFUSED[name]
    body = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), *layers, nn.Flatten())
    objective = FedAvg(Classifier(nn.Identity(), body, nn.Linear(features, 3)))
    trained = named(objective.step)(example_inputs(objective, (2, 8)))
    assert all(torch.isfinite(value).all() for value in trained.values())
    step = {"step": objective.graphs()["step"]}
    objective.graphs = lambda: step  # type: ignore[method-assign]
    for outcome, runtimes in ((board, RUNTIMES[:1]), (phone, RUNTIMES)):
        if outcome == "trains":
            capture_graphs(objective, (2, 8), runtimes)
        else:
            with pytest.raises(ConfigError, match=f"^layer {reason}"):
                capture_graphs(objective, (2, 8), runtimes)
