"""Hours of the day in which rounds may give devices assignments.

Pure, except for the system's table of time zones.
"""

import re
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from wire.errors import ConfigError


class Hours(NamedTuple):
    """Span from one time of day to another in a time zone; over midnight if it ends earlier."""

    begin: time
    end: time
    zone: ZoneInfo

    def opens_s(self, at_s: float) -> float:
        """Return the first time from `at_s` on that is within the hours, in Unix seconds."""
        return next(max(at_s, begin_s) for begin_s, end_s in self._around(at_s) if end_s > at_s)

    def closes_s(self, at_s: float) -> float:
        """Return the end of the current or next hours in Unix seconds."""
        return next(end_s for _, end_s in self._around(at_s) if end_s > at_s)

    def _around(self, at_s: float) -> list[tuple[float, float]]:
        """Return beginning and end of the hours of the days around a time, in Unix seconds.

        A day on which the clock is put forward may have no hours.
        """
        today = datetime.fromtimestamp(at_s, self.zone).date()
        days = [today + timedelta(days=shift) for shift in range(-1, 4)]
        spans = [
            (
                datetime.combine(day, self.begin, self.zone).timestamp(),
                datetime.combine(
                    day + timedelta(days=self.end <= self.begin), self.end, self.zone
                ).timestamp(),
            )
            for day in days
        ]
        return [span for span in spans if span[0] < span[1]]


@lru_cache(64)
def read_hours(text: str) -> Hours | None:
    """Return the hours in a text such as ``22:00-06:00 Europe/Berlin``; None for an empty text.

    The zone is UTC if the text has none. None means that there is no restriction.

    Raises:
        ConfigError: the text has another form.
    """
    if not text:
        return None
    match = re.fullmatch(
        r"([01]?[0-9]|2[0-3]):([0-5][0-9])-([01]?[0-9]|2[0-3]):([0-5][0-9])(?: (\S+))?", text
    )
    if match is None:
        raise ConfigError(
            f"hours must be such as 22:00-06:00 or 22:00-06:00 Europe/Berlin, got {text!r}"
        )
    try:
        zone = ZoneInfo(match[5] or "UTC")
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"hours {text!r}: no time zone {match[5]!r}; expected a name such as Europe/Berlin"
        ) from None
    begin, end = time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4]))
    if begin == end:
        raise ConfigError(
            f"hours must begin and end at different times, got {text!r}; leave them out to ask "
            "devices at any time"
        )
    return Hours(begin, end, zone)
