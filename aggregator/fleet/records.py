"""Records of a fleet: devices, campaigns, releases and rollouts.

Records are frozen and serialisable. They hold no tensors: a model or an update is in the blob
store, and its record has the digest. They hold no clock: events bring the time, in Unix seconds. A
device has one `Device` record; each campaign that knows the device adds a `Member`.
"""

from typing import Literal

import msgspec
from immutables import Map
from msgspec.structs import replace

from aggregator.core.pool import DevicePool
from aggregator.core.settings import Ended, RunSettings
from aggregator.core.steps import Gate, Step
from aggregator.core.sums import SecretSum
from algorithms.core.keys import is_no_group
from algorithms.personalisation.kept import PersonalChoice
from wire.messages import CheckIn, Digest, InUse, MaybeDigest, Metrics, Policy, Verb
from wire.secret.question import Noise, Part, SumQuestion

Kind = Literal["survey", "train", "evaluate", "personalise"]
"""Kind of an assignment: describe the inputs, train, test the final model, or personalise."""
NOT_STARTED = -1.0
"""Value of `Campaign.started_s` before the start."""
Phase = Literal["waiting", "preparing", "training", "aggregating", "evaluating", "finished"]
"""Phase of a campaign.

A campaign is *waiting* while no round can open: too few devices are free, or the campaign's hours
have not begun.
"""
Failure = Literal["silent", "declined", "empty", "lost"]
"""Way in which a device did not carry out its last assignment.

No answer came before the deadline; the device declined, or its update was refused; its survey
described no windows; it no longer holds the personal model that it had made.
"""
OPEN: tuple[Phase, ...] = ("preparing", "training", "evaluating")
"""Phases in which devices work on assignments of a round."""
SHARED = ("bundle", "client", "runtime", "hardware", "protocol", "app")
"""Facts whose texts many devices share, so that each text is in memory once."""
NAMED = 10
"""Maximum number of devices that confirm, and of those that object, in a rollout's record."""
MOST_ONCE = 16
"""Maximum number of random numbers that a device's record remembers."""
MOST_TAGS = 64
"""Maximum number of tags of a device."""


class Placed(msgspec.Struct, frozen=True):
    """Group of a device that no training has put into a group."""

    group: str
    """Key of the group's model."""
    sure: float
    """Fraction (0 to 1) of the consulted devices that are in the group."""
    neighbours: int = 0
    """Number of consulted devices with the most similar inputs; 0 if inputs were not used."""
    nearer: float = 0.0
    """Fraction (0 to 1) of the group's devices that are nearer to the group's mean inputs."""

    def __str__(self) -> str:
        if is_no_group(self.group):
            return "in no group"
        if self.neighbours:
            votes = round(self.sure * self.neighbours)
            return (
                f"placed by its inputs, {votes} of {self.neighbours} neighbours, farther out than "
                f"{100 * self.nearer:.0f} % of the group"
            )
        if self.sure == 1:
            return "the only group"
        return f"in the largest group, {100 * self.sure:.0f} % of the devices"


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """Assignment of a device.

    An assignment outlives its round: a late device keeps it.
    """

    serial: int
    """Serial number, above those of earlier assignments and offers. It is the plan's `attempt`."""
    kind: Kind
    campaign: str
    round: int
    """Number of the round that was open when the device got the assignment."""
    start: str
    """Key of the model that the device starts from."""
    model: Digest
    verbs: tuple[Verb, ...]
    deadline_s: float
    beside: bool = False
    """True if no round waits for the device, because it failed its last assignment."""
    lapsed: bool = False
    """True if the deadline has passed or the work was cancelled.

    An update still counts while its round is open.
    """


class LastOffer(msgspec.Struct, frozen=True, gc=False):
    """Offer of a release to a device."""

    serial: int = 0
    """Serial number of the offer, counted with assignments; `number` of its message."""
    release: int = 0
    at_s: float = 0.0


class Ban(msgspec.Struct, frozen=True, gc=False):
    """Ban of a device by the operator."""

    since_s: float
    reason: str


class Device(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Record of a device.

    The fields after `wake_s` are computed from the others and are not stored.
    """

    facts: CheckIn | None = None
    """Facts of the last check-in; None if the operator named the device before it ever came."""
    first_seen_s: float = 0.0
    seen_s: float = 0.0
    """Time at which the device last connected or disconnected."""
    online: bool = False
    tags: tuple[str, ...] = ()
    ban: Ban | None = None
    second_s: float = 0.0
    """Time of the last check-in of a second device with this id; 0 if there was none.

    It was refused. An operator's `unban` ends this.
    """
    once: tuple[int, ...] = ()
    """Random numbers of messages that take effect only once, at most `MOST_ONCE`.

    They are those of the owner's withdrawals, of the first start of a state folder after the second
    one came, and of the start that the first start of a new folder took the place of.
    """
    withdrawn_s: float = 0.0
    """Time at which the owner withdrew; 0 after the device has checked in again."""
    moved: bool = False
    """True if the data have changed since the last survey: the device trains next as a newcomer."""
    forbids: bool = False
    """True if the owner does not permit surveys, as a declined assignment has shown."""
    holds: tuple[Digest, ...] = ()
    """Digests of the models of which the device holds a personal model."""
    assignment: Assignment | None = None
    accepted: MaybeDigest = ""
    """Digest of the last accepted update."""
    campaign: str = ""
    """Name of the campaign of the last assignment."""
    asked_s: float = 0.0
    """Time of the last training assignment; 0 if there was none."""
    updates: int = 0
    """Number of accepted updates."""
    declines: int = 0
    """Number of declined assignments."""
    train_s: float = 0.0
    """Seconds of training behind the last update."""
    left_out: int = 0
    """Number of consecutive rounds that left its update out, because it was out of bounds."""
    failures: int = 0
    """Number of consecutive assignments that the device did not carry out."""
    failing_s: float = 0.0
    """Time of the first of these failures; 0 if there is none."""
    failure: Failure = "silent"
    """Way of the last of these failures."""
    rests_until_s: float = 0.0
    in_use: InUse | None = None
    """Last report of the model in use."""
    last_offer: LastOffer = LastOffer()
    """Last offer of a release."""
    settled: LastOffer = LastOffer()
    """Last earlier offer that the device has confirmed."""
    usual_ms: float = 0.0
    """Time of one prediction with the release of `settled`, in ms; 0 if it is not known."""
    sent_epoch: int = 0
    """Epoch in which assignment and release were last sent; 0 if they must be sent again."""
    wake_s: float = 0.0
    """Time for which the device's timer is set; 0 if no timer is set."""
    pool: str = ""
    """Name of the pool in which the device waits for an assignment; empty if it waits in none."""
    marks: tuple[str, ...] = ()
    """Names under which the device is counted."""

    def stored(self) -> "Device":
        """Return the record without the fields that are computed from others."""
        return replace(self, wake_s=0.0, pool="", marks=())

    def with_once(self, number: int) -> "Device":
        """Return the record after a message with this random number took effect."""
        return replace(self, once=(*self.once, number)[-MOST_ONCE:])

    @property
    def barred(self) -> bool:
        """True if the device may not be given an assignment or a release."""
        return self.ban is not None or self.withdrawn_s > 0

    @property
    def release_in_use(self) -> int | None:
        """Number of the release in use; 0 if the device uses none, None if it is not known."""
        report = self.in_use
        if report is None or not report.number:
            return 0
        offers = (self.last_offer, self.settled)
        return next((o.release for o in offers if o.serial == report.number), None)

    def is_second(self, facts: CheckIn) -> bool:
        """Return True if a check-in is of a second device with this id.

        Starts of one device have growing numbers. So a check-in whose number is not above the last
        one, and which is of another start, comes from a copy or from a restored state folder. The
        first start of a new folder is taken, because a device may have lost its folder; a start of
        `once` is of a second device.
        """
        last = self.facts
        if last is None or not last.start or not facts.start:
            return False
        if facts.instance == last.instance:
            return False
        return facts.instance in self.once or 1 < facts.start <= last.start

    @property
    def policy(self) -> Policy:
        """Policy of the device's owner."""
        return (self.facts and self.facts.policy) or Policy()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics and sizes that an update adds to the record of its round."""

    evaluated: Metrics
    """Metrics of the model that the device received."""
    trained: Metrics
    """Metrics summed over the training steps."""
    bytes_up: int
    bytes_down: int
    personal_model: PersonalChoice | None = None
    """Personal model that the device has chosen; None if it does not report the choice."""


class AdmittedUpdate(Report, frozen=True, kw_only=True, gc=False):
    """Admitted update, without its tensors."""

    blob: Digest
    """Digest of the update as it was received."""
    start: str
    """Key of the model that the device started from."""
    num_train: int
    num_steps: int
    norms: dict[str, float] = {}
    """Euclidean norm of the tensors of each role (delta, statistic, response)."""
    quantised: tuple[str, ...] = ()
    """Names of the graphs whose change came quantised to int8."""
    round: int = 0
    """Number of the round in which the update counts."""
    staleness: int = 0
    """Number of rounds between the assignment and the round in which the update counts."""
    share: MaybeDigest = ""
    """Digest of the share of a masked update; empty for another one."""


class Survey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Survey of the inputs of a device that no training has put into a group."""

    blob: Digest
    """Digest of the survey's update as it was received."""
    round: int
    """Number of the round that was open when the survey came."""
    bytes_up: int
    bytes_down: int


class Member(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Data of one device in one campaign, other than its update."""

    group: str = ""
    """Key of the group's model, found by training; empty for a newcomer."""
    survey: Survey | None = None
    placed: Placed | None = None
    """Group found by the survey."""
    score: float = 0.0
    """Extent (0 to 1) to which the device's updates stand out from its group's over rounds."""
    suspect_since: int = 0
    """Number of the first round of this score; 0 if the score is 0."""
    excluded: bool = False
    """True if the operator has excluded the device: it gets no assignment of the campaign."""
    refused: int = 0
    """Number of the last round that refused its update as too large and has no other one of it."""
    node: str | None = None
    """Deepest node of the secret survey that the device has told; None if it has told none."""

    @property
    def current_group(self) -> str:
        """Key of the group's model, by survey or by training; empty for a newcomer."""
        return self.placed.group if self.placed is not None else self.group


class Trend(msgspec.Struct, frozen=True):
    """Round of training in a few numbers, which are evidence for the cause of a divergence."""

    round: int
    norm: float
    """Median norm of the updates' changes."""
    devices: int
    """Number of devices whose updates count."""
    refused: int = 0
    """Number of other devices whose updates were refused as too large or not finite."""


class Standstill(msgspec.Struct, frozen=True):
    """Rounds of training in a row after which a model is the same as before."""

    cause: Literal["bounds", "small", "nothing"]
    """Cause in the last one: out of bounds, groups that are too small, or no change to learn."""
    reason: str
    """Reason in the last one, for people."""
    rounds: int = 1


Cause = Literal["device", "windows", "rate", "few", "settings", "unknown", "labels"]
"""Cause of a divergence, in the order in which they are tried.

One device, changed windows or units, a too high learning rate, too few devices, and settings that
do not suit most devices. Wrong labels or test windows concern few devices, and not the campaign.
"""


class Divergence(msgspec.Struct, frozen=True):
    """Divergence of a campaign, with its cause."""

    cause: Cause
    evidence: str
    """Evidence for people. It names no device."""
    devices: tuple[str, ...] = ()
    """Ids of the devices that cause it."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Model versions of a campaign after a round, with the verbs that devices apply to them."""

    round: int
    """Number of the round that ended with these models; 0 for the initial ones."""
    models: dict[str, Digest]
    """Digest of the model that devices start from, by key (a group's number or `initial`)."""
    memory: MaybeDigest
    """Digest of the algorithm's state between rounds, which includes the groups' devices."""
    programs: dict[str, tuple[Verb, ...]]
    """Verbs of a round by start or device; under ``closing``, the verbs after the last round."""
    newcomers: str
    """Key of the model that a device without a group starts from."""
    evaluated: dict[str, Metrics] = {}
    """Metrics of these models before training, by device that evaluated them."""
    parts: dict[str, dict[str, Part]] = {}
    """Parts of each question of the next round in secret mode, by start, or by node of a survey.

    If a preparation has none, devices have sides of splits to tell.
    """
    leaves: dict[str, str] = {}
    """Group of each node that the secret survey has not split, by its path."""
    noise: Noise | None = None
    """Noise of each device in the next questions."""
    has_cells: bool = False
    """True if the mean compares sums over cells of devices."""


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a campaign."""

    settings: RunSettings
    next_settings: RunSettings
    """Settings from the next round on, or from the open one if it is opened again."""
    set_serial: int = 0
    """Serial number of the last assignment before the present settings applied."""
    next_programs: dict[str, tuple[Verb, ...]] = {}
    """Verbs for these settings, if the open round is opened again; empty if they are unchanged."""
    started_s: float = 0.0
    """Time of the start; `NOT_STARTED` while the campaign awaits drift."""
    phase: Phase = "waiting"
    phase_s: float = 0.0
    """Time at which the phase began."""
    paused: bool = False
    ended: Ended = ""
    """Reason that training is over; empty during training."""
    ended_s: float = 0.0
    """Time at which the campaign last finished; 0 if it never has."""
    version: Version
    """Current models."""
    history: tuple[Version, ...] = ()
    """Versions of the last `keep_models` rounds, for a return to one of them.

    While devices stand out, the last version before that stays as well.
    """
    preparing: bool = False
    """True if the next round is a preparation."""
    round: int = 1
    """Number of the open round, or of the next one."""
    attempt: int = 0
    """Number of times that the round was opened again."""
    oldest: int = 1
    """Number of the first round whose updates may still count.

    The models of earlier rounds were given up.
    """
    opened_s: float = 0.0
    deadline_s: float = 0.0
    width: int = 0
    """Size of the cohort; in a buffered campaign, the number of devices at work at a time."""
    to_ask: int = 0
    """Number of devices of the cohort that have no assignment yet."""
    drawn: int = 0
    """Number of draws of devices in this round; it seeds the next draw."""
    command_epoch: int = 0
    """Epoch in which the aggregation was commanded."""
    trained: int = 0
    """Number of completed rounds of training."""
    best: float | None = None
    """Best mean accuracy of a round so far (`budget`); None if no device reported one."""
    unimproved: int = 0
    """Number of rounds of training since the best one."""
    unmeasured: bool = False
    """True if no device reported an accuracy in the last round of training."""
    norms: dict[str, float] = {}
    """Median norm of the updates of each role, from the last aggregated round that had the role."""
    distances: tuple[dict[str, float], ...] = ()
    """Distances of the new models from the previous ones, by role, for each of the last rounds."""
    made_by: tuple[str, ...] = ()
    """Ids of the devices whose updates formed the current models."""
    suspects: tuple[str, ...] = ()
    """Ids of the devices with the highest scores; of none with score 0."""
    trends: tuple[Trend, ...] = ()
    """Trends of the last rounds of training."""
    divergence: Divergence | None = None
    """Divergence after the last round of training; None if the campaign does not diverge."""
    refused: int = 0
    """Number of devices whose update of the open round was refused as too large or not finite."""
    standstills: dict[str, Standstill] = {}
    """Standstill of each model that the last rounds of its devices have not changed, by key."""
    unnamed: tuple[str, ...] = ()
    """Keys of the models of whose devices none is named, because half or more stand out."""
    default: Placed | None = None
    """Group of devices about which nothing is known."""
    members: Map[str, Member] = Map()
    """Data of each device other than its update."""
    updates: Map[str, AdmittedUpdate] = Map()
    """Update of each device that counts in the open round, or in the evaluation."""
    cells: tuple[tuple[str, ...], ...] = ()
    """Parts into which the sets of all secret sums cut the devices."""
    cohorts: dict[str, tuple[str, ...]] = {}
    """Devices of each question of the open round, sorted, by its key."""
    questions: dict[str, SumQuestion] = {}
    """Questions of the open round in secret mode, by start, cell of it, or node of a survey."""
    sums: dict[str, SecretSum] = {}
    """Secret sums of the round by the keys of their questions; empty while it is open."""

    @property
    def name(self) -> str:
        """Name for people."""
        return self.settings.name

    @property
    def awaits_drift(self) -> bool:
        """True if the campaign begins once enough devices have drifted (`RunSettings.when`)."""
        return self.started_s == NOT_STARTED and self.phase == "waiting"

    @property
    def received(self) -> int:
        """Number of updates that count in the open round."""
        return len(self.updates)

    @property
    def versions(self) -> tuple[Version, ...]:
        """Versions whose models are stored: the current one, then earlier ones from the oldest."""
        return self.version, *self.history

    @property
    def models(self) -> dict[str, Digest]:
        """Digests of the current models, by key."""
        return self.version.models


class ModelRelease(msgspec.Struct, frozen=True, kw_only=True):
    """Model that devices may use, with its origin. It never changes."""

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
    """Number of devices of the group when the release was made."""
    metrics: Metrics = Metrics()
    """Sums over the devices of the group that have evaluated the release."""
    made_s: float = 0.0

    @property
    def blobs(self) -> set[str]:
        """Digests of its bundle and its model."""
        return {self.bundle, self.model}


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Rollout of a campaign's releases through the fleet, step by step."""

    campaign: str
    releases: dict[str, int]
    """Number of each group's release."""
    newcomers: str = ""
    """Group whose release serves devices without a group; empty if they get none."""
    steps: tuple[Step, ...]
    gate: Gate
    direct: bool = False
    """True if devices take up the models as those of a finished campaign, without confirmation."""
    phase: Literal["candidate", "running", "paused", "superseded", "done", "failed"] = "running"
    reason: str = ""
    """Reason of the phase, for people."""
    step: int = 0
    step_s: float = 0.0
    """Time at which the step began or was resumed."""
    began_s: float = 0.0
    judge_s: float = 0.0
    """Time at which the step is judged; 0 if it is judged only after a change or the patience."""
    share: float = 0.0
    """Fraction of devices that the rollout reaches now."""
    returns: bool = False
    """True if the rollout is the operator's return of a group to an earlier release."""
    salt: str = ""
    """Random text; with a device's id, it decides the share at which the device is reached."""
    statements: dict[str, str] = {}
    """Statements of devices about its releases, by device (`gate.statement_of`).

    It has the first `NAMED` devices that confirm, and the first `NAMED` that report anything else.
    """


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Records of a fleet.

    The fields after `wake_s` are computed from the others. They keep the cost of an event
    independent of the number of devices.
    """

    epoch: int = 1
    """Number of the service's start, greater than that of any earlier start."""
    at_s: float = 0.0
    """Time of the last event. It never decreases."""
    serial: int = 0
    """Serial number of the last assignment or offer."""
    away_s: tuple[float, float] = (0.0, 0.0)
    """Beginning and end of the service's last absence.

    The absence is kept until every device was examined after it: a deadline that passed during the
    absence is not a failure of the device.
    """
    devices: Map[str, Device] = Map()
    campaigns: dict[str, Campaign] = {}
    """Campaigns by name, in the order of their starts. A later one comes first for devices."""
    releases: dict[int, ModelRelease] = {}
    rollouts: tuple[Rollout, ...] = ()
    """Rollouts in the order of their starts. A later one takes precedence."""
    wake_s: float = 0.0
    """Time for which the timer of campaigns and rollouts is set; 0 if no timer is set."""
    sweep: int = 0
    """Number of devices still to be reconciled after a change that concerns all of them.

    They are the first ones of `order`.
    """
    order: DevicePool = DevicePool()
    pools: dict[str, DevicePool] = {}
    """Devices that wait for an assignment, by kind and campaign."""
    counts: Map[str, int] = Map()
    """Number of devices with each mark."""
