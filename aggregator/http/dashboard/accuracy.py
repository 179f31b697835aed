"""How good models are where they are used: per group and per device, with what each device keeps.
Pure."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from aggregator.core.record import RoundRecord
from aggregator.core.round.asking import all_placed, groups_of
from aggregator.core.state import RunState
from aggregator.core.summary import Spread, accuracy_of, group_number, spread
from aggregator.http.dashboard.history import mean_loss
from aggregator.http.dashboard.paging import Slice, slice_of
from algorithms.personalisation.kept import Kept
from wire.messages import Metrics

Sort = Literal["worst", "id", "group"]
SORTS: dict[Sort, str] = {"worst": "worst first", "id": "by id", "group": "by group"}


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
    slice: Slice


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
            _loss(evaluated.get(d)),
            device.num_test,
            kept.get(d),
            str(placed.get(d, "")),
        )
        for d, device in run.devices.items()
        if all(word in d.casefold() for word in wanted)
    ]
    devices.sort(key=_by_loss if by_loss and sort == "worst" else _KEYS[sort])
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
            for g, own in sorted(members.items(), key=lambda item: _number(item[0]))
        ],
        {name: counts.count(name) for name in run.settings.candidates},
        devices[part.begin : part.end],
        part,
    )


def _loss(told: Metrics | None) -> float | None:
    return mean_loss([told]) if told is not None else None


def _by_loss(device: DeviceAccuracy) -> Any:
    return device.loss is None, -(device.loss or 0.0), device.id


def _number(group: int | None) -> int:
    return -1 if group is None else group


_KEYS: dict[Sort, Callable[[DeviceAccuracy], Any]] = {
    "worst": lambda device: (device.accuracy is None, device.accuracy or 0.0, device.id),
    "id": lambda device: device.id,
    "group": lambda device: (_number(device.group), device.id),
}
