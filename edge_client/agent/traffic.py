"""Number of bytes sent and received in the last 24 hours, across restarts."""

from collections.abc import Callable

import msgspec

from edge_client.storage.state import TRAFFIC, DeviceState

HOUR_S, HOURS = 3600, 24
SAVED_BYTES = 64 * 2**10
"""Maximum number of bytes that a killed client forgets."""


class Traffic:
    """Count of bytes by the hour of the device's own clock, which the aggregator cannot set.

    An hour that began before the last 24 hours counts in full: the sum is never too small.
    """

    def __init__(self, state: DeviceState, clock: Callable[[], float]) -> None:
        """Read the stored counts.

        Args:
            state: the state folder.
            clock: Unix time in seconds.
        """
        self._state, self._clock = state, clock
        self._by_hour = state.document(TRAFFIC, dict[int, int]) or {}
        self._unsaved = 0

    def add(self, num_bytes: int) -> None:
        """Count bytes that were sent or received.

        Raises:
            OSError: the counts cannot be stored; in memory they are counted.
        """
        hour = int(self._clock() // HOUR_S)
        self._by_hour[hour] = self._by_hour.get(hour, 0) + num_bytes
        self._unsaved += num_bytes
        if self._unsaved >= SAVED_BYTES:
            self.save()

    @property
    def last_day(self) -> int:
        """Number of bytes in the last 24 hours.

        Bytes at a time in the future, which exist if the clock was set back, count too.
        """
        oldest = int(self._clock() // HOUR_S) - HOURS
        self._by_hour = {hour: count for hour, count in self._by_hour.items() if hour >= oldest}
        return sum(self._by_hour.values())

    def exceeds(self, most: int | None, more: int = 0) -> str:
        """Return the problem if `more` bytes would exceed `max_bytes_a_day`, or ""."""
        if most is None or self.last_day + more <= most:
            return ""
        return f"max_bytes_a_day: {self.last_day + more} in 24 hours, {most} are permitted"

    def save(self) -> None:
        """Store the counts."""
        if self._unsaved and self.last_day:
            self._state.files.write(TRAFFIC, msgspec.json.encode(self._by_hour))
        self._unsaved = 0
