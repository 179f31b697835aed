"""MADE, the density model of FedDisk: what its outputs depend on, its loss, and what it is
given."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from algorithms.models.made import Made, UnitInputs, negative_log_likelihood
from tests.algorithms.feddisk_cases import small_model


@pytest.mark.parametrize(("num_values", "num_hidden"), [(2, 3), (9, 4), (12, 40)])
def test_an_output_of_made_depends_on_earlier_inputs_only(num_values: int, num_hidden: int) -> None:
    torch.manual_seed(0)
    made = Made(num_values, num_hidden)
    slope = torch.zeros(num_values, num_values)
    for _ in range(20):  # at several places, because a ReLU may be off at one
        slope += (
            torch.autograd.functional.jacobian(made, torch.rand(num_values).reshape(1, -1))
            .reshape(num_values, num_values)
            .abs()
        )
    assert torch.equal(slope, torch.tril(slope, diagonal=-1))
    assert (slope[1:].sum(1) > 0).sum() >= min(num_values - 1, num_hidden) // 2


def test_the_masks_of_made_are_those_of_its_paper() -> None:
    made = Made(5, 4)
    last_seen = [1, 2, 3, 4]
    hidden = [[float(m >= d) for d in range(1, 6)] for m in last_seen]
    output = [[float(d > m) for m in last_seen] for d in range(1, 6)]
    assert made.hidden_mask.tolist() == hidden
    assert made.output_mask.tolist() == output


def test_the_loss_of_made_is_the_bernoulli_cross_entropy() -> None:
    torch.manual_seed(0)
    made, x = Made(6, 8), torch.rand(3, 6)
    expected = []
    for row in x:
        probabilities = [float(p) for p in torch.sigmoid(made(row[None]).detach())[0]]
        expected.append(
            -sum(
                float(v) * np.log(p) + (1 - float(v)) * np.log(1 - p)
                for v, p in zip(row, probabilities, strict=True)
            )
        )
    np.testing.assert_allclose(
        negative_log_likelihood(made(x), x).detach().numpy(), expected, rtol=1e-5
    )


def test_probabilities_of_made_sum_to_one() -> None:
    """It is a density: over all binary vectors."""
    torch.manual_seed(1)
    made = Made(5, 7)
    every = torch.tensor([[(i >> d) & 1 for d in range(5)] for i in range(32)], dtype=torch.float32)
    assert float(
        torch.exp(-negative_log_likelihood(made(every), every)).sum().detach()
    ) == pytest.approx(1.0, abs=1e-5)


def test_inputs_lie_between_zero_and_one_and_are_averaged_to_fit() -> None:
    image = UnitInputs(nn.Identity(), (1, 28, 28), 784)
    x = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(image(x), x.flatten(1))
    assert float(image(x * 9 - 4).min()) == 0.0
    assert float(image(x * 9 - 4).max()) == 1.0
    halved = UnitInputs(nn.Identity(), (3, 32, 32), 784)
    y = torch.rand(2, 3, 32, 32)
    assert halved.num_values == 768
    torch.testing.assert_close(halved(y), F.avg_pool2d(y, 2).flatten(1))
    model = small_model()
    window = UnitInputs(model.scale, (2, 15), 16)
    z = torch.randn(4, 2, 15) * 3
    expected = (
        torch.sigmoid(2 * z / torch.tensor([[1.0], [2.0]]))[:, :, :14]
        .reshape(4, 2, 7, 2)
        .mean(3)
        .flatten(1)
    )
    torch.testing.assert_close(window(z), expected)
    assert (window.factor, window.num_values) == (2, 14)
