"""Lowering against autograd, parity of the whole step, and loud failures."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from aggregator.aggregation.probe_file import load_probe
from algorithms.composition import read_algorithm
from algorithms.core.contract import TorchTensors
from algorithms.core.probe import make_probe, whole_model
from algorithms.models.classifier import Classifier
from algorithms.models.har_cnn import HarCnn
from algorithms.models.images import resnet18
from algorithms.objectives.fedavg import FedAvg
from export import parity
from export.bundle import capture_graphs, save_probe
from export.capture import trace
from export.lowering.onnx_graph import count_operators, to_onnx
from export.parity import ParityError, check_parity
from export.publish import DEVICE_FILE
from host.native.arithmetic import answer
from simulation.datasets.watch import load_watch
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from tests.support.bundles import Exported, write_bundle
from wire.arrays.tensors import Tensors
from wire.bundle import Window, pack, unpack
from wire.errors import BundleError, ConfigError


class Net(Classifier):
    """A classifier around a layer under test."""

    def __init__(self, *layers: nn.Module, features: int) -> None:
        super().__init__(
            nn.Identity(), nn.Sequential(*layers, nn.Flatten()), nn.Linear(features, 3)
        )


@pytest.mark.representatives("net0-*")
@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (
            Net(
                nn.Conv1d(2, 4, 3, padding=1),
                nn.BatchNorm1d(4),
                nn.ReLU(),
                nn.MaxPool1d(2),
                features=32,
            ),
            (2, 16),
        ),
        (
            Net(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.MaxPool1d(3, stride=2, padding=1), features=28),
            (2, 16),
        ),
        (
            Net(
                nn.Conv1d(2, 4, 3, stride=2),
                nn.BatchNorm1d(4),
                nn.ReLU(),
                nn.AdaptiveAvgPool1d(1),
                features=4,
            ),
            (2, 17),
        ),
        (
            Net(
                nn.Conv2d(1, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.MaxPool2d(2),
                features=64,
            ),
            (1, 8, 8),
        ),
        (
            Net(
                nn.Conv2d(1, 4, 3),
                nn.Conv2d(4, 4, 3, stride=2, groups=4),
                nn.Conv2d(4, 2, 1),
                features=8,
            ),
            (1, 8, 8),
        ),
        (Net(nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), features=8), (2, 16)),
    ],
)
def test_exported_steps_of_other_networks_equal_eager(net: Net, shape: tuple[int, ...]) -> None:
    objective = FedAvg(net)
    tensors = objective.initial()
    hyper = {"hyper/lr": torch.tensor(0.05), "hyper/momentum": torch.tensor(0.9)}
    example = {
        **tensors,
        "batch/x": torch.randn(7, *shape),
        "batch/y": torch.zeros(7, dtype=torch.int64),
        **hyper,
    }

    def step(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        held = {k: v for k, v in inputs.items() if not k.startswith(("batch/", "hyper/"))}
        scalars = {k.removeprefix("hyper/"): v for k, v in inputs.items() if k.startswith("hyper/")}
        return objective.step(held, {"x": inputs["batch/x"], "y": inputs["batch/y"]}, scalars)

    captured = to_onnx(trace(step, example))
    session = onnxruntime.InferenceSession(captured.onnx, providers=["CPUExecutionProvider"])
    state = {k: v.clone() for k, v in tensors.items()}
    for size in (2, 7, 32):
        inputs = {
            **state,
            "batch/x": torch.randn(size, *shape),
            "batch/y": torch.randint(0, 3, (size,)),
            **hyper,
        }
        expected = step(inputs)
        found = dict(
            zip(
                captured.outputs,
                session.run(None, {k: inputs[k].detach().numpy() for k in captured.inputs}),
                strict=True,
            )
        )
        for key, value in expected.items():
            np.testing.assert_allclose(
                found[key], value.detach().numpy(), rtol=2e-3, atol=2e-5, err_msg=key
            )
        state |= {
            k.removeprefix("next/"): v.detach()
            for k, v in expected.items()
            if k.startswith("next/")
        }


def test_unsupported_convolution_names_itself() -> None:
    net = Net(nn.ConvTranspose1d(2, 4, 3), nn.ReLU(), features=72)
    objective = FedAvg(net)

    def step(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        held = {k: v for k, v in inputs.items() if "/" in k and not k.startswith(("batch/",))}
        hyper = {"lr": torch.tensor(0.1), "momentum": torch.tensor(0.9)}
        return objective.step(held, {"x": inputs["batch/x"], "y": inputs["batch/y"]}, hyper)

    example = {
        **objective.initial(),
        "batch/x": torch.randn(7, 2, 16),
        "batch/y": torch.zeros(7, dtype=torch.int64),
    }
    with pytest.raises(
        ConfigError,
        match=r"^ConvTranspose1d cannot be trained on a device; use Conv1d, Conv2d or Conv3d$",
    ):
        to_onnx(trace(step, example))


@pytest.mark.full
def test_twenty_steps_on_the_device_agree_with_eager_torch(tmp_path: Path) -> None:
    """The watch model on real windows: differences to float64 of the size that eager float32 itself
    has."""
    data = load_watch()
    write_bundle(tmp_path, data, read_algorithm("distfl"))
    bundle = unpack((tmp_path / DEVICE_FILE).read_bytes())
    windows = data.devices["p01-left"]
    found = check_parity(
        bundle,
        objective_for_fleet(data, read_algorithm("fedavg"), 0),
        windows.train_x,
        windows.train_y,
        steps=20,
    )
    assert found.graph_drift < max(2e-3, 5 * found.eager_drift)
    assert found.step_error < 1e-4


def test_parity_fails_loudly_when_the_graph_does_something_else(
    fleet: FleetData, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = fleet.devices["d0"]
    objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
    check_parity(exported.bundle, objective, windows.train_x, windows.train_y, steps=3)
    wrong = msgspec.structs.replace(exported.bundle.manifest, hyper={"lr": 0.02, "momentum": 0.9})
    files = {k: v for k, v in exported.bundle.files.items() if k.endswith(".onnx")}
    with pytest.raises(
        ParityError, match=r"differs from float64 by .* of its scale; at most 0\.0001 is allowed"
    ):
        check_parity(
            unpack(pack(wrong, files, exported.bundle.initial)),
            objective,
            windows.train_x,
            windows.train_y,
            steps=3,
        )
    assert parity.TYPICAL < 1e-3


@pytest.mark.parametrize(
    ("graph", "eager", "passes"),
    [(9, 0, True), (11, 0, False), (11, 6, True), (15, 20, True), (16, 20, False)],
)
def test_parity_lets_a_graph_flip_twice_as_often_as_float32_and_in_three_quarters_at_most(
    fleet: FleetData,
    exported: Exported,
    monkeypatch: pytest.MonkeyPatch,
    graph: int,
    eager: int,
    passes: bool,
) -> None:
    """After so many of twenty steps one value is beside that of float64, by a tenth of a per cent
    of its tensor's scale."""
    flipping = {
        "_graph_step": graph,
        "_eager_step": 2 * eager,
    }  # from the graph's tensors, and from those that it has made itself

    def flip(make: Callable[..., parity.Step], times: int) -> Callable[..., parity.Step]:
        def made(*arguments: Any) -> parity.Step:
            step, left = make(*arguments), times if torch.float64 not in arguments else 0
            if "step" not in arguments:
                return step

            def once(state: Tensors, batch: dict[str, Any]) -> Tensors:
                nonlocal left
                outputs, left = step(state, batch), left - 1
                key = next(k for k in outputs if k.startswith("next/shared/"))
                value = np.array(outputs[key])
                value.flat[0] += 1e-3 * np.abs(value).max() if left >= 0 else 0.0
                return {**outputs, key: value}

            return once

        return made

    for name, times in flipping.items():
        monkeypatch.setattr(parity, name, flip(getattr(parity, name), times))
    windows, objective = (
        fleet.devices["d0"],
        objective_for_fleet(fleet, read_algorithm("fedavg"), 0),
    )
    check = partial(
        check_parity, exported.bundle, objective, windows.train_x, windows.train_y, steps=20
    )
    if passes:
        check()
        return
    with pytest.raises(
        ParityError,
        match=r"graph step on onnx: next/shared/.* differs from float64 by 0\.001 of its scale; at "
        r"most 0\.0001 is allowed",
    ):
        check()


def test_probe_file_answers_like_the_model(exported: Exported) -> None:
    torch.manual_seed(0)
    model = HarCnn(2, 32, 3)
    probe = make_probe(model, (2, 32))
    loaded = load_probe(save_probe(probe, FedAvg(model).initial(), "0f"), "0f")
    assert (loaded.input_shape, loaded.norm_layers) == (probe.input_shape, probe.norm_layers)
    assert set(loaded.needs) == set(probe.needs)
    tensors = {k: v for k, v in FedAvg(model).initial().items() if not k.startswith("slot/")}
    x = torch.randn(11, 2, 32, requires_grad=True)
    (a, met_a), (b, met_b) = probe.run(tensors, x), loaded.run(tensors, x)
    torch.testing.assert_close(a, b)
    for one, two in zip(met_a, met_b, strict=True):
        torch.testing.assert_close(one, two)
    (gradient,) = torch.autograd.grad(met_b[1][0].sum(), x)
    assert float(gradient.abs().max()) > 0


@pytest.mark.representatives("har-cnn")
@pytest.mark.parametrize("name", ["har-cnn", "resnet-18"])
def test_a_probe_answers_alike_in_all_its_ways(name: str) -> None:
    """ResNet's convolutions have no bias; its BatchNorm layers follow them inside blocks."""
    torch.manual_seed(0)
    window = Window(("a", "b"), 32, 32)
    size = torch.tensor([2.0, 1.0])
    model = HarCnn(2, 32, 3, size) if name == "har-cnn" else resnet18(window, 3, size, share=1 / 8)
    probe = make_probe(model, window.shape)
    tensors = {k: v + 0.05 * torch.randn(v.shape) for k, v in whole_model(model).items()}
    tensors = {k: v.abs() if k.endswith("running_var") else v for k, v in tensors.items()}
    loaded = load_probe(save_probe(probe, tensors, "0f"), "0f")
    x = torch.randn(7, 2, 32)
    with torch.no_grad():
        expected = probe.run(tensors, x)[0]
        assert expected.std() > 0.01
        for one in (probe, loaded):
            assert one.predict is not None
            assert one.predict_folded is not None
            torch.testing.assert_close(one.predict(tensors, x), expected, rtol=0, atol=0)
            folded = one.predict_folded(tensors, x)
            torch.testing.assert_close(folded, expected, rtol=1e-4, atol=1e-5)
            assert not torch.equal(folded, expected)
            assert one.network is not None
            native = answer(
                one.network, [{k: v.numpy() for k, v in tensors.items()}] * 3, x.numpy()
            )
            np.testing.assert_allclose(
                native, expected[None].expand(3, -1, -1), rtol=1e-4, atol=1e-5
            )


class Windowed(nn.Module):
    """The spectrum of an input under a constant window, which a slice of a buffer may be."""

    window: Tensor

    def __init__(self, window: Tensor) -> None:
        super().__init__()
        self.register_buffer("window", window)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.stft(x.flatten(0, 1), 16, 8, window=self.window, return_complex=True)
        return spectrum.abs().reshape(x.shape[0], -1)


@pytest.mark.parametrize("window", [torch.hann_window(16), torch.hann_window(32)[4:20]])
def test_a_probe_with_a_constant_window_answers_alike_without_a_warning(window: Tensor) -> None:
    probe = make_probe(
        model := Net(Windowed(window), features=2 * 9 * 5), (2, 32), lambda logits, _x: logits
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_probe(save_probe(probe, whole_model(model), "0f"), "0f")
    x = torch.randn(7, 2, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.run(whole_model(model), x)[0], probe.run(whole_model(model), x)[0]
        )


def test_a_probe_file_of_another_bundle_is_refused() -> None:
    model = HarCnn(2, 32, 3)
    payload = save_probe(make_probe(model, (2, 32)), whole_model(model), "0f")
    with pytest.raises(
        BundleError,
        match=r"server.pt2.*exported with bundle 0f, but device\.shoal is bundle 0e",
    ):
        load_probe(payload, "0e")


def test_damaged_probe_file_is_one_clear_error() -> None:
    with pytest.raises(BundleError, match=r"probe file \(server\.pt2\) of 4 bytes"):
        load_probe(b"junk", "0f")


def test_inspect_counts_operators(exported: Exported) -> None:
    assert count_operators(exported.bundle.graph_bytes("predict"))["Conv"] == 2


def test_a_capture_says_what_it_does() -> None:
    told: list[str] = []
    objective = FedAvg(Net(nn.Flatten(), features=6))
    exported = capture_graphs(objective, (2, 3), on_progress=told.append)
    assert told == [
        f"{graph}: {what}"
        for graph in exported.graphs
        for what in ("capturing it", "writing it for ONNX")
    ]


def test_what_is_drawn_is_drawn_for_each_layer() -> None:
    """Two dropouts alike in a graph do not share a draw, as what is computed twice does."""

    def twice(inputs: TorchTensors) -> TorchTensors:
        return {f"output/{n}": torch.rand_like(inputs["batch/x"]) * inputs["batch/x"] for n in "ab"}

    captured = to_onnx(trace(twice, {"batch/x": torch.ones(7, 5)}))
    (a, b) = onnxruntime.InferenceSession(captured.onnx).run(
        None, {"batch/x": np.ones((3, 5), np.float32)}
    )
    assert not np.array_equal(a, b)
