"""What a Linux board can say of itself, from /sys: battery, and whether the way out is metered (only NetworkManager knows: not asked)."""

from pathlib import Path

from edge_client.core.ports import Health


def linux_health(power: Path = Path("/sys/class/power_supply")) -> Health:
    """The first battery's charge; None on a board without one."""
    for path in sorted(power.glob("*/capacity")):
        try:
            return Health(battery_percent=min(100.0, max(0.0, float(path.read_text()))))
        except (OSError, ValueError):
            continue
    return Health()
