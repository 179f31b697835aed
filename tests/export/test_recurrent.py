"""Recurrent layers of many steps are exported as loops, and make the steps that torch makes."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.composition import make_objective, read_algorithm
from export.bundle import RUNTIMES, capture_graphs, make_bundle
from export.capture import trace
from export.lowering.onnx_graph import count_operators, to_onnx
from export.parity import check_parity
from export.recurrent import LOOP_FROM, ExportedOperators
from export.runtimes import ONNX
from tests.algorithms.usual_models import CLASSES, adopted
from wire.arrays import names
from wire.bundle import Window, unpack
from wire.errors import ConfigError

LONG = 128


class Recurrent(nn.Module):
    """A recurrent layer with a head on the mean of its states and on its last state."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        width = layer.hidden_size * (2 if layer.bidirectional else 1)
        self.out = nn.Linear(width + layer.hidden_size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2) if self.layer.batch_first else x.permute(2, 0, 1)
        states, last = self.layer(x)
        last = last[0] if isinstance(last, tuple) else last
        mean = states.mean(1 if self.layer.batch_first else 0)
        answer: Tensor = self.out(torch.cat([mean, last[-1]], 1))
        return answer


LAYERS = {
    "lstm": lambda: nn.LSTM(3, 5, batch_first=True),
    "lstm, both directions": lambda: nn.LSTM(3, 5, bidirectional=True),
    "lstm, two layers": lambda: nn.LSTM(3, 5, num_layers=2, batch_first=True),
    "lstm without biases": lambda: nn.LSTM(3, 5, bias=False, batch_first=True),
    "gru": lambda: nn.GRU(3, 5, batch_first=True),
    "gru, two layers, both directions": lambda: nn.GRU(3, 5, num_layers=2, bidirectional=True),
    "gru without biases": lambda: nn.GRU(3, 5, bias=False, batch_first=True),
    "rnn": lambda: nn.RNN(3, 5, batch_first=True),
    "rnn of relu": lambda: nn.RNN(3, 5, nonlinearity="relu", batch_first=True),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_loop_has_the_answer_and_the_gradients_of_torch(kind: str) -> None:
    torch.manual_seed(0)
    model = Recurrent(LAYERS[kind]())
    x = torch.randn(4, 3, LOOP_FROM)
    parameters: dict[str, Tensor] = dict(model.named_parameters())

    def power(values: dict[str, Tensor], x: Tensor) -> Tensor:
        answer: Tensor = torch.func.functional_call(model, values, (x,)).square().sum()
        return answer

    step = torch.func.grad_and_value(power, argnums=(0, 1))
    plain = step(parameters, x)
    with ExportedOperators(), torch.backends.mkldnn.flags(enabled=False):
        looped = step(parameters, x)
    torch.testing.assert_close(looped, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_the_graph_of_four_times_as_many_steps_has_no_more_nodes(kind: str) -> None:
    layer = LAYERS[kind]()

    parameters = {names.shared(n): p.detach() for n, p in layer.named_parameters()}

    def forward(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        x = tensors[names.X]
        weights = {names.name_of(key): tensors[key] for key in parameters}
        states, _ = torch.func.functional_call(
            layer, weights, (x if layer.batch_first else x.transpose(0, 1),)
        )
        return {names.metric("states"): states}

    counts = []
    for steps in (LONG, 4 * LONG):
        traced = trace(forward, {**parameters, names.X: torch.zeros(3, steps, 3)})
        counts.append(count_operators(to_onnx(traced).onnx))
    assert counts[0] == counts[1]
    assert counts[0]["Scan"] == layer.num_layers * (2 if layer.bidirectional else 1)


@pytest.mark.parametrize(
    ("kind", "runtimes"),
    [
        ("lstm", (ONNX,)),
        *(
            pytest.param(kind, RUNTIMES, marks=[pytest.mark.slow, pytest.mark.full])
            for kind in LAYERS
        ),
    ],
)
def test_steps_of_a_device_are_those_of_torch(kind: str, runtimes: tuple[str, ...]) -> None:
    if len(runtimes) > 1:
        pytest.importorskip(
            "executorch",
            reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
        )
    torch.manual_seed(0)
    model = adopted(Recurrent(LAYERS[kind]()), (3, LONG))
    objective = make_objective(read_algorithm("fedavg"), model)
    packed = make_bundle(
        capture_graphs(objective, (3, LONG), runtimes),
        name="long",
        bundle_version=1,
        objective=objective,
        classes=tuple(map(str, range(CLASSES))),
        window=Window(("a", "b", "c"), LONG, LONG),
    )
    drawing = np.random.default_rng(0)
    x = drawing.standard_normal((40, 3, LONG)).astype(np.float32)
    assert check_parity(unpack(packed), objective, x, np.arange(40) % CLASSES, 10).step_error < 1e-5


def test_second_derivatives_of_a_loop_are_refused() -> None:
    layer = nn.GRU(3, 5, batch_first=True)

    def norm(x: Tensor) -> Tensor:
        slope: Tensor = torch.func.grad(lambda x: layer(x)[0].square().sum())(x)
        return slope.square().sum()

    with (
        ExportedOperators(),
        torch.backends.mkldnn.flags(enabled=False),
        pytest.raises(ConfigError, match="no second derivatives on devices"),
    ):
        torch.func.grad(norm)(torch.randn(2, 3, LOOP_FROM).transpose(1, 2))
