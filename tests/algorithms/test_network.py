"""Which models the native engine knows, and what it says of others."""

import pytest
import torch
from torch import nn

from algorithms.models.classifier import Classifier
from algorithms.models.network import Unsupported, network_of
from algorithms.models.registry import MODELS, OF_IDS
from wire.bundle import Window

REFUSED: list[tuple[str, list[nn.Module]]] = [
    ("extractor.1 is GroupNorm", [nn.Conv1d(3, 8, 3), nn.GroupNorm(2, 8)]),
    ("extractor.0 is Dropout", [nn.Dropout(0.1)]),
    ("extractor.1.0 is Tanh", [nn.ReLU(), nn.Sequential(nn.Tanh())]),
    ("extractor.0 is Conv1d with dilation", [nn.Conv1d(3, 8, 3, dilation=2)]),
    ("extractor.0 is Conv1d with groups", [nn.Conv1d(3, 3, 3, groups=3)]),
    ("extractor.0 is Conv1d with padding_mode", [nn.Conv1d(3, 8, 3, padding=1, padding_mode="reflect")]),
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
    assert refused == {"har-cnn-gn": "extractor.norm1 is GroupNorm", "tcn": "extractor.1 is Dilated", "resnet18": refused["resnet18"]}
    with pytest.raises(Unsupported, match="only time windows"):
        network_of(MODELS["mlp"](window, 4, torch.ones(3)), (3, 8, 8))
