"""Models as users write them: taken as they are, trained by every backend as plain torch trains
them, refused by name where no graph can hold them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.composition import make_objective, read_algorithm
from algorithms.core.contract import TorchTensors
from algorithms.models.adoption.attention import Attention
from algorithms.models.adoption.frozen import fixed_norms
from algorithms.models.reading.layers import Unsupported
from algorithms.models.reading.plain import attention, linear
from algorithms.objectives.fedavg import FedAvg
from benchmarks.usual_images import MobileNetV3, ResNet18
from benchmarks.usual_models import USUAL
from benchmarks.usual_steps import (
    as_plain,
    batches,
    objective_of,
    plain_model,
    plainly_trained,
    rate_of,
)
from export.describe import example_inputs, named
from simulation.engine.graphs.native import NativeGraphs
from tests.algorithms.usual_models import (
    CLASSES,
    MOMENTUM,
    adopted,
    batched,
    eager,
    hybrid,
)
from wire.arrays import names
from wire.errors import ConfigError

THREE = 3
LARGE = ("mobilenetv3, small", "resnet18")
"""Their steps take seconds."""
ALL = [pytest.param(name, marks=pytest.mark.slow if name in LARGE else []) for name in USUAL]
NOT_HYBRID = {
    "deepconvlstm": "extractor.lstm is LSTM",
    "bigru, dropout": "extractor.gru is GRU with bidirectional=True",
    "tcn": "extractor.blocks.0 calls pad",
    "inceptiontime": "extractor.first.pool.0 is MaxPool1d with stride=1",
    "mlp-mixer": "extractor.blocks.0.tokens.0 is Linear before Flatten",
    "fft front end": "extractor calls fft_rfft",
    "resnet, groupnorm": "extractor.blocks.0.norms.0 is GroupNorm",
    "lora": "extractor.layers.0.fixed.weight is frozen",
    "frozen body": "extractor.body.0.weight is frozen",
    "text, embedding": "extractor calls squeeze",
    "autoencoder": "extractor.encode.2 is Tanh",
    "regression": "extractor.layers.2 is SiLU",
    "multi-label": "extractor.layers.2 is SiLU",
    "mobilenetv2": "extractor.stem.2 is ReLU6",
    "mobilenetv3, small": "extractor.features.2 is Hardswish",
    "resnet18": "extractor.stem.3 is MaxPool2d with stride=2",
    "vit, images": "extractor.encoder.layers.0.self_attn is MultiheadAttention, and does not get",
    "tinyhar": "extractor.convolutions.0 is Conv2d and is given more",
    "attend and discriminate": "what the model does cannot be followed",
    "tinierhar": "extractor.blocks.0.depthwise is Conv1d with groups=3",
    "convlstm": "what the model does cannot be followed",
    "causal, rmsnorm": "what the model does cannot be followed",
    "text, padding mask": "extractor calls squeeze",
    "lora, encoder": "extractor.embed.weight is frozen",
    "padding modes": "extractor.layers.0 is Conv1d with padding_mode=circular",
    "padding modes, images": "extractor.layers.0 is Conv2d with padding_mode=circular",
    "conv3d": "extractor calls unsqueeze",
}
"""Reasons why the engine in C++ cannot run some of the models."""
MORE = dict.fromkeys(
    ("lora", "lora, encoder", "frozen body"), "graph 'step' of fedavg.* is more than plain SGD"
)
MORE |= {
    "autoencoder": "the loss of reconstruction is more than the cross-entropy",
    "regression": "the loss of regression is more than the cross-entropy",
    "multi-label": "the loss of multi-label is more than the cross-entropy",
}
NOT_NATIVE = NOT_HYBRID | MORE


def native(objective: FedAvg, _inputs: TorchTensors) -> Callable[[TorchTensors], TorchTensors]:
    graphs = NativeGraphs(objective, objective.model.shape, ["step"])

    def run(inputs: TorchTensors) -> TorchTensors:
        arrays = {key: value.numpy() for key, value in inputs.items()}
        x, y = arrays.pop(names.X), arrays.pop(names.Y)
        moved = graphs.train("step", arrays, x, y, [np.arange(len(y))], arrays)
        return {key: torch.from_numpy(np.array(value)) for key, value in moved.items()}

    return run


def trained(
    name: str, backend: Callable[..., Callable[[TorchTensors], TorchTensors]]
) -> TorchTensors:
    """Return the model after the same three steps of the objective's graph."""
    objective = objective_of(name)
    inputs = example_inputs(objective, USUAL[name].shape, 8)
    step, tensors = backend(objective, inputs), objective.initial()
    for x, y in batches(name, THREE):
        inputs |= {names.X: x, names.Y: y, names.hyper("momentum"): torch.tensor(MOMENTUM)}
        inputs |= {names.hyper("lr"): torch.tensor(rate_of(name))}
        moved = step(inputs | tensors)
        tensors |= {
            key.removeprefix(names.following.text): value.detach().clone()
            for key, value in moved.items()
            if key.startswith("next/")
        }
    return tensors


def assert_same(tensors: TorchTensors, expected: dict[str, Tensor]) -> None:
    for name, value in as_plain(tensors, expected).items():
        torch.testing.assert_close(value, expected[name], rtol=2e-4, atol=2e-5)


def test_two_of_them_are_as_large_as_those_of_torchvision() -> None:
    sizes = {
        kind: sum(p.numel() for p in kind((3, 224, 224), 1000).parameters())
        for kind in (ResNet18, MobileNetV3)
    }
    assert sizes == {ResNet18: 11_689_512, MobileNetV3: 2_542_856}


@pytest.mark.representatives("gru", "transformer encoder", "tcn")
@pytest.mark.parametrize("name", ALL)
def test_three_steps_equal_those_of_plain_torch(name: str) -> None:
    assert_same(trained(name, eager), plainly_trained(name, THREE))


@pytest.mark.representatives("gru", "transformer encoder", "tcn")
@pytest.mark.parametrize("name", ALL)
def test_the_engine_makes_the_same_steps_or_names_what_it_lacks(name: str) -> None:
    expected = plainly_trained(name, THREE)
    for backend, reasons in ((native, NOT_NATIVE), (hybrid, NOT_HYBRID)):
        if name in reasons:
            with pytest.raises(Unsupported, match=reasons[name]):
                trained(name, backend)
        else:
            assert_same(trained(name, backend), expected)


@pytest.mark.representatives("gru", "transformer encoder", "tcn")
@pytest.mark.parametrize("name", ALL)
def test_devices_together_make_the_same_steps(name: str) -> None:
    assert_same(trained(name, batched), plainly_trained(name, THREE))


class TestFrozen:
    def test_what_is_frozen_is_a_slot_that_no_step_moves(self) -> None:
        objective = FedAvg(adopted(plain_model("frozen body"), (3, 24)))
        tensors = objective.initial()
        frozen = [key for key in tensors if key.startswith(names.slot("frozen."))]
        assert sorted(
            names.name_of(key).removeprefix("frozen.extractor.body.") for key in frozen
        ) == [*("0.bias", "0.weight", "1.bias", "1.running_mean", "1.running_var", "1.weight")]
        outputs = named(objective.step)(example_inputs(objective, (3, 24)))
        assert not [key for key in outputs if "frozen" in key or ".body." in key]
        assert not [key for key in names.of_role(tensors, *names.EXCHANGED) if ".body." in key]

    def test_a_norm_is_fixed_where_its_weights_are_frozen(self) -> None:
        model = nn.Sequential(
            nn.BatchNorm1d(2).requires_grad_(False),
            nn.BatchNorm1d(2),
            nn.BatchNorm1d(2, affine=False),
        )
        assert list(fixed_norms(model)) == ["0"]

    def test_a_norm_without_weights_is_as_the_part_that_it_stands_in(self) -> None:
        body = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, affine=False))
        for frozen in (True, False):
            model = nn.Sequential(
                deepcopy(body).requires_grad_(not frozen), nn.Flatten(), nn.Linear(88, CLASSES)
            )
            tensors = FedAvg(adopted(model, (3, 24))).initial()
            travels = [
                key
                for key in tensors
                if key.endswith("running_mean") and names.role_of(key) in names.EXCHANGED
            ]
            assert bool(travels) == (not frozen)

    def test_a_model_whose_last_layer_is_frozen_is_refused(self) -> None:
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(72, 8), nn.Linear(8, CLASSES).requires_grad_(False)
        )
        with pytest.raises(
            ConfigError, match="layer 'head' is frozen, and the last layer of a model must train"
        ):
            FedAvg(adopted(model, (3, 24)))


class TestAttention:
    @pytest.mark.parametrize("batch_first", [True, False])
    @pytest.mark.parametrize("mask", ["none", "causal", "padding", "added"])
    def test_it_is_that_of_torch(self, batch_first: bool, mask: str) -> None:
        torch.manual_seed(0)
        layer = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        x = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
        options: dict[str, Tensor] = {
            "none": {},
            "causal": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)},
            "padding": {
                "key_padding_mask": torch.arange(5).expand(3, 5) > torch.tensor([[4], [2], [3]])
            },
            "added": {"attn_mask": torch.randn(5, 5)},
        }[mask]
        expected, weights = layer(x, x, x, **options)
        found, shares = Attention(layer, "a")(x, x, x, **options)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(shares, weights)

    @pytest.mark.parametrize(
        "options",
        [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.ones(4, 6).tril(1).bool()}],
    )
    def test_the_function_is_that_of_torch(self, options: dict[str, Any]) -> None:
        q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 5)
        torch.testing.assert_close(
            attention(q, k, v, **options), F.scaled_dot_product_attention(q, k, v, **options)
        )

    def test_its_dropout_takes_its_numbers_from_the_batch(self) -> None:
        model = adopted(USUAL["transformer encoder"].make((3, 24), CLASSES), (3, 24))
        objective = FedAvg(model)
        shapes = [
            shape for name, shape in objective.random.items() if name.endswith("self_attn.drop")
        ]
        assert shapes == [(4, 24, 24)] * 2, "heads, queries, keys"

    def test_options_that_it_does_not_have_are_refused(self) -> None:
        class Wide(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.attention, self.out = (
                    nn.MultiheadAttention(3, 1, kdim=24, vdim=24, batch_first=True),
                    nn.Linear(3, CLASSES),
                )

            def forward(self, x: Tensor) -> Tensor:
                answer: Tensor = self.out(self.attention(x.transpose(1, 2), x, x)[0].mean(1))
                return answer

        with pytest.raises(
            ConfigError, match=r"layer 'attention' is MultiheadAttention with kdim, vdim"
        ):
            adopted(Wide(), (3, 24))

    def test_a_linear_layer_of_many_dimensions_is_that_of_torch(self) -> None:
        x, layer = torch.randn(2, 3, 4, 5), nn.Linear(5, 6)
        torch.testing.assert_close(linear(x, layer.weight, layer.bias), layer(x))


def test_an_extractor_with_attention_can_be_made_constant() -> None:
    model = adopted(plain_model("transformer encoder"), (3, 24))
    objective = make_objective(read_algorithm("cgau"), model)
    assert not [key for key in objective.initial() if "in_proj" in key]
    made_of = named(objective.graphs()["step"])(example_inputs(objective, (3, 24)))
    assert all(torch.isfinite(value).all() for value in made_of.values())


def test_a_users_module_is_left_as_it_was() -> None:
    model = plain_model("vit-1d")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    FedAvg(adopted(model, (3, 24)))
    assert model.state_dict().keys() == before.keys()
    assert isinstance(model.get_submodule("head"), nn.Linear)
