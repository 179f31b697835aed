"""The devices of a fleet, and how their entries change. Pure: a change is a new entry.

An entry holds what an operator said of a device (tags, a ban), and *telemetry*: what the device
says of itself, and what was seen of it. An operator's order has to be safe before anybody acts on
it; telemetry may be saved later, since a device says it again (`aggregator.service.devices`).
"""

import msgspec
from msgspec.structs import replace

from aggregator.core.state import Placed
from algorithms.personalisation.kept import Kept
from wire.messages import CheckIn, DeclineReason

HISTORY = 8
"""Changes of group that are remembered of a device."""
MOST_TAGS = 64


class GroupChange(msgspec.Struct, frozen=True, gc=False):
    """A campaign put a device into another group."""

    at_s: float
    campaign: str
    round: int
    group: str


class Decline(msgspec.Struct, frozen=True, gc=False):
    """A plan that a device did not carry out."""

    at_s: float
    campaign: str
    round: int
    reason: DeclineReason
    detail: str


class Training(msgspec.Struct, frozen=True, gc=False):
    """A device's last plan that trained."""

    examples: int
    """That went through its steps, as often as they did."""
    train_s: float
    """Seconds of work on the plan."""
    answer_s: float
    """Seconds from when it was asked to when its update was there; 0: not known."""
    bytes_up: int
    bytes_down: int


class KeptModel(msgspec.Struct, frozen=True):
    """What a device keeps of a campaign that is over."""

    at_s: float
    campaign: str
    round: int
    kept: Kept


class Ban(msgspec.Struct, frozen=True, gc=False):
    """Since when a device is banned, and why."""

    since_s: float
    reason: str


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a device. Times are Unix seconds; 0: never."""

    tags: tuple[str, ...] = ()
    """In alphabetical order."""
    ban: Ban | None = None
    said: CheckIn | None = None
    """Its last check-in."""
    first_seen_s: float = 0.0
    last_seen_s: float = 0.0
    online: bool = False
    campaign: str = ""
    """The campaign that gave it its last plan."""
    asked_s: float = 0.0
    decline: Decline | None = None
    """Its last."""
    declines: int = 0
    updates: int = 0
    train_s: float = 0.0
    """Seconds of training behind its last update."""
    bytes_up: int = 0
    bytes_down: int = 0
    """Of its last update, and of what it fetched for it."""
    training: Training | None = None
    kept: KeptModel | None = None
    """What it said last that it keeps; None: it has not told."""
    group: str = ""
    placed: Placed | None = None
    """How sure that is, of a device that its campaign has placed
    (`aggregator.core.round.asking.placed_of`); None for others."""
    groups: tuple[GroupChange, ...] = ()
    release: int = 0
    """The number of the release that it uses; 0: none."""
    release_problem: str = ""
    """Why it does not use the one that was offered."""
    release_alone: str = ""
    """Why it uses that one without what it has kept; empty where it uses that, or has kept
    nothing."""
    withdrawn_s: float = 0.0
    """When its owner withdrew; 0 after it has checked in again."""


NOBODY = Entry()


def away(entry: Entry) -> Entry:
    """The entry as it is while no service runs: nobody is connected, and what was saved of the
    models that a device holds may be of before its last choice."""
    said = (
        replace(entry.said, kept=None)
        if entry.said is not None and entry.said.kept is not None
        else entry.said
    )
    return (
        replace(entry, online=False, said=said) if entry.online or said is not entry.said else entry
    )


def withholds(said: CheckIn | None) -> bool:
    """Whether a device says that its owner does not let it tell what it keeps."""
    return said is not None and said.policy is not None and said.policy.withholds


def checked_in(entry: Entry, said: CheckIn, at_s: float) -> Entry:
    """Return a device's entry after a check-in. The device is online. What it keeps is forgotten if
    its owner no longer lets it say so, or if it holds nothing of any model."""
    return replace(
        entry,
        said=said,
        first_seen_s=entry.first_seen_s or at_s,
        last_seen_s=at_s,
        online=True,
        kept=None if withholds(said) or said.kept == () else entry.kept,
        withdrawn_s=0.0,
    )


def reported(entry: Entry, training: Training, chooses: bool) -> Entry:
    """Return a device's entry after an update, which trained on no example if its examples are 0.
    `chooses`: True if the device was asked what it keeps, so that what it said before of the models
    that it holds is of no use any more."""
    said = entry.said
    return replace(
        entry,
        training=training if training.examples > 0 else entry.training,
        said=replace(said, kept=None) if said is not None and chooses else said,
        updates=entry.updates + 1,
        train_s=training.train_s,
        bytes_up=training.bytes_up,
        bytes_down=training.bytes_down,
    )


def keeping(entry: Entry, at_s: float, campaign: str, number: int, kept: Kept | None) -> Entry:
    """Return a device's entry with what it keeps of a campaign after this round; None: it has the
    campaign's model, and has not told that it keeps anything of it."""
    if kept is None or withholds(entry.said):
        return replace(entry, kept=None) if entry.kept is not None else entry
    before = entry.kept
    if before is not None and (before.campaign, before.round, before.kept) == (
        campaign,
        number,
        kept,
    ):
        return entry
    return replace(entry, kept=KeptModel(at_s, campaign, number, kept))


def regrouped(entry: Entry, change: GroupChange, placed: Placed | None = None) -> Entry:
    """Return the entry of a device that a campaign has in this group, or in none where the group is
    empty. The last `HISTORY` changes are remembered. `placed`: how sure the group is, of a device
    that was placed."""
    is_its_own = bool(entry.groups) and entry.groups[-1].campaign == change.campaign
    if is_its_own and (entry.group, entry.placed) == (change.group, placed):
        return entry
    if not change.group:
        return replace(entry, group="", placed=None) if is_its_own else entry
    entry = replace(entry, placed=placed)
    if is_its_own and entry.group == change.group:
        return entry
    return replace(entry, group=change.group, groups=(*entry.groups, change)[-HISTORY:])
