"""Keys of models (a group's key is a decimal number, and one key is no group's), and the units in
which a fleet learns quantities. Without torch, for the round core too."""

from dataclasses import dataclass
from typing import Final

RELEASED: Final = "released-"
"""Begins the keys of models that a campaign starts from and that others have trained: one for each
of their groups."""

NEWCOMER: Final = "initial"
"""Key of the model that a device trains from before it belongs to a group: the bundle's initial
tensors."""


UNLABELLED: Final = "unlabelled"
"""Under this key of an algorithm's programs is what a device without labels does to be placed,
where that tells anything."""


def is_no_group(key: str) -> bool:
    """Whether devices that train from the model of this key are in no group yet."""
    return key == NEWCOMER or key.startswith(RELEASED)


@dataclass(frozen=True)
class Units:
    """Of each quantity its mean and its standard deviation over the fleet's training windows, in
    the user's own units. They are fixed when a bundle is made, as the size of a channel is:
    constants of its graphs, the same for every device."""

    center: tuple[float, ...]
    size: tuple[float, ...]
