"""Events that change a fleet, and commands that follow from them.

Events carry their time. A command may be carried out any number of times. It is carried out once
its event is safe; after a crash `Resumed` has everything commanded again that may be lost.
"""

from typing import Any, Literal

import msgspec

from aggregator.core.settings import RunSettings
from aggregator.core.steps import Gate, Step
from aggregator.fleet.records import Assignment, Ban, Campaign, Placed, Received, Release, Version
from wire.messages import CheckIn, Digest, InUse


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A change, and its time."""

    at_s: float


class OfDevice(Event, frozen=True):
    """A change of a device."""

    device_id: str


class OfCampaign(Event, frozen=True):
    """A change of a campaign."""

    campaign: str


# From devices.


class CheckedIn(OfDevice, frozen=True):
    """A device is connected and reports its facts. What was sent to it before may be lost."""

    facts: CheckIn
    tags: tuple[str, ...] = ()
    """Tags of its enrolment, for a device that is new."""


class Seen(OfDevice, frozen=True):
    """A device came back, or is gone. `withdrawn`: its owner has withdrawn, so that it is assigned
    nothing until it checks in."""

    online: bool
    withdrawn: bool = False


class Updated(OfDevice, frozen=True):
    """The update of an assignment was admitted, and its bytes are safe. `model`: the model that
    the device chose, for a personal model."""

    serial: int
    update: Received
    model: Digest = ""
    train_s: float = 0.0


class Declined(OfDevice, frozen=True):
    """A device does not carry out an assignment, or its update was refused for its contents.
    `forbidden`: its owner does not permit it. `excused`: it is no failure of the device, whose plan
    had expired when it came."""

    serial: int
    forbidden: bool = False
    excused: bool = False


class UsesRelease(OfDevice, frozen=True):
    """A device reports which offer it uses."""

    in_use: InUse


# From the operator.


class Tagged(OfDevice, frozen=True):
    """The operator gives a device these tags in place of those before."""

    tags: tuple[str, ...]


class Banned(OfDevice, frozen=True):
    """The operator bans a device, or ends its ban."""

    ban: Ban | None


class Forgotten(OfDevice, frozen=True):
    """Nothing of a device is to remain. `memories`: by the digest of each memory of an algorithm
    that names the device, the digest of the memory without it. `models`: digests of the models that
    were made of its updates alone."""

    memories: dict[Digest, Digest] = {}
    models: tuple[Digest, ...] = ()


class Started(OfCampaign, frozen=True):
    """A campaign begins, as this record says."""

    record: Campaign


class Configured(OfCampaign, frozen=True):
    """The operator gives a campaign other settings from the next round on. `programs`: verbs by
    these settings, where a round is opened because of them."""

    settings: RunSettings
    programs: dict[str, Any] = {}


class Directed(OfCampaign, frozen=True):
    """The operator pauses or resumes a campaign, or aborts it."""

    order: Literal["pause", "resume", "abort"]


class RolledBack(OfCampaign, frozen=True):
    """The operator returns to the models of an earlier version. `groups`: by device, its group in
    that version."""

    to: int
    groups: dict[str, str] = {}
    programs: dict[str, Any] = {}


class Released(OfCampaign, frozen=True):
    """Releases of a campaign were made, whose blobs are safe; `roll_out` tells if they are to be
    rolled out now."""

    releases: tuple[Release, ...]
    newcomers: str
    steps: tuple[Step, ...]
    gate: Gate
    salt: str
    direct: bool = False
    roll_out: bool = True


class Steered(OfCampaign, frozen=True):
    """The operator rolls out candidates of a campaign (``start``), pauses or resumes its rollout,
    takes its next step (``promote``), or ends it, so that devices return to what they had
    (``end``)."""

    order: Literal["start", "pause", "resume", "promote", "end"]
    step: int | None = None
    """The step that is to be left behind by ``promote``; None: the current one."""


class Returned(OfCampaign, frozen=True):
    """The operator returns a group to an earlier release."""

    release: int
    group: str
    salt: str


# From the service.


class Aggregated(OfCampaign, frozen=True):
    """A round was aggregated, and the new models are safe."""

    round: int
    version: Version
    groups: dict[str, str] = {}
    """By device whose group has changed, its group after the round."""
    placed: dict[str, Placed] = {}
    """By device without labels, its group; under the empty id that of a device of which nothing is
    known."""
    preparing: bool = False
    """True if the next round is a preparation."""
    reverted: bool = False
    """True if the version is an earlier one: the models of this round were given up."""
    norms: dict[str, float] = {}
    distances: dict[str, float] = {}
    left_out: tuple[str, ...] = ()
    """Devices whose updates were not within bounds."""
    notes: dict[str, Any] = {}
    views: str = ""


class PlacedBySurvey(OfCampaign, frozen=True):
    """A device without labels was placed by its survey after training."""

    device_id: str
    placed: Placed


class UpdatesLost(OfCampaign, frozen=True):
    """The stored updates of these devices cannot be read any more."""

    device_ids: tuple[str, ...]


class Resumed(Event, frozen=True):
    """The service goes on, with this epoch: any command may be lost, and a fleet that was loaded
    has no timer."""

    epoch: int


class Tick(Event, frozen=True):
    """The timers of these keys rang: a device's id, or the empty key of campaigns and rollouts."""

    keys: tuple[str, ...]


# Commands.


class SendPlan(msgspec.Struct, frozen=True):
    """Send a device the plan of its assignment, and put on offer what that names."""

    device_id: str
    assignment: Assignment


class Cancel(msgspec.Struct, frozen=True):
    """Tell a device that its assignment is not needed any more."""

    device_id: str
    assignment: Assignment


class Offer(msgspec.Struct, frozen=True):
    """Give a device a release to use, under this serial number."""

    device_id: str
    serial: int
    release: int
    direct: bool = False


class Acknowledge(msgspec.Struct, frozen=True):
    """Tell a device that it need not send an update again."""

    device_id: str
    blob: Digest


class Aggregate(msgspec.Struct, frozen=True):
    """Apply the algorithm to the updates that count in this round, then report `Aggregated`."""

    campaign: str
    round: int


class PlaceDevice(msgspec.Struct, frozen=True):
    """Place a device by its survey, then report `PlacedBySurvey` if it can be placed."""

    campaign: str
    device_id: str


class SetTimer(msgspec.Struct, frozen=True):
    """Report `Tick` with this key at this time, in place of an earlier time for this key."""

    key: str
    at_s: float


Command = SendPlan | Cancel | Offer | Acknowledge | Aggregate | PlaceDevice | SetTimer
