"""What options of the command line and of Python choose, read and checked. It needs nothing but
what the aggregator needs."""

import math
from collections.abc import Callable, Mapping
from typing import get_args

from algorithms.registry import AlgorithmSpec, read_privacy
from algorithms.schedules import read_schedule
from algorithms.spec import Choice, read_word
from wire.errors import ConfigError
from wire.messages import Encoding

BOUNDS: Mapping[str, tuple[float, float]] = {
    "rounds": (1, math.inf),
    "patience": (0, math.inf),
    "min_delta": (0, 1),
    "local_epochs": (1, math.inf),
    "seed": (0, math.inf),
    "seeds": (1, math.inf),
    "devices": (1, math.inf),
    "batch_size": (2, 4096),
    "newcomers": (0, math.inf),
    "cohort": (0, math.inf),
    "workers": (0, math.inf),
    "target": (0, 1),
    "bundle_version": (1, math.inf),
    "max_batch": (8, math.inf),
}
"""By option, its least and its largest value."""
FRACTIONS = ("min_delta", "target")
"""The options that need not be whole numbers."""


def check_bounds(**options: float | None) -> None:
    """Check numbers; None is an option that was not given.

    Raises:
        ConfigError: one is no finite number, not whole, or out of its `BOUNDS`.
    """
    for name, value in options.items():
        if value is None:
            continue
        low, high = BOUNDS[name]
        kinds = (int, float) if name in FRACTIONS else (int,)
        if (
            not isinstance(value, kinds)
            or isinstance(value, bool)
            or not low <= value <= high
            or math.isinf(value)
        ):
            kind = "a number" if name in FRACTIONS else "a whole number"
            raise ConfigError(
                f"{name} = {value!r}: expected {kind} from {low:g}"
                + (f" to {high:g}" if high < math.inf else "")
            )


def hyper_values(lr: float | None, hyper: Mapping[str, float]) -> dict[str, float]:
    """The hyper-parameters that are given; `hyper` takes precedence over `lr`.

    Raises:
        ConfigError: one is no finite number, or the learning rate is below 0.
    """
    values = ({} if lr is None else {"lr": lr}) | dict(hyper)
    for name, value in values.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"--hyper {name}={value!r}: expected NAME=VALUE with a number")
    if values.get("lr", 0) < 0:
        raise ConfigError(f"--lr {values['lr']:g}: expected a learning rate from 0")
    return values


def hyper_given(settings: list[str] | None) -> dict[str, float]:
    """The hyper-parameters that ``--hyper`` gives.

    Raises:
        ConfigError: not NAME=VALUE with a finite number.
    """
    values = {}
    for setting in settings or []:
        name, equals, text = setting.partition("=")
        try:
            values[name] = float(text)
        except ValueError:
            equals = ""
        if not equals or not math.isfinite(values[name]):
            raise ConfigError(f"--hyper {setting!r}: expected NAME=VALUE with a number")
    return values


def schedule_of(text: str) -> str:
    """A learning rate's schedule as settings have it, from an option that may be empty.

    Raises:
        ConfigError: it cannot be read.
    """
    return str(read_schedule(text)) if text else ""


def read_encoding(text: str) -> Encoding:
    """An encoding of updates, by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    encodings: tuple[Encoding, ...] = get_args(Encoding)
    return read_word(text, encodings, "--update-encoding")


def with_privacy(algorithm: AlgorithmSpec, privacy: str) -> AlgorithmSpec:
    """The algorithm with the mechanism that ``--privacy`` names, if it names one.

    Raises:
        ConfigError: no such mechanism, or the algorithm has one already.
    """
    return algorithm.with_privacy(read_privacy(privacy)) if privacy else algorithm


def chosen(text: str, read: Callable[[str], Choice]) -> Choice | None:
    """What an option chooses; None where it is empty."""
    return read(text) if text else None
