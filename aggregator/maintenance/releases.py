"""Checks the blobs of releases: that each has its hash, and that each that a release needs is
there."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from aggregator.core.release.reach import needed
from aggregator.core.release.state import FleetState
from aggregator.maintenance.blobs import HALF_WRITTEN, leftover, problem_of
from aggregator.maintenance.finding import Finding
from aggregator.releases.rollouts import KEPT
from aggregator.storage.blob_folder import DAMAGED, blob_names
from aggregator.storage.charter import RELEASES


def release_needs(state: FleetState) -> dict[str, list[int]]:
    """By digest, the releases that need each blob."""
    found: dict[str, list[int]] = {}
    for number in sorted(needed(state, KEPT)):
        release = state.catalogue.releases[number]
        for name in (release.bundle, release.model):
            found.setdefault(name, []).append(number)
    return found


def check_releases(
    folder: Path,
    fleets: Mapping[str, FleetState],
    mend: bool,
    again: Callable[[], Mapping[str, FleetState]],
) -> Iterator[Finding]:
    """Look at every file, then for every blob that is needed. `again` reads the releases anew where
    a service may have changed them meanwhile."""
    wanted, whole, blobs = _wanted(fleets), set(), folder / RELEASES
    for path in sorted(blobs.iterdir()) if blobs.is_dir() else ():
        where = f"{RELEASES}/{path.name}"
        if path.name in blob_names(blobs):
            problem = problem_of(path)
            if problem is None:
                whole.add(path.name)
            elif path.exists():
                yield _damaged(path, f"{where[:21]}", problem, mend)
        elif path.name.endswith(DAMAGED):
            yield Finding(
                "note",
                where,
                "a damaged blob that was set aside earlier; delete it when nobody wants to look "
                "at it",
            )
        elif HALF_WRITTEN.fullmatch(path.name) and path.is_file():
            yield leftover(path, where, mend)
        else:
            yield Finding("note", where, "nothing of Shoal's")
    missing = wanted.keys() - whole
    if missing and (now := again()):
        current = _wanted(now)
        missing = {
            name for name in missing & current.keys() if problem_of(blobs / name) is not None
        }
    for name in sorted(missing):
        numbers = ", ".join(map(str, wanted[name]))
        told = (
            "devices that lack it cannot get it: restore the folder from a backup, or make "
            "another release of the campaign"
        )
        yield Finding(
            "wrong", f"{RELEASES}/{name[:12]}", f"a part of release {numbers} is lost: {told}"
        )
    if not missing:
        yield Finding(
            "ok",
            RELEASES,
            f"{len(whole)} blobs are whole, and none of the {len(wanted)} that releases need is "
            "missing",
        )


def _wanted(fleets: Mapping[str, FleetState]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for state in fleets.values():
        for name, numbers in release_needs(state).items():
            found[name] = sorted({*found.get(name, []), *numbers})
    return found


def _damaged(path: Path, where: str, problem: str, mend: bool) -> Finding:
    if not mend:
        return Finding("wrong", where, f"{problem}. `--mend` sets it aside")
    try:
        path.replace(path.with_name(path.name + DAMAGED))
    except OSError as error:
        return Finding("wrong", where, f"{problem}, and it cannot be set aside: {error.strerror}")
    return Finding("mended", where, f"{problem}; it is {path.name[:12]}...{DAMAGED} now")
