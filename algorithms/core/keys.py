"""Keys of models, and the units of regression quantities; without torch, for the round core.

The key of a group's model is a decimal number.
"""

from dataclasses import dataclass
from typing import Final

RELEASED: Final = "released-"
"""Prefix of the keys of released models that a campaign starts from, one key per group."""

NEWCOMER: Final = "initial"
"""Key of the model that a newcomer trains: the bundle's initial tensors."""


UNLABELLED: Final = "unlabelled"
"""Key of the program of a device without labels, by which it is placed in a group.

It exists only if such a program helps the placement.
"""


def is_no_group(key: str) -> bool:
    """Return True if devices that train the model of this key have no group yet."""
    return key == NEWCOMER or key.startswith(RELEASED)


@dataclass(frozen=True)
class Units:
    """Mean and standard deviation of each quantity over the fleet's training windows.

    They are in the user's own units. They are fixed when a bundle is exported, like the size of a
    channel: constants of its graphs, the same for every device.
    """

    center: tuple[float, ...]
    size: tuple[float, ...]
