"""What a run measured, as plain records and as pandas tables."""

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
    """Rounds of training behind the model."""
    group: int | None
    """The device's group at that time; None before it has one."""
    accuracy: float
    loss: float
    """The mean over them of the task's loss: of classes the cross-entropy."""
    num_test: int
    final: bool
    """Whether the run was over: the model is then what the device keeps. Before, it is the one that
    the device was served."""


@dataclass(frozen=True)
class RoundMetrics:
    """A round that is over."""

    round: int
    """Rounds of training so far, this one included if it is one."""
    phase: OpenPhase
    """``preparing``, ``training``, or ``evaluating`` for the round after the last one, in which
    devices test what they keep."""
    evaluated: int
    """Rounds of training behind the models that devices tested in this round: they received them
    before they trained."""
    accuracy_mean: float | None
    """Over devices; None where none has test windows. The same for the two that follow."""
    accuracy_worst: float | None
    accuracy_worst_tenth: float | None
    test_loss: float | None
    """Mean over devices of the task's loss on their test windows, of the same models; None as
    above, and where it is no number."""
    loss: float | None
    """Mean over the batches of all devices' training; None without training."""
    groups: int
    """Number of groups after the round."""
    bytes_up: int
    bytes_down: int

    def numbers(self) -> dict[str, float]:
        """What was measured, without what there is none of, by the names of the fields."""
        return {
            name: value
            for name, value in asdict(self).items()
            if isinstance(value, int | float) and name not in ("round", "evaluated")
        }


def round_metrics(records: Sequence[RoundRecord]) -> tuple[RoundMetrics, ...]:
    """Every round of a run, in order."""
    made, trained = [], 0
    for record in records:
        before, trained = trained, trained + (record.phase == "training")
        accuracy, batches = spread(accuracy_of(record).values()), record.trained
        loss = batches.loss_sum / batches.num_examples if batches.num_examples else None
        losses = [record.evaluated[device_id].mean_loss for device_id in accuracy_of(record)]
        test_loss = fmean(losses) if losses else math.nan
        made.append(
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
    return tuple(made)


def evaluations(records: Sequence[RoundRecord]) -> list[Evaluation]:
    """Every test of a served or a kept model, by round and device; those of preparations are left
    out."""
    made = list[Evaluation]()
    groups: Mapping[str, str] = {}
    trained = 0
    for record in records:
        final = record.phase == "evaluating"
        if record.phase != "preparing":
            for device_id in accuracy_of(record):
                met = record.evaluated[device_id]
                group = group_number(groups.get(device_id))
                made.append(
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
    return made


def to_frame(rows: Iterable[object], columns: Sequence[str]) -> "pd.DataFrame":
    """Dataclasses or dictionaries as a table, a row each.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ConfigError(
            "a DataFrame needs the package pandas: pip install 'shoal[pandas]'; plain records are "
            "there without it"
        ) from None
    things: Iterable[Any] = rows
    records = [row if isinstance(row, dict) else asdict(row) for row in things]
    return pd.DataFrame(records, columns=list(columns) or None)
