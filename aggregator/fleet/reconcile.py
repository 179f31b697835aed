"""Reconciliation of devices: compare desired with sent, and command the difference.

A `Turn` is the work on events: changed records, the commands that follow, and the campaigns to
advance. `reconcile` is called for each device that has changed, and in a sweep for all devices. A
second call changes nothing.
"""

import math
from typing import Any

from immutables import Map
from msgspec.structs import replace

from aggregator.core.pool import DevicePool
from aggregator.fleet.desired import (
    Desired,
    giver,
    hours_of,
    is_at_work,
    is_wanted,
    releases_for,
    verbs_of,
    works_for,
)
from aggregator.fleet.events import Cancel, Command, OfferRelease, PlaceDevice, SendPlan, SetTimer
from aggregator.fleet.records import (
    AdmittedUpdate,
    Assignment,
    Campaign,
    Device,
    Failure,
    Fleet,
    LastOffer,
    Member,
)
from aggregator.fleet.standing import DRIFT, PLACES, standing
from wire.messages import LARGEST_NUMBER

REST_S, LONGEST_REST_S = 60.0, 86_400.0
"""Rest in seconds after a device's first failure, and the longest rest.

Each further failure doubles the rest.
"""
EMPTY = DevicePool()
NOBODY = Device()
MOST_LOST = 100_000
"""Maximum number of offers that are lost when the service returns to an old backup.

A device that reports a greater number lies, or another one speaks in its place.
"""


class Turn:
    """Fleet while events are processed. Its records are replaced, never changed."""

    def __init__(self, fleet: Fleet) -> None:
        self.before = fleet
        self.epoch, self.now_s, self.serial = fleet.epoch, fleet.at_s, fleet.serial
        self.devices, self.counts = fleet.devices.mutate(), fleet.counts.mutate()
        self.campaigns, self.pools, self.order = (
            dict(fleet.campaigns),
            dict(fleet.pools),
            fleet.order,
        )
        self.releases, self.rollouts = fleet.releases, fleet.rollouts
        self.wake_s, self.sweep, self.away_s = fleet.wake_s, fleet.sweep, fleet.away_s
        self.last_s = fleet.at_s
        """Time of the previous event."""
        self.commands: list[Command] = []
        self.touched: dict[str, None] = {}
        """Campaigns to advance, in order; the empty name stands for rollouts."""
        self.changed: set[str] = set()
        """Ids of devices whose record, member or update has changed or is deleted."""

    def fleet(self) -> Fleet:
        """Return the fleet after the changes so far."""
        return Fleet(
            epoch=self.epoch,
            at_s=self.now_s,
            serial=self.serial,
            away_s=self.away_s,
            devices=self.devices.finish(),
            campaigns=self.campaigns,
            releases=self.releases,
            rollouts=self.rollouts,
            wake_s=self.wake_s,
            sweep=self.sweep,
            order=self.order,
            pools=self.pools,
            counts=self.counts.finish(),
        )

    def put(self, campaign: Campaign) -> Campaign:
        """Replace the record of a campaign, and mark the campaign to be advanced again."""
        self.campaigns[campaign.name] = campaign
        self.touched[campaign.name] = None
        return campaign

    def change(self, campaign: Campaign, **changes: Any) -> Campaign:
        """Change fields of a campaign."""
        if (updates := changes.get("updates")) is not None:
            self.changed |= {*campaign.updates, *updates}
        if changes.get("phase", campaign.phase) != campaign.phase:
            changes["phase_s"] = self.now_s
        return self.put(replace(campaign, **changes))

    def put_update(self, campaign: Campaign, device_id: str, update: AdmittedUpdate) -> Campaign:
        """Add a device's update to those that count in a campaign."""
        self.changed.add(device_id)
        return self.put(replace(campaign, updates=campaign.updates.set(device_id, update)))

    def put_member(self, campaign: Campaign, device_id: str, **changes: Any) -> Campaign:
        """Change the member of a campaign that stands for a device."""
        self.changed.add(device_id)
        member = replace(campaign.members.get(device_id, Member()), **changes)
        return self.change(campaign, members=campaign.members.set(device_id, member))

    def waiting(self, pool: str) -> DevicePool:
        """Return the devices that wait in a pool."""
        return self.pools.get(pool, EMPTY)

    def count(self, mark: str) -> int:
        """Return the number of devices with a mark."""
        number: int = self.counts.get(mark, 0)
        return number

    def marks(self) -> Map[str, int]:
        """Return the number of devices with each mark."""
        counts = self.counts.finish()
        self.counts = counts.mutate()
        return counts

    def look_at_all(self) -> None:
        """Start a sweep that reconciles every device, in parts, after a change for all of them."""
        self.sweep = len(self.order)


def failed(device: Device, now_s: float, failure: Failure) -> Device:
    """Return the device after a failed assignment."""
    rest_s = min(LONGEST_REST_S, REST_S * 2.0 ** min(device.failures, 20))
    return replace(
        device,
        failures=device.failures + 1,
        failing_s=device.failing_s if device.failures else now_s,
        failure=failure,
        rests_until_s=now_s + rest_s,
    )


def awake(device: Device) -> Device:
    """Return the device without a rest. It keeps its failures, so that no round waits for it."""
    return replace(device, rests_until_s=0.0)


def rested(device: Device) -> Device:
    """Return the device without failures and without a rest."""
    if not device.failures and not device.rests_until_s:
        return device
    return replace(device, failures=0, failing_s=0.0, rests_until_s=0.0)


def assign(turn: Turn, device_id: str, task: Desired) -> None:
    """Give a device an assignment."""
    before, campaign = turn.devices[device_id], turn.campaigns[task.campaign]
    settings, trains = campaign.settings, task.kind == "train"
    is_of_round = trains and not settings.buffer
    until_s = campaign.deadline_s if is_of_round else turn.now_s + settings.deadline_s
    turn.serial += 1
    work = Assignment(
        serial=turn.serial,
        kind=task.kind,
        campaign=task.campaign,
        round=campaign.round,
        start=task.start,
        model=campaign.models[task.start],
        verbs=verbs_of(campaign, device_id, before, task),
        deadline_s=min(until_s, hours_of(campaign, turn.now_s)[1]),
        beside=bool(before.failures) and trains,
    )
    turn.commands.append(SendPlan(device_id, work))
    asked_s = turn.now_s if trains else before.asked_s
    after = replace(
        before, assignment=work, asked_s=asked_s, campaign=task.campaign, rests_until_s=0.0
    )
    _put(turn, device_id, before, after)


def reconcile(turn: Turn, device_id: str, device: Device | None = None) -> None:
    """Bring a device, whose record has become `device`, to what is desired of it.

    Work that is over ends, unsent messages are sent, the device is put into its pool or under its
    marks, and its next examination is scheduled.
    """
    before = turn.devices.get(device_id)
    if (device := device or before) is not None:
        settled = _settled(turn, device_id, device)
        _put(turn, device_id, before, _told(turn, device_id, settled))


def forget(turn: Turn, device_id: str) -> None:
    """Delete the record of a device."""
    rank = turn.order.rank(device_id)
    _account(turn, device_id, turn.devices[device_id], NOBODY)
    turn.changed.add(device_id)
    del turn.devices[device_id]
    turn.order = turn.order.without(device_id)
    turn.sweep -= rank < turn.sweep


def _settled(turn: Turn, device_id: str, device: Device) -> Device:
    """Return the device without an assignment that is no longer needed or is past its deadline."""
    work = device.assignment
    if work is None or work.lapsed:
        return device
    if not is_wanted(turn, device_id, device):
        turn.commands.append(Cancel(device_id, work))
        return replace(device, assignment=replace(work, lapsed=True))
    if turn.now_s < work.deadline_s:
        return device
    device, (began_s, ended_s) = replace(device, assignment=replace(work, lapsed=True)), turn.away_s
    return device if began_s < work.deadline_s <= ended_s else failed(device, turn.now_s, "silent")


def _told(turn: Turn, device_id: str, device: Device) -> Device:
    """Return the device after its lost messages were sent again and its release was offered."""
    again = device.sent_epoch != turn.epoch
    if not device.online or device.barred:
        return replace(device, sent_epoch=turn.epoch) if again else device
    if again and is_at_work(device):
        assert device.assignment is not None
        turn.commands.append(SendPlan(device_id, device.assignment))
    if again:
        campaign = works_for(turn, device_id, device) or giver(turn, device_id, device)
        is_over = campaign is not None and campaign.phase in ("evaluating", "finished")
        member = campaign.members.get(device_id) if campaign is not None and is_over else None
        if campaign is not None and member is not None and member.survey and not member.placed:
            turn.commands.append(PlaceDevice(campaign.name, device_id))
    if turn.rollouts:
        device = _offered(turn, device_id, device, again)
    return replace(device, sent_epoch=turn.epoch) if again else device


def _offered(turn: Turn, device_id: str, device: Device, again: bool) -> Device:
    """Return the device after the release that it should hold was offered to it."""
    for rollout, release, is_reached in releases_for(turn, device_id, device):
        if not is_reached:
            continue
        work = device.assignment if is_at_work(device) else None
        if rollout.direct and work is not None and work.campaign == rollout.campaign:
            # taking up a model ends the work for its campaign, so the offer follows that work
            return replace(device, last_offer=LastOffer()) if again else device
        reported, offer = _reported_offer(turn, device), device.last_offer
        is_lost = reported > offer.serial  # after the service returned to an old backup
        if release.number != offer.release or is_lost:
            turn.serial += 1
            serial = max(turn.serial, offer.serial + 1, reported + 1)
            before, device = (
                device,
                replace(device, last_offer=LastOffer(serial, release.number, turn.now_s)),
            )
            if _has_confirmed(before):
                assert before.in_use is not None
                device = replace(device, settled=offer, usual_ms=before.in_use.latency_ms)
        if device.last_offer is not offer or (
            again and (rollout.direct or reported < offer.serial)
        ):
            command = OfferRelease(
                device_id, device.last_offer.serial, release.number, rollout.direct
            )
            turn.commands.append(command)
        break
    return device


def _reported_offer(turn: Turn, device: Device) -> int:
    """Return the number of the last offer that a device reports; 0 if it is not plausible."""
    offered = device.in_use.offered if device.in_use is not None else 0
    largest = min(max(turn.serial, device.last_offer.serial) + MOST_LOST, LARGEST_NUMBER - 1)
    return offered if offered <= largest else 0


def _has_confirmed(device: Device) -> bool:
    report = device.in_use
    return (
        device.last_offer.release > 0
        and report is not None
        and report.number == device.last_offer.serial
        and not report.problem
    )


def _put(turn: Turn, device_id: str, before: Device | None, device: Device) -> None:
    """Replace the record of a device, and update its pool, its marks and its timer."""
    pool, marks, look_s = standing(turn, device_id, device, turn.now_s)
    changes: dict[str, Any] = {}
    wake_s = device.wake_s
    # after a start of the service, no timer is set
    if before is not None and before.sent_epoch != device.sent_epoch:
        wake_s = 0.0
    if look_s not in (wake_s, math.inf):
        turn.commands.append(SetTimer(device_id, look_s))
        wake_s = look_s
    if wake_s != device.wake_s:
        changes["wake_s"] = wake_s
    if device.pool != pool or device.marks != marks:
        changes |= {"pool": pool, "marks": marks}
    if changes:
        device = replace(device, **changes)
    if device is not before:
        turn.changed.add(device_id)
        turn.devices[device_id] = device
        _account(turn, device_id, before or NOBODY, device)
        if before is None:
            turn.order = turn.order.with_device(device_id)
            turn.sweep += turn.sweep > 0 and turn.order.rank(device_id) < turn.sweep


def _account(turn: Turn, device_id: str, before: Device, after: Device) -> None:
    """Move a device from its earlier pool and counts to those after a change."""
    if before.pool != after.pool:
        if before.pool:
            turn.pools[before.pool] = turn.waiting(before.pool).without(device_id)
            if not turn.pools[before.pool]:
                del turn.pools[before.pool]
            turn.touched[before.pool.split("/", 1)[1]] = None
        if after.pool:
            turn.pools[after.pool] = turn.waiting(after.pool).with_device(device_id)
            turn.touched[after.pool.split("/", 1)[1]] = None
    if before.marks != after.marks:
        changes = ((mark, -1) for mark in before.marks), ((mark, 1) for mark in after.marks)
        for mark, by in (change for group in changes for change in group):
            if count := turn.counts.get(mark, 0) + by:
                turn.counts[mark] = count
            else:
                del turn.counts[mark]
            kind, name = mark.split("/")[:2]
            is_of_campaign = kind in (*PLACES, *DRIFT)
            turn.touched[name if is_of_campaign else ""] = None
