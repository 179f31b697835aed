"""Checks the blobs of releases: that each has its hash, and that each that a release needs is
there."""

from collections.abc import Callable, Iterator
from pathlib import Path

from aggregator.core.release.reach import needed
from aggregator.core.release.state import FleetState
from aggregator.maintenance.blobs import look, problem_of
from aggregator.maintenance.database import Contents
from aggregator.maintenance.finding import Finding
from aggregator.releases.rollouts import KEPT
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
    folder: Path, contents: Contents, mend: bool, again: Callable[[], Contents]
) -> Iterator[Finding]:
    """Look at every file, then for every blob that is needed. `again` reads the database anew: a
    service may have changed it meanwhile."""
    wanted, blobs = _wanted(contents), folder / RELEASES
    uses = {name: [f"release {n} needs it" for n in numbers] for name, numbers in wanted.items()}
    found, whole = look(blobs, RELEASES, uses, mend)
    yield from found
    missing = wanted.keys() - whole
    if missing and not mend:
        current = _wanted(again())
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


def _wanted(contents: Contents) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for state in contents.fleets.values():
        for name, numbers in release_needs(state).items():
            found[name] = sorted({*found.get(name, []), *numbers})
    return found
