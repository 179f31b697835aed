"""What a Linux board can say of itself: from /sys, /proc and the file system. Whether the way out
is metered only NetworkManager knows: it is not asked."""

import os
import platform
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from edge_client.core.ports import Health

T = TypeVar("T")

IDLE_LOAD = 0.5
"""A board is idle while less of each processor core was wanted in the last minute."""
_COLDEST_C, _HOTTEST_C = -40.0, 150.0
"""A sensor that says something else is broken, or is none."""
_LONGEST = 200


def linux_health(
    state: Path,
    power: Path = Path("/sys/class/power_supply"),
    thermal: Path = Path("/sys/class/thermal"),
    model: Path = Path("/proc/device-tree/model"),
) -> Health:
    """What can be found out now; what cannot be is None. It raises nothing. `state`: a folder on
    the file system that the client writes to."""
    return Health(
        battery_percent=_found(lambda: _battery(power)),
        hardware=_found(lambda: _hardware(model)) or "",
        free_bytes=_found(lambda: shutil.disk_usage(state).free),
        temperature_c=_found(lambda: _temperature(thermal)),
        charging=_found(lambda: _charging(power)),
        idle=_found(lambda: os.getloadavg()[0] < IDLE_LOAD * (os.cpu_count() or 1)),
    )


def _found(look: Callable[[], T]) -> T | None:
    try:
        return look()
    except (OSError, ValueError):
        return None


def _number(path: Path) -> float:
    return float(path.read_text())


def _battery(power: Path) -> float | None:
    """The first battery's charge."""
    charges = (_found(partial(_number, path)) for path in sorted(power.glob("*/capacity")))
    return next(
        (
            min(100.0, max(0.0, charge))
            for charge in charges
            if charge is not None and charge == charge
        ),
        None,
    )


def _charging(power: Path) -> bool | None:
    """Whether a supply from outside is there, or a battery says that it is charged; None where
    nothing says anything of it."""
    online = [path.read_text().strip() == "1" for path in sorted(power.glob("*/online"))]
    states = [path.read_text().strip().lower() for path in sorted(power.glob("*/status"))]
    known = [
        state in ("charging", "full")
        for state in states
        if state in ("charging", "full", "discharging", "not charging")
    ]
    return any(online + known) if online or known else None


def _temperature(thermal: Path) -> float | None:
    """That of the warmest zone, in degrees Celsius."""
    found = (_found(partial(_number, path)) for path in sorted(thermal.glob("thermal_zone*/temp")))
    zones = (thousandths / 1000 for thousandths in found if thousandths is not None)
    return max((zone for zone in zones if _COLDEST_C <= zone <= _HOTTEST_C), default=None)


def _hardware(model: Path) -> str:
    """What the board calls itself; on a machine that does not, its processor's architecture."""
    named = (
        model.read_bytes().rstrip(b"\0").decode(errors="replace").strip() if model.exists() else ""
    )
    return "".join(c for c in named or platform.machine() if c.isprintable())[:_LONGEST]
