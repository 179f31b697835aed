"""The keys of models: a group's key is a decimal number, and one key is no group's. Without torch, for the round core too."""

from typing import Final

NEWCOMER: Final = "initial"
"""Key of the model that a device trains from before it belongs to a group: the bundle's initial tensors."""
