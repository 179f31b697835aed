"""What was made from what: a step is done again only when its input changed, and by one build at a
time."""

import fcntl
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steps.toolchain import OUT


@contextmanager
def alone() -> Iterator[None]:
    """Hold off other builds of this folder: they write the same files. A build that ends in any
    way, killed too, lets the next one go."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another build is at work in {OUT}: this one waits for it", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest_of(files: list[Path], *settings: object) -> str:
    """One hash over settings and files."""
    seen = hashlib.sha256(repr(settings).encode())
    for path in files:
        seen.update(str(path).encode() + path.read_bytes())
    return seen.hexdigest()


def unchanged(target: Path, seen: str) -> bool:
    """Whether `target` was made from this input already. If not, nothing is said of it until it is
    `made`."""
    stamp = target.with_suffix(".stamp")
    if target.exists() and stamp.exists() and stamp.read_text() == seen:
        return True
    stamp.unlink(missing_ok=True)
    return False


def part_of(target: Path) -> Path:
    """Where `target` is made before `made` puts it into its place: a program that runs may have the
    earlier one open."""
    return target.with_name(f"part-{target.name}")


def made(target: Path, seen: str) -> None:
    """Put `part_of` the target into its place, if it was made there, and note what it was made
    from."""
    if part_of(target).exists():
        part_of(target).replace(target)
    target.with_suffix(".stamp").write_text(seen)
