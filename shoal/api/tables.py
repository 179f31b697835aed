"""Measurements of a run, as plain records and as pandas tables."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from aggregator.view.round_record import OpenPhase, RoundRecord
from aggregator.view.summary import accuracy_of, count_groups, group_number, spread
from wire.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Evaluation:
    """One device's test of one model on its own test windows."""

    device: str
    round: int
    """Number of rounds of training behind the model."""
    group: int | None
    """Group of the device at that time; None before it has one."""
    accuracy: float
    loss: float
    """Mean loss of the task over the test windows: for classes the cross-entropy."""
    num_test: int
    final: bool
    """True if the run was over, so that the model is the device's personal model.

    Before, it is the model that the device was served.
    """


@dataclass(frozen=True)
class RoundMetrics:
    """A finished round."""

    round: int
    """Number of rounds of training so far, including this one."""
    phase: OpenPhase
    """Phase of the round: ``preparing``, ``training``, or ``evaluating`` after the last one.

    In ``evaluating``, devices test their personal models.
    """
    evaluated: int
    """Number of rounds of training behind the models that devices tested in this round.

    Devices receive and test them before they train.
    """
    accuracy_mean: float | None
    """Mean over devices; None if no device has test windows. The next two likewise."""
    accuracy_worst: float | None
    accuracy_worst_tenth: float | None
    test_loss: float | None
    """Mean over devices of the task's loss on their test windows, for the same models.

    None if no device has test windows, or if it is not finite.
    """
    loss: float | None
    """Mean over the batches of all devices' training; None if no device trained."""
    groups: int
    """Number of groups after the round."""
    bytes_up: int
    bytes_down: int

    def numbers(self) -> dict[str, float]:
        """Return the measured numbers by name of their field, without those that are None."""
        return {
            name: value
            for name, value in asdict(self).items()
            if isinstance(value, int | float) and name not in ("round", "evaluated")
        }


def round_metrics(records: Sequence[RoundRecord]) -> tuple[RoundMetrics, ...]:
    """Return every round of a run, in order."""
    metrics, trained = [], 0
    for record in records:
        before, trained = trained, trained + (record.phase == "training")
        accuracy, batches = spread(accuracy_of(record).values()), record.trained
        loss = batches.loss_sum / batches.num_examples if batches.num_examples else None
        losses = [record.evaluated[device_id].mean_loss for device_id in accuracy_of(record)]
        test_loss = fmean(losses) if losses else math.nan
        metrics.append(
            RoundMetrics(
                trained,
                record.phase,
                before,
                accuracy.mean,
                accuracy.worst,
                accuracy.worst_tenth,
                test_loss if math.isfinite(test_loss) else None,
                loss,
                count_groups(record.groups),
                record.bytes_up,
                record.bytes_down,
            )
        )
    return tuple(metrics)


def evaluations(records: Sequence[RoundRecord]) -> list[Evaluation]:
    """Return every test of a served or a personal model, by round and device.

    Tests in preparations are left out.
    """
    tests = list[Evaluation]()
    groups: Mapping[str, str] = {}
    trained = 0
    for record in records:
        final = record.phase == "evaluating"
        if record.phase != "preparing":
            for device_id in accuracy_of(record):
                met = record.evaluated[device_id]
                group = group_number(groups.get(device_id))
                tests.append(
                    Evaluation(
                        device_id,
                        trained,
                        group,
                        met.accuracy,
                        met.mean_loss,
                        met.num_examples,
                        final,
                    )
                )
        trained, groups = trained + (record.phase == "training"), record.groups
    return tests


def to_frame(rows: Iterable[object], columns: Sequence[str]) -> "pd.DataFrame":
    """Return dataclasses or dictionaries as a table, a row each.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ConfigError(
            "a DataFrame needs the package pandas: pip install 'shoal[pandas]'; the plain records "
            "do not need it"
        ) from None
    things: Iterable[Any] = rows
    records = [row if isinstance(row, dict) else asdict(row) for row in things]
    return pd.DataFrame(records, columns=list(columns) or None)
