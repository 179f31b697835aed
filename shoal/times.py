"""Times as the command line says them."""

import re
from datetime import UTC, datetime

from wire.errors import ConfigError

UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_of(text: str, option: str) -> float:
    """The seconds of ``30m``, ``12h`` or ``7d``, which this option has.

    Raises:
        ConfigError: it is none of these.
    """
    if not (found := re.fullmatch(r"([0-9]{1,6})([mhd])", text)):
        raise ConfigError(f"{option} {text!r}: expected a number and m, h or d, such as 12h")
    return int(found[1]) * UNITS_S[found[2]]


def minute_of(at_s: float) -> str:
    """A Unix time to the minute, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")
