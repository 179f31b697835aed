"""`shoal backup`: a copy of a service's folder, made while the service runs."""

from pathlib import Path

from rich.console import Console

from aggregator.maintenance.backup import back_up
from shoal.waiting import steps


def backup(folder: Path, to: Path) -> None:
    """Carry out `shoal backup`."""
    with steps(Console(), f"copying {folder}"):
        copied = back_up(folder, to)
    print(
        f"{to}: {', '.join(copied.runs) or 'no run'}, {copied.blobs} blobs, "
        f"{copied.bytes / 1e6:.1f} MB; `shoal restore` puts it back"
    )
