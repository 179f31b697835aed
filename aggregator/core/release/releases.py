"""The releases of a fleet: what each is, where it comes from, and which one a group has. Pure.

A release is a model of a group under a number that only grows in a fleet. What it holds never
changes; its state does:

* *candidate*: it was made, and no device has been given it.
* *canary*: a rollout gives it to devices, step by step.
* *released*: every step of its rollout was passed: it is what its group has, and what a new device
  of the group gets.
* *retired*: a later one has taken its place.
* *superseded*: a later rollout began before its own had reached its end.
* *withdrawn*: its rollout failed or was ended, or the operator went back behind it.

To return to an earlier model is to make a release again from it, with a greater number
(`Release.returns_to`).
"""

from collections.abc import Iterable
from typing import Literal

import msgspec
from immutables import Map
from msgspec.structs import asdict, replace

from wire.messages import Digest, Metrics, Name, Text

ReleaseState = Literal["candidate", "canary", "released", "retired", "superseded", "withdrawn"]
GIVEN_UP: frozenset[ReleaseState] = frozenset({"superseded", "withdrawn"})
"""The states of a release that its group was to have and does not."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is to be a release, and where it comes from."""

    group: Text
    """What the group is called whose model it is."""
    bundle: Digest
    model: Digest
    run_id: Name
    campaign: Name
    """What people call the run that trained it."""
    round: int
    """The round that made it."""
    algorithm: str
    devices: int
    """How many devices of the group it was made for."""
    metrics: Metrics = Metrics()
    """Sums over the devices of the group that have evaluated it, if some have."""


class Release(Draft, frozen=True, kw_only=True):
    """A release; all but its state stays as it is."""

    number: int
    made_at_s: float
    parent: int = 0
    """What its group had when it was made, by number; 0: nothing."""
    returns_to: int = 0
    """The release whose model it brings back; 0: its model is a new one."""
    state: ReleaseState = "candidate"


class Catalogue(msgspec.Struct, frozen=True):
    """Every release of a fleet."""

    releases: Map[int, Release] = Map()
    last: int = 0
    """The greatest number that was given."""
    released: dict[str, int] = {}
    """By group, the release that it has."""


def add(
    catalogue: Catalogue, drafts: Iterable[Draft], at_s: float, least: int = 1
) -> tuple[Catalogue, tuple[Release, ...]]:
    """Make a candidate of each draft, with numbers from `least` on and greater than any before."""
    made, releases, number = [], catalogue.releases, max(catalogue.last, least - 1)
    for draft in drafts:
        number += 1
        release = Release(
            **asdict(draft),
            number=number,
            made_at_s=at_s,
            parent=catalogue.released.get(draft.group, 0),
        )
        releases = releases.set(number, release)
        made.append(release)
    return replace(catalogue, releases=releases, last=number), tuple(made)


def bring_back(
    catalogue: Catalogue, earlier: Release, at_s: float, state: ReleaseState
) -> tuple[Catalogue, Release]:
    """Make a release again from an earlier one, with a greater number."""
    number = catalogue.last + 1
    origin = earlier.returns_to or earlier.number
    parent = catalogue.released.get(earlier.group, 0)
    release = replace(
        earlier, number=number, made_at_s=at_s, parent=parent, returns_to=origin, state="candidate"
    )
    catalogue = replace(catalogue, releases=catalogue.releases.set(number, release), last=number)
    catalogue = put(catalogue, (number,), state)
    return catalogue, catalogue.releases[number]


def put(catalogue: Catalogue, numbers: Iterable[int], state: ReleaseState) -> Catalogue:
    """Put these releases into a state. What is released takes the place of what its group had,
    which is retired if it was released; what is given up leaves its place empty."""
    for number in numbers:
        release = catalogue.releases[number]
        releases, released = (
            catalogue.releases.set(number, replace(release, state=state)),
            dict(catalogue.released),
        )
        before = released.get(release.group, 0)
        if state == "released":
            if before not in (0, number):
                releases = releases.set(before, replace(releases[before], state="retired"))
            released[release.group] = number
        elif before == number:
            del released[release.group]
        catalogue = replace(catalogue, releases=releases, released=released)
    return catalogue
