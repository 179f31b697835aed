"""Passes through the native engine under autograd, against torch in double precision."""

import copy
import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from algorithms.models.reading.network import Unsupported, extractor_of
from host.native.passes import Passes
from host.native.plan import available_targets
from tests.host.native_cases import classifier, examples, settled, stacks
from tests.support.known import known
from wire.errors import ConfigError, DataError


def made_of(layers: list[nn.Module], channels: int, time: int) -> Any:
    model = classifier(layers, channels, time, 3)
    model.scale = nn.Identity()
    return model


def flat_of(passes: Passes, model: nn.Module) -> Any:
    state = model.state_dict()
    return np.concatenate([state[name].numpy().ravel() for name in passes.names]).astype(np.float32)


@settings(suppress_health_check=list(HealthCheck))
@given(stacks(), st.integers(1, 9), st.integers(0, 2**16))
def test_results_gradients_and_statistics_are_those_of_torch(
    stack: tuple[list[nn.Module], int, int], batch: int, seed: int
) -> None:
    layers, channels, time = stack
    torch.manual_seed(seed)
    model = made_of(layers, channels, time)
    assume(any(True for _ in model.extractor.parameters()))
    x, _ = examples(channels, time, 3, batch, seed)
    exact = copy.deepcopy(model).double().train()
    try:
        assume(settled(copy.deepcopy(model).double().train(), x, [np.arange(batch)]))
        expected = exact.extractor(torch.from_numpy(x).double())
    except ValueError:
        assume(False)
    d_y = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed))
    expected.backward(d_y.double())
    for target in available_targets():
        passes = Passes(extractor_of(model, (channels, time)), target=target)
        flat = flat_of(passes, model)
        made = passes.forward(flat, x, training=True)
        np.testing.assert_allclose(
            made.y,
            expected.detach().numpy(),
            rtol=1e-3,
            atol=1e-3 * float(expected.detach().abs().max() + 1e-3),
        )
        found = [passes.backward(made, d_y.numpy()) for _ in range(2)]
        np.testing.assert_array_equal(found[0], found[1])  # a second time from the same pass
        parameters, state, at = dict(exact.named_parameters()), exact.state_dict(), 0
        longest = max(
            float(known(p.grad).abs().max()) for n, p in parameters.items() if n in passes.names
        )
        for name in passes.names:
            value = state[name]
            part = slice(at, at := at + value.numel())
            ours, theirs = (
                (found[0], known(parameters[name].grad)) if name in parameters else (flat, value)
            )
            scale = longest if name in parameters else 1.0
            np.testing.assert_allclose(
                ours[part].reshape(value.shape),
                theirs.numpy(),
                rtol=2e-3,
                atol=max(2e-3 * scale + 1e-5, 2e-4),  # zero gradients: what is left is rounding
                err_msg=name,
            )


def test_passes_that_are_open_at_the_same_time_do_not_meet_and_give_their_workspaces_back() -> None:
    torch.manual_seed(0)
    model = made_of([nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten()], 3, 12)
    passes = Passes(extractor_of(model, (3, 12)))
    (one, _), (two, _) = examples(3, 12, 3, 8, 1), examples(3, 12, 3, 8, 2)
    d_y = np.ones((8, 80), np.float32)

    def gradient(x: Any) -> Any:
        return passes.backward(passes.forward(flat_of(passes, model), x, training=True), d_y)

    alone = gradient(one), gradient(two)
    gc.collect()
    held = len(passes._idle[8])
    both = [passes.forward(flat_of(passes, model), x, training=True) for x in (one, two)]
    for expected, made in zip(alone, both, strict=True):
        np.testing.assert_array_equal(passes.backward(made, d_y), expected)
    assert held == 1
    del made, both
    gc.collect()
    assert len(passes._idle[8]) == 2


def test_what_does_not_fit_is_refused_with_a_reason() -> None:
    model = made_of([nn.Linear(1, 5)], 4, 1)
    with pytest.raises(Unsupported, match=r"extractor\.0 is Linear before Flatten"):
        extractor_of(model, (4, 1))
    with pytest.raises(
        Unsupported, match="expected layers with parameters, and Flatten behind them"
    ):
        extractor_of(made_of([nn.Flatten()], 4, 1), (4, 1))
    passes = Passes(
        extractor_of(made_of([nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5)], 4, 1), (4, 1))
    )
    flat, x = np.zeros(passes.num_values, np.float32), np.zeros((1, 4, 1), np.float32)
    with pytest.raises(DataError, match="one value per channel"):
        passes.forward(flat, x, training=True)
    with pytest.raises(ConfigError, match="x must be a C-ordered float32 array"):
        passes.forward(flat, x[:0], training=False)
    with pytest.raises(ConfigError, match="d_y must be"):
        passes.backward(passes.forward(flat, x, training=False), np.zeros((2, 5), np.float32))


def test_a_layer_in_two_places_is_in_both() -> None:
    relu = nn.ReLU()
    model = made_of([nn.Conv1d(3, 8, 3), relu, nn.Conv1d(8, 8, 3), relu, nn.Flatten()], 3, 12)
    assert [layer.kind for layer in extractor_of(model, (3, 12)).layers] == [
        "conv",
        "relu",
        "conv",
        "relu",
        "flatten",
    ]


class Still(nn.Module):
    """A module that stays in evaluation, as people freeze BatchNorm."""

    def train(self, mode: bool = True) -> "Still":
        del mode
        return super().train(False)


def test_models_that_are_watched_or_go_into_training_in_their_own_way_are_refused() -> None:
    model = made_of([nn.Conv1d(3, 8, 3), nn.Flatten()], 3, 12)
    model.extractor[0].register_full_backward_hook(lambda *_: None)
    with pytest.raises(Unsupported, match=r"extractor\.0 has a hook"):
        extractor_of(model, (3, 12))
    model = made_of([nn.Conv1d(3, 8, 3), nn.Flatten()], 3, 12)
    model.extractor.add_module("2", Still())
    with pytest.raises(Unsupported, match=r"extractor\.2 has a way of its own to go into training"):
        extractor_of(model, (3, 12))
