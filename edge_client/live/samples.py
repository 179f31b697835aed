"""What a source of samples gives, and what the recorder asks of it."""

from dataclasses import dataclass, field
from typing import Protocol

from edge_client.live.sources.tally import Tally
from wire.arrays.tensors import Array


@dataclass(frozen=True)
class Samples:
    """Values of all channels, in the order in which they came: t (n,) float64 Unix seconds, values
    (n, channels) float64 in which NaN is a value that did not come, and, where the source says it,
    the label of each sample, or an empty text."""

    t: Array = field(repr=False)
    values: Array = field(repr=False)
    labels: tuple[str, ...] = ()


class Source(Protocol):
    """A stream of samples. What cannot be read is counted and logged, and never raised: a source
    lasts for months."""

    ignored: Tally
    """Payloads, lines or files that could not be read."""
    is_over: bool
    """True if nothing more can come."""

    def read(self, timeout_s: float) -> list[Samples]:
        """What has come, in order; empty if nothing does within this time."""

    def close(self) -> None:
        """Let go of what the source holds."""
