"""A simulated run as two values, for any engine: its input and its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aggregator.core.settings import RunSettings
from aggregator.fleet.records import Campaign, Fleet
from aggregator.ports import Blobs
from aggregator.view.round_record import RoundRecord
from algorithms.algorithm import Algorithm
from algorithms.core.contract import Probe
from algorithms.objectives.supervised import Supervised
from edge_client.core.ports import Windows
from simulation.engine.progress import HeldModels
from simulation.engine.schedule import Schedule
from simulation.engine.workers.attacks import Attack
from wire.arrays.tensors import Array
from wire.bundle import Bundle


@dataclass(frozen=True)
class Experiment:
    """A fleet, and the algorithm, objective and settings to train it with."""

    settings: RunSettings
    algorithm: Algorithm
    objective: Supervised
    probe: Probe
    bundle: Bundle
    devices: Mapping[str, Windows]
    attack: Attack | None = None


@dataclass(frozen=True)
class EngineResult:
    """A finished run: the fleet at its end, its records, and the blobs that these name."""

    fleet: Fleet
    records: list[RoundRecord]
    blobs: Blobs
    predict: Callable[[str, Array], Array]
    """A function (device, x (n, \\*window)) -> class probabilities (n, classes).

    The model is the device's.
    """
    models: HeldModels
    """The final models."""
    backend: str
    """Name of the backend that ran the graphs (`simulation.engine.backend`)."""
    reason: str = ""
    """Reason why no faster backend ran; empty for the fastest."""
    schedule: Schedule | None = None
    """Schedule of the cohorts; None if messages decided about them."""

    @property
    def campaign(self) -> Campaign:
        """The fleet's one campaign."""
        return next(iter(self.fleet.campaigns.values()))
