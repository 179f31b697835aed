"""Settings of a campaign: its training, its rounds and its admission.

Each field has its bounds and its help text (`host.settings`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from host.settings import LARGEST, YEAR_S, about
from wire.errors import ConfigError
from wire.messages import Encoding

A = TypeVar("A")
SAME_DEVICES = "in secret mode the same devices train in every round"
"""Reason that secret mode allows one value alone of a setting that chooses devices."""


class TrainingSettings(msgspec.Struct, Generic[A], frozen=True):
    """Settings of training, in a service and in a simulation."""

    algorithm: A
    """Name of the algorithm, or its parsed form."""
    rounds: Annotated[int, about("Rounds of training.", live=True, ge=1, le=LARGEST)] = 20
    patience: Annotated[
        int,
        about(
            "Rounds without a better mean accuracy after which training ends; 0: no limit.",
            live=True,
            ge=0,
            le=LARGEST,
        ),
    ] = 0
    min_delta: Annotated[
        float,
        about(
            "Minimum improvement over the best accuracy (fraction) that counts as better.",
            live=True,
            ge=0,
            le=1,
        ),
    ] = 0.0
    local_epochs: Annotated[
        int,
        about(
            "Passes over a device's windows in each round.",
            live=True,
            epsilon=True,
            ge=1,
            le=1000,
        ),
    ] = 1
    batch_size: Annotated[
        int, about("Windows in a batch.", live=True, epsilon=True, ge=2, le=4096)
    ] = 32
    hyper: Annotated[
        dict[str, float],
        about(
            "NAME=VALUE in place of the objective's own, e.g. momentum=0; may be repeated.",
            live=True,
            epsilon=True,
        ),
    ] = {}
    lr_schedule: Annotated[
        str,
        about(
            "Learning rate over rounds: constant, step:every=10, exponential:factor=0.95, "
            "cosine:warmup=3.",
            live=True,
            epsilon=True,
            max_length=200,
        ),
    ] = ""
    seed: Annotated[int, about("Seed: the same seed gives the same result.", ge=0)] = 0
    update_encoding: Annotated[
        Encoding,
        about(
            "Encoding of updates: float32, or int8 (a quarter of the bytes) on devices that "
            "support it.",
            live=True,
        ),
    ] = "float32"
    secret: Annotated[
        bool,
        about("Secret mode: the server learns only sums over devices (docs/secret.md)."),
    ] = False
    min_sum: Annotated[
        int, about("Minimum number of devices of a sum in secret mode.", ge=2, le=LARGEST)
    ] = 5


def check_fixed(settings: TrainingSettings[Any], others: Mapping[str, tuple[object, str]]) -> None:
    """Raise ConfigError if a setting has another value than the one that secret mode allows.

    `others` are settings beside those of every run: the value of each, and the reason.
    """
    integers = "in secret mode devices send integers of its own"
    usual = {"cohort": (0, SAME_DEVICES), "update_encoding": ("float32", integers)}
    for name, (value, reason) in {**usual, **others}.items():
        if (got := getattr(settings, name)) != value:
            allowed = "left out" if value == "" else value
            raise ConfigError(f"{name} must be {allowed}, got {got}: {reason}")


class RoundSettings(TrainingSettings[A], Generic[A], frozen=True, kw_only=True):
    """Settings of a campaign's rounds: which devices take part, when, and for how long."""

    days: Annotated[
        float,
        about(
            "Days after the start in which rounds are opened; 0: no limit.",
            live=True,
            ge=0,
            le=36_600,
        ),
    ] = 0.0
    min_devices: Annotated[
        int,
        about(
            "Minimum number of devices of a round, when it opens and when it is aggregated.",
            live=True,
            ge=1,
            le=LARGEST,
        ),
    ] = 2
    deadline_s: Annotated[
        float, about("Time limit of a round, in seconds.", unit="s", live=True, ge=1, le=YEAR_S)
    ] = 600.0
    grace_s: Annotated[
        float,
        about(
            "Seconds that a round waits for a lost device.", unit="s", live=True, ge=0, le=YEAR_S
        ),
    ] = 60.0
    where: Annotated[
        str,
        about(
            "Rule that selects devices, such as 'battery >= 50 and not metered' "
            "(docs/who-trains.md).",
            live=True,
            max_length=1000,
        ),
    ] = ""
    cohort: Annotated[
        int,
        about(
            "Updates that complete a round; 0: one of every device with an assignment.",
            live=True,
            ge=0,
            le=LARGEST,
        ),
    ] = 0
    over_select: Annotated[
        float,
        about("Devices that get an assignment, per update of the cohort.", live=True, ge=1, le=10),
    ] = 1.0
    buffer: Annotated[
        int,
        about(
            "Updates per aggregation of a buffered campaign; 0: it is not buffered.",
            live=True,
            option="",
            ge=0,
            le=LARGEST,
        ),
    ] = 0
    concurrency: Annotated[
        int,
        about(
            "Devices at work at any time in a buffered campaign; 0: half of those online.",
            live=True,
            option="",
            ge=0,
            le=LARGEST,
        ),
    ] = 0
    quorum: Annotated[
        float,
        about(
            "Minimum share of a round's updates with which it is aggregated.",
            live=True,
            ge=0,
            le=1,
        ),
    ] = 0.0
    pace_s: Annotated[
        float,
        about(
            "Seconds between two rounds of the same device.",
            unit="s",
            live=True,
            ge=0,
            le=YEAR_S,
        ),
    ] = 0.0
    hours: Annotated[
        str,
        about(
            "Hours in which devices train, such as `22:00-06:00 Europe/Berlin`; empty: any.",
            live=True,
            option="",
            max_length=100,
        ),
    ] = ""
    when: Annotated[
        str,
        about(
            "Begin when a share of the devices say that their recordings no longer fit: drift, or "
            "drift:share=0.2; at once when empty.",
            max_length=50,
        ),
    ] = ""


class AdmissionSettings(RoundSettings[A], Generic[A], frozen=True, kw_only=True):
    """Settings of admission, and of the models that are stored."""

    min_group: Annotated[
        int,
        about(
            "Minimum number of updates of a group with which its model changes.",
            live=True,
            ge=0,
            le=LARGEST,
        ),
    ] = 2
    weight_cap: Annotated[
        float,
        about(
            "Maximum weight of a device, in multiples of the median; 0: no bound.",
            live=True,
            ge=0,
            le=1e6,
        ),
    ] = 10.0
    norm_cap: Annotated[
        float,
        about(
            "Maximum norm of an update that counts, and of a new model's distance from the last, "
            "in multiples of the median; 0: no bound.",
            live=True,
            ge=0,
            le=1e6,
        ),
    ] = 10.0
    max_update_norm: Annotated[
        float,
        about(
            "Maximum norm of an update's change; a larger one is refused.",
            live=True,
            option="max_norm",
            ge=0,
            le=1e12,
        ),
    ] = 1e6
    max_drop: Annotated[
        float,
        about(
            "Maximum fall of the mean accuracy (fraction); models that lower it by more are "
            "discarded; 1: never.",
            live=True,
            ge=0,
            le=1,
        ),
    ] = 0.3
    keep_models: Annotated[
        int,
        about("Number of last rounds to whose models one can return.", live=True, ge=0, le=LARGEST),
    ] = 3
