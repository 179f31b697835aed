"""Devices that stand out, and divergences, in words. Pure."""

from typing import NamedTuple

from aggregator.fleet.divergence import NOBODY, is_named
from aggregator.fleet.records import Campaign, Cause, Fleet

CAUSES: dict[Cause, tuple[str, str]] = {
    "device": ("one device", "exclude it, or look at its data"),
    "windows": ("changed windows or units", "look at these devices' sensors and their windows"),
    "rate": ("too high a learning rate", "lower --lr, and roll back to an earlier round"),
    "few": ("too few devices", "raise --min-devices, or bring devices back"),
    "settings": ("its settings, not a device", "lower --lr, or group devices whose data differ"),
    "unknown": ("no cause stands out", "look at the devices' losses, lower --lr, and roll back"),
    "labels": ("wrong labels or test windows", "look at these devices' labels and test windows"),
}
"""Words for each cause of a divergence, and what to do."""
STANDSTILLS = {
    "bounds": "lower --lr; if it is low, start another campaign with a greater --norm-cap",
    "small": "lower --min-group, or bring devices back",
    "nothing": "look at --lr and the devices' policies: they train, but their changes are zero",
}
"""Advice about a model that stands still, by the cause of `Standstill`."""


class StandingOut(NamedTuple):
    """Device whose updates stand out over rounds, and what they have changed."""

    device_id: str
    campaign: str
    score: float
    since: int
    """First round of the score."""
    last: int
    """Last round whose models have its updates; below `since` if none has."""
    releases: tuple[int, ...]
    """Releases of models of these rounds."""

    @property
    def text(self) -> str:
        """Its rounds and models, for people."""
        since = f"round {self.since} (score {self.score:.2f})"
        text = f"its updates have stood out since {since}; "
        if self.last < self.since:
            return text + "no model has them"
        rounds = f"round {self.since}" if self.since == self.last else f"rounds {self.since}"
        rounds += "" if self.since == self.last else f" to {self.last}"
        numbers = ", ".join(map(str, self.releases))
        releases = f", and in release{'s' if len(self.releases) > 1 else ''} {numbers}"
        return f"{text}they are in the models of {rounds}{releases if self.releases else ''}"


def standing_out(fleet: Fleet, campaign: Campaign, device_id: str) -> StandingOut | None:
    """Return a device that stands out in a campaign; None if it does not, or is banned."""
    member, device = campaign.members.get(device_id, NOBODY), fleet.devices.get(device_id)
    if not is_named(campaign, device_id) or device is None or device.barred:
        return None
    since, last = member.suspect_since, campaign.version.round
    if device.left_out > last - since:
        last = since - 1
    releases = tuple(
        number
        for number, release in sorted(fleet.releases.items())
        if release.campaign == campaign.name and since <= release.round <= last
    )
    return StandingOut(device_id, campaign.name, member.score, since, last, releases)


def all_standing_out(fleet: Fleet, campaign: Campaign) -> tuple[StandingOut, ...]:
    """Return the devices that stand out in a campaign, the highest scores first."""
    devices = (standing_out(fleet, campaign, device_id) for device_id in campaign.suspects)
    return tuple(each for each in devices if each is not None)


def divergence_text(campaign: Campaign) -> str:
    """Return the cause of a campaign's divergence with its evidence; empty if there is none."""
    if (divergence := campaign.divergence) is None:
        return ""
    devices = f" ({', '.join(divergence.devices)})" if divergence.devices else ""
    return f"{CAUSES[divergence.cause][0]}{devices}: {divergence.evidence}"
