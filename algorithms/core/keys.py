"""The keys of models: a group's key is a decimal number, and one key is no group's. Without torch,
for the round core too."""

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
