"""What options of the command line and of Python choose, read and checked. It needs nothing but
what the aggregator needs."""

from collections.abc import Callable, Mapping

from algorithms.composition import AlgorithmSpec, read_privacy
from algorithms.schedules import read_schedule
from algorithms.spec import Choice


def hyper_values(lr: float | None, hyper: Mapping[str, float]) -> dict[str, float]:
    """Return the hyper-parameters that are given; `hyper` takes precedence over `lr`."""
    return ({} if lr is None else {"lr": lr}) | dict(hyper)


def schedule_of(text: str) -> str:
    """A learning rate's schedule as settings have it, from an option that may be empty.

    Raises:
        ConfigError: it cannot be read.
    """
    return str(read_schedule(text)) if text else ""


def with_privacy(algorithm: AlgorithmSpec, privacy: str) -> AlgorithmSpec:
    """The algorithm with the mechanism that ``--privacy`` names, if it names one.

    Raises:
        ConfigError: no such mechanism, or the algorithm has one already.
    """
    return algorithm.with_privacy(read_privacy(privacy)) if privacy else algorithm


def chosen(text: str, read: Callable[[str], Choice]) -> Choice | None:
    """What an option chooses; None where it is empty."""
    return read(text) if text else None
