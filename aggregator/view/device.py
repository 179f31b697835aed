"""A device as readers see it."""

from typing import Any, NamedTuple

import msgspec

from aggregator.core.telemetry import DeviceTelemetry, LastDecline
from aggregator.fleet.desired import is_at_work, placed_of
from aggregator.fleet.gate import Answer, answer_of
from aggregator.fleet.records import Assignment, Campaign, Device, Fleet, Placed
from algorithms.personalisation.kept import Kept


class PersonalModel(NamedTuple):
    """The personal model of a device."""

    campaign: str
    kept: Kept


class DeviceView(NamedTuple):
    """A device. Its group and place are those in the campaign `of`."""

    id: str
    record: Device
    telemetry: DeviceTelemetry
    fleet: Fleet
    of: Campaign | None

    @property
    def seen_s(self) -> float:
        """When it was last seen."""
        return max(self.record.seen_s, self.telemetry.heard_s)

    @property
    def assignment(self) -> Assignment | None:
        """Its assignment, unless the time of that is over."""
        return self.record.assignment if is_at_work(self.record) else None

    @property
    def placed(self) -> Placed | None:
        """Its group by its inputs, where it has no group by its training."""
        return None if self.of is None else placed_of(self.of, self.id, self.record)

    @property
    def group(self) -> str:
        """Key of its group; empty without one."""
        return "" if self.of is None else group_key(self.of, self.id, self.record)

    @property
    def kept(self) -> PersonalModel | None:
        """The personal model that it has reported, of the campaign whose release it was offered
        last, of the latest one without an offer; None without one, if it is gone, or if its owner
        withholds it."""
        if self.record.policy.withholds or not self.record.holds:
            return None
        release = self.fleet.releases.get(self.record.given.release)
        for campaign in reversed(self.fleet.campaigns.values()):
            update = campaign.updates.get(self.id)
            is_used = release is None or release.campaign == campaign.name
            if is_used and update is not None and update.kept is not None:
                return PersonalModel(campaign.name, update.kept)
        return None

    @property
    def release(self) -> int:
        """The release that it uses; 0: none, or not known."""
        return self.record.release_in_use or 0

    @property
    def answer(self) -> tuple[Answer | None, str]:
        """Its answer to its last offer, None without an offer; and the reason if that failed."""
        return answer_of(self.record) if self.record.given.release else (None, "")

    @property
    def alone(self) -> str:
        """Reason for which it uses its release without its personal model."""
        return self.record.in_use.alone if self.record.in_use is not None else ""

    @property
    def declined(self) -> LastDecline | None:
        """Its decline of its last assignment; None if it did not decline that."""
        decline = self.telemetry.decline
        return decline if decline is not None and decline.at_s >= self.record.asked_s else None


def stored_fields(device: Device) -> dict[str, Any]:
    """Return the fields of a device's record that do not follow from the others."""
    fields: dict[str, Any] = msgspec.to_builtins(device.stored())
    return fields


def group_key(campaign: Campaign, device_id: str, device: Device) -> str:
    """Return the key of a device's group in a campaign; empty for a device without one."""
    placed = placed_of(campaign, device_id, device)
    if placed is not None:
        return placed.group
    member = campaign.members.get(device_id)
    return member.group if member is not None else ""
