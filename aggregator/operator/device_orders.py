"""Orders of an operator on devices: checks, and the resulting events. Pure."""

from collections.abc import Iterable

from aggregator.fleet.eligibility import read_rule
from aggregator.fleet.events import Banned, Event, Tagged
from aggregator.fleet.records import MOST_TAGS, Ban, Device, Fleet
from wire.errors import ConfigError
from wire.topics import check_name

NEW = Device()


def named(fleet: Fleet, device_ids: Iterable[str], where: str = "") -> list[str]:
    """Return the devices that an order names, by ids or by a rule.

    Raises:
        ConfigError: neither or both of ids and rule are given, the rule cannot be read or matches
        no device, or an id is not a valid name.
    """
    names = _names(device_ids, "device id")
    if bool(names) == bool(where):
        raise ConfigError("Name devices either by their ids or by a rule (where).")
    if where:
        means = read_rule(where).means
        names = sorted(d for d, v in fleet.devices.items() if means(d, v, fleet.campaigns))
        if not names:
            raise ConfigError(f"where {where!r}: no device matches it")
    return names


def tag(fleet: Fleet, device_ids: Iterable[str], tags: Iterable[str], at_s: float) -> list[Event]:
    """Return the events that add tags to devices, which may be unknown so far.

    Raises:
        ConfigError: a name is not valid, or a device would have more than `MOST_TAGS` tags.
    """
    events, added = list[Event](), _names(tags, "tag")
    for device_id in _names(device_ids, "device id"):
        before = fleet.devices.get(device_id, NEW).tags
        events += _tagged(device_id, before, {*before, *added}, at_s)
    return events


def untag(fleet: Fleet, device_ids: Iterable[str], tags: Iterable[str], at_s: float) -> list[Event]:
    """Return the events that remove tags from devices. An unknown device has no tags.

    Raises:
        ConfigError: a name is not valid.
    """
    events, removed = list[Event](), _names(tags, "tag")
    for device_id in _names(device_ids, "device id"):
        before = fleet.devices.get(device_id, NEW).tags
        events += _tagged(device_id, before, {*before} - {*removed}, at_s)
    return events


def ban(fleet: Fleet, device_id: str, reason: str, at_s: float) -> list[Event]:
    """Return the event that bans a device, which may be unknown so far.

    A device that is banned already keeps the start of its ban, and gets the new reason.

    Raises:
        ConfigError: the id is not a valid name.
    """
    before = fleet.devices.get(check_name(device_id, "device id"), NEW).ban
    since_s = before.since_s if before is not None else at_s
    return [Banned(at_s=at_s, device_id=device_id, ban=Ban(since_s, reason))]


def unban(fleet: Fleet, device_id: str, at_s: float) -> list[Event]:
    """Return the event that lifts the ban of a device, or the refusal of a second one of its id.

    Raises:
        ConfigError: the device is not banned, and no second one was refused.
    """
    device = fleet.devices.get(device_id, NEW)
    if device.ban is None and not device.second_s:
        raise ConfigError(f"Device {device_id} is not banned.")
    return [Banned(at_s=at_s, device_id=device_id, ban=None)]


def _tagged(device_id: str, before: tuple[str, ...], tags: set[str], at_s: float) -> list[Event]:
    if len(tags) > MOST_TAGS:
        raise ConfigError(
            f"Device {device_id} would have {len(tags)} tags; at most {MOST_TAGS} are allowed. "
            "Remove some first."
        )
    after = tuple(sorted(tags))
    return [] if after == before else [Tagged(at_s=at_s, device_id=device_id, tags=after)]


def _names(values: Iterable[str], what: str) -> list[str]:
    return [check_name(value, what) for value in dict.fromkeys(values)]
