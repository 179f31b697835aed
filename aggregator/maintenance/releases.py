"""Check of the blobs of releases: each has its hash, and none that a release needs is missing."""

from collections.abc import Callable, Iterator
from pathlib import Path

from aggregator.maintenance.blobs import look, problem_of
from aggregator.maintenance.database import Contents
from aggregator.maintenance.finding import Finding
from aggregator.storage.charter import RELEASES
from aggregator.view.progress import needed_releases, offered_releases


def release_needs(contents: Contents) -> dict[str, list[int]]:
    """Return the numbers of the releases that need each blob, by digest."""
    numbers: dict[str, set[int]] = {}
    fleet = contents.fleet
    if fleet is None:
        return {}
    staged = {n for r in fleet.rollouts if not r.direct for n in r.releases.values()}
    for number in needed_releases(fleet, offered_releases(fleet)) & staged:
        for name in fleet.releases[number].blobs:
            numbers.setdefault(name, set()).add(number)
    return {name: sorted(each) for name, each in numbers.items()}


def check_releases(
    folder: Path, contents: Contents, mend: bool, again: Callable[[], Contents]
) -> Iterator[Finding]:
    """Yield findings on every file, then on every needed blob.

    `again` reads the database anew, since a service may have changed it meanwhile.
    """
    wanted, blobs = release_needs(contents), folder / RELEASES
    uses = {name: [f"release {n} needs it" for n in numbers] for name, numbers in wanted.items()}
    findings, whole = look(blobs, RELEASES, uses, mend)
    yield from findings
    missing = wanted.keys() - whole
    if missing and not mend:
        current = release_needs(again())
        missing = {
            name for name in missing & current.keys() if problem_of(blobs / name) is not None
        }
    for name in sorted(missing):
        numbers = ", ".join(map(str, wanted[name]))
        remedy = (
            "devices that lack it cannot get it: restore the folder from a backup, or make "
            "another release of the campaign"
        )
        yield Finding(
            "wrong", f"{RELEASES}/{name[:12]}", f"a part of release {numbers} is lost: {remedy}"
        )
    if not missing:
        yield Finding(
            "ok",
            RELEASES,
            f"{len(whole)} blobs are undamaged; all {len(wanted)} that releases need are among "
            "them",
        )
