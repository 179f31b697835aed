"""Devices that a service knows."""

from pathlib import Path


def found(folder: Path, *needles: bytes) -> list[str]:
    """The files below a folder in whose bytes one of these is."""
    return [
        str(p.relative_to(folder))
        for p in sorted(folder.rglob("*"))
        if p.is_file() and any(n in p.read_bytes() for n in needles)
    ]
