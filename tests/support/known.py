"""Values that may be missing, where a test needs them."""

from typing import TypeVar

Value = TypeVar("Value")


def known(value: Value | None) -> Value:
    """The value, which must be there."""
    assert value is not None
    return value
