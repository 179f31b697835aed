"""A device as readers see it."""

from typing import Any, NamedTuple

import msgspec

from aggregator.core.telemetry import DeviceTelemetry, LastDecline
from aggregator.fleet.desired import is_at_work, placed_of
from aggregator.fleet.divergence import NOBODY
from aggregator.fleet.eligibility import outdated
from aggregator.fleet.gate import Answer, answer_of
from aggregator.fleet.records import Assignment, Campaign, Device, Fleet, Placed
from aggregator.view.pulls import StandingOut, standing_out
from algorithms.personalisation.kept import PersonalChoice


class PersonalModelView(NamedTuple):
    """Personal model of a device."""

    campaign: str
    model: PersonalChoice


class DeviceView(NamedTuple):
    """View of a device. Its group and place are those in the campaign `of`."""

    id: str
    record: Device
    telemetry: DeviceTelemetry
    fleet: Fleet
    of: Campaign | None

    @property
    def seen_s(self) -> float:
        """Time of its last message."""
        return max(self.record.seen_s, self.telemetry.heard_s)

    @property
    def assignment(self) -> Assignment | None:
        """Current assignment; None if there is none or its deadline is over."""
        return self.record.assignment if is_at_work(self.record) else None

    @property
    def placed(self) -> Placed | None:
        """Group that was found by its inputs; None if its group was found by its training."""
        return None if self.of is None else placed_of(self.of, self.id, self.record)

    @property
    def group(self) -> str:
        """Key of its group; empty if it has none."""
        return "" if self.of is None else group_key(self.of, self.id, self.record)

    @property
    def personal_model(self) -> PersonalModelView | None:
        """Personal model that the device has reported.

        It belongs to the campaign whose release was offered last, or to the latest campaign if no
        release was offered. None if the device has none, has lost it, or its owner withholds it.
        """
        if self.record.policy.withholds or not self.record.holds:
            return None
        release = self.fleet.releases.get(self.record.last_offer.release)
        for campaign in reversed(self.fleet.campaigns.values()):
            update = campaign.updates.get(self.id)
            is_used = release is None or release.campaign == campaign.name
            if is_used and update is not None and update.personal_model is not None:
                return PersonalModelView(campaign.name, update.personal_model)
        return None

    @property
    def standing_out(self) -> StandingOut | None:
        """Rounds and models that contain its updates, if these stand out; else None."""
        return None if self.of is None else standing_out(self.fleet, self.of, self.id)

    @property
    def excluded(self) -> bool:
        """True if the operator has excluded it from the campaign."""
        return self.of is not None and self.of.members.get(self.id, NOBODY).excluded

    @property
    def release(self) -> int:
        """Number of the release in use; 0 if none or unknown."""
        return self.record.release_in_use or 0

    @property
    def answer(self) -> tuple[Answer | None, str]:
        """Answer to the last offer, and the reason of a failure; None and "" without an offer."""
        return answer_of(self.record) if self.record.last_offer.release else (None, "")

    @property
    def alone(self) -> str:
        """Reason why it uses its release without its personal model; empty if it does not."""
        return self.record.in_use.alone if self.record.in_use is not None else ""

    @property
    def declined(self) -> LastDecline | None:
        """Decline of its last assignment; None if it did not decline it."""
        decline = self.telemetry.decline
        return decline if decline is not None and decline.at_s >= self.record.asked_s else None

    @property
    def outdated(self) -> str:
        """Advice to update its client, if that is older than the service; else empty."""
        return advice_of(self.record)


def advice_of(device: Device) -> str:
    """Return the advice to update if a device's client is older than the service, else empty."""
    facts = device.facts
    return outdated(facts.client, facts.app, facts.protocol) if facts is not None else ""


def failure_text(device: Device, telemetry: DeviceTelemetry) -> str:
    """Return the answer of a device that failed its last assignment; empty if it was silent."""
    match device.failure:
        case "declined" if telemetry.decline is not None:
            return telemetry.decline.text
        case "declined":
            return "declined"
        case "empty":
            return "has no windows to describe"
        case "lost":
            return "has lost its personal model"
    return ""


def stored_fields(device: Device) -> dict[str, Any]:
    """Return the fields of a device's record that are stored; the others follow from them."""
    fields: dict[str, Any] = msgspec.to_builtins(device.stored())
    return fields


def group_key(campaign: Campaign, device_id: str, device: Device) -> str:
    """Return the key of a device's group in a campaign; empty if it has none."""
    placed = placed_of(campaign, device_id, device)
    if placed is not None:
        return placed.group
    member = campaign.members.get(device_id)
    return member.group if member is not None else ""
