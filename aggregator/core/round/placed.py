"""Where a device without labels belongs, and how sure that is. Pure, without torch."""

import msgspec


class Placed(msgspec.Struct, frozen=True):
    """The group of a device that cannot train."""

    group: str
    """The key of its group's model."""
    sure: float
    """From 0 to 1: the share of the devices asked that are in the group."""
    neighbours: int = 0
    """How many devices with the most similar inputs were asked; 0: its inputs had no say."""

    def __str__(self) -> str:
        if self.neighbours:
            return (
                f"placed by its inputs, {round(self.sure * self.neighbours)} of {self.neighbours} "
                "neighbours"
            )
        if self.sure == 1:
            return "the only group"
        return f"in the largest group, {100 * self.sure:.0f} % of the devices"
