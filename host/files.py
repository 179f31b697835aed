"""Files that are whole or absent even after a crash, and folders locked by one process."""

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO

from wire.errors import ConfigError

_REMEDIES = {
    errno.ENOENT: "check the path, and that its folder exists",
    errno.EACCES: "let the user who runs this program read and write it",
    errno.EPERM: "let the user who runs this program read and write it",
    errno.EROFS: "choose a path on a disk that can be written",
    errno.ENOSPC: "free space on its disk, or choose a path on another",
    errno.EDQUOT: "free space within the user's quota, or choose a path on another disk",
    errno.EEXIST: "remove what has this name, or choose another",
    errno.ENOTEMPTY: "empty the folder, or choose another",
    errno.EISDIR: "choose the path of a file",
    errno.ENOTDIR: "choose a path that leads through folders only",
    errno.EINVAL: "choose the path of a regular file",
    errno.ELOOP: "choose the file itself, not a link to it",
    errno.ENAMETOOLONG: "choose a shorter path",
}


def file_error(subject: object, error: OSError) -> str:
    """Return the message that a file or folder cannot be used: the cause, and the remedy.

    `subject`: what the user knows it by, such as an option and a path.
    """
    remedy = _REMEDIES.get(error.errno or 0, "check its disk, or choose another path")
    return f"{subject}: {error.strerror or error}; {remedy}"


def write_atomically(path: Path, payload: bytes, mode: int = 0o666) -> None:
    """Write a file so that after a crash it is the old one or the new one, never a part.

    It is on the disk when this returns. `mode` is its permissions from the first byte on, less the
    process's umask.

    Raises:
        OSError: the folder cannot be written, or the disk is full; the old file remains.
    """
    write_aside(path, payload, mode).replace(path)
    sync_folder(path.parent)


def write_aside(path: Path, payload: bytes, mode: int = 0o666) -> Path:
    """Write the future content of `path` into a file beside it, and return that file's path.

    It is on the disk when this returns.

    Raises:
        OSError: the folder cannot be written, or the disk is full; no file remains.
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
    """Open a file for reading that another user may have placed there.

    Links are not followed. A pipe, a device or anything else that is not a regular file is neither
    waited for nor read.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(opened, "rb")


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents; their names are on the disk when this returns.

    Raises:
        OSError: it cannot be made.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk.

    Raises:
        OSError: the folder cannot be opened.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def lock_folder(folder: Path) -> int:
    """Lock a folder for this process, and return the file descriptor of the lock.

    The folder is made if it does not exist. The lock holds until the descriptor is closed.

    Raises:
        BlockingIOError: another process has locked the folder.
        OSError: it cannot be made or written.
    """
    make_folder(folder)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(folder: Path) -> bool:
    """Return True if a process has locked the folder.

    Raises:
        OSError: the lock cannot be read.
    """
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def prepare_folder(out: Path, option: str = "--out") -> Path:
    """Make the output folder that `option` names.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(file_error(f"{option} {out}", error)) from None
    return out
