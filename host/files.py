"""Files that are whole or absent, whatever interrupts the writing."""

import os
from pathlib import Path


def write_atomically(path: Path, payload: bytes, mode: int = 0o666) -> None:
    """Write a file so that after a crash it is the old one or the new one, never a part; it is on the disk when this returns. `mode`: the
    permissions it has from its first byte on, less the process's umask.

    Raises:
        OSError: the folder cannot be written, or the disk is full; the old file is still there.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
