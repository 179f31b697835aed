"""The state of a fleet's releases and rollouts, the events that change it and the command that
follows; frozen and serialisable."""

from typing import Annotated, Literal

import msgspec
from immutables import Map

from aggregator.core.release.releases import Catalogue, Draft
from host.settings import YEAR_S, about
from wire.messages import InUse

RolloutPhase = Literal["running", "paused", "done", "rolled-back", "superseded"]
GOING: tuple[RolloutPhase, ...] = ("running", "paused")
"""The phases of a rollout that is not over."""


class RolloutStep(msgspec.Struct, frozen=True):
    """Which devices a step reaches, beside those of the steps before it: a share of all, and those
    that have one of the tags."""

    share: float = 0.0
    tags: tuple[str, ...] = ()


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What must hold before the next step is taken."""

    quorum: Annotated[
        float,
        about("Minimum share of a step's online devices that confirm it.", ge=0.01, le=1),
    ] = 0.8
    max_drop: Annotated[
        float,
        about(
            "Maximum fall of the mean accuracy of devices; a release that lowers it by more is "
            "rolled back.",
            ge=0,
            le=1,
        ),
    ] = 0.02
    max_failures: Annotated[
        float,
        about(
            "Maximum share of a step's devices on which the release fails before it is rolled "
            "back.",
            ge=0,
            le=1,
        ),
    ] = 0.1
    max_slower: Annotated[
        float,
        about(
            "Maximum time of a prediction, in multiples of that with the model before: the median "
            "over devices.",
            ge=1,
            le=1e6,
        ),
    ] = 3.0
    patience_s: Annotated[
        float,
        about(
            "Time that a step waits for a clear answer; then the answers so far count.",
            unit="s",
            ge=0,
            le=YEAR_S,
        ),
    ] = 3600.0


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device, as far as releases go."""

    group: str = ""
    """The group whose releases it is given from the next rollout on."""
    tags: tuple[str, ...] = ()
    online: bool = False
    given: int = 0
    """The last release that it was given; 0: none."""
    given_at_s: float = 0.0
    settled: int = 0
    """The last one before that whose rollout was done: what it returns to."""
    said: InUse | None = None
    """What it said last of the model in use."""
    usual_ms: float = 0.0
    """What a prediction took with the model before."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """The releases of one campaign, made together, on their way to devices."""

    releases: dict[str, int]
    """By group, the number of its release."""
    newcomers: str = ""
    """The group of devices that the campaign has put into none; empty: they get nothing of it."""
    steps: tuple[RolloutStep, ...]
    gate: Gate
    began_at_s: float
    step: int = 0
    step_at_s: float = 0.0
    """When the step began, or was gone on with."""
    first: str = ""
    """A device that is reached although no step reaches it: a step of shares reaches one at
    least."""
    returns: tuple[int, ...] = ()
    """The releases with which devices were given back what they had, by number."""
    phase: RolloutPhase = "running"
    reason: str = ""
    """Why it stands where it stands, for people."""
    salt: str = ""
    """Random text that, with a device's id, says which share reaches it: nobody can choose an id
    that comes first."""


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet's releases, its devices, and the last rollout of each campaign."""

    at_s: float = 0.0
    catalogue: Catalogue = Catalogue()
    devices: Map[str, Holder] = Map()
    rollouts: dict[str, Rollout] = {}
    """By campaign."""
    newcomers: str = ""
    """The group of which a device gets the release that is in none: that of the last rollout that
    was done."""


# Events: what happened. Time arrives inside them.


class Made(msgspec.Struct, frozen=True, tag="made"):
    """Releases of a campaign were made together, one for each group; their blobs are safe."""

    at_s: float
    drafts: tuple[Draft, ...]


class Begun(msgspec.Struct, frozen=True, tag="begun", kw_only=True):
    """Candidates of one campaign are to be rolled out. `groups`: by device, its group; `newcomers`
    and `salt` as in `Rollout`."""

    at_s: float
    campaign: str
    numbers: tuple[int, ...]
    steps: tuple[RolloutStep, ...]
    gate: Gate
    groups: dict[str, str]
    newcomers: str = ""
    salt: str = ""


class CheckedIn(msgspec.Struct, frozen=True, tag="checked-in", omit_defaults=True):
    """A device is there; what was sent to it before may be lost. `group`: that which its campaign
    has put it into, if it has."""

    at_s: float
    device_id: str
    group: str = ""
    tags: tuple[str, ...] = ()


class Presence(msgspec.Struct, frozen=True, tag="presence", omit_defaults=True):
    """Devices came back, or are gone."""

    at_s: float
    came: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A device said which release is in use."""

    at_s: float
    message: InUse


class Ticked(msgspec.Struct, frozen=True, tag="ticked"):
    """Time has passed."""

    at_s: float


class RolloutOrder(msgspec.Struct, frozen=True, tag="rollout-order"):
    """The operator pauses a rollout: no further device is given its releases, and nothing is
    judged; ends its pause; or ends it: whoever has one of its releases gets back what it had."""

    at_s: float
    campaign: str
    order: Literal["pause", "resume", "end"]


class Promoted(msgspec.Struct, frozen=True, tag="promoted"):
    """The operator takes a rollout past the gate of this step, unless it is past it."""

    at_s: float
    campaign: str
    step: int


class WentBack(msgspec.Struct, frozen=True, tag="went-back"):
    """The operator returns a group to the model of an earlier release, which may have been another
    group's."""

    at_s: float
    to: int
    group: str


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """A device is forgotten."""

    at_s: float
    device_id: str


FleetEvent = (
    Made
    | Begun
    | CheckedIn
    | Presence
    | Said
    | Ticked
    | RolloutOrder
    | Promoted
    | WentBack
    | Removed
)


class Give(msgspec.Struct, frozen=True):
    """The command: publish a release to a device. It may be carried out again after a crash."""

    device_id: str
    number: int
