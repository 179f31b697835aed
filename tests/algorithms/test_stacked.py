"""Dropout inside recurrent layers: three steps are those of plain torch with the same draws, by
every backend; files of devices are too."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_sequence

from algorithms.composition import make_objective, read_algorithm
from algorithms.core.contract import TorchTensors
from algorithms.models.adoption.stacked import Stacked
from algorithms.models.reading.layers import Unsupported
from algorithms.objectives.fedavg import FedAvg
from export.bundle import RUNTIMES, capture_graphs, make_bundle
from export.describe import example_inputs, named
from export.parity import check_parity
from simulation.engine.graphs.native import NativeGraphs
from tests.algorithms.usual_models import (
    CLASSES,
    LR,
    MOMENTUM,
    adopted,
    batched,
    eager,
    hybrid,
)
from wire.arrays import names
from wire.bundle import Window, unpack
from wire.errors import ConfigError

SHAPE, UNITS, LAYERS, SHARE = (3, 6), 5, 3, 0.4


class Recurrent(nn.Module):
    """The last sample of what a recurrent layer gives, before one linear layer."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear((2 if layer.bidirectional else 1) * UNITS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer.batch_first
        states = self.layer(x.transpose(1, 2) if first else x.permute(2, 0, 1))[0]
        answer: Tensor = self.out(states[:, -1] if first else states[-1])
        return answer


def made(kind: Callable[..., nn.RNNBase] = nn.GRU, **options: Any) -> nn.RNNBase:
    """A layer of three layers that drops between them."""
    torch.manual_seed(1)
    return kind(
        SHAPE[0], UNITS, num_layers=LAYERS, **{"batch_first": True, "dropout": SHARE, **options}
    )


def batches(objective: FedAvg) -> list[TorchTensors]:
    """Three batches of four, with the numbers that the objective draws."""
    drawing, found = torch.Generator().manual_seed(3), []
    for _ in range(3):
        drawn = {
            names.batch(name): torch.rand(4, *shape, generator=drawing)
            for name, shape in objective.random.items()
        }
        x, y = (
            torch.randn(4, *SHAPE, generator=drawing),
            torch.randint(CLASSES, (4,), generator=drawing),
        )
        found.append({names.X: x, names.Y: y, **drawn})
    return found


def trained(
    model: nn.Module, backend: Callable[..., Callable[[TorchTensors], TorchTensors]]
) -> TorchTensors:
    """Return the model after three steps of the objective's graph, by the names of the model."""
    objective = FedAvg(adopted(model, SHAPE))
    inputs = example_inputs(objective, SHAPE, 4)
    step, tensors = backend(objective, inputs), objective.initial()
    for batch in batches(objective):
        inputs |= batch | {
            names.hyper("momentum"): torch.tensor(MOMENTUM),
            names.hyper("lr"): torch.tensor(LR),
        }
        moved = step(inputs | tensors)
        tensors |= {
            key.removeprefix(names.following.text): value.detach().clone()
            for key, value in moved.items()
            if key.startswith("next/")
        }
    found = names.part(tensors, names.SHARED)
    return {
        name.removeprefix("extractor.").replace("head.", "out."): value
        for name, value in found.items()
    }


def plainly_trained(model: Recurrent) -> dict[str, Tensor]:
    """Return the model after the same steps in plain torch: torch's own layers of one layer each,
    with the numbers of `batches` where torch would draw."""
    single_of: Callable[..., nn.RNNBase] = type(model.layer)
    layer, directions = model.layer, 2 if model.layer.bidirectional else 1
    kind = {"bias": layer.bias, "bidirectional": layer.bidirectional, "batch_first": True}
    if isinstance(layer, nn.RNN):
        kind["nonlinearity"] = layer.nonlinearity
    singles = nn.ModuleList(
        single_of(SHAPE[0] if i == 0 else directions * UNITS, UNITS, **kind) for i in range(LAYERS)
    )
    for i, single in enumerate(singles):
        single.load_state_dict(
            {n: layer.state_dict()[n.replace("_l0", f"_l{i}")] for n in single.state_dict()}
        )
    out = nn.Linear(directions * UNITS, CLASSES)
    out.load_state_dict(model.out.state_dict())
    optimizer = torch.optim.SGD([*singles.parameters(), *out.parameters()], LR, MOMENTUM)
    for batch in batches(FedAvg(adopted(model, SHAPE))):
        states = batch[names.X].transpose(1, 2) / 2.0
        for i, single in enumerate(singles):
            states = single(states)[0]
            if i < LAYERS - 1:
                kept = batch[names.batch(names.uniform(f"extractor.layer.drop_l{i}"))] >= SHARE
                states = states * kept / (1 - SHARE)
        optimizer.zero_grad()
        F.cross_entropy(out(states[:, -1]), batch[names.Y]).backward()
        optimizer.step()
    found = {
        f"layer.{n.replace('_l0', f'_l{i}')}": value.detach()
        for i, single in enumerate(singles)
        for n, value in single.named_parameters()
    }
    return found | {f"out.{n}": value.detach() for n, value in out.named_parameters()}


def native(objective: FedAvg, _inputs: TorchTensors) -> Callable[[TorchTensors], TorchTensors]:
    graphs = NativeGraphs(objective, objective.model.shape, ["step"])
    return lambda inputs: {
        k: torch.from_numpy(np.array(v))
        for k, v in graphs.run("step", {k: v.numpy() for k, v in inputs.items()}).items()
    }


KINDS: dict[str, Callable[[], nn.RNNBase]] = {
    "gru": lambda: made(),
    "gru, both directions": lambda: made(bidirectional=True),
    "gru, samples first": lambda: made(batch_first=False),
    "lstm": lambda: made(nn.LSTM),
    "lstm, both directions": lambda: made(nn.LSTM, bidirectional=True, bias=False),
    "rnn": lambda: made(nn.RNN),
    "rnn of relu": lambda: made(nn.RNN, nonlinearity="relu"),
}
LACKS = {
    "gru, both directions": "is GRU with bidirectional=True",
    "gru, samples first": "permute",
    "lstm": "is LSTM",
} | {**{"lstm, both directions": "is LSTM", "rnn": "is RNN", "rnn of relu": "is RNN"}}
"""Layers that the engine in C++ lacks."""


@pytest.mark.parametrize("kind", KINDS)
def test_three_steps_equal_those_of_plain_torch_with_the_same_draws(kind: str) -> None:
    expected = plainly_trained(Recurrent(KINDS[kind]()))
    for backend in (eager, batched):
        assert_same(trained(Recurrent(KINDS[kind]()), backend), expected)
    with pytest.raises(
        Unsupported, match=LACKS.get(kind, "extractor.layer.drop_l0 is dropout in the extractor")
    ):
        trained(Recurrent(KINDS[kind]()), hybrid)
    if kind in LACKS:
        with pytest.raises(Unsupported, match=LACKS[kind]):
            trained(Recurrent(KINDS[kind]()), native)
    else:
        assert_same(trained(Recurrent(KINDS[kind]()), native), expected)


def assert_same(found: TorchTensors, expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"kind": nn.GRU},
        {"kind": nn.LSTM, "proj_size": 2, "bidirectional": True},
        {"kind": nn.RNN, "bias": False},
    ],
)
def test_what_it_gives_outside_of_training_is_that_of_torch(
    batch_first: bool, options: dict[str, Any]
) -> None:
    """The states of every layer too, from states that are given or from none."""
    layer = made(batch_first=batch_first, **options).eval()
    stacked, x = (
        Stacked(layer).eval(),
        torch.randn(4, 6, SHAPE[0]) if batch_first else torch.randn(6, 4, SHAPE[0]),
    )
    stacked.flatten_parameters()
    started = layer(x)[1]
    for given in ((), (started,)):
        torch.testing.assert_close(stacked(x, *given), layer(x, *given))
    assert stacked.state_dict().keys() == layer.state_dict().keys()


def test_inputs_without_a_batch_or_packed_ones_are_refused() -> None:
    stacked = Stacked(made())
    with pytest.raises(
        ConfigError,
        match=r"GRU with dropout needs a tensor of three dimensions, .*, got \[6, 3\]",
    ):
        stacked(torch.randn(6, 3))
    with pytest.raises(
        ConfigError, match=r"GRU with dropout needs a tensor .*, got PackedSequence"
    ):
        stacked(pack_sequence([torch.randn(6, 3)]))


class Own(nn.GRU):
    """With a forward pass of its own."""

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        states, last = super().forward(x, hx)
        return 2 * states, last


def hooked() -> nn.RNNBase:
    layer = made()
    layer.register_forward_hook(lambda _layer, _inputs, given: (2 * given[0], given[1]))
    return layer


@pytest.mark.parametrize("layer", [made(Own), hooked(), weight_norm(made(), "weight_hh_l1")])
def test_a_layer_that_does_more_than_that_of_torch_is_refused_by_its_name(
    layer: nn.RNNBase,
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"layer 'layer' is \w+ with (hooks|a class of its own), "
        r"which would be lost",
    ):
        adopted(Recurrent(layer), SHAPE)


def test_a_layer_that_drops_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"layer 'layer': dropout must be below 1, got 1"):
        adopted(Recurrent(made(nn.GRU, dropout=1.0)), SHAPE)


def test_a_frozen_layer_drops_nothing() -> None:
    objective = make_objective(read_algorithm("cgau"), adopted(Recurrent(made()), SHAPE))
    assert not [name for name in objective.random if "drop_l" in name]
    assert all(
        torch.isfinite(v).all()
        for v in named(objective.graphs()["step"])(example_inputs(objective, SHAPE)).values()
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["gru, both directions", "lstm", "rnn"])
def test_steps_on_devices_are_those_of_eager_torch(kind: str) -> None:
    """On ONNX Runtime and on ExecuTorch, with the values dropped that eager torch drops."""
    pytest.importorskip(
        "executorch",
        reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
    )
    objective = FedAvg(adopted(Recurrent(KINDS[kind]()), SHAPE))
    graphs = capture_graphs(objective, SHAPE, RUNTIMES)
    window = Window(tuple("abc"), SHAPE[1], SHAPE[1])
    packed = make_bundle(
        graphs,
        name="stacked",
        bundle_version=1,
        objective=objective,
        classes=tuple("abcd"),
        window=window,
    )
    drawing = np.random.default_rng(0)
    x = drawing.standard_normal((32, *SHAPE)).astype(np.float32)
    assert check_parity(unpack(packed), objective, x, np.arange(32) % CLASSES, 20).step_error < 1e-5
