"""What an engine leaves when a run is over."""

from collections.abc import Callable
from dataclasses import dataclass

from aggregator.core.ports import Blobs
from aggregator.core.record import RoundRecord
from aggregator.core.state import RunState
from simulation.engine.progress import HeldModels
from simulation.engine.schedule import Schedule
from wire.arrays.tensors import Array


@dataclass(frozen=True)
class EngineResult:
    """A run that is over: its last state, its records, and the blobs that these name."""

    state: RunState
    records: list[RoundRecord]
    blobs: Blobs
    predict: Callable[[str, Array], Array]
    """(device, x (n, \\*window)) -> class probabilities (n, classes) by the model of that
    device."""
    models: HeldModels
    """The models in the end."""
    backend: str
    """Name of the backend that ran the graphs (`simulation.engine.backend`)."""
    reason: str = ""
    """Why it was no faster backend; empty for the fastest."""
    schedule: Schedule | None = None
    """Who took part when, where something else than the messages said so."""
