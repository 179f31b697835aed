"""Files that are whole or absent, whatever interrupts the writing, and folders that one process has
at a time."""

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO

from wire.errors import ConfigError


def write_atomically(path: Path, payload: bytes, mode: int = 0o666) -> None:
    """Write a file so that after a crash it is the old one or the new one, never a part; it is on
    the disk when this returns. `mode`: the permissions it has from its first byte on, less the
    process's umask.

    Raises:
        OSError: the folder cannot be written, or the disk is full; the old file is still there.
    """
    write_aside(path, payload, mode).replace(path)
    sync_folder(path.parent)


def write_aside(path: Path, payload: bytes, mode: int = 0o666) -> Path:
    """Write what is to become the file at `path` into a file beside it, which is on the disk when
    this returns.

    Raises:
        OSError: as `write_atomically`; nothing is left over.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb"
        ) as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading that somebody else may have put there: a link is not followed, and
    nothing that is not a regular file, such as a pipe or a device, is waited for or read.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(opened, "rb")


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it is to be in, so that all of their names are on the disk when
    this returns.

    Raises:
        OSError: it cannot be made.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put a folder's names on the disk.

    Raises:
        OSError: the folder cannot be opened.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def lock_folder(folder: Path) -> int:
    """Take a folder, which is made if there is none, for this process; the file descriptor of its
    lock, which holds until it is closed.

    Raises:
        BlockingIOError: another process has the folder.
        OSError: it cannot be made or written.
    """
    make_folder(folder)
    held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def is_locked(folder: Path) -> bool:
    """Whether a process has the folder now.

    Raises:
        OSError: it cannot be told.
    """
    try:
        held = os.open(folder / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(held)
    return False


def prepare_folder(out: Path, option: str = "--out") -> Path:
    """Make the output folder, which this option names.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option} {out}: {error.strerror}") from None
    return out
