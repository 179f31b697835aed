"""The state of a run, the events that change it and the commands that follow; frozen, serialisable, without tensors or time.

Tensors lie in the blob store; state and events name them by digest.
"""

from collections.abc import Mapping
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
from immutables import Map

from wire.bundle import Bundle, Layout
from wire.errors import ConfigError
from wire.messages import Digest, MaybeDigest, Metrics, Name, Plan, Verb

A = TypeVar("A")
B = TypeVar("B", bound="NamedAlgorithm")

OpenPhase = Literal["preparing", "training", "evaluating"]
"""A phase in which devices work on plans and updates are awaited."""
Phase = Literal["waiting", OpenPhase, "aggregating", "finished"]


class NamedAlgorithm(Protocol):
    """An algorithm as `RunSettings.for_bundle` reads it; ``str`` is its name."""

    def hyper_with(self, given: Mapping[str, float]) -> dict[str, float]:
        """The hyper-parameters of a run: those in the name, and those that were given besides, which take their place."""


class TrainingSettings(msgspec.Struct, Generic[A], frozen=True):
    """What a run trains, however it is run: as a service or as a simulation."""

    algorithm: A
    """The algorithm: its name, or what was read of it."""
    rounds: int = 20
    """Rounds of training; an algorithm may need preparations before them."""
    local_epochs: int = 1
    """Times that a device goes through its own windows in a round."""
    seed: int = 0
    batch_size: int = 32
    hyper: dict[str, float] = {}
    """Hyper-parameters in place of the objective's own."""


class RunSettings(TrainingSettings[str], frozen=True, kw_only=True):
    """What a run was started with: all that the round core knows of it."""

    run_id: Name
    """128 random bits in the field: two runs of one name are two runs."""
    name: Name = "run-1"
    """What people call the run; its place in the store."""
    data: str
    """The data's name, for people."""
    bundle: Digest
    min_devices: int
    """Round 1 opens when so many devices are online."""
    deadline_s: float
    """Seconds for which a round is open at most."""
    grace_s: float
    """Seconds for which a round waits for a device that was lost."""
    reported: dict[str, Layout]
    """By graph: what an update must carry that reports a training with it."""
    responses: dict[str, Layout]
    """By graph: what an update must carry when it was evaluated or applied."""
    max_update_norm: float = 1e6
    """An update whose change has a larger Euclidean norm is refused."""
    min_updates: int = 1
    """No round of training is aggregated with fewer updates."""
    min_group: int = 1
    """A group's model changes only if so many devices of it were counted; else the last one stays."""
    weight_cap: float = 0.0
    """A device weighs at most so many times the median of its round's devices; 0: as much as it says."""
    norm_cap: float = 0.0
    """An update is left out whose change, statistics or responses have a norm of more than so many times the median of its round's; 0:
    none is. A new model is set aside whose distance from the last is more than so many times the usual one."""
    max_drop: float = 1.0
    """A round's models are given up if the mean accuracy of devices that also evaluated earlier ones fell by more than this; 1: never."""
    keep_models: int = 0
    """Of so many of the last rounds the models are remembered."""

    @classmethod
    def for_bundle(
        cls,
        bundle: Bundle,
        training: TrainingSettings[B],
        *,
        run_id: Name,
        data: str,
        min_devices: int,
        deadline_s: float,
        grace_s: float,
        **others: Any,
    ) -> "RunSettings":
        """The settings of a run that trains with this bundle. Of `training` only the fields of `TrainingSettings` are read; of
        the algorithm its name, ``str(training.algorithm)``, and the hyper-parameters in it. `others`: further fields.

        Raises:
            ConfigError: the bundle has no hyper-parameter of a name in `training.hyper`, or the objective cannot have its value.
        """
        manifest, hyper = bundle.manifest, training.algorithm.hyper_with(training.hyper)
        if unknown := sorted(hyper.keys() - manifest.hyper.keys()):
            raise ConfigError(f"hyper-parameter {unknown[0]!r} (--hyper): {manifest.algorithm} has {', '.join(sorted(manifest.hyper))}")
        return cls(
            **{name: getattr(training, name) for name in TrainingSettings.__struct_fields__ if name not in ("algorithm", "hyper")},
            algorithm=str(training.algorithm),
            hyper=hyper,
            run_id=run_id,
            data=data,
            bundle=bundle.digest,
            min_devices=min_devices,
            deadline_s=deadline_s,
            grace_s=grace_s,
            reported={graph: manifest.reported(graph) for graph in manifest.graphs},
            responses={graph: manifest.responses(graph) for graph in manifest.graphs},
            **others,
        )


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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a device's update adds to the record of its round."""

    evaluated: Metrics
    """Of the model that the device received."""
    trained: Metrics
    """Summed over its training steps."""
    bytes_up: int
    bytes_down: int


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
    epoch: int = 0
    """Which start of the service this is: greater than any before it."""
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
    """How many of them are online."""
    models: dict[str, Digest] = {}
    """By key (a group's number or `initial`), the model that devices with this key start from."""
    starts: dict[str, str] = {}
    """By device, the key of the model that it starts from next; under the empty id that of a device that is not named."""
    programs: dict[str, tuple[Verb, ...]] = {}
    """What devices do in the next round (`algorithms.core.contract.Programs`), and, under ``closing``, after the last."""
    preparing: bool = False
    """Whether the next round is a preparation."""
    trained: int = 0
    """Rounds of training that are over."""
    memory: MaybeDigest = ""
    """What the algorithm remembers from round to round."""
    cohort: dict[str, str] = {}
    """The devices of the latest round, and the key of the model that each started from."""
    received: dict[str, Received] = {}
    """Their admitted updates, in the order of arrival."""
    deadline_at_s: float = 0.0
    opened_at_s: float = 0.0
    veterans: bool = False
    """Whether an update of a device of the cohort was accepted in an earlier round."""
    newcomers_until_s: float = 0.0
    """Until when the round waits for devices that have never been counted; 0 as long as it also waits for others."""
    norms: dict[str, float] = {}
    """By role, the median norm of the updates of the latest aggregated round."""
    made_in: int = 0
    """The round that made `models`; 0: the run began with them."""
    made_by: tuple[str, ...] = ()
    """The devices whose updates they were made of."""
    history: tuple[ModelVersion, ...] = ()
    """The last `keep_models` versions that devices have met, by round."""
    distances: tuple[dict[str, float], ...] = ()
    """Of the last rounds, by role, how far the new models were from those before."""


def encode_state(state: RunState) -> bytes:
    """A state as JSON."""
    return msgspec.json.encode(state, enc_hook=dict)


def decode_state(payload: bytes) -> RunState:
    """The state that `encode_state` wrote.

    Raises:
        msgspec.MsgspecError: it is not one.
    """
    return msgspec.json.decode(payload, type=RunState, dec_hook=lambda _, devices: Map(msgspec.convert(devices, dict[str, Device])))


# Events: what happened. Time arrives inside them.


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The run begins, with the first models and the algorithm's first memory; `starts` as in `RoundAggregated`."""

    at_s: float
    settings: RunSettings
    models: dict[str, Digest]
    memory: Digest
    programs: dict[str, tuple[Verb, ...]]
    preparing: bool = False
    starts: dict[str, str] = {}
    epoch: int = 1


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """The aggregator speaks with a new epoch, for instance after a restart: whatever was commanded may have been lost."""

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


class DeviceHeard(msgspec.Struct, frozen=True, tag="device-heard"):
    """A device that was taken for absent showed that it is there."""

    at_s: float
    device_id: str


class DeviceLost(msgspec.Struct, frozen=True, tag="device-lost"):
    """The broker published a device's will, the device said goodbye, or it was silent for too long."""

    at_s: float
    device_id: str


class UpdateAdmitted(msgspec.Struct, frozen=True, tag="update-admitted"):
    """An update passed admission and its bytes are safe in the blob store."""

    at_s: float
    device_id: str
    round: int
    update: Received


class DeviceDeclined(msgspec.Struct, frozen=True, tag="device-declined"):
    """A device does not carry out its plan of this round, or its update was refused for what it holds: it is not waited for. `failed`:
    whether it is asked less often from now on."""

    at_s: float
    device_id: str
    round: int
    failed: bool = True


class DeadlinePassed(msgspec.Struct, frozen=True, tag="deadline-passed"):
    """The time that was set for a round is over."""

    at_s: float
    round: int


class RoundAggregated(msgspec.Struct, frozen=True, tag="round-aggregated"):
    """The algorithm was applied; new models and memory are safe. `starts` names the model that each device trains from next, `programs`
    the verbs that it carries out then."""

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
    """As in `RunState`."""
    left_out: tuple[str, ...] = ()
    """The devices whose updates were not within bounds."""
    made_in: int | None = None
    """The round that made the models, where they are earlier ones."""
    distances: dict[str, float] = {}
    """By role, how far the models are from those before."""


class RolledBack(msgspec.Struct, frozen=True, tag="rolled-back"):
    """The operator returns to the models that the round `to` made, if they are remembered."""

    at_s: float
    to: int


class UpdatesLost(msgspec.Struct, frozen=True, tag="updates-lost"):
    """Updates of this round that were safe are not any more: the devices are asked for them again."""

    at_s: float
    round: int
    device_ids: tuple[str, ...]


Event = (
    Started
    | Resumed
    | DeviceCheckedIn
    | DeviceHeard
    | DeviceLost
    | UpdateAdmitted
    | DeviceDeclined
    | DeadlinePassed
    | RoundAggregated
    | UpdatesLost
    | RolledBack
)


# Commands: what the runner is to do now. Each may be carried out again after a crash.


class SendPlan(msgspec.Struct, frozen=True):
    """Publish a device's plan, and the blobs it names."""

    plan: Plan


class SetDeadline(msgspec.Struct, frozen=True):
    """Report `DeadlinePassed` for this round at this time."""

    round: int
    at_s: float


class Acknowledge(msgspec.Struct, frozen=True):
    """Tell a device that its update, by digest, is safe."""

    device_id: str
    update: Digest


class Aggregate(msgspec.Struct, frozen=True):
    """Apply the algorithm to the updates received in this round, then report `RoundAggregated`."""

    round: int


class FinishRun(msgspec.Struct, frozen=True):
    """Tell a device that the run is over and which model is its own."""

    device_id: str
    model: Digest


Command = SendPlan | SetDeadline | Acknowledge | Aggregate | FinishRun
