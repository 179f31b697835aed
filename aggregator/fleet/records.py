"""The records of a fleet: devices, campaigns, releases and rollouts.

Records are frozen and serialisable. They hold no tensors: a model or an update lies in the blob
store and is named by its digest. They hold no clock: time comes with events, in Unix seconds. A
device has one record, `Device`, whatever campaigns and releases there are. What a campaign knows of
a device is its `Member`.
"""

from typing import Literal

import msgspec
from immutables import Map
from msgspec.structs import replace

from aggregator.core.pool import DevicePool
from aggregator.core.settings import Ended, RunSettings
from aggregator.core.steps import Gate, Step
from algorithms.personalisation.kept import Kept
from wire.messages import CheckIn, Digest, InUse, MaybeDigest, Metrics, Policy, Verb

Kind = Literal["survey", "train", "evaluate", "personalise"]
"""Kind of an assignment: describe the inputs, train, test the final model, or make and choose a
personal model."""
Phase = Literal["waiting", "preparing", "training", "aggregating", "evaluating", "finished"]
"""Phase of a campaign. It is *waiting* while no round can open: too few devices are free, or the
campaign's hours have not begun."""
OPEN: tuple[Phase, ...] = ("preparing", "training", "evaluating")
"""Phases in which devices work on assignments of a round."""
SHARED = ("bundle", "client", "runtime", "hardware")
"""Facts that many devices have alike, so that each is in memory once."""
MOST_TAGS = 64
"""Maximum number of tags of a device."""


class Placed(msgspec.Struct, frozen=True):
    """The group of a device that cannot train."""

    group: str
    """Key of the group's model."""
    sure: float
    """Share, from 0 to 1, of the consulted devices that are in the group."""
    neighbours: int = 0
    """Number of consulted devices, those with the most similar inputs; 0: its inputs were not
    used."""

    def __str__(self) -> str:
        if self.neighbours:
            votes = round(self.sure * self.neighbours)
            return f"placed by its inputs, {votes} of {self.neighbours} neighbours"
        if self.sure == 1:
            return "the only group"
        return f"in the largest group, {100 * self.sure:.0f} % of the devices"


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The one thing that a device is to do now. It outlives its round: a late device keeps it."""

    serial: int
    """Greater than the serial of every assignment and offer before; `attempt` of its plan."""
    kind: Kind
    campaign: str
    round: int
    """The round that was open when the device was assigned."""
    start: str
    """Key of the model that the device starts from."""
    model: Digest
    verbs: tuple[Verb, ...]
    deadline_s: float
    beside: bool = False
    """True if no round waits for the device, since it failed its last assignment."""
    lapsed: bool = False
    """True if its time is over. An update still counts while its round is open."""


class Given(msgspec.Struct, frozen=True, gc=False):
    """A release that a device was offered."""

    serial: int = 0
    """Number of the offer, as of an assignment; `number` of its message."""
    release: int = 0
    at_s: float = 0.0


class Ban(msgspec.Struct, frozen=True, gc=False):
    """A ban of a device, by the operator."""

    since_s: float
    reason: str


class Device(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A device. The fields after `wake_s` follow from the others and are not stored."""

    facts: CheckIn | None = None
    """Its last check-in; None for a device that an operator has named before it came."""
    first_seen_s: float = 0.0
    seen_s: float = 0.0
    """Time at which it last came or went."""
    online: bool = False
    tags: tuple[str, ...] = ()
    ban: Ban | None = None
    withdrawn_s: float = 0.0
    """Time at which its owner withdrew; 0 after it has checked in again."""
    moved: bool = False
    """True if its data are no longer those of its last survey: it trains next as a newcomer."""
    forbids: bool = False
    """True if its owner does not permit surveys, as a declined assignment has shown."""
    holds: tuple[Digest, ...] = ()
    """Models of which it holds a personal model."""
    assignment: Assignment | None = None
    accepted: MaybeDigest = ""
    """Digest of its last accepted update."""
    campaign: str = ""
    """The campaign that gave it its last assignment."""
    asked_s: float = 0.0
    """Time at which it was last assigned to train."""
    updates: int = 0
    """Number of its accepted updates."""
    declines: int = 0
    """Number of assignments that it declined."""
    train_s: float = 0.0
    """Seconds of training behind its last update."""
    failures: int = 0
    """Number of assignments in a row that it did not carry out."""
    failing_s: float = 0.0
    """When it failed the first of them; 0 if it failed none."""
    rests_until_s: float = 0.0
    in_use: InUse | None = None
    """Its last report of the model in use."""
    given: Given = Given()
    """The release that it was offered last."""
    settled: Given = Given()
    """The last release before that which it has confirmed."""
    usual_ms: float = 0.0
    """Time of a prediction with that release, in ms; 0: not known."""
    told: int = 0
    """Epoch in which it was told its assignment and release; 0: it is to be told again."""
    wake_s: float = 0.0
    """Time for which its timer is set; 0: none is."""
    pool: str = ""
    """Pool in which it waits to be assigned."""
    marks: tuple[str, ...] = ()
    """Names under which it is counted."""

    def stored(self) -> "Device":
        """Return it without the fields that follow from the others."""
        return replace(self, wake_s=0.0, pool="", marks=())

    @property
    def barred(self) -> bool:
        """True if it may not be assigned or offered anything."""
        return self.ban is not None or self.withdrawn_s > 0

    @property
    def release_in_use(self) -> int | None:
        """Number of the release that it uses; 0 if it uses none, None if it is not known."""
        report = self.in_use
        if report is None or not report.number:
            return 0
        offers = (self.given, self.settled)
        return next((o.release for o in offers if o.serial == report.number), None)

    @property
    def policy(self) -> Policy:
        """What its owner permits."""
        return (self.facts and self.facts.policy) or Policy()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a device's update adds to the record of its round."""

    evaluated: Metrics
    """Of the model that the device received."""
    trained: Metrics
    """Summed over its training steps."""
    bytes_up: int
    bytes_down: int
    kept: Kept | None = None
    """The personal model that the device has chosen; None if it does not tell."""


class Received(Report, frozen=True, kw_only=True, gc=False):
    """An admitted update, without its tensors."""

    blob: Digest
    """Its bytes, as they came."""
    start: str
    """Key of the model that the device started from."""
    num_train: int
    num_steps: int
    norms: dict[str, float] = {}
    """By role (delta, statistic, response), the Euclidean norm of its tensors."""
    quantised: tuple[str, ...] = ()
    """Graphs that made its change, if that came in int8."""
    round: int = 0
    """The round in which it counts."""
    staleness: int = 0
    """Number of rounds between its assignment and that one."""


class Survey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a device without labels has reported of its inputs."""

    blob: Digest
    """Its update, as it came."""
    round: int
    """The round that was open then."""
    bytes_up: int
    bytes_down: int


class Member(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a campaign knows of a device."""

    group: str = ""
    """Key of its group's model, found by its training; empty for a newcomer."""
    survey: Survey | None = None
    placed: Placed | None = None
    """Its group by its survey."""

    @property
    def current_group(self) -> str:
        """Key of its group's model, by its survey or its training; empty for a newcomer."""
        return self.placed.group if self.placed is not None else self.group


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a campaign as a round left them, and what devices do with them."""

    round: int
    """The round that made them; 0: the campaign began with them."""
    models: dict[str, Digest]
    """By key (a group's number or `initial`), the model that devices with this key start from."""
    memory: MaybeDigest
    """What the algorithm remembers from round to round; who is in which group is a part of it."""
    programs: dict[str, tuple[Verb, ...]]
    """Verbs of a round by start or device, and under ``closing`` those after the last round."""
    newcomers: str
    """Key of the model that a device without a group starts from."""
    evaluated: dict[str, Metrics] = {}
    """By device, the metrics with which it met these models, before it trained."""


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign."""

    settings: RunSettings
    next_settings: RunSettings
    """Settings from the next round on."""
    started_s: float = 0.0
    phase: Phase = "waiting"
    phase_s: float = 0.0
    """When this phase began."""
    paused: bool = False
    ended: Ended = ""
    """Why training is over; empty while it is not."""
    ended_s: float = 0.0
    """When the campaign last came to its end; 0 if it has not."""
    version: Version
    """The current models."""
    history: tuple[Version, ...] = ()
    """The versions of the last `keep_models` rounds, to return to."""
    preparing: bool = False
    """True if the next round is a preparation."""
    round: int = 1
    """The round that is open, or opens next."""
    attempt: int = 0
    """Number of times that it was opened again."""
    oldest: int = 1
    """The first round whose updates may still count: earlier models were given up."""
    opened_s: float = 0.0
    deadline_s: float = 0.0
    width: int = 0
    """Number of devices that the round asks; in a buffered campaign, number at work at a time."""
    to_ask: int = 0
    """Number of these that are still to be asked."""
    drawn: int = 0
    """Number of draws in this round: the next draw follows from it."""
    told: int = 0
    """Epoch in which the aggregation was commanded."""
    trained: int = 0
    """Number of rounds of training that are over."""
    best: float | None = None
    """The best mean accuracy of a round so far (`budget`)."""
    unimproved: int = 0
    """Number of rounds of training since."""
    unmeasured: bool = False
    """True if no device reported an accuracy in the last round of training."""
    norms: dict[str, float] = {}
    """By role, the median norm of the updates of the last aggregated round that had such."""
    distances: tuple[dict[str, float], ...] = ()
    """Of the last rounds, by role, the distance of the new models from those before."""
    made_by: tuple[str, ...] = ()
    """Devices whose updates the current models were made of."""
    default: Placed | None = None
    """Group of devices of which nothing is known."""
    members: Map[str, Member] = Map()
    """By device, what is known of it beside its update."""
    updates: Map[str, Received] = Map()
    """By device, its update that counts in the open round, or in the evaluation."""

    @property
    def name(self) -> str:
        """What people call it."""
        return self.settings.name

    @property
    def received(self) -> int:
        """Number of updates that count in the open round."""
        return len(self.updates)

    @property
    def models(self) -> dict[str, Digest]:
        """The current models, by key."""
        return self.version.models


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A model for devices to use, and where it comes from. It never changes."""

    number: int
    group: str
    """Key of the group's model in its campaign."""
    bundle: Digest
    model: Digest
    run_id: str
    campaign: str
    round: int
    algorithm: str
    devices: int
    """Number of devices of the group it was made for."""
    metrics: Metrics = Metrics()
    """Sums over the devices of the group that have evaluated it."""
    made_s: float = 0.0

    @property
    def blobs(self) -> set[str]:
        """Digests of its bundle and its model."""
        return {self.bundle, self.model}


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """The releases of one campaign on their way to devices, step by step."""

    campaign: str
    releases: dict[str, int]
    """By group, the number of its release."""
    newcomers: str = ""
    """Group whose release devices without a group get; empty: they get none."""
    steps: tuple[Step, ...]
    gate: Gate
    direct: bool = False
    """True if devices take up the models as those of a finished campaign, and do not confirm."""
    phase: Literal["candidate", "running", "paused", "superseded", "done", "failed"] = "running"
    reason: str = ""
    """Why it stands where it stands, for people."""
    step: int = 0
    step_s: float = 0.0
    """When the step began, or was resumed."""
    began_s: float = 0.0
    judge_s: float = 0.0
    """When the step is to be judged; 0: when something changes."""
    share: float = 0.0
    """Share of devices that it reaches now."""
    returns: bool = False
    """True if the operator has returned a group to an earlier release by it."""
    salt: str = ""
    """Random text; with a device's id it decides which share reaches the device."""
    problem: str = ""
    """The last problem that a device reported with one of its releases."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. The fields after `wake_s` follow from the others: they keep the cost of an event
    independent of the number of devices."""

    epoch: int = 1
    """Number of the service's start; greater than that of any before."""
    at_s: float = 0.0
    """Time of the last event; it never goes back."""
    serial: int = 0
    """Of the last assignment or offer."""
    away_s: tuple[float, float] = (0.0, 0.0)
    """Beginning and end of the time in which the service was away, until every device was looked at
    after it: a deadline in it is no failure of a device."""
    devices: Map[str, Device] = Map()
    campaigns: dict[str, Campaign] = {}
    """By name, in the order of their starts: a later one has devices first."""
    releases: dict[int, Release] = {}
    rollouts: tuple[Rollout, ...] = ()
    """In the order of their beginnings: a later one counts first."""
    wake_s: float = 0.0
    """Time for which the timer of campaigns and rollouts is set; 0: none is."""
    sweep: int = 0
    """Number of devices, the first of `order`, that are still to be reconciled after a change that
    concerns all."""
    order: DevicePool = DevicePool()
    pools: dict[str, DevicePool] = {}
    """By kind and campaign, the devices that wait to be assigned."""
    counts: Map[str, int] = Map()
    """By mark, the number of devices that have it."""
