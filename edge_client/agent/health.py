"""State of a Linux board, read from /sys, /proc and the file system.

Only NetworkManager knows whether the connection is metered; it is not queried.
"""

import os
import platform
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from edge_client.core.ports import Health
from edge_client.core.report import Machine

T = TypeVar("T")

IDLE_LOAD = 0.5
"""Maximum load per processor core, over the last minute, at which a board counts as idle."""
_COLDEST_C, _HOTTEST_C = -40.0, 150.0
"""Plausible temperatures (degrees Celsius); others come from a broken or unused sensor."""
_LONGEST = 200


def linux_health(
    state: Path,
    power: Path = Path("/sys/class/power_supply"),
    thermal: Path = Path("/sys/class/thermal"),
    model: Path = Path("/proc/device-tree/model"),
) -> Health:
    """Return the board's present state, None for each value that cannot be read. Raise nothing.

    Args:
        state: folder on the file system that the client writes to.
        power: folder of the power supplies.
        thermal: folder of the thermal zones.
        model: file with the name of the board.
    """
    return Health(
        battery_percent=_found(lambda: _battery(power)),
        hardware=_found(lambda: _hardware(model)) or "",
        free_bytes=_found(lambda: shutil.disk_usage(state).free),
        temperature_c=_found(lambda: _temperature(thermal)),
        charging=_found(lambda: _charging(power)),
        idle=_found(lambda: os.getloadavg()[0] < IDLE_LOAD * (os.cpu_count() or 1)),
    )


def linux_machine(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup/memory.max")
) -> Machine:
    """Return the machine and the memory of this process. Raise nothing.

    Args:
        proc: folder of the kernel's file system `proc`.
        cgroup: file with the memory limit of a container.
    """
    counters = _found((proc / "vmstat").read_text) or ""
    limits = (
        _found(lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        _found(lambda: int(cgroup.read_text())),
    )
    return Machine(
        boot_id=(_found((proc / "sys/kernel/random/boot_id").read_text) or "").strip(),
        kills=next(
            (
                int(line.split()[1])
                for line in counters.splitlines()
                if line.startswith("oom_kill ")
            ),
            None,
        ),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        memory_bytes=min((limit for limit in limits if limit is not None), default=None),
    )


def _found(look: Callable[[], T]) -> T | None:
    try:
        return look()
    except (OSError, ValueError):
        return None


def _number(path: Path) -> float:
    return float(path.read_text())


def _battery(power: Path) -> float | None:
    """Return the charge of the first battery (percent), None if there is no battery."""
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
    """Return True if outside power is present or a battery charges or is full.

    None if no power supply reports it.
    """
    online = [path.read_text().strip() == "1" for path in sorted(power.glob("*/online"))]
    states = [path.read_text().strip().lower() for path in sorted(power.glob("*/status"))]
    batteries = [
        state in ("charging", "full")
        for state in states
        if state in ("charging", "full", "discharging", "not charging")
    ]
    return any(online + batteries) if online or batteries else None


def _temperature(thermal: Path) -> float | None:
    """Return the temperature of the warmest zone (degrees Celsius), None if there is no sensor."""
    readings = (
        _found(partial(_number, path)) for path in sorted(thermal.glob("thermal_zone*/temp"))
    )
    zones = (thousandths / 1000 for thousandths in readings if thousandths is not None)
    return max((zone for zone in zones if _COLDEST_C <= zone <= _HOTTEST_C), default=None)


def _hardware(model: Path) -> str:
    """Return the name of the board, or the processor's architecture if the board has no name."""
    named = (
        model.read_bytes().rstrip(b"\0").decode(errors="replace").strip() if model.exists() else ""
    )
    return "".join(c for c in named or platform.machine() if c.isprintable())[:_LONGEST]
