"""Torch's random numbers from a seed, for what torch itself initialises."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def seeded(make: Callable[[], T], seed: int = 0) -> T:
    """What `make` returns when torch's global generator starts from this seed; the generator is
    then as it was before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
