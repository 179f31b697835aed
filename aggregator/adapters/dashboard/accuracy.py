"""How good models are where they are used: per group and per device, with what each device keeps. Pure."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from aggregator.adapters.dashboard.paging import Slice, slice_of
from aggregator.core.asking import all_placed, groups_of
from aggregator.core.record import RoundRecord
from aggregator.core.state import RunState
from aggregator.core.summary import Spread, accuracy_of, group_number, spread
from algorithms.personalisation.kept import Kept

Sort = Literal["worst", "id", "group"]
SORTS: dict[Sort, str] = {"worst": "worst first", "id": "by id", "group": "by group"}


class GroupAccuracy(NamedTuple):
    """A group."""

    number: int | None
    devices: int
    accuracy: Spread


class DeviceAccuracy(NamedTuple):
    """A device."""

    id: str
    group: int | None
    accuracy: float | None
    num_test: int
    kept: Kept | None
    placed: str


class AccuracyPage(NamedTuple):
    """What is known of accuracies."""

    round: int | None
    """The round in which devices told them; None: in none so far."""
    overall: Spread
    groups: list[GroupAccuracy]
    kept: dict[str, int]
    """By candidate, how many devices keep it."""
    devices: list[DeviceAccuracy]
    slice: Slice


def accuracy_page(run: RunState, record: RoundRecord | None, words: str, sort: Sort, number: int) -> AccuracyPage:
    """Accuracies as devices told them in the round of `record`, of the models that they received in it; one page of the devices whose ids
    hold all the words."""
    told, kept = (accuracy_of(record), record.kept) if record is not None else ({}, {})
    placed = all_placed(run)
    groups = {d: group_number(key) for d, key in groups_of(run, placed).items()}
    by_group: dict[int | None, list[float]] = defaultdict(list)
    sizes: dict[int | None, int] = defaultdict(int)
    for device_id in run.devices:
        sizes[groups.get(device_id)] += 1
        if device_id in told:
            by_group[groups.get(device_id)].append(told[device_id])
    wanted = words.casefold().split()
    devices = [
        DeviceAccuracy(d, groups.get(d), told.get(d), device.num_test, kept.get(d), str(placed.get(d, "")))
        for d, device in run.devices.items()
        if all(word in d.casefold() for word in wanted)
    ]
    devices.sort(key=_KEYS[sort])
    part = slice_of(len(devices), number)
    counts = [held.candidate for d, held in kept.items() if d in run.devices]
    return AccuracyPage(
        record.round if record is not None else None,
        spread(told[d] for d in run.devices if d in told),
        [GroupAccuracy(g, count, spread(by_group[g])) for g, count in sorted(sizes.items(), key=lambda item: _number(item[0]))],
        {name: counts.count(name) for name in run.settings.candidates},
        devices[part.begin : part.end],
        part,
    )


def _number(group: int | None) -> int:
    return -1 if group is None else group


_KEYS: dict[Sort, Callable[[DeviceAccuracy], Any]] = {
    "worst": lambda device: (device.accuracy is None, device.accuracy or 0.0, device.id),
    "id": lambda device: device.id,
    "group": lambda device: (_number(device.group), device.id),
}
