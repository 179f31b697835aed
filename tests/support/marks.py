"""Which members of a product `make test` runs."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

Value = TypeVar("Value")


def representatives(
    values: Iterable[Value], *chosen: Value, test: Callable[[Value], bool] | None = None
) -> list[object]:
    """Return the values as parameters of which all but the chosen ones have the mark `full`.

    A value is chosen if it is one of `chosen`, or passes the test.

    Raises:
        ValueError: a chosen value is not among the values.
    """
    listed = list(values)
    missing = [value for value in chosen if value not in listed]
    if missing:
        raise ValueError(f"no {missing} among the values {listed}")
    return [
        value
        if value in chosen or (test is not None and test(value))
        else pytest.param(value, marks=pytest.mark.full)
        for value in listed
    ]
