"""Models that the native engine supports, and its messages about others."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.models.adoption.dropout import Dropped
from algorithms.models.classifier import Classifier
from algorithms.models.reading.network import Unsupported, network_of
from algorithms.models.registry import MODELS, OF_IDS
from tests.host.native_cases import Calls
from wire.bundle import Window


class OtherInTraining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) if self.training else x


REFUSED: list[tuple[str, list[nn.Module]]] = [
    ("extractor.1 is GroupNorm", [nn.Conv1d(3, 8, 3), nn.GroupNorm(2, 8)]),
    ("extractor.0 is Dropout", [nn.Dropout(0.1)]),
    ("extractor.1.0 is Tanh", [nn.ReLU(), nn.Sequential(nn.Tanh())]),
    ("extractor.0 is Conv2d, and gets 3 channels of 20", [nn.Conv2d(3, 8, 3)]),
    ("extractor.0 is Conv1d of 4 inputs, and gets 3", [nn.Conv1d(4, 8, 3)]),
    ("extractor.1 is called more than once", [nn.ReLU(), *[nn.Conv1d(3, 3, 1)] * 2]),
    ("extractor.0 leaves nothing of 20 samples", [nn.Conv1d(3, 8, 3, dilation=10)]),
    ("extractor.0 calls sigmoid", [Calls(torch.sigmoid)]),
    (
        "extractor.0 calls add with a value that is not the result of a layer",
        [Calls(lambda x: x + 1)],
    ),
    (
        "extractor.1 calls add of 3 channels of .20,. and 60 of ..",
        [nn.Identity(), Calls(lambda x: x + x.flatten(1))],
    ),
    (
        "extractor.0 calls mean over 1: only over all but examples and channels",
        [Calls(lambda x: x.mean(1))],
    ),
    (
        "extractor.0 changes in place what others read",
        [Calls(lambda x: F.relu(x, inplace=True) + x)],
    ),
    *(
        (
            r"does cannot be followed in test_network.py, line \d+: lambda x: .*,$",
            list[nn.Module]([Calls(function)]),
        )
        for function in (
            lambda x: x if x.sum() > 0 else -x,
            lambda x: next(iter(x)),
            lambda x: x * len(x),
            lambda x: x * float(x.sum()),
        )
    ),
    ("extractor.0 drops .3, 7., and gets .3, 20.", [Dropped(0.5, (3, 7))]),
    ("extractor.0 is MaxPool1d with stride", [nn.MaxPool1d(3, 1)]),
    ("extractor.0 is Conv1d with groups", [nn.Conv1d(3, 3, 3, groups=3)]),
    (
        "extractor.0 is Conv1d with padding_mode",
        [nn.Conv1d(3, 8, 3, padding=1, padding_mode="reflect")],
    ),
    ("extractor.0 is AvgPool1d with padding", [nn.AvgPool1d(2, padding=1)]),
    ("extractor.0 is AvgPool1d with stride", [nn.AvgPool1d(3, 1)]),
    ("extractor.0 is MaxPool1d with ceil_mode", [nn.MaxPool1d(3, ceil_mode=True)]),
    ("extractor.0 is AdaptiveAvgPool1d with output_size", [nn.AdaptiveAvgPool1d(2)]),
    ("extractor.0 is BatchNorm1d without running", [nn.BatchNorm1d(3, track_running_stats=False)]),
    ("extractor.0.weight is torch.float64", [nn.BatchNorm1d(3).double()]),
    ("extractor.0 is Linear before Flatten", [nn.Linear(20, 5)]),
    ("extractor.1 is MaxPool1d after Flatten", [nn.Flatten(), nn.MaxPool1d(2)]),
]


@pytest.mark.parametrize(("reason", "layers"), REFUSED, ids=[reason for reason, _ in REFUSED])
def test_what_is_not_known_is_named(reason: str, layers: list[nn.Module]) -> None:
    model = Classifier(nn.Identity(), nn.Sequential(*layers, nn.Flatten()), nn.Linear(3, 2))
    with pytest.raises(Unsupported, match=reason):
        network_of(model, (3, 20))


def test_models_of_windows_are_known_but_for_group_norm() -> None:
    window = Window(("x", "y", "z"), 60, 20)
    refused = {}
    for name, make in ((name, make) for name, make in MODELS.items() if name not in OF_IDS):
        try:
            network_of(make(window, 4, torch.ones(3)), window.shape)
        except Unsupported as reason:
            refused[name] = str(reason)
    assert refused == {"har-cnn-gn": "extractor.norm1 is GroupNorm"}
    with pytest.raises(Unsupported, match="only time windows"):
        network_of(MODELS["mlp"](window, 4, torch.ones(3)), (3, 8, 8, 8))


def test_what_differs_between_training_and_evaluation_is_refused() -> None:
    model = Classifier(
        nn.Identity(), nn.Sequential(OtherInTraining(), nn.Flatten()), nn.Linear(60, 2)
    )
    with pytest.raises(
        Unsupported, match="the model does something else in training than outside of it"
    ):
        network_of(model, (3, 20))


def test_a_model_is_left_in_the_mode_in_which_it_was() -> None:
    relu = nn.ReLU()
    model = Classifier(nn.Identity(), nn.Sequential(nn.Flatten(), relu), nn.Linear(60, 2)).train()
    relu.eval()
    network_of(model, (3, 20))
    assert [module.training for module in (model, model.extractor, relu, model.head)] == [
        True,
        True,
        False,
        True,
    ]
