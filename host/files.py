"""Files that are whole or absent, whatever interrupts the writing."""

import os
from pathlib import Path


def write_atomically(path: Path, payload: bytes) -> None:
    """Write a file so that after a crash it is the old one or the new one, never a part; it is on the disk when this returns.

    Raises:
        OSError: the folder cannot be written, or the disk is full; the old file is still there.
    """
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
