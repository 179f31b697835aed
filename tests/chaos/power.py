"""Power losses: what a folder holds after one, strictly as POSIX promises it.

A process that writes a folder runs with the library of `fsynced.c`, which keeps a shadow of what
was synchronised. The loss itself is `PowerLine.lose` after a kill -9: the folder is replaced by
what the shadow has. Contents of a file last since its own fsync, names in a folder since the
folder's.
"""

import random
import shutil
from pathlib import Path

BLOCK = 4096


class PowerLine:
    """The shadow of one folder. All that is in the folder when this is made counts as
    synchronised."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder, self._library = folder.resolve(), library
        self._shadow = self._folder.with_name(f"{self._folder.name}.shadow")
        self._begin()

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the process that writes the folder."""
        return {
            "LD_PRELOAD": str(self._library),
            "FSYNCED_ROOT": str(self._folder),
            "FSYNCED_SHADOW": str(self._shadow),
        }

    def lose(self, rng: random.Random | None = None) -> None:
        """Replace the folder by what a power loss leaves. Without `rng` nothing is left that was
        not synchronised; with it, each folder's names and each block of a file are either as they
        were synchronised or as they were written."""
        after = self._folder.with_name(f"{self._folder.name}.after")
        self._restore(self._folder, self._folder.stat().st_ino, after, rng)
        shutil.rmtree(self._folder)
        after.rename(self._folder)
        self._begin()

    def close(self) -> None:
        """Remove the shadow."""
        shutil.rmtree(self._shadow, ignore_errors=True)

    def _begin(self) -> None:
        self.close()
        for name in ("contents", "names", "pins"):
            (self._shadow / name).mkdir(parents=True)
        for folder in (self._folder, *(path for path in self._folder.rglob("*") if path.is_dir())):
            self._names(folder.stat().st_ino).write_text(
                "".join(_line(path) for path in folder.iterdir())
            )
            for path in folder.iterdir():
                if path.is_file():
                    inode = str(path.stat().st_ino)
                    shutil.copyfile(path, self._shadow / "contents" / inode)
                    (self._shadow / "pins" / inode).hardlink_to(path)

    def _names(self, inode: int) -> Path:
        return self._shadow / "names" / str(inode)

    def _restore(self, folder: Path, inode: int, to: Path, rng: random.Random | None) -> None:
        """Write what is left of the folder with this inode; `folder`: where it lay, if its name was
        synchronised."""
        to.mkdir()
        kept = self._names(inode)
        lines = kept.read_text().splitlines(keepends=True) if kept.exists() else []
        if rng is not None and folder.is_dir() and rng.random() < 0.5:
            lines = [_line(path) for path in folder.iterdir()]
        for line in lines:
            kind, own, name = line.rstrip("\n").split(" ", 2)
            if kind == "d":
                self._restore(folder / name, int(own), to / name, rng)
                continue
            durable, written = self._shadow / "contents" / own, self._shadow / "pins" / own
            if not written.exists():  # never synchronised: it can only be where its name says
                written = folder / name
            old = durable.read_bytes() if durable.exists() else b""
            new = written.read_bytes() if rng is not None and written.exists() else old
            (to / name).write_bytes(_mixed(old, new, rng) if rng is not None else old)
            if written.exists():
                (to / name).chmod(written.stat().st_mode)


def _line(path: Path) -> str:
    return f"{'d' if path.is_dir() else 'f'} {path.lstat().st_ino} {path.name}\n"


def _mixed(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Each block of a file, from the old or the new contents; its length that of one of them."""
    blocks = []
    size = len(rng.choice((old, new)))
    for at in range(0, size, BLOCK):
        block = (
            rng.choice((old, new))[at : at + BLOCK] or old[at : at + BLOCK] or new[at : at + BLOCK]
        )
        blocks.append(block.ljust(min(BLOCK, size - at), b"\0")[: size - at])
    return b"".join(blocks)
