"""Port between a source of samples and the recorder."""

from typing import Protocol

from edge_client.data.recordings.resampling import Samples
from edge_client.live.sources.tally import Tally


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
