"""What a run goes by; frozen and serialisable."""

from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

import msgspec

from algorithms.schedules import check_schedule
from wire.bundle import Bundle, Layout, Manifest
from wire.errors import ConfigError
from wire.messages import Digest, Encoding, Name

Least0 = Annotated[int, msgspec.Meta(ge=0)]
Least1 = Annotated[int, msgspec.Meta(ge=1)]
Bound = Annotated[float, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Times = Annotated[float, msgspec.Meta(ge=1)]

A = TypeVar("A")
B = TypeVar("B", bound="NamedAlgorithm")


class NamedAlgorithm(Protocol):
    """An algorithm as `RunSettings.for_bundle` reads it; ``str`` is its name."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of what devices choose from when a run is over; empty where they do not
        choose."""

    def hyper_with(self, given: Mapping[str, float]) -> dict[str, float]:
        """The hyper-parameters of a run: those in the name, and those that were given besides,
        which take their place."""


class TrainingSettings(msgspec.Struct, Generic[A], frozen=True):
    """What a run trains, however it is run: as a service or as a simulation."""

    algorithm: A
    """The algorithm: its name, or what was read of it."""
    rounds: Least1 = 20
    """Rounds of training; an algorithm may need preparations before them."""
    local_epochs: Least1 = 1
    """Times that a device goes through its own windows in a round."""
    seed: int = 0
    batch_size: Least1 = 32
    hyper: dict[str, float] = {}
    """Hyper-parameters in place of the objective's own."""
    lr_schedule: str = ""
    """What share of the learning rate devices train with in each round (`algorithms.schedules`);
    empty: all of it."""
    update_encoding: Encoding = "float32"
    """In what devices send their changes; those that cannot do it send float32."""
    patience: Least0 = 0
    """Training ends when the mean accuracy has not got better for so many rounds
    (`aggregator.core.budget`); 0: it does not matter."""
    min_delta: Fraction = 0.0
    """By how much more than the best it has to be, as a fraction, to count as better."""


Ended = Literal["", "rounds", "days", "patience", "order"]
"""Why no further round of training is opened: a budget that is spent (`aggregator.core.budget`), or
the operator's order."""
TRAINING = ("local_epochs", "batch_size", "hyper", "lr_schedule")
"""The fields of `RunSettings` that shape what devices do in a round."""
RETUNABLE = (
    *TRAINING,
    *(
        "rounds",
        "days",
        "patience",
        "min_delta",
        "min_devices",
        "deadline_s",
        "grace_s",
        "max_update_norm",
        "min_updates",
        "min_group",
    ),
    *("weight_cap", "norm_cap", "max_drop", "keep_models"),
    *("where", "cohort", "over_select", "buffer", "concurrency", "quorum", "pace_s", "hours"),
    "update_encoding",
)
"""The fields of `RunSettings` that may change while the run goes on. Of the algorithm, the mean
may."""


class RunSettings(TrainingSettings[str], frozen=True, kw_only=True):
    """What a run goes by: all that the round core knows of it."""

    run_id: Name
    """128 random bits in the field: two runs of one name are two runs."""
    name: Name = "run-1"
    """What people call the run; its place in the store."""
    data: str
    """The data's name, for people."""
    bundle: Digest
    min_devices: Least1
    """Round 1 opens when so many devices are online."""
    deadline_s: Seconds
    """Seconds for which a round is open at most."""
    grace_s: Seconds
    """Seconds for which a round waits for a device that was lost."""
    reported: dict[str, Layout]
    """By graph: what an update must carry that reports a training with it."""
    responses: dict[str, Layout]
    """By graph: what an update must carry when it was evaluated or applied."""
    min_batch: Least0 = 0
    """A device with fewer windows to train on cannot train (the bundle's `min_batch`); 0: all are
    asked to."""
    needs_labels: bool = True
    """Whether windows without labels are of no use to training (the bundle's task)."""
    candidates: tuple[str, ...] = ()
    """The names of what devices choose from when the run is over
    (`algorithms.personalisation.kept`); empty where they do not choose."""
    days: Bound = 0.0
    """No round of training is opened so many days after the start; 0: at any time."""
    max_update_norm: Bound = 1e6
    """An update whose change has a larger Euclidean norm is refused."""
    min_updates: Least0 = 1
    """No round of training is aggregated with fewer updates."""
    min_group: Least0 = 1
    """A group's model changes only if so many devices of it were counted; else the last one
    stays."""
    weight_cap: Bound = 0.0
    """A device weighs at most so many times the median of its round's devices; 0: as much as it
    says."""
    norm_cap: Bound = 0.0
    """An update is left out whose change, statistics or responses have a norm of more than so many
    times the median of its round's; 0: none is. A new model is set aside whose distance from the
    last is more than so many times the usual one."""
    max_drop: Fraction = 1.0
    """A round's models are given up if the mean accuracy of devices that also evaluated earlier
    ones fell by more than this; 1: never."""
    keep_models: Least0 = 0
    """Of so many of the last rounds the models are remembered."""
    where: str = ""
    """Which devices are asked at all (`aggregator.core.eligibility`); empty: every one."""
    cohort: Least0 = 0
    """A round of training is over with so many updates; 0: with one of every device that it
    asked."""
    over_select: Times = 1.0
    """A round asks so many times `cohort` devices."""
    buffer: Least0 = 0
    """In a buffered run (`aggregator.core.round.flights`) a round is over with so many updates, of
    whichever round; 0: it is none."""
    concurrency: Least0 = 0
    """In a buffered run so many devices work at any time; 0: half of those that are there."""
    quorum: Fraction = 0.0
    """No round of training is aggregated with fewer updates than this share of `cohort`, or of the
    devices asked where that is 0."""
    pace_s: Seconds = 0.0
    """A device is asked for at most one round of training in so many seconds."""
    hours: str = ""
    """When devices are asked (`aggregator.core.hours`); empty: at any time."""

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
        """The settings of a run that trains with this bundle. Of `training` only the fields of
        `TrainingSettings` are read; of the algorithm its name, ``str(training.algorithm)``, its
        candidates, and the hyper-parameters in it. `others`: further fields.

        Raises:
            ConfigError: the bundle has no hyper-parameter of a name in `training.hyper`, or the
            objective cannot have its value.
        """
        manifest, hyper = bundle.manifest, training.algorithm.hyper_with(training.hyper)
        if unknown := sorted(hyper.keys() - manifest.hyper.keys()):
            raise ConfigError(
                f"hyper-parameter {unknown[0]!r} (--hyper): {manifest.algorithm} has "
                f"{', '.join(sorted(manifest.hyper))}"
            )
        check_schedule(training.lr_schedule, training.rounds)
        return cls(
            **{
                name: getattr(training, name)
                for name in TrainingSettings.__struct_fields__
                if name not in ("algorithm", "hyper")
            },
            algorithm=str(training.algorithm),
            candidates=training.algorithm.candidates,
            hyper=with_rate(hyper, training.lr_schedule, manifest),
            run_id=run_id,
            data=data,
            bundle=bundle.digest,
            min_batch=manifest.min_batch,
            needs_labels=manifest.needs_labels,
            min_devices=min_devices,
            deadline_s=deadline_s,
            grace_s=grace_s,
            reported={graph: manifest.reported(graph) for graph in manifest.graphs},
            responses={graph: manifest.responses(graph) for graph in manifest.graphs},
            **others,
        )


def with_rate(hyper: Mapping[str, float], schedule: str, manifest: Manifest) -> dict[str, float]:
    """The hyper-parameters of a run with such a schedule, the learning rate that it is about always
    among them.

    Raises:
        ConfigError: there is none.
    """
    if not schedule or "lr" in hyper:
        return dict(hyper)
    if "lr" not in manifest.hyper:
        raise ConfigError(
            f"learning rate schedule {schedule!r}: {manifest.algorithm} has no hyper-parameter 'lr'"
        )
    return {**hyper, "lr": manifest.hyper["lr"]}
