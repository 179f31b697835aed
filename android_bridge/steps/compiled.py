"""What was made from what: a step is done again only when its input changed."""

import hashlib
from pathlib import Path


def digest_of(files: list[Path], *settings: object) -> str:
    """One hash over settings and files."""
    seen = hashlib.sha256(repr(settings).encode())
    for path in files:
        seen.update(str(path).encode() + path.read_bytes())
    return seen.hexdigest()


def unchanged(target: Path, seen: str) -> bool:
    """Whether `target` was made from this input already."""
    stamp = target.with_suffix(".stamp")
    return target.exists() and stamp.exists() and stamp.read_text() == seen


def made(target: Path, seen: str) -> None:
    """Note what `target` was made from."""
    target.with_suffix(".stamp").write_text(seen)
