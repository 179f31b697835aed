"""The state of a run, the events that change it and the commands that follow; frozen, serialisable,
without tensors or time.

Tensors lie in the blob store; state and events name them by digest.
"""

from types import GenericAlias
from typing import Any, Literal, get_args

import msgspec
from immutables import Map

from aggregator.core.settings import Ended, RunSettings
from algorithms.personalisation.kept import Kept
from wire.messages import Acknowledge, Digest, MaybeDigest, Metrics, Plan, Verb

OpenPhase = Literal["preparing", "training", "evaluating"]
"""A phase in which devices work on plans and updates are awaited."""
Phase = Literal["waiting", OpenPhase, "aggregating", "finished"]


class Placed(msgspec.Struct, frozen=True):
    """The group of a device that cannot train."""

    group: str
    """The key of its group's model."""
    sure: float
    """From 0 to 1: the share of the devices asked that are in the group."""
    neighbours: int = 0
    """How many devices with the most similar inputs were asked; 0: its inputs had no say."""

    def __str__(self) -> str:
        if self.neighbours:
            return (
                f"placed by its inputs, {round(self.sure * self.neighbours)} of {self.neighbours} "
                "neighbours"
            )
        if self.sure == 1:
            return "the only group"
        return f"in the largest group, {100 * self.sure:.0f} % of the devices"


class Device(msgspec.Struct, frozen=True):
    """What is known of a device."""

    num_train: int
    num_test: int
    online: bool
    last_seen_s: float
    runtime: str = ""
    bundle: str = ""
    accepted: MaybeDigest = ""
    """Its last update that was accepted, by digest."""
    failures: int = 0
    """How many rounds in a row it missed or declined."""
    rests_until: int = 0
    """The round from which it is asked again."""
    asked_s: float = 0.0
    """When it was last asked for a round of training that was new to it."""
    eligible: bool = True
    """Whether it is asked for anything."""
    barred: bool = False
    """Whether it is not even told which model is its own."""
    moved: bool = False
    """Whether its data have moved since its last survey, as it says; until a round with another
    survey of it is over."""
    encodings: tuple[str, ...] = ()
    """Encodings of updates that the device can send (`CheckIn.encodings`)."""
    withholds: bool = False
    """True if its owner does not let it say what it keeps, and why (`Policy.withholds`)."""
    untested: bool = False
    """True if it has fewer test windows than `Policy.min_windows`."""
    untold: bool = False
    """Whether its owner does not permit what would place it: to say what its inputs are like, or to
    train (`aggregator.core.round.inputs`)."""
    inputs_in: int = 0
    """The round in which it was last asked that; 0: never."""
    terms: str = ""
    """What it says of itself that decides whether it can carry out a plan, as a short hash."""
    closings: int = 0
    """How often it was asked in vain, since it says so, to choose what it keeps
    (`aggregator.core.round.closings`)."""
    losses: int = 0
    """How often it has lost what it had chosen to keep, since it says so, without having said in
    between that it holds it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a device's update adds to the record of its round."""

    evaluated: Metrics
    """Of the model that the device received."""
    trained: Metrics
    """Summed over its training steps."""
    bytes_up: int
    bytes_down: int
    kept: Kept | None = None
    """What the device keeps when the run is over; None where it is not told."""


class Received(Report, frozen=True, kw_only=True):
    """An admitted update, without its tensors."""

    blob: Digest
    """Its bytes, as they came."""
    start: str
    """The key of the model that the device started from."""
    num_train: int
    num_steps: int
    norms: dict[str, float] = {}
    """By role (delta, statistic, response), the Euclidean norm of its tensors."""
    quantised: tuple[str, ...] = ()
    """If its change came in int8, the graphs that have made it: what it decodes to follows from
    them."""
    staleness: int = 0
    """How many rounds ago the device was asked for it."""


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that outlives its round, as far as a later round cannot know it: a plan of a buffered
    run (`aggregator.core.round.flights`), one that asks a device what its inputs are like
    (`aggregator.core.round.inputs`), or a late closing (`aggregator.core.round.closings`)."""

    round: int
    """The round that asked the device."""
    attempt: int
    start: str
    """The key of the model that it started from."""
    model: Digest
    verbs: tuple[Verb, ...]
    deadline_at_s: float


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a device without labels has told of its inputs."""

    blob: Digest
    """Its update, as it came."""
    round: int
    """The round that was open then."""
    bytes_up: int
    bytes_down: int


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The models as a round left them; fields as in `RunState`."""

    round: int
    """The round that made them; 0: the run began with them."""
    models: dict[str, Digest]
    memory: MaybeDigest
    starts: dict[str, str]
    programs: dict[str, tuple[Verb, ...]]
    evaluated: dict[str, Metrics] = {}
    """By device, the metrics with which it met them, before it trained."""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run but the tensors."""

    settings: RunSettings
    retuned: RunSettings | None = None
    """The settings that count from the next round on, where the operator has given others."""
    epoch: int = 0
    """Which start of the service this is: greater than any before it."""
    started_at_s: float = 0.0
    """When the run began."""
    at_s: float = 0.0
    """When the last event was; the clock never goes back behind it, also after a restart."""
    phase: Phase = "waiting"
    round: int = 0
    """The number of the latest round, from 1; 0 before the first."""
    attempt: int = 0
    """How often the latest round was opened again."""
    devices: Map[str, Device] = Map()
    """Every device that has checked in, by id."""
    num_online: int = 0
    """How many of them are online and eligible."""
    num_unlabelled: int = 0
    """How many of these have too few labels to train (`aggregator.core.plan.can_train`)."""
    models: dict[str, Digest] = {}
    """By key (a group's number or `initial`), the model that devices with this key start from."""
    starts: dict[str, str] = {}
    """By device, the key of the model that it starts from next; under the empty id that of a device
    that is not named."""
    programs: dict[str, tuple[Verb, ...]] = {}
    """What devices do in the next round (`algorithms.core.contract.Programs`), and, under
    ``closing``, after the last."""
    preparing: bool = False
    """Whether the next round is a preparation."""
    trained: int = 0
    """Rounds of training that are over."""
    best: float | None = None
    """The best mean accuracy of a round so far (`aggregator.core.budget`)."""
    unimproved: int = 0
    """Rounds of training since."""
    unmeasured: bool = False
    """Whether no device told an accuracy in the last round of training."""
    ended: Ended = ""
    """Why training is over; empty while it is not."""
    ended_at_s: float | None = None
    """When the run last came to its end; None if it has not (`aggregator.core.round.dismissal`)."""
    memory: MaybeDigest = ""
    """What the algorithm remembers from round to round."""
    cohort: dict[str, str] = {}
    """The devices of the latest round, and the key of the model that each started from."""
    received: dict[str, Received] = {}
    """Their admitted updates, in the order of arrival."""
    flights: dict[str, Flight] = {}
    """By device, the plans in work of a buffered run, those of earlier rounds as well; its devices
    are in the cohort."""
    placing: dict[str, Flight] = {}
    """By device without labels, the plan in work that asks what its inputs are like; it is in no
    cohort for that."""
    closings: dict[str, Flight] = {}
    """By device, once the run is over, the plan in work by which it chooses what it keeps."""
    retries: dict[str, float] = {}
    """By device that failed to choose what it keeps, when it is asked again."""
    late: int = 0
    """How often devices were asked for such plans since the last round was closed."""
    inputs: dict[str, Told] = {}
    """By device without labels, what it has told of its inputs."""
    placed: dict[str, Placed] = {}
    """By device without labels that has told of its inputs, where it belongs; under the empty id
    where those belong of which nothing is known."""
    asked: int = 0
    """How many devices the latest round asked when it was opened."""
    declined: tuple[str, ...] = ()
    """The devices that declined their plans of its latest attempt: it does not ask them again."""
    idle: bool = False
    """Whether the latest round asks nobody yet, since it is not the hour, or too few devices may be
    asked again; then its deadline is when it looks again."""
    deadline_at_s: float = 0.0
    opened_at_s: float = 0.0
    veterans: bool = False
    """Whether an update of a device of the cohort was accepted in an earlier round."""
    newcomers_until_s: float = 0.0
    """Until when the round waits for devices that have never been counted; 0 as long as it also
    waits for others."""
    norms: dict[str, float] = {}
    """By role, the median norm of the updates of the latest aggregated round that had such."""
    made_in: int = 0
    """The round that made `models`; 0: the run began with them."""
    made_by: tuple[str, ...] = ()
    """The devices whose updates they were made of."""
    history: tuple[ModelVersion, ...] = ()
    """The last `keep_models` versions that devices have met, by round."""
    distances: tuple[dict[str, float], ...] = ()
    """Of the last rounds, by role, how far the new models were from those before."""

    @property
    def next_settings(self) -> RunSettings:
        """The settings of the next round."""
        return self.retuned or self.settings


def encode_state(state: msgspec.Struct) -> bytes:
    """Return a state as JSON."""
    return msgspec.json.encode(state, enc_hook=dict)


def decode_state(payload: bytes, kind: type[Any] = RunState) -> Any:
    """Return the state of this kind that `encode_state` wrote.

    Raises:
        msgspec.MsgspecError: it is not one.
    """

    def to_map(field: Any, value: Any) -> Map[Any, Any]:
        key, each = get_args(field)
        return Map(msgspec.convert(value, GenericAlias(dict, (key, each)), strict=False))

    return msgspec.json.decode(payload, type=kind, dec_hook=to_map)


# Events: what happened. Time arrives inside them.


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The run begins, with the first models and the algorithm's first memory; `starts` as in
    `RoundAggregated`."""

    at_s: float
    settings: RunSettings
    models: dict[str, Digest]
    memory: Digest
    programs: dict[str, tuple[Verb, ...]]
    preparing: bool = False
    starts: dict[str, str] = {}
    epoch: int = 1


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """The aggregator speaks with a new epoch, for instance after a restart: whatever was commanded
    may have been lost."""

    at_s: float
    epoch: int


class DeviceCheckedIn(msgspec.Struct, frozen=True, tag="device-checked-in"):
    """A device is there; also after every reconnect."""

    at_s: float
    device_id: str
    num_train: int
    num_test: int
    runtime: str = ""
    bundle: str = ""
    moved: bool = False
    eligible: bool = True
    encodings: tuple[str, ...] = ()
    withholds: bool = False
    """Whether its owner does not let it say what it keeps when the run is over, and why
    (`Policy.withholds`)."""
    terms: str = ""
    """Short hash of what it says of itself that decides if it can carry out a plan."""
    untested: bool = False
    """Whether it has fewer test windows than its owner lets it say something of
    (`Policy.min_windows`)."""
    held: tuple[str, ...] | None = None
    """As `CheckIn.kept`."""


class DeviceHeard(msgspec.Struct, frozen=True, tag="device-heard"):
    """A device that was taken for absent showed that it is there."""

    at_s: float
    device_id: str


class DeviceLost(msgspec.Struct, frozen=True, tag="device-lost"):
    """The broker published a device's will, the device said goodbye, or it was silent for too
    long."""

    at_s: float
    device_id: str


class UpdateAdmitted(msgspec.Struct, frozen=True, tag="update-admitted"):
    """An update passed admission and its bytes are safe in the blob store."""

    at_s: float
    device_id: str
    round: int
    update: Received
    placed: Placed | None = None
    """Where the device belongs by what it tells of its inputs, when the run is over."""


class DeviceDeclined(msgspec.Struct, frozen=True, tag="device-declined"):
    """A device does not carry out its plan of this round, or its update was refused for what it
    holds: it is not waited for. `failed`: whether it is asked less often from now on; `forbidden`:
    whether its owner does not permit it; `again`: whether what it failed at may pass by itself,
    such as a full disk."""

    at_s: float
    device_id: str
    round: int
    failed: bool = True
    forbidden: bool = False
    again: bool = False


class DeadlinePassed(msgspec.Struct, frozen=True, tag="deadline-passed"):
    """The time that was set for a round is over."""

    at_s: float
    round: int


class RoundAggregated(msgspec.Struct, frozen=True, tag="round-aggregated"):
    """The algorithm was applied; new models and memory are safe. `starts` names the model that each
    device trains from next, `programs` the verbs that it carries out then."""

    at_s: float
    round: int
    models: dict[str, Digest]
    memory: Digest
    starts: dict[str, str]
    programs: dict[str, tuple[Verb, ...]]
    preparing: bool = False
    views: MaybeDigest = ""
    notes: dict[str, Any] = {}
    norms: dict[str, float] = {}
    """The field of `RunState` after the round."""
    left_out: tuple[str, ...] = ()
    """The devices whose updates were not within bounds."""
    made_in: int | None = None
    """The round that made the models, where they are earlier ones."""
    distances: dict[str, float] = {}
    """By role, how far the models are from those before."""
    placed: dict[str, Placed] = {}
    """The field of `RunState` after the round."""


class UpdatesLost(msgspec.Struct, frozen=True, tag="updates-lost"):
    """Updates of this round that were safe are not any more: the devices are asked for them
    again."""

    at_s: float
    round: int
    device_ids: tuple[str, ...]


class EligibilityChanged(msgspec.Struct, frozen=True, tag="eligibility-changed"):
    """Of these devices is known anew whether they are asked for anything. None of them is barred
    any longer."""

    at_s: float
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


class DeviceBarred(msgspec.Struct, frozen=True, tag="device-barred"):
    """A device was banned: what it sent for the open round does not count, and it is asked for
    nothing."""

    at_s: float
    device_id: str


class DeviceForgotten(msgspec.Struct, frozen=True, tag="device-forgotten"):
    """Nothing of a device is to remain. `memories`: by the digest of each memory of the algorithm
    that the run names, the digest of the same without the device. `own`: the models that were made
    of its updates alone."""

    at_s: float
    device_id: str
    memories: dict[Digest, Digest]
    own: tuple[Digest, ...] = ()


class Says(msgspec.Struct, frozen=True):
    """What a device holds, and what its owner lets it say, as it told when it checked in with any
    run of the fleet."""

    held: tuple[str, ...] | None
    """As `CheckIn.kept`; None also where the device has chosen since."""
    withholds: bool
    """Whether its owner does not let it say what it keeps, and why (`Policy.withholds`)."""
    min_windows: int
    """Minimum number of windows behind all that it reports (`Policy.min_windows`)."""


class KeptChanged(msgspec.Struct, frozen=True, tag="kept-changed"):
    """By device, what it says, where that takes back something that this run has been told."""

    at_s: float
    devices: dict[str, Says]


class RolledBack(msgspec.Struct, frozen=True, tag="rolled-back"):
    """The operator returns to the models that the round `to` made, if they are remembered.
    `programs`: what devices do with them, by the settings that the run has now; None: as then."""

    at_s: float
    to: int
    programs: dict[str, tuple[Verb, ...]] | None = None


class Retuned(msgspec.Struct, frozen=True, tag="retuned"):
    """The operator has given the run other settings. `programs`: what devices do with them, if a
    round is opened because of it."""

    at_s: float
    settings: RunSettings
    programs: dict[str, tuple[Verb, ...]]


class Aborted(msgspec.Struct, frozen=True, tag="aborted"):
    """The operator ends the campaign where it stands."""

    at_s: float


Event = (
    Started
    | Resumed
    | DeviceCheckedIn
    | KeptChanged
    | EligibilityChanged
    | DeviceBarred
    | DeviceForgotten
    | DeviceHeard
    | DeviceLost
    | UpdateAdmitted
    | DeviceDeclined
    | DeadlinePassed
    | RoundAggregated
    | UpdatesLost
    | RolledBack
    | Retuned
    | Aborted
)


# Commands: what the runner is to do now. Each may be carried out again after a crash.


class SendPlan(msgspec.Struct, frozen=True):
    """Publish a device's plan, and the blobs it names."""

    plan: Plan


class SetDeadline(msgspec.Struct, frozen=True):
    """Report `DeadlinePassed` for this round at this time."""

    round: int
    at_s: float


class Aggregate(msgspec.Struct, frozen=True):
    """Apply the algorithm to the updates received in this round, then report `RoundAggregated`."""

    round: int


class FinishRun(msgspec.Struct, frozen=True):
    """Tell a device that the run is over and which model is its own."""

    device_id: str
    model: Digest
    gives: bool = True
    """Whether the device is to use that model; a run that was aborted leaves devices with what they
    have."""


Command = SendPlan | SetDeadline | Acknowledge | Aggregate | FinishRun
