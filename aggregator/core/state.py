"""The state of a run, the events that change it and the commands that follow; frozen, serialisable, without tensors or time.

Tensors lie in the blob store; state and events name them by digest.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from wire.bundle import Bundle, Layout
from wire.errors import ConfigError
from wire.messages import Digest, MaybeDigest, Metrics, Name, Plan, Verb

Phase = Literal["waiting", "preparing", "training", "aggregating", "evaluating", "finished"]


class RunSettings(msgspec.Struct, frozen=True):
    """What a run was started with. `algorithm` names the algorithm, its options included; everything else is the round's business.

    `rounds` are rounds of training; an algorithm may need preparations before them. A round is open for at most `deadline_s` seconds; a
    device that is lost meanwhile is waited for `grace_s` seconds.
    """

    run_id: Name
    algorithm: str
    data: str
    bundle: Digest
    rounds: int
    min_devices: int
    deadline_s: float
    grace_s: float
    seed: int
    local_epochs: int
    batch_size: int
    reported: dict[str, Layout]
    """By graph: what an update must carry that reports a training with it."""
    responses: dict[str, Layout]
    """By graph: what an update must carry when it was evaluated or applied."""
    hyper: dict[str, float] = {}
    max_update_norm: float = 1e6

    @classmethod
    def for_bundle(cls, bundle: Bundle, *, hyper: Mapping[str, float], **others: Any) -> "RunSettings":
        """Settings with everything that follows from the bundle; `hyper` takes the place of the bundle's own values.

        Raises:
            ConfigError: the bundle has no such hyper-parameter.
        """
        manifest = bundle.manifest
        if unknown := sorted(hyper.keys() - manifest.hyper.keys()):
            raise ConfigError(f"hyper-parameter {unknown[0]!r}: {manifest.algorithm} has {', '.join(sorted(manifest.hyper))}")
        return cls(
            bundle=bundle.digest,
            reported={graph: manifest.reported(graph) for graph in manifest.graphs},
            responses={graph: manifest.responses(graph) for graph in manifest.graphs},
            hyper=dict(hyper),
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


class Received(msgspec.Struct, frozen=True):
    """An admitted update. `start` is the key of the model it started from, `model` that model's digest."""

    blob: Digest
    start: str
    num_train: int
    num_steps: int
    evaluated: Metrics
    trained: Metrics
    bytes_up: int
    bytes_down: int


class RunState(msgspec.Struct, frozen=True):
    """Everything about a run but the tensors. `models` maps a group (or `initial`) to its model's digest."""

    settings: RunSettings
    phase: Phase = "waiting"
    round: int = 0
    devices: dict[str, Device] = {}
    models: dict[str, Digest] = {}
    starts: dict[str, str] = {}
    programs: dict[str, tuple[Verb, ...]] = {}
    """What devices do in the next round (`algorithms.contract.Programs`), and, under ``closing``, after the last."""
    preparing: bool = False
    """Whether the next round is a preparation."""
    trained: int = 0
    """Rounds of training that are over."""
    memory: MaybeDigest = ""
    cohort: dict[str, str] = {}
    received: dict[str, Received] = {}
    deadline_at_s: float = 0.0
    opened_at_s: float = 0.0


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


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """The aggregator came up again: whatever was commanded may have been lost."""

    at_s: float


class DeviceCheckedIn(msgspec.Struct, frozen=True, tag="device-checked-in"):
    """A device is there; also after every reconnect."""

    at_s: float
    device_id: str
    num_train: int
    num_test: int
    runtime: str = ""
    bundle: str = ""


class DeviceLost(msgspec.Struct, frozen=True, tag="device-lost"):
    """The broker published a device's will, or the device said goodbye."""

    at_s: float
    device_id: str


class UpdateAdmitted(msgspec.Struct, frozen=True, tag="update-admitted"):
    """An update passed admission and its bytes are safe in the blob store."""

    at_s: float
    device_id: str
    round: int
    update: Received


class DeviceDeclined(msgspec.Struct, frozen=True, tag="device-declined"):
    """A device cannot carry out its plan of this round, or its update was refused for what it holds: it is not waited for."""

    at_s: float
    device_id: str
    round: int


class DeadlinePassed(msgspec.Struct, frozen=True, tag="deadline-passed"):
    """The time that was set for a round is over."""

    at_s: float
    round: int


class RoundAggregated(msgspec.Struct, frozen=True, tag="round-aggregated"):
    """The algorithm was applied; new models and memory are safe. `starts` says what each device trains from next, `programs` what it
    does."""

    at_s: float
    round: int
    models: dict[str, Digest]
    memory: Digest
    starts: dict[str, str]
    programs: dict[str, tuple[Verb, ...]]
    preparing: bool = False
    views: MaybeDigest = ""
    notes: dict[str, Any] = {}


Event = Started | Resumed | DeviceCheckedIn | DeviceLost | UpdateAdmitted | DeviceDeclined | DeadlinePassed | RoundAggregated


# Commands: what to do now. Each may be performed again after a crash.


class SendPlan(msgspec.Struct, frozen=True):
    """Publish a device's plan, and the blobs it names."""

    plan: Plan


class SetDeadline(msgspec.Struct, frozen=True):
    """Report `DeadlinePassed` for this round at this time."""

    round: int
    at_s: float


class Acknowledge(msgspec.Struct, frozen=True):
    """Tell a device that its update is safe."""

    device_id: str
    round: int


class Aggregate(msgspec.Struct, frozen=True):
    """Apply the algorithm to the updates received in this round, then report `RoundAggregated`."""

    round: int


class FinishRun(msgspec.Struct, frozen=True):
    """Tell a device that the run is over and which model is its own."""

    device_id: str
    model: Digest


Command = SendPlan | SetDeadline | Acknowledge | Aggregate | FinishRun
