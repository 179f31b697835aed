"""Port between a source of samples and the recorder."""

from dataclasses import dataclass, field
from typing import Protocol

from edge_client.live.sources.tally import Tally
from wire.arrays.tensors import Array


@dataclass(frozen=True)
class Samples:
    """Values of all channels, in the order in which they came.

    t (n,) is float64 Unix seconds. values (n, channels) is float64, NaN if a value is missing.
    labels has the label of each sample, or is empty if the source has no labels.
    """

    t: Array = field(repr=False)
    values: Array = field(repr=False)
    labels: tuple[str, ...] = ()


class Source(Protocol):
    """Stream of samples.

    Unreadable input is counted and logged, and never raised: a source lasts for months.
    """

    ignored: Tally
    """Count of unreadable payloads, lines or files."""
    is_over: bool
    """True if nothing more can come."""

    def read(self, timeout_s: float) -> list[Samples]:
        """Return the samples that came, in order; none if none come within this time."""

    def close(self) -> None:
        """Release the resources of the source."""
