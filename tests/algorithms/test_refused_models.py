"""Models that no graph can express are refused by name, wherever a module hides the cause."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
from algorithms.models.adoption.adopt import adopt
from algorithms.objectives.fedavg import FedAvg
from tests.algorithms.usual_models import CLASSES, adopted
from wire.errors import ConfigError


class Other(nn.Module):
    """A model with a forward pass that a test gives."""

    running: Tensor

    def __init__(self, forward: Callable[["Other", Tensor], object]) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(()))
        self.out, self.way = nn.Linear(72, CLASSES), forward

    def forward(self, x: Tensor) -> object:
        return self.way(self, x.flatten(1))


def moving(model: Other, x: Tensor) -> Tensor:
    model.running.add_(x.mean())
    answer: Tensor = model.out(x)
    return answer


def remembering(model: Other, x: Tensor) -> Tensor:
    """The state of this layer is in no buffer."""
    vars(model)["seen"] = (
        0.9 * vars(model).get("seen", 0.0) + float(x.detach().square().mean())
        if model.training
        else 0.0
    )
    answer: Tensor = model.out(x + vars(model)["seen"])
    return answer


def hooked() -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES))
    model.register_forward_hook(
        lambda _model, _inputs, output: output * torch.arange(1.0, CLASSES + 1)
    )
    return model


class Doubled(nn.Sequential):
    """A list of layers with a way of its own through them."""

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self[2](2 * self[1](self[0](x)))
        return answer


def test_a_list_of_layers_with_a_hook_or_a_way_of_its_own_is_not_cut_as_one_without() -> None:
    with pytest.raises(ConfigError, match="does not return the output of one of its linear layers"):
        adopted(hooked(), (3, 24))
    model = Doubled(nn.Flatten(), nn.Linear(72, 8), nn.Linear(8, CLASSES)).eval()
    x = torch.randn(5, 3, 24)
    torch.testing.assert_close(
        adopt("mine", model, (3, 24), CLASSES, nn.Identity()).eval()(x), model(x)
    )


class Halved(nn.Dropout):
    """A dropout that does more than drop."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


class Mixed(nn.Module):
    """Attention, and a dropout layer behind it; the one of these is a layer that a test gives."""

    def __init__(
        self, attention: nn.Module | None = None, dropout: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.attention = attention or nn.MultiheadAttention(8, 2, batch_first=True)
        self.into, self.dropout, self.out = (
            nn.Linear(3, 8),
            dropout or nn.Dropout(0.1),
            nn.Linear(8, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        each = self.into(x.transpose(1, 2))
        answer: Tensor = self.out(self.dropout(self.attention(each, each, each)[0]).mean(1))
        return answer


def with_hook(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda _layer, _inputs, _output: None)
    return layer


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            lambda: Mixed(with_hook(nn.MultiheadAttention(8, 2, batch_first=True))),
            r"attention' is MultiheadAttention with hooks",
        ),
        (lambda: Mixed(dropout=with_hook(nn.Dropout(0.1))), r"dropout' is Dropout with hooks"),
        (lambda: Mixed(dropout=with_hook(nn.Dropout(0.0))), r"dropout' is Dropout with hooks"),
        (lambda: Mixed(dropout=Halved(0.1)), r"dropout' is Halved with a class of its own"),
    ],
)
def test_what_a_layer_does_besides_is_not_lost_where_another_stands_in_for_it(
    model: Callable[[], nn.Module], said: str
) -> None:
    adopted(Mixed(), (3, 24))
    with pytest.raises(
        ConfigError, match=rf"layer '[\w.]*{said}, which would be lost. Use torch's own "
    ):
        FedAvg(adopted(model(), (3, 24)))


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (
            lambda model, x: model.out(x + 0.1 * torch.randn_like(x)),
            r"forward pass \(aten.randn_like.* in test_refused_models.py, line \d+: .*randn_like",
        ),
        (
            lambda model, x: F.dropout(model.out(x), training=model.training),
            r"draws random numbers.* in test_refused_models.py, line \d+: lambda .*F.dropout\(",
        ),
        (
            lambda model, x: model.out(F.dropout(x, 0.3, model.training)),
            r"draws random numbers.* in test_refused_models.py, line \d+: lambda .*0.3",
        ),
        (
            lambda model, x: model.out(
                F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p=0.2)[
                    :, 0
                ]
            ),
            r"dropout_p=0.2 is not supported in test_refused_models.py, line \d+: F.scaled",
        ),
        (
            lambda model, x: model.out((x - x.mean()) / x.std()),
            r"its forward, before layer 'out' \(Linear\), answers an example by the other",
        ),
        (
            lambda model, x: model.out(x) - model.out(x).mean(0),
            "the forward of the model answers an example by the other",
        ),
        (moving, "changes its buffer 'running' in training"),
        (
            lambda model, x: model.out(x * random.random()),
            r"draws random numbers in its forward pass \(Python's random\)",
        ),
        (
            lambda model, x: model.out(x + float(np.random.normal())),
            r"draws random numbers in its forward pass \(numpy.random\)",
        ),
        (remembering, "gives two different answers to the same examples in training"),
        (
            lambda model, x: model.out(x).softmax(1),
            "does not return the output of one of its linear layers",
        ),
        (
            lambda model, x: model.out(model.out(x).repeat(1, 18)),
            "does not return the output|is called more than once",
        ),
        (lambda model, x: (model.out(x), x), "must return a tensor of logits, got tuple"),
        (
            lambda model, x: model.out(x[:, :5]),
            r"cannot take examples of \[3, 24\]: layer 'out', Linear\(in_features=72, .*\), cannot "
            r"take \[3, 5\], batch first: mat1 and mat2",
        ),
        (
            lambda model, x: model.out(x @ x),
            r"cannot take examples of \[3, 24\]: mat1 and mat2",
        ),
    ],
)
def test_what_no_graph_can_hold_is_refused_by_name(
    forward: Callable[[Other, Tensor], object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        adopted(Other(forward), (3, 24))


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("whole", [True, False])
def test_a_model_of_another_type_of_floats_is_refused(kind: torch.dtype, whole: bool) -> None:
    model = Other(lambda model, x: model.out(x.to(model.out.weight.dtype)))
    (model if whole else model.out).to(kind)
    with pytest.raises(ConfigError, match=rf"'out.weight' is {str(kind)[6:]}, .* model.float\(\)"):
        adopted(model, (3, 24))


class NoWords(nn.Linear):
    def __init__(self) -> None:
        super().__init__(72, CLASSES)


class OtherWords(nn.Linear):
    def __init__(self, classes: int, *, width: int) -> None:
        super().__init__(width, classes)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            NoWords,
            r"NoWords is called as NoWords\(\(3, 24\), 2\), .* too many positional",
        ),
        (OtherWords, r"Its parameters are \(classes: int, \*, width: int\)"),
        (lambda: NoWords(), "too many positional arguments"),
    ],
)
def test_a_class_with_other_parameters_is_refused_with_the_call(
    tmp_path: Path, model: Callable[..., nn.Module], said: str
) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3, 24)).astype(np.float32)
    data = shoal.load(x, np.arange(20) % 2, np.arange(20) // 10)
    with pytest.raises(ConfigError, match=said) as raised:
        shoal.simulate(data, model=model, rounds=1)
    assert "or a function of both, such as lambda shape, classes: " in str(raised.value)
    file = tmp_path / "own.py"
    file.write_text("class Net:\n    def __init__(self):\n        pass\n")
    with pytest.raises(ConfigError, match=r"Net is called as Net\(\(3, 24\), 2\)"):
        shoal.simulate(data, model=f"{file}:Net", rounds=1)


class Numbers(nn.Linear):
    """A class with parameters of another meaning."""

    def __init__(self, channels: int = 3, classes: int = 2) -> None:
        super().__init__(channels * 24, classes)


@pytest.mark.parametrize(
    "model", [Numbers, lambda shape, classes: nn.Linear(shape * 24, classes), nn.Linear]
)
def test_an_error_of_a_class_with_other_parameters_says_the_call(
    tmp_path: Path, model: Callable[..., nn.Module]
) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3, 24)).astype(np.float32)
    data, name = shoal.load(x, np.arange(20) % 2, np.arange(20) // 10), model.__name__
    call = rf"{name} is called as {name}\(\(3, 24\), 2\), with the shape of an example and the num"
    with pytest.raises(TypeError) as raised:
        shoal.simulate(data, model=model, rounds=1)
    assert any(re.match(call, note) for note in raised.value.__notes__)
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\nclass Net(nn.Linear):\n"
        "    def __init__(self, channels=3, classes=2):\n"
        "        super().__init__(channels * 24, classes)\n"
    )
    with pytest.raises(
        ConfigError, match=r"own.py, line 4: TypeError: .*\. Net is called as Net\(\(3, 24\), 2\), "
    ):
        shoal.simulate(data, model=f"{file}:Net", rounds=1)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.Conv1d(5, 4, 3), r"layer 'body.1', Conv1d\(5, 4, .*\), cannot take \[3, 3, 24\]"),
        (
            nn.GRU(5, 4, batch_first=True),
            r"layer 'body.1', GRU\(5, 4, .*\), cannot take \[3, 3, 24\]",
        ),
        (nn.LayerNorm(5), r"layer 'body.1', LayerNorm\(\(5,\), .*\), cannot take \[3, 3, 24\]"),
    ],
)
def test_an_input_that_a_layer_cannot_take_names_the_layer(layer: nn.Module, said: str) -> None:
    model = nn.Sequential()
    model.body = nn.Sequential(nn.Tanh(), layer)
    model.out = nn.Linear(4, CLASSES)
    with pytest.raises(ConfigError, match=said):
        adopted(model, (3, 24))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"model mine is of type function. A model must be a torch.nn.Module whose last "
        r"layer is torch.nn.Linear",
    ):
        adopt("mine", lambda x: x, (3, 24), CLASSES, nn.Identity())


def test_a_model_that_loses_the_batch_of_a_single_example_is_refused() -> None:
    """`squeeze()` takes each dimension of size 1 away, a phone's batch of one among them."""
    model = Other(lambda model, x: model.out(x.unsqueeze(1).squeeze()))
    with pytest.raises(ConfigError, match=r"must answer one example with \[1, .*squeeze\(-1\)"):
        adopted(model, (3, 24))
