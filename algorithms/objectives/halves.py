"""An objective as it is listed: both halves under one name."""

from dataclasses import dataclass

from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.supervised import Supervised


@dataclass(frozen=True)
class TwoHalves:
    """An objective: what runs on the device, and what the server does for it. Both derive from the
    bases named here, not only from the protocols: other classes are mixed in before them
    (`algorithms.objectives.dbe`, `algorithms.objectives.dpsgd`)."""

    device: type[Supervised]
    server: type[DefaultCoordinator] = DefaultCoordinator
