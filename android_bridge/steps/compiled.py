"""Skips steps whose input has not changed, and lets one build run at a time."""

import fcntl
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steps.toolchain import OUT


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of the output folder; other builds wait, as they write the same files.

    The lock is free when a build ends, also when it is killed.
    """
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another build is at work in {OUT}: this one waits for it", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest_of(files: list[Path], *settings: object) -> str:
    """Return the SHA-256 of settings, file paths and file contents, in hexadecimal digits."""
    seen = hashlib.sha256(repr(settings).encode())
    for path in files:
        seen.update(str(path).encode() + path.read_bytes())
    return seen.hexdigest()


def unchanged(target: Path, seen: str) -> bool:
    """Return True if `target` was made from the input with the digest `seen`.

    Otherwise its stamp is deleted. `made` writes a new one.
    """
    stamp = target.with_suffix(".stamp")
    if target.exists() and stamp.exists() and stamp.read_text() == seen:
        return True
    stamp.unlink(missing_ok=True)
    return False


def part_of(target: Path) -> Path:
    """Return the path to write `target` to before `made` moves it into place.

    A running program may have the previous file open.
    """
    return target.with_name(f"part-{target.name}")


def made(target: Path, seen: str) -> None:
    """Move `part_of` the target into place, if it exists, and store the digest of its input."""
    if part_of(target).exists():
        part_of(target).replace(target)
    target.with_suffix(".stamp").write_text(seen)
