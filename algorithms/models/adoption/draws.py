"""Refusal of functions that draw random numbers: the random numbers of a graph are inputs."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from algorithms.models.reading.plain import OperatorMode, PlainOperators, at_line
from wire.errors import ConfigError


class _Draws(OperatorMode):
    """Record of the operators that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs is not None:
            self.met.append(f"{func}{at_line()}")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_draws(what: str, advice: str) -> Iterator[None]:
    """Run code that draws no random numbers, with the operators that graphs have.

    Torch's global generator is restored afterwards.

    Raises:
        ConfigError: the code drew from torch's, Python's or numpy's global generator. `what` and
            `advice` are the parts of the text before and after the operator or the generator.
    """
    before = _elsewhere()
    with torch.random.fork_rng(devices=[]), PlainOperators(), _Draws() as drawn:
        yield
    if drawn.met:
        raise ConfigError(f"{what} ({drawn.met[0]}). {advice}")
    if moved := [name for name, state in _elsewhere().items() if state != before[name]]:
        raise ConfigError(f"{what} ({moved[0]}). {advice}")


def _elsewhere() -> dict[str, Any]:
    """Return the states of the global generators outside of torch."""
    state: Any = np.random.get_state(legacy=False)["state"]
    return {
        "Python's random": random.getstate(),
        "numpy.random": (bytes(state["key"]), state["pos"]),
    }
