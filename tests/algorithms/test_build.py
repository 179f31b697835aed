"""From names to an objective: the seed decides the initial weights, and nothing else is
disturbed."""

import torch

from algorithms.build import build_objective
from algorithms.composition import read_algorithm
from wire.bundle import Window

WINDOW = Window(("a", "b"), 16, 16)


def test_the_seed_decides_and_torchs_own_random_state_stays_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, again, other = (
        build_objective(read_algorithm("cgau"), WINDOW, 3, torch.ones(2), seed=s).initial()
        for s in (1, 1, 2)
    )
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)
