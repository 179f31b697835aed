"""Gated recurrent units in the native engine against torch."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from algorithms.models.classifier import Classifier
from algorithms.models.reading.network import Unsupported, network_of
from tests.host.native_cases import check_all, classifier_of

States = tuple[Tensor, Tensor]
READ: dict[str, Callable[[States], Tensor]] = {
    "last step": lambda states: states[0][:, -1],
    "last state": lambda states: states[1][-1],
    "a step": lambda states: states[0][:, 0, :],
    "mean": lambda states: states[0].mean(1),
    "samples last": lambda states: states[0].transpose(1, 2)[:, :, -1],
    "convolved": lambda states: states[0].permute(0, 2, 1).mean(2) + states[0][:, -1],
}


class Recurrent(nn.Module):
    """Units over the samples of a window, and what is read of their states."""

    def __init__(
        self, gru: nn.GRU, read: Callable[[States], Tensor], before: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.gru, self.read, self.before = gru, read, nn.Identity() if before is None else before

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.gru(self.before(x.transpose(1, 2))))


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(
    *(
        st.sampled_from(["last step", "last state", "a step", "mean", "samples last", "convolved"]),
        st.integers(1, 2),
    ),
    *(
        st.sampled_from([1, 7, 16, 33, 70]),
        st.sampled_from([(1, 1), (3, 2), (5, 20), (17, 9)]),
        st.sampled_from([1, 2, 5]),
    ),
    *(st.booleans(), st.booleans(), st.integers(0, 10**6)),
)
def test_recurrent_units_equal_those_of_torch(
    read: str,
    layers: int,
    units: int,
    window: tuple[int, int],
    size: int,
    bias: bool,
    linear: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    gru = nn.GRU(4 if linear else window[0], units, layers, bias=bias, batch_first=True)
    for parameter in gru.parameters():  # gates that are open and shut, too
        nn.init.normal_(parameter, 0, 1.5 / units**0.5)
    before = nn.Sequential(nn.Linear(window[0], 4), nn.ReLU()) if linear else None
    check_all(classifier_of([Recurrent(gru, READ[read], before)], window, 3), window, size, seed)


REFUSED = [
    (
        "extractor.0.gru is GRU with bidirectional=True",
        nn.GRU(3, 4, batch_first=True, bidirectional=True),
    ),
    ("extractor.0.gru is GRU with dropout=0.5", nn.GRU(3, 4, 2, batch_first=True, dropout=0.5)),
    ("extractor.0.gru is GRU with batch_first=False", nn.GRU(3, 4)),
    ("extractor.0.gru is GRU of 5 inputs, and gets 3", nn.GRU(5, 4, batch_first=True)),
    ("extractor.0.gru is LSTM", nn.LSTM(3, 4, batch_first=True)),
]


@pytest.mark.parametrize(("reason", "gru"), REFUSED, ids=[reason for reason, _ in REFUSED])
def test_other_recurrent_layers_are_named(reason: str, gru: nn.GRU) -> None:
    model = Classifier(nn.Identity(), Recurrent(gru, READ["last step"]), nn.Linear(4, 2))
    model.extractor = nn.Sequential(model.extractor)
    with pytest.raises(Unsupported, match=reason):
        network_of(model, (3, 20))


def test_other_readings_are_named() -> None:
    for reason, read in (
        ("getitem of", lambda states: states[0][:, 1:3]),
        ("getitem of", lambda states: states[0][:, :, 2]),
        ("getitem of sample 20 of 20", lambda states: states[0][:, 20]),
        ("squeeze of a value that is not the state", lambda states: states[0].squeeze(1)),
        ("flatten of channels behind the samples", lambda states: states[0].flatten(1)),
        ("mean over 2", lambda states: states[0].mean(2)),
    ):
        model = Classifier(
            nn.Identity(), Recurrent(nn.GRU(3, 4, batch_first=True), read), nn.Linear(4, 2)
        )
        with pytest.raises(Unsupported, match=reason):
            network_of(model, (3, 20))
