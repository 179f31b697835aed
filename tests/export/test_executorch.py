"""Programs for ExecuTorch: decompositions against autograd, whole steps on the real runtime, parity
of objectives, and what is refused."""

import contextlib
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.composition import read_algorithm
from algorithms.models.classifier import Classifier
from algorithms.objectives.fedavg import FedAvg
from export import parity
from export.bundle import RUNTIMES, capture_graphs
from export.capture import trace
from export.describe import example_inputs, named
from export.inspect import inspect_bundle
from export.lowering import executorch, executorch_program, onnx, onnx_graph, shared
from export.lowering.executorch_program import to_executorch
from export.lowering.onnx_graph import to_onnx
from export.parity import ParityError, check_parity
from export.runtimes import _executorch, load_graph, runtimes_of
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from tests.support.bundles import ExportedPrograms, export_programs, some_graphs
from tests.support.objectives import OBJECTIVES
from wire.bundle import EXECUTORCH, PORTABLE, pack, unpack
from wire.errors import BundleError, ConfigError

pytest.importorskip(
    "executorch",
    reason="ExecuTorch is not installed: pip install 'shoal[executorch]' would run this",
)

CONVOLUTIONS = [
    (nn.Conv1d(3, 4, 5, padding=2), (2, 3, 16)),
    (nn.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 17)),
    (nn.Conv1d(3, 4, 4, stride=3), (2, 3, 16)),
    (nn.Conv2d(2, 3, 3, padding=1), (2, 2, 8, 7)),
    (nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 2, 9, 8)),
    (nn.Conv2d(2, 3, 1, stride=2), (2, 2, 8, 8)),
    (nn.Conv1d(4, 6, 3, groups=2, stride=2, padding=1), (2, 4, 17)),
    (nn.Conv1d(2, 3, 3, dilation=2, padding=2), (2, 2, 16)),
    (nn.Conv2d(4, 8, 3, groups=4, padding=1), (2, 4, 8, 7)),
    (nn.Conv2d(4, 4, (3, 2), groups=4, stride=2, dilation=(1, 3)), (2, 4, 8, 9)),
    (nn.Conv3d(2, 3, 3, padding=1), (2, 2, 4, 5, 6)),
    (nn.Conv3d(4, 6, (2, 3, 1), groups=2, stride=(2, 1, 3), padding=(1, 0, 0)), (2, 4, 5, 6, 7)),
    (nn.Conv3d(2, 2, 2, dilation=(1, 2, 3), stride=2), (2, 2, 4, 6, 8)),
]


@pytest.mark.parametrize("backward", [executorch.convolution_backward, onnx.convolution_backward])
@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS)
def test_convolutions_equal_autograd(
    layer: nn.Conv1d, shape: tuple[int, ...], backward: Callable[..., tuple[Tensor, ...]]
) -> None:
    x = torch.randn(*shape, requires_grad=True)
    out = layer(x)
    grad = torch.randn_like(out)
    assert layer.bias is not None
    assert isinstance(layer.padding, tuple)
    expected = torch.autograd.grad(out, (x, layer.weight, layer.bias), grad)
    given = (
        list(layer.stride),
        list(layer.padding),
        list(layer.dilation),
        False,
        [0] * (x.dim() - 2),
        layer.groups,
    )
    for a, b in zip(
        backward(grad, x, layer.weight, [len(layer.bias)], *given, [True] * 3),
        expected,
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        executorch.convolution(x, layer.weight, layer.bias, *given), out, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("backward", [executorch.max_pool_backward, shared.max_pool_backward])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "shape"),
    [
        ((1, 2), (1, 2), 0, (2, 3, 1, 8)),
        ((1, 3), (1, 3), 0, (2, 3, 1, 8)),
        ((2, 2), (2, 2), 0, (2, 3, 5, 6)),
        ((3, 3), (2, 2), 1, (2, 3, 7, 6)),
    ],
)
@pytest.mark.parametrize("ties", [False, True])
def test_max_pooling_equals_autograd_ties_included(
    backward: Callable[..., Tensor],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: int,
    shape: tuple[int, ...],
    ties: bool,
) -> None:
    x = torch.randint(-1, 2, shape).float() if ties else torch.randn(*shape)
    x.requires_grad_()
    out, indices = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    grad = torch.randn_like(out)
    (expected,) = torch.autograd.grad(out, x, grad)
    given = (list(kernel), list(stride), [padding] * 2, [1, 1], False)
    assert torch.equal(backward(grad, x.detach(), *given, indices), expected)
    if padding == 0:
        best, places = executorch.max_pool(x.detach(), *given)
        assert torch.equal(best, out)
        assert torch.equal(places, indices)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_adaptive_max_pooling_equals_autograd(count: int) -> None:
    x = torch.randint(-2, 3, (4, 3, 1, 6)).float().requires_grad_()
    out, indices = F.adaptive_max_pool2d(x, (1, count), return_indices=True)
    grad = torch.randn_like(out)
    (expected,) = torch.autograd.grad(out, x, grad)
    best, places = shared.adaptive_max_pool(x.detach(), [1, count])
    assert torch.equal(best, out)
    assert torch.equal(places, indices)
    assert torch.equal(shared.adaptive_max_pool_backward(grad, x.detach(), places), expected)


def test_adaptive_max_pooling_of_uneven_windows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"AdaptiveMaxPool from \[1, 6\] to \[1, 4\] values"):
        shared.adaptive_max_pool(torch.zeros(2, 3, 1, 6), [1, 4])


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "shape"),
    [
        ((1, 4), (1, 4), (0, 0), (2, 3, 1, 8)),
        ((2, 3), (2, 3), (0, 0), (2, 3, 4, 6)),
        ((3, 2), (2, 1), (1, 0), (2, 3, 7, 6)),
        ((1, 3), (1, 3), (0, 0), (2, 3, 1, 8)),
    ],
)
def test_average_pooling_equals_autograd(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    shape: tuple[int, ...],
) -> None:
    x = torch.randn(*shape, requires_grad=True)
    out = F.avg_pool2d(x, kernel, stride, padding)
    grad = torch.randn_like(out)
    (expected,) = torch.autograd.grad(out, x, grad)
    torch.testing.assert_close(
        shared.average_pool_backward(
            grad, x, list(kernel), list(stride), list(padding), False, True, None
        ),
        expected,
    )


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 8), (5, 3, 4, 6)])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norm_equals_autograd(shape: tuple[int, ...], affine: bool) -> None:
    x = (3 + 2 * torch.randn(*shape)).requires_grad_()
    weight, bias = (torch.randn(3, requires_grad=True) if affine else None for _ in range(2))
    mean, variance = torch.randn(3), torch.rand(3) + 0.5
    moved = mean.clone(), variance.clone()
    out = F.batch_norm(x, *moved, weight, bias, True, 0.1, 1e-5)
    found = executorch.batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5)
    for a, b in zip((found[0], *found[3:]), (out, *moved), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, [x, *(t for t in (weight, bias) if t is not None)], grad)
    made = executorch.batch_norm_backward(
        grad, x, weight, None, None, found[1], found[2], True, 1e-5, [True, affine, affine]
    )
    for c, d in zip([t for t in made if t is not None], expected, strict=True):
        torch.testing.assert_close(c, d, rtol=1e-4, atol=1e-5)


class Net(Classifier):
    """A classifier around a layer under test."""

    def __init__(self, *layers: nn.Module, features: int) -> None:
        super().__init__(
            nn.Identity(), nn.Sequential(*layers, nn.Flatten()), nn.Linear(features, 3)
        )


class Recurrent(nn.Module):
    """x (batch, channels, time) -> what a recurrent layer makes of the last sample."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x.transpose(1, 2))[0][:, -1]
        return made


class Deciding(nn.Module):
    """Model whose computation depends on its values: no graph can express it."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


class Counting(nn.Module):
    """Model whose computation depends on the number of examples: no graph can express it for all
    batches."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.shape[0] < 10 else -x


NETS = {
    "batch norm, max pool": (
        lambda: Net(nn.Conv1d(2, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2),
                    features=32), (2, 16)),
    "overlapping max pool": (
        lambda: Net(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.MaxPool1d(3, stride=2, padding=1),
                    features=28), (2, 16)),
    "stride, adaptive pool": (
        lambda: Net(nn.Conv1d(2, 4, 3, stride=2), nn.BatchNorm1d(4), nn.ReLU(),
                    nn.AdaptiveAvgPool1d(1), features=4), (2, 17)),
    "two dimensions": (
        lambda: Net(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                    features=64), (1, 8, 8)),
    "depthwise": (
        lambda: Net(nn.Conv1d(2, 8, 3, dilation=2), nn.ReLU(),
                    nn.Conv1d(8, 8, 3, 2, 1, groups=8), nn.Conv1d(8, 4, 1), features=24),
        (2, 16)),
    "average pools": (
        lambda: Net(nn.Conv2d(1, 4, 3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Tanh(),
                    features=16), (1, 16, 16)),
    "group norm": (
        lambda: Net(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.AdaptiveAvgPool1d(2),
                    features=8), (2, 18)),
    "LSTM": (lambda: Net(Recurrent(nn.LSTM(2, 5, batch_first=True)), features=5), (2, 4)),
    "GRU": (lambda: Net(Recurrent(nn.GRU(2, 5, batch_first=True)), features=5), (2, 4)),
}  # fmt: skip
QUICK = ("depthwise",)


@pytest.mark.full
@pytest.mark.parametrize(
    "net", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETS]
)
def test_steps_of_networks_equal_eager_torch(net: str) -> None:
    torch.manual_seed(0)
    make, shape = NETS[net]
    objective = FedAvg(make())
    example = example_inputs(objective, shape)
    step = named(objective.step)
    traced = trace(step, example)
    written = to_executorch(traced, 32)
    calls = {runtime: _executorch(payload) for runtime, (_, payload) in written.items()}
    state = {k: v for k, v in example.items() if not k.startswith("batch/")}
    for size in (2, 7, 32):
        inputs = {
            **state,
            "batch/x": torch.randn(size, *shape),
            "batch/y": torch.randint(0, 3, (size,)),
        }
        expected = step(inputs)
        for runtime, call in calls.items():
            found = dict(
                zip(
                    traced.outputs,
                    call([inputs[k].detach().numpy() for k in traced.inputs]),
                    strict=True,
                )
            )
            for key, value in expected.items():
                np.testing.assert_allclose(
                    found[key],
                    value.detach().numpy(),
                    rtol=2e-3,
                    atol=2e-5,
                    err_msg=f"{key} on {runtime}",
                )
        state |= {
            k.removeprefix("next/"): v.detach()
            for k, v in expected.items()
            if k.startswith("next/")
        }


class TestWhatCannotBeLowered:
    @pytest.mark.parametrize(
        ("net", "shape", "text"),
        [
            (
                Net(nn.ConvTranspose1d(2, 4, 3), features=72),
                (2, 16),
                "ConvTranspose1d cannot be trained on a device",
            ),
            (
                Net(nn.AvgPool1d(3, ceil_mode=True), nn.Tanh(), nn.Conv1d(2, 2, 1), features=12),
                (2, 16),
                None,
            ),
            (
                Net(nn.Conv1d(2, 2, 1), nn.AdaptiveAvgPool1d(5), features=10),
                (2, 16),
                r"AdaptiveAvgPool from \[1, 16\] to \[1, 5\]",
            ),
        ],
    )
    def test_a_layer_is_named(self, net: Net, shape: tuple[int, ...], text: str | None) -> None:
        objective = FedAvg(net)
        traced = trace(named(objective.step), example_inputs(objective, shape))
        if (
            text is None
        ):  # the gradient does not pass through the pooling: there is nothing to refuse
            assert to_executorch(traced, 16)[PORTABLE][1]
            return
        with pytest.raises(ConfigError, match=text):
            to_executorch(traced, 16)

    def test_a_layer_that_cannot_be_captured_is_named(self) -> None:
        objective = FedAvg(Net(nn.Flatten(), Deciding(), features=12))
        with pytest.raises(ConfigError, match=r"cannot be captured as a graph \(Deciding"):
            trace(named(objective.step), example_inputs(objective, (2, 6)))

    def test_a_layer_that_asks_how_many_examples_there_are_is_refused(self) -> None:
        objective = FedAvg(Net(nn.Flatten(), Counting(), features=12))
        with pytest.raises(
            ConfigError, match=r"depends on the number of examples in a batch: batch < 10"
        ):
            trace(named(objective.step), example_inputs(objective, (2, 6)))

    def test_an_operator_that_the_runtime_does_not_have_is_named(self) -> None:
        def determinant(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            return {
                "output/x": torch.linalg.det(
                    inputs["batch/x"].unsqueeze(1).expand(-1, 3, 3) + torch.eye(3)
                )
            }

        with pytest.raises(ConfigError, match="linalg_det"):
            to_executorch(trace(determinant, {"batch/x": torch.randn(7, 3)}), 16)

    def test_runtimes_and_batches_that_make_no_sense(self, fleet: FleetData) -> None:
        objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
        with pytest.raises(ConfigError, match=r"runtimes must be onnx, .*, got tflite"):
            capture_graphs(objective, fleet.window.shape, ("tflite",))
        with pytest.raises(ConfigError, match="max_batch must be above 7, got 4"):
            capture_graphs(objective, fleet.window.shape, max_batch=4)


def export_small(seed: int, *layers: nn.Module) -> tuple[bytes, ...]:
    """The step of FedAvg for small layers that make 12 features of windows of 2 x 8: for ONNX,
    XNNPACK, and portable."""
    torch.manual_seed(seed)
    objective = some_graphs(FedAvg(Net(*layers, nn.ReLU(), features=12)), "step")
    exported = capture_graphs(objective, (2, 8), RUNTIMES, 16)
    return exported.graphs["step"].onnx, *(
        payload for _, payload in exported.programs["step"].values()
    )


@pytest.mark.slow
def test_the_same_content_has_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was exported before, and with or without the shortcuts. Small layers: how a graph is
    named and ordered does not depend on how large they are."""
    first = export_small(0, nn.Conv1d(2, 2, 3), nn.BatchNorm1d(2))
    other = export_small(1, nn.Conv1d(2, 2, 3, padding=1), nn.MaxPool1d(2), nn.Conv1d(2, 4, 2))
    assert len(first) == 3
    assert not set(first) & set(other)
    for shortcut in ("known_results", "needed_passes", "no_generated_code"):
        monkeypatch.setattr(executorch_program, shortcut, contextlib.nullcontext)
    monkeypatch.setattr(onnx_graph, "likely_patterns", contextlib.nullcontext)
    assert export_small(2, nn.Conv1d(2, 2, 3), nn.BatchNorm1d(2)) == first


@pytest.mark.full
def test_a_recurrent_layer_has_the_same_bytes_in_onnx_with_and_without_the_shortcut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its graph has parts that begin like a pattern of onnxscript with several ends."""
    torch.manual_seed(0)
    objective = some_graphs(
        FedAvg(Net(Recurrent(nn.GRU(2, 3, batch_first=True)), features=3)), "step"
    )
    traced = trace(
        named(objective.graphs()["step"]), example_inputs(objective, (2, 5)) | objective.initial()
    )
    short = to_onnx(traced)
    monkeypatch.setattr(onnx_graph, "likely_patterns", contextlib.nullcontext)
    assert to_onnx(traced).onnx == short.onnx


@pytest.mark.full
def test_inspection_counts_operators_of_every_runtime(exported_programs: ExportedPrograms) -> None:
    rows = {(row.graph, row.runtime): row for row in inspect_bundle(exported_programs.bundle)}
    assert rows.keys() == {
        (g, r) for g in ("step", "evaluate") for r in ("onnx", EXECUTORCH, PORTABLE)
    }
    xnnpack, portable = rows["step", EXECUTORCH], rows["step", PORTABLE]
    assert xnnpack.operators["delegated/XnnpackBackend/aten.bmm.default"] >= 8
    assert not any(name.startswith("delegated/") for name in portable.operators)
    assert (
        portable.operators["aten::bmm.out"]
        == xnnpack.operators["delegated/XnnpackBackend/aten.bmm.default"]
    )
    assert xnnpack.max_batch == 32
    assert rows["step", "onnx"].max_batch is None
    assert portable.memory_bytes > 100_000


@pytest.mark.full
def test_parity_holds_on_every_runtime(
    fleet: FleetData, exported_programs: ExportedPrograms
) -> None:
    bundle, windows = exported_programs.bundle, fleet.devices["d0"]
    assert runtimes_of(bundle) == ("onnx", EXECUTORCH, PORTABLE)
    found = check_parity(
        bundle, exported_programs.objective, windows.train_x, windows.train_y, steps=100
    )
    assert found.step_error < 1e-4


@pytest.mark.parametrize("runtime", [EXECUTORCH, PORTABLE])
def test_parity_fails_loudly_when_a_program_does_something_else(
    fleet: FleetData,
    exported_programs: ExportedPrograms,
    runtime: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parity, "runtimes_of", lambda _bundle: (runtime,))
    bundle, windows = exported_programs.bundle, fleet.devices["d0"]
    wrong = msgspec.structs.replace(bundle.manifest, hyper={"lr": 0.02, "momentum": 0.9})
    files = {name: data for name, data in bundle.files.items() if name.endswith((".onnx", ".pte"))}
    with pytest.raises(
        ParityError,
        match=f"graph step on {runtime}: next/shared/.* differs from float64 by .* of its scale; "
        "at most 0.0001 is allowed",
    ):
        check_parity(
            unpack(pack(wrong, files, bundle.initial)),
            exported_programs.objective,
            windows.train_x,
            windows.train_y,
            steps=3,
        )


def test_a_runtime_without_a_program_is_one_clear_error(
    exported_programs: ExportedPrograms,
) -> None:
    with pytest.raises(
        BundleError,
        match="graph 'step' has no program for coreml; its programs: executorch, "
        "executorch-portable",
    ):
        load_graph(exported_programs.bundle, "step", "coreml")


def check_objective(fleet: FleetData, name: str, *graphs: str) -> None:
    """100 steps of an objective's graphs, or of these of them, on every runtime against float64."""
    objective = objective_for_fleet(fleet, read_algorithm(name), 0)
    if graphs:
        objective = some_graphs(objective, *graphs)
    windows = fleet.devices["d0"]
    found = check_parity(
        export_programs(fleet, objective, 32),
        objective,
        windows.train_x,
        windows.train_y,
        steps=100,
    )
    assert found.step_error < 1e-4
    assert found.graph_drift < max(2e-2, 10 * found.eager_drift)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cgau:units=8", "feddisk:density_units=4"])
def test_steps_of_objectives_equal_float64(fleet: FleetData, name: str) -> None:
    check_objective(fleet, name, "step")


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [("step",), ()], ids=["step", "all"])
def test_graphs_of_dbe_before_a_head_of_several_layers_equal_float64(
    fleet: FleetData, graphs: tuple[str, ...]
) -> None:
    objective = objective_for_fleet(fleet, read_algorithm("dbe"), 0, "har-cnn-dbe:cut=convolutions")
    if graphs:
        objective = some_graphs(objective, *graphs)
    windows = fleet.devices["d0"]
    found = check_parity(
        export_programs(fleet, objective, 32), objective, windows.train_x, windows.train_y, steps=5
    )
    assert found.step_error < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*OBJECTIVES, "fedavg+dp-sgd"])
def test_all_graphs_of_every_objective_equal_float64(fleet: FleetData, name: str) -> None:
    check_objective(fleet, name)
