"""Accuracy and losses of a campaign's models, by group and device, and its privacy mechanism."""

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from aggregator.fleet.desired import windows_of
from aggregator.http.dashboard.fleet import PagePart, slice_of
from aggregator.http.dashboard.history import Past, mean_loss
from aggregator.http.pages.charts import Chart, line_chart
from aggregator.http.pages.words import number as number_text
from aggregator.view.fleet import FleetView, devices_of
from aggregator.view.round_record import SUMMED, RoundRecord
from aggregator.view.summary import Spread, accuracy_of, group_number, spread, spread_of
from algorithms.composition import AlgorithmSpec, read_algorithm
from algorithms.personalisation.kept import PersonalChoice
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
"""Name of the share that devices report, by task."""


class Measure(NamedTuple):
    """Measure of a campaign's models."""

    name: str = NAMES[CLASSIFICATION]
    of: str = ""
    """Unit of which it is a share, such as steps; empty for windows with one class each.

    For other units the mean loss says more: models are trained for it, and the share depends on a
    bound.
    """


def measure_of(algorithm: str) -> Measure:
    """Return the measure of this algorithm's models.

    If the algorithm is in a file that cannot be read, it is the measure of a classification.
    """
    spec = _read(algorithm)
    if spec is None or spec.has_classes:
        return Measure()
    task = spec.parts.task
    return Measure(NAMES.get(task.of, NAMES[CLASSIFICATION]), task.accuracy)


def mechanism_of(algorithm: str) -> Choice | None:
    """Return the privacy mechanism of this algorithm, or None if it has none."""
    spec = _read(algorithm)
    return spec.privacy if spec is not None and spec.privacy.options else None


@lru_cache(maxsize=64)
def _read(algorithm: str) -> AlgorithmSpec | None:
    try:
        return read_algorithm(algorithm)
    except ShoalError:
        return None


class GroupAccuracy(NamedTuple):
    """Accuracy of a group."""

    number: int | None
    devices: int
    accuracy: Spread
    loss: float | None


class DeviceAccuracy(NamedTuple):
    """Accuracy of a device."""

    id: str
    group: int | None
    accuracy: float | None
    loss: float | None
    num_test: int
    personal_model: PersonalChoice | None
    placed: str


class AccuracyPage(NamedTuple):
    """Accuracies and losses of a campaign's models."""

    round: int | None
    """Round in which devices reported them; None if there is none so far."""
    overall: Spread
    loss: float | None
    """Mean over devices; None if no device has reported one."""
    groups: list[GroupAccuracy]
    personal_models: dict[str, int]
    """Number of devices by kind of personal model."""
    devices: list[DeviceAccuracy]
    slice: PagePart


def accuracy_page(
    view: FleetView,
    name: str,
    record: RoundRecord | None,
    words: str,
    sort: Sort,
    number: int,
    by_loss: bool = False,
) -> AccuracyPage:
    """Return accuracies and losses from the round of `record`, with one page of devices.

    They belong to the models that devices received in that round. `words`: the page has only
    devices whose ids contain all of them. `by_loss`: the worst devices are those with the largest
    loss.
    """
    accuracies = accuracy_of(record) if record is not None else {}
    choices = record.personal_models if record is not None else {}
    evaluated = record.evaluated if record is not None else {}
    members: dict[int | None, list[str]] = defaultdict(list)
    terms, devices, campaign = words.casefold().split(), [], view.fleet.campaigns[name]
    for device in devices_of(view, name):
        device_id, group = device.id, group_number(device.group)
        members[group].append(device_id)
        if all(word in device_id.casefold() for word in terms):
            devices.append(
                DeviceAccuracy(
                    device_id,
                    group,
                    accuracies.get(device_id),
                    mean_loss([evaluated[device_id]] if device_id in evaluated else []),
                    windows_of(campaign, device.record)[1],
                    choices.get(device_id),
                    str(device.placed or ""),
                )
            )
    devices.sort(key=_KEYS["loss" if by_loss and sort == "worst" else sort])
    part = slice_of(len(devices), number)
    every = [device_id for each in members.values() for device_id in each]
    counts = [choices[device_id].candidate for device_id in every if device_id in choices]

    def measured(device_ids: list[str]) -> tuple[Spread, float | None]:
        """Return accuracies and the mean loss over these devices."""
        return (
            spread(accuracies[d] for d in device_ids if d in accuracies),
            mean_loss(evaluated[d] for d in device_ids if d in evaluated),
        )

    overall, loss = measured(every)
    summed = record.notes.get(SUMMED) if record is not None else None
    if record is not None and summed:
        overall, loss = spread_of(record), summed.get("loss")
    by_group = {int(g): means for g, means in summed["groups"].items()} if summed else {}

    def of_group(group: int | None) -> GroupAccuracy:
        """Return the line of a group; in secret mode, it has only means."""
        accuracy, loss = measured(members[group])
        if group in by_group:
            means = by_group[group]
            accuracy, loss = Spread(means.get("accuracy"), None, None, None), means.get("loss")
        return GroupAccuracy(group, len(members[group]), accuracy, loss)

    return AccuracyPage(
        record.round if record is not None else None,
        overall,
        loss,
        [of_group(group) for group in sorted(members, key=_or_first)],
        {candidate: counts.count(candidate) for candidate in campaign.settings.candidates},
        devices[part.begin : part.end],
        part,
    )


def accuracy_chart(past: Past) -> Chart | None:
    """Draw mean and worst accuracy over rounds; None if no device has reported one."""
    lines = [line for line in past.rounds if line.accuracy.mean is not None]
    curves = {("mean", "mean"): [(line.round, line.accuracy.mean) for line in lines]}
    if any(line.accuracy.worst is not None for line in lines):  # in secret mode nobody knows it
        worst = [(line.round, line.accuracy.worst) for line in lines]
        curves |= {("worst device", "worst"): worst}
    return line_chart(curves, lines[0].round if lines else 0, low=0.0)


def values_chart(name: str, values: dict[int, float]) -> Chart | None:
    """Draw values over rounds, from 0 to the largest value; None without values."""
    if not values:
        return None
    high = max(values.values()) or 1.0
    curves = {(name, "mean"): list(values.items())}
    return line_chart(curves, min(values), low=0.0, high=high, y_text=number_text)


def _or_first(group: int | None) -> int:
    """Return a sort key that puts devices without a group before all others."""
    return -1 if group is None else group


_KEYS: dict[str, Callable[[DeviceAccuracy], Any]] = {
    "loss": lambda device: (device.loss is None, -(device.loss or 0.0), device.id),
    "worst": lambda device: (device.accuracy is None, device.accuracy or 0.0, device.id),
    "id": lambda device: device.id,
    "group": lambda device: (_or_first(device.group), device.id),
}
