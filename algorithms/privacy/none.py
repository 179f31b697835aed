"""No mechanism: deltas are used as they come."""

from typing import ClassVar

from wire.tensors import Array


class NoPrivacy:
    """Leaves every delta as it is; gives no guarantee."""

    name: ClassVar[str] = "none"
    citation: ClassVar[str] = ""

    def protect(self, delta: Array, seed: int) -> Array:
        return delta
