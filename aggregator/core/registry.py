"""Who the devices of a fleet are, as a state machine: ``step(state, event) -> state``. Pure; it
knows no round and no campaign but by name.

An entry holds what an operator said of a device (tags, a ban), and *telemetry*: what the device
says of itself, and what was seen of it. An *order* (`Tagged`, `Untagged`, `Banned`, `Unbanned`,
`Withdrew`, `Forgotten`) has to be safe before anybody acts on it; telemetry may be saved later,
since a device says it again (`aggregator.registry`).

What each event does to the device's entry:

* `Told`: it says what it is and how it is; it is online. What it keeps is forgotten where its owner
  no longer lets it say so, or where it holds nothing of any model.
* `Seen`: it is online. `Left`: it is not.
* `Asked`: it was given a plan by a campaign. `Declined`: it did not carry out a plan, and why.
* `Reported`: its update was taken: seconds of training, bytes. If it has chosen what it keeps, what
  it said before of the models that it holds is of no use any more.
* `Keeps`: what it keeps of a campaign that is over, and why; or that it has not told, and nothing
  of another campaign.
* `Grouped`: a campaign puts devices into groups, and others into none any more: the last `HISTORY`
  changes stay. `Regrouped`: the same of one device.
* `ReleaseTaken`: which release it uses, and why not the one that was offered, or not with what it
  keeps.
* `Tagged`, `Untagged`: tags are added, taken away.
* `Banned`, `Unbanned`: it is banned, and why; it is not any more.
* `Withdrew`: its owner agrees no longer: nothing is asked of it until it checks in again.
* `Forgotten`: it has no entry any more, unless it is banned: then only the ban.

An event of a device without an entry makes one, so that a device can be tagged or banned before it
has ever been here. `Seen`, `Left`, `Withdrew` and `Forgotten` do not. Structural sharing makes an
event cost a few microseconds in a fleet of any size.
"""

from collections.abc import Mapping

import msgspec
from immutables import Map
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


class Registry(msgspec.Struct, frozen=True):
    """The state: every device by id."""

    devices: Map[str, Entry] = Map()


class Told(msgspec.Struct, frozen=True):
    """A check-in."""

    at_s: float
    said: CheckIn


class _OfDevice(msgspec.Struct, frozen=True):
    at_s: float
    device_id: str


class Seen(_OfDevice, frozen=True):
    """Something came from a device."""


class Left(_OfDevice, frozen=True):
    """A device is gone, or was silent for too long."""


class Asked(_OfDevice, frozen=True):
    """A device was given a plan."""

    campaign: str


class Declined(_OfDevice, frozen=True):
    """A device did not carry out a plan."""

    campaign: str
    round: int
    reason: DeclineReason
    detail: str


class Reported(_OfDevice, frozen=True):
    """An update was taken."""

    train_s: float
    bytes_up: int
    bytes_down: int
    examples: int = 0
    """That it was trained on; 0: it was not."""
    chooses: bool = False
    """Whether it was asked what it keeps."""


class Keeps(_OfDevice, frozen=True):
    """What a device keeps when a campaign is over, as it has said; None: it has the campaign's
    model, and has not told that it keeps anything of it."""

    campaign: str
    round: int
    kept: Kept | None


class Grouped(msgspec.Struct, frozen=True):
    """A campaign has grouped devices: by device, its group, and for those that were placed how sure
    that is. Its other devices are in no group any more."""

    at_s: float
    campaign: str
    round: int
    groups: Mapping[str, str]
    placed: Mapping[str, Placed] = {}


class Regrouped(_OfDevice, frozen=True):
    """A campaign has a device in this group, or in none where `group` is empty."""

    campaign: str
    round: int
    group: str
    placed: Placed | None = None


class ReleaseTaken(_OfDevice, frozen=True):
    """A device says which release it uses."""

    release: int
    problem: str
    alone: str = ""


class Tagged(_OfDevice, frozen=True):
    """An operator added tags."""

    tags: tuple[str, ...]


class Untagged(_OfDevice, frozen=True):
    """An operator took tags away."""

    tags: tuple[str, ...]


class Banned(_OfDevice, frozen=True):
    """An operator banned a device."""

    reason: str


class Unbanned(_OfDevice, frozen=True):
    """An operator ended a ban."""


class Withdrew(_OfDevice, frozen=True):
    """A device's owner agrees no longer."""


class Forgotten(_OfDevice, frozen=True):
    """An operator had a device forgotten."""


Order = Tagged | Untagged | Banned | Unbanned | Withdrew | Forgotten
Observed = Told | Seen | Left | Asked | Declined | Reported | Keeps | Regrouped | ReleaseTaken
Event = Observed | Grouped | Order


def step(state: Registry, event: Event) -> Registry:
    """Return the state after an event."""
    if isinstance(event, Grouped):
        return _group(state, event)
    device_id = event.said.device_id if isinstance(event, Told) else event.device_id
    known = state.devices.get(device_id)
    if known is None and isinstance(
        event, Seen | Left | Withdrew | Forgotten | Untagged | Unbanned
    ):
        return state
    before = known or NOBODY
    entry = _ordered(before, event) if isinstance(event, Order) else _observed(before, event)
    if entry is None:
        return Registry(state.devices.delete(device_id))
    return state if entry is known else Registry(state.devices.set(device_id, entry))


def _ordered(entry: Entry, event: Order) -> Entry | None:
    """Return a device's entry after an order; None if there is no entry any more."""
    match event:
        case Tagged(tags=tags):
            return replace(entry, tags=tuple(sorted({*entry.tags, *tags})))
        case Untagged(tags=tags):
            return replace(entry, tags=tuple(tag for tag in entry.tags if tag not in tags))
        case Banned(at_s, _, reason):
            since_s = entry.ban.since_s if entry.ban else at_s
            return replace(entry, ban=Ban(since_s, reason), online=False)
        case Unbanned():
            return replace(entry, ban=None) if entry.ban else entry
        case Withdrew(at_s):
            return replace(entry, withdrawn_s=at_s, online=False)
        case Forgotten():
            return Entry(ban=entry.ban) if entry.ban else None


def _observed(entry: Entry, event: Observed) -> Entry:
    """Return a device's entry after what it said, or what was seen of it."""
    match event:
        case Told(at_s, said):
            return replace(
                entry,
                said=said,
                first_seen_s=entry.first_seen_s or at_s,
                last_seen_s=at_s,
                online=True,
                kept=None if withholds(said) or said.kept == () else entry.kept,
                withdrawn_s=0.0,
            )
        case Seen(at_s):
            return replace(entry, last_seen_s=at_s, online=True)
        case Left():
            return replace(entry, online=False) if entry.online else entry
        case Asked(at_s, _, campaign):
            return replace(entry, campaign=campaign, asked_s=at_s)
        case Declined(at_s, _, campaign, number, reason, detail):
            decline = Decline(at_s, campaign, number, reason, detail)
            return replace(entry, decline=decline, declines=entry.declines + 1)
        case Reported():
            return _report(entry, event)
        case Keeps():
            return _keep(entry, event)
        case Regrouped():
            return _regroup(entry, event)
        case ReleaseTaken(_, _, release, problem, alone):
            return replace(entry, release=release, release_problem=problem, release_alone=alone)


def withholds(said: CheckIn | None) -> bool:
    """Whether a device says that its owner does not let it tell what it keeps."""
    return said is not None and said.policy is not None and said.policy.withholds


def _report(entry: Entry, event: Reported) -> Entry:
    if event.examples > 0:
        answer_s = max(0.0, event.at_s - entry.asked_s) if entry.asked_s else 0.0
        training = Training(
            event.examples, event.train_s, answer_s, event.bytes_up, event.bytes_down
        )
        entry = replace(entry, training=training)
    said = (
        replace(entry.said, kept=None) if entry.said is not None and event.chooses else entry.said
    )
    entry = replace(entry, said=said, updates=entry.updates + 1)
    return replace(
        entry, train_s=event.train_s, bytes_up=event.bytes_up, bytes_down=event.bytes_down
    )


def _keep(entry: Entry, event: Keeps) -> Entry:
    if event.kept is None or withholds(entry.said):
        return replace(entry, kept=None) if entry.kept is not None else entry
    known = entry.kept is not None and (entry.kept.campaign, entry.kept.round, entry.kept.kept) == (
        event.campaign,
        event.round,
        event.kept,
    )
    return (
        entry
        if known
        else replace(entry, kept=KeptModel(event.at_s, event.campaign, event.round, event.kept))
    )


def _group(state: Registry, event: Grouped) -> Registry:
    devices = state.devices.mutate()
    for device_id, entry in state.devices.items():
        group, placed = event.groups.get(device_id, ""), event.placed.get(device_id)
        changed = _regroup(
            entry, Regrouped(event.at_s, device_id, event.campaign, event.round, group, placed)
        )
        if changed is not entry:
            devices[device_id] = changed
    return Registry(devices.finish())


def _regroup(entry: Entry, event: Regrouped) -> Entry:
    is_its_own = bool(entry.groups) and entry.groups[-1].campaign == event.campaign
    if is_its_own and (entry.group, entry.placed) == (event.group, event.placed):
        return entry
    if not event.group:
        return replace(entry, group="", placed=None) if is_its_own else entry
    entry = replace(entry, placed=event.placed)
    if is_its_own and entry.group == event.group:
        return entry
    change = GroupChange(event.at_s, event.campaign, event.round, event.group)
    return replace(entry, group=event.group, groups=(*entry.groups, change)[-HISTORY:])
