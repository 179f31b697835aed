"""Events that change a fleet, and commands that follow from them.

Events carry their time. A command may be carried out any number of times. It is carried out after
its event is stored. After a crash, `Resumed` repeats every command that may be lost.
"""

from typing import Any, Literal

import msgspec

from aggregator.core.settings import RunSettings
from aggregator.core.steps import Gate, Step
from aggregator.fleet.records import (
    AdmittedUpdate,
    Assignment,
    Ban,
    Campaign,
    ModelRelease,
    Placed,
    Standstill,
    Version,
)
from wire.messages import CheckIn, Digest, InUse, MaybeDigest
from wire.secret.messages import Answer


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Change of the fleet, with its time."""

    at_s: float


class OfDevice(Event, frozen=True):
    """Change of a device."""

    device_id: str


class OfCampaign(Event, frozen=True):
    """Change of a campaign."""

    campaign: str


# From devices.


class CheckedIn(OfDevice, frozen=True):
    """A device has connected and reports its facts. Earlier messages to it may be lost.

    A second device with the same id is only noted.
    """

    facts: CheckIn
    tags: tuple[str, ...] = ()
    """Tags of the device's enrolment. They apply to a new device only."""


class Seen(OfDevice, frozen=True):
    """A device has connected or disconnected.

    `withdrawal`: random number of its owner's withdrawal, or 0. The device gets no assignment until
    it checks in again.
    """

    online: bool
    withdrawal: int = 0


class Updated(OfDevice, frozen=True):
    """The update of an assignment was admitted and stored.

    `model`: digest of the group's model that the device chose, for a personal model. `node`: the
    device's node of the secret survey.
    """

    serial: int
    update: AdmittedUpdate
    model: Digest = ""
    node: str = ""
    train_s: float = 0.0


class AssignmentDeclined(OfDevice, frozen=True):
    """A device does not carry out an assignment, or its update was refused for its contents.

    `forbidden`: the owner does not permit the assignment. `too_large`: the update's norm is too
    large, or its values are not finite.
    """

    serial: int
    forbidden: bool = False
    too_large: bool = False


class UsesRelease(OfDevice, frozen=True):
    """A device reports the offer whose release it uses."""

    in_use: InUse


# From the operator.


class Tagged(OfDevice, frozen=True):
    """The operator replaces the tags of a device."""

    tags: tuple[str, ...]


class Banned(OfDevice, frozen=True):
    """The operator bans a device, or ends its ban.

    The end of a ban also ends the refusal of a second device: the next device that checks in under
    the id is taken for the right one.
    """

    ban: Ban | None


class Forgotten(OfDevice, frozen=True):
    """The operator deletes everything about a device.

    `memories` maps the digest of each stored algorithm state that names the device to the digest of
    the state without the device. `models`: digests of the models that come from this
    device's updates alone.
    """

    memories: dict[Digest, Digest] = {}
    models: tuple[Digest, ...] = ()


class Started(OfCampaign, frozen=True):
    """A campaign starts with this record."""

    record: Campaign


class Configured(OfCampaign, frozen=True):
    """The operator changes the settings of a campaign from the next round on.

    `programs`: verbs for the new settings, if a round is opened because of them.
    """

    settings: RunSettings
    programs: dict[str, Any] = {}


class Directed(OfCampaign, frozen=True):
    """The operator pauses, resumes or aborts a campaign."""

    order: Literal["pause", "resume", "abort"]


class RolledBack(OfCampaign, frozen=True):
    """The operator returns a campaign to the models of an earlier version, or to the present ones.

    `groups`: group of each device in that version.
    """

    to: int
    groups: dict[str, str] = {}
    programs: dict[str, Any] = {}


class Excluded(OfCampaign, frozen=True):
    """The operator excludes a device from a campaign, or includes it again."""

    device_id: str
    excluded: bool = True


class Released(OfCampaign, frozen=True):
    """Releases of a campaign were made, and their blobs are stored.

    `roll_out`: True if the rollout begins now.
    """

    releases: tuple[ModelRelease, ...]
    newcomers: str
    steps: tuple[Step, ...]
    gate: Gate
    salt: str
    direct: bool = False
    roll_out: bool = True


class Steered(OfCampaign, frozen=True):
    """The operator steers the rollout of a campaign.

    ``start`` rolls out the candidates, ``pause`` and ``resume`` stop and continue the rollout,
    ``promote`` takes its next step. ``end`` ends it, and devices return to their earlier releases.
    """

    order: Literal["start", "pause", "resume", "promote", "end"]
    step: int | None = None
    """Number of the step that ``promote`` completes; None for the current step."""


class Returned(OfCampaign, frozen=True):
    """The operator returns a group to an earlier release."""

    release: int
    group: str
    salt: str


# From the service.


class Aggregated(OfCampaign, frozen=True):
    """A round was aggregated, and the new models are stored."""

    round: int
    version: Version
    groups: dict[str, str] = {}
    """New group of each device whose group has changed."""
    nodes: dict[str, str] = {}
    """Node of the secret survey of each device for which it has changed."""
    placed: dict[str, Placed] = {}
    """Group of each device without labels.

    The empty id has the group of devices about which nothing is known.
    """
    preparing: bool = False
    """True if the next round is a preparation."""
    reverted: bool = False
    """True if the version is an earlier one, because the models of this round were given up."""
    norms: dict[str, float] = {}
    distances: dict[str, float] = {}
    left_out: tuple[str, ...] = ()
    """Ids of the devices whose updates were out of bounds."""
    pulls: dict[str, float] = {}
    """Extent (0 to 1) to which the update of each compared device stands out from its group."""
    unchanged: dict[str, Standstill] = {}
    """Reason that a model is the same as before although devices trained it, by key."""
    notes: dict[str, Any] = {}
    views: str = ""
    accuracy: float | None = None
    """Mean accuracy of the received models by a secret sum; None if devices report their own."""


class PlacedBySurvey(OfCampaign, frozen=True):
    """A device without labels was placed in a group by its survey, after training."""

    device_id: str
    placed: Placed


class SumAnswered(OfCampaign, frozen=True):
    """A helper has answered about a secret sum; `blob` has its sums of masks."""

    answer: Answer
    signature: str
    blob: MaybeDigest = ""


class SumFailed(OfCampaign, frozen=True):
    """The opened secret sum of a round cannot be used; `key` is that of its question."""

    round: int
    key: str
    problem: str


class UpdatesLost(OfCampaign, frozen=True):
    """The stored updates of these devices can no longer be read."""

    device_ids: tuple[str, ...]


class Resumed(Event, frozen=True):
    """The service has started with this epoch.

    Any earlier command may be lost, and a loaded fleet has no timers.
    """

    epoch: int


class Tick(Event, frozen=True):
    """The timers of these keys rang: device ids, or the empty key for campaigns and rollouts."""

    keys: tuple[str, ...]


# Commands.


class SendPlan(msgspec.Struct, frozen=True):
    """Send a device the plan of its assignment, and make the named blobs available to it."""

    device_id: str
    assignment: Assignment


class Cancel(msgspec.Struct, frozen=True):
    """Tell a device that its assignment is no longer needed."""

    device_id: str
    assignment: Assignment


class OfferRelease(msgspec.Struct, frozen=True):
    """Offer a device a release, under this serial number."""

    device_id: str
    serial: int
    release: int
    direct: bool = False


class AcknowledgeUpdate(msgspec.Struct, frozen=True):
    """Tell a device that it need not send an update again."""

    device_id: str
    blob: Digest


class Aggregate(msgspec.Struct, frozen=True):
    """Apply the algorithm to the updates that count in this round, then report `Aggregated`."""

    campaign: str
    round: int


class AskHelpers(msgspec.Struct, frozen=True):
    """Ask the helpers of a campaign whose answers are missing to open a sum of this round."""

    campaign: str
    round: int
    key: str
    """Key of the sum's question."""


class PlaceDevice(msgspec.Struct, frozen=True):
    """Place a device by its survey, then report `PlacedBySurvey` if it can be placed."""

    campaign: str
    device_id: str


class SetTimer(msgspec.Struct, frozen=True):
    """Report `Tick` with this key at this time. It replaces the key's earlier timer."""

    key: str
    at_s: float


Command = (
    SendPlan
    | Cancel
    | OfferRelease
    | AcknowledgeUpdate
    | Aggregate
    | AskHelpers
    | PlaceDevice
    | SetTimer
)
