"""Accuracy and losses of a campaign's models where they are used, by group and by device, and the
privacy mechanism that protects updates. Pure."""

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from aggregator.core.record import RoundRecord
from aggregator.core.round.asking import all_placed, groups_of
from aggregator.core.state import RunState
from aggregator.core.summary import Spread, accuracy_of, group_number, spread
from aggregator.http.dashboard.fleet import PagePart, slice_of
from aggregator.http.dashboard.history import Past, mean_loss
from aggregator.http.pages.charts import Chart, line_chart
from aggregator.http.pages.words import number as number_text
from algorithms.composition import AlgorithmSpec, read_algorithm
from algorithms.personalisation.kept import Kept
from algorithms.spec import Choice
from wire.errors import ShoalError
from wire.tasks import CLASSIFICATION, MULTI_LABEL, RECONSTRUCTION, REGRESSION, SEQUENCE, TaskName

Sort = Literal["worst", "id", "group"]
SORTS: dict[Sort, str] = {"worst": "worst first", "id": "by id", "group": "by group"}


NAMES: dict[TaskName, str] = {
    CLASSIFICATION: "Accuracy",
    SEQUENCE: "Accuracy of steps",
    MULTI_LABEL: "Exact match",
    REGRESSION: "Within tolerance",
    RECONSTRUCTION: "Within tolerance",
}
"""Names of the share that devices report, by task."""


class Measure(NamedTuple):
    """The measure of a campaign's models."""

    name: str = NAMES[CLASSIFICATION]
    of: str = ""
    """The things of which it is a share, unless these are windows of classes. The mean loss then
    says more, since models are trained for it and the share has a bound of its own."""


def measure_of(algorithm: str) -> Measure:
    """Return the measure of this algorithm's models: that of classes if the algorithm is in a file
    that is gone."""
    spec = _read(algorithm)
    if spec is None or spec.has_classes:
        return Measure()
    task = spec.parts.task
    return Measure(NAMES.get(task.of, NAMES[CLASSIFICATION]), task.accuracy)


def mechanism_of(algorithm: str) -> Choice | None:
    """Return the privacy mechanism of this algorithm; None if it has none."""
    spec = _read(algorithm)
    return spec.privacy if spec is not None and spec.privacy.options else None


@lru_cache(maxsize=64)
def _read(algorithm: str) -> AlgorithmSpec | None:
    try:
        return read_algorithm(algorithm)
    except ShoalError:
        return None


class GroupAccuracy(NamedTuple):
    """A group."""

    number: int | None
    devices: int
    accuracy: Spread
    loss: float | None


class DeviceAccuracy(NamedTuple):
    """A device."""

    id: str
    group: int | None
    accuracy: float | None
    loss: float | None
    num_test: int
    kept: Kept | None
    placed: str


class AccuracyPage(NamedTuple):
    """What is known of accuracies."""

    round: int | None
    """The round in which devices told them; None: in none so far."""
    overall: Spread
    loss: float | None
    """The mean over devices; None where none has told one."""
    groups: list[GroupAccuracy]
    kept: dict[str, int]
    """By candidate, how many devices keep it."""
    devices: list[DeviceAccuracy]
    slice: PagePart


def accuracy_page(
    run: RunState,
    record: RoundRecord | None,
    words: str,
    sort: Sort,
    number: int,
    by_loss: bool = False,
) -> AccuracyPage:
    """Accuracies and losses as devices told them in the round of `record`, of the models that they
    received in it; one page of the devices whose ids hold all the words. `by_loss`: the worst
    devices are those with the largest loss."""
    told, kept = (accuracy_of(record), record.kept) if record is not None else ({}, {})
    evaluated = record.evaluated if record is not None else {}
    placed = all_placed(run)
    groups = {d: group_number(key) for d, key in groups_of(run, placed).items()}
    members: dict[int | None, list[str]] = defaultdict(list)
    for device_id in run.devices:
        members[groups.get(device_id)].append(device_id)
    wanted = words.casefold().split()
    devices = [
        DeviceAccuracy(
            d,
            groups.get(d),
            told.get(d),
            mean_loss([evaluated[d]] if d in evaluated else []),
            device.num_test,
            kept.get(d),
            str(placed.get(d, "")),
        )
        for d, device in run.devices.items()
        if all(word in d.casefold() for word in wanted)
    ]
    devices.sort(key=_KEYS["loss" if by_loss and sort == "worst" else sort])
    part = slice_of(len(devices), number)
    counts = [held.candidate for d, held in kept.items() if d in run.devices]
    return AccuracyPage(
        record.round if record is not None else None,
        spread(told[d] for d in run.devices if d in told),
        mean_loss(evaluated[d] for d in run.devices if d in evaluated),
        [
            GroupAccuracy(
                g,
                len(own),
                spread(told[d] for d in own if d in told),
                mean_loss(evaluated[d] for d in own if d in evaluated),
            )
            for g, own in sorted(members.items(), key=lambda item: _or_first(item[0]))
        ],
        {name: counts.count(name) for name in run.settings.candidates},
        devices[part.begin : part.end],
        part,
    )


def accuracy_chart(past: Past) -> Chart | None:
    """Draw mean and worst accuracy over rounds; None if no device has reported one."""
    lines = [line for line in past.rounds if line.accuracy.mean is not None]
    curves = {
        ("mean", "mean"): [(line.round, line.accuracy.mean) for line in lines],
        ("worst device", "worst"): [(line.round, line.accuracy.worst) for line in lines],
    }
    return line_chart(curves, lines[0].round if lines else 0, low=0.0)


def values_chart(name: str, values: dict[int, float]) -> Chart | None:
    """Draw values of rounds over these, from 0 to the largest; None without values."""
    if not values:
        return None
    high = max(values.values()) or 1.0
    curves = {(name, "mean"): list(values.items())}
    return line_chart(curves, min(values), low=0.0, high=high, y_text=number_text)


def _or_first(group: int | None) -> int:
    """Sort devices without a group before all others."""
    return -1 if group is None else group


_KEYS: dict[str, Callable[[DeviceAccuracy], Any]] = {
    "loss": lambda device: (device.loss is None, -(device.loss or 0.0), device.id),
    "worst": lambda device: (device.accuracy is None, device.accuracy or 0.0, device.id),
    "id": lambda device: device.id,
    "group": lambda device: (_or_first(device.group), device.id),
}
