"""Checks the database of a service's folder, and makes a new one of what can be read of a damaged
one."""

from pathlib import Path

from aggregator.core.ports import StorageFailed
from aggregator.maintenance.finding import RESTORE, Finding
from aggregator.storage.salvage import (
    Contents,
    damaged_name,
    read_database,
    salvage,
    write_database,
)
from aggregator.storage.schema import newer, readable
from host.files import sync_folder
from wire.errors import ShoalError

MEANING = "the service may stop at any read, or miss what it was told"


def check_database(folder: Path, mend: bool) -> tuple[list[Finding], Contents | None]:
    """Check ``shoal.db``; returns what was found, and what is in it, after mending; None where that
    cannot be told."""
    path = folder / "shoal.db"
    if not path.is_file():
        return [_missing(folder)], None
    try:
        return _check(path, mend)
    except StorageFailed as error:
        return [
            Finding(
                "wrong",
                path.name,
                f"{error}. What depends on it was not checked, and nothing was changed",
            )
        ], None


def _check(path: Path, mend: bool) -> tuple[list[Finding], Contents | None]:
    contents = read_database(path)
    if not contents.damage and contents.revision not in readable():
        return [Finding("wrong", path.name, newer(contents.revision))], None
    if not contents.damage:
        told = ", ".join(
            f"{name} ({run.state.phase}, round {run.state.round})"
            if run.state
            else f"{name} (not begun)"
            for name, run in contents.runs.items()
        )
        return [Finding("ok", path.name, f"whole; {told or 'no run'}")], contents
    damage = "; ".join(text.splitlines()[0] for text in contents.damage[:3])
    if not mend:
        told = (
            f"damaged: {damage}. {MEANING[0].upper()}{MEANING[1:]}. `--mend` makes a new one of "
            "what can be read; or restore the folder"
        )
        return [Finding("wrong", path.name, f"{told} from a backup")], contents
    return _mend(path, damage)


def _mend(path: Path, damage: str) -> tuple[list[Finding], Contents]:
    try:
        contents, new = salvage(path), path.with_name(path.name + ".new")
    except OSError as error:
        return [
            Finding(
                "wrong",
                path.name,
                f"damaged, and it cannot be copied to be read: {error}. Nothing was changed",
            )
        ], Contents(damage=[damage])
    readable = {name: run for name, run in contents.runs.items() if run.state is not None}
    if not readable:
        return [
            Finding(
                "wrong",
                path.name,
                f"damaged, and no run can be read of it: {damage}. Nothing was changed: {RESTORE}",
            )
        ], contents
    try:
        _remove(new)
        write_database(new, readable, contents.fleets, contents.registry)
        written = read_database(new)
        aside = _swap(path, new)
    except (ShoalError, OSError) as error:
        return [
            Finding("wrong", path.name, f"damaged, and no new one can be written: {error}")
        ], contents
    found = [
        Finding(
            "mended",
            path.name,
            f"it was damaged ({damage}); it is {aside.name} now, and what could be read is in a "
            "new one",
        )
    ]
    for lost in contents.lost:
        gone = (
            lost.startswith("run ") and lost.partition(":")[0].removeprefix("run ") not in readable
        )
        found.append(
            Finding(
                "wrong" if gone else "note",
                path.name,
                f"lost of {lost}" + (f". To go on, {RESTORE}" if gone else ""),
            )
        )
    return found, written


def _swap(path: Path, new: Path) -> Path:
    """Set the damaged database aside with its log, and put the new one in its place. Returns the
    damaged one's name."""
    aside = damaged_name(path)
    path.replace(aside)
    if (log := path.with_name(path.name + "-wal")).exists():
        log.replace(aside.with_name(aside.name + "-wal"))
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    new.replace(path)
    sync_folder(path.parent)
    return aside


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _missing(folder: Path) -> Finding:
    begun = (folder / "blobs").exists()
    if not begun:
        return Finding("note", "shoal.db", "it is not here: no run was begun in this folder")
    hint = (
        ", or take shoal.db.new, which is whole, for it"
        if (folder / "shoal.db.new").exists()
        else ""
    )
    unless = (
        "unless `serve --database` names another one, which the doctor then has to be given as "
        "well, the run is lost"
    )
    told = f"it is not here, but blobs are: {unless}. {RESTORE[0].upper()}{RESTORE[1:]}"
    return Finding("wrong", "shoal.db", told + hint)
