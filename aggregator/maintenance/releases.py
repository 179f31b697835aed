"""Checks the blobs of releases: that each has its hash, and that each that a release needs is
there."""

from collections.abc import Callable, Iterator
from pathlib import Path

from aggregator.core.release.reach import needed
from aggregator.maintenance.blobs import look, problem_of
from aggregator.maintenance.database import Contents
from aggregator.maintenance.finding import Finding
from aggregator.releases.rollouts import KEPT
from aggregator.storage.charter import RELEASES


def release_needs(contents: Contents) -> dict[str, list[int]]:
    """Return the releases that need each blob, by its digest."""
    numbers: dict[str, set[int]] = {}
    for state in contents.fleets.values():
        for number in needed(state, KEPT):
            release = state.catalogue.releases[number]
            for name in (release.bundle, release.model):
                numbers.setdefault(name, set()).add(number)
    return {name: sorted(each) for name, each in numbers.items()}


def check_releases(
    folder: Path, contents: Contents, mend: bool, again: Callable[[], Contents]
) -> Iterator[Finding]:
    """Look at every file, then for every blob that is needed. `again` reads the database anew: a
    service may have changed it meanwhile."""
    wanted, blobs = release_needs(contents), folder / RELEASES
    uses = {name: [f"release {n} needs it" for n in numbers] for name, numbers in wanted.items()}
    found, whole = look(blobs, RELEASES, uses, mend)
    yield from found
    missing = wanted.keys() - whole
    if missing and not mend:
        current = release_needs(again())
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
