"""Closed rounds for charts, kept between requests: a record of 10,000 devices takes many
milliseconds to read.

No request reads for longer than `BUDGET_S`. The latest rounds are read first; what a long campaign
has before these, later requests read.
"""

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aggregator.fleet.records import Campaign
from aggregator.http.pages.charts import sizes_of
from aggregator.ports import Store
from aggregator.view.fleet import FleetView
from aggregator.view.round_record import RoundRecord
from aggregator.view.summary import Spread, accuracy_of, spread
from wire.messages import LARGEST_COUNT, MaybeDigest, Metrics

NOTED = ("epsilon", "rolled_back", "set_aside", "left_out", "too_small", "too_far")
"""The notes of a round that pages show."""
BUDGET_S = 0.3
AT_ONCE = 4
"""Rounds that are read from the store together."""


class RoundLine(NamedTuple):
    """A closed round, without what single devices reported."""

    round: int
    phase: str
    opened_at_s: float
    closed_at_s: float
    devices: int
    accuracy: Spread
    loss: float | None
    """Mean over devices of the mean loss on their test windows; None where none has reported
    one."""
    sizes: dict[int, int]
    """By group, its number of devices after this round."""
    bytes_up: int
    bytes_down: int
    notes: dict[str, Any]
    views: MaybeDigest


@dataclass
class Past:
    """The closed rounds of a campaign."""

    lines: dict[int, RoundLine] = field(default_factory=dict)
    evaluated: RoundRecord | None = None
    """The last record in which devices reported an accuracy."""
    first: int = LARGEST_COUNT
    """The first round that was read; 1: all were."""

    @property
    def rounds(self) -> list[RoundLine]:
        """Every line, by round."""
        return [self.lines[number] for number in sorted(self.lines)]

    @property
    def viewed(self) -> RoundLine | None:
        """The last round in which distances between devices were computed."""
        return next((line for line in reversed(self.rounds) if line.views), None)


@dataclass
class History:
    """Reads of each campaign the rounds that it has not read yet; the last one again, since devices
    may add to it."""

    _pasts: dict[str, tuple[int, Campaign, Past]] = field(default_factory=dict)
    """By run, the number of devices and the campaign as they were, with its closed rounds."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def past(self, view: FleetView, name: str, store: Store) -> Past:
        """Return the closed rounds of a campaign as they are now.

        Raises:
            StorageFailed: they cannot be read.
        """
        now, end_s = view.fleet.campaigns[name], time.monotonic() + BUDGET_S
        devices = view.fleet.devices
        with self._lock:
            number, before, past = self._pasts.get(now.settings.run_id, (0, None, Past()))
            named = past.evaluated.evaluated if past.evaluated is not None else ()
            if len(devices) < number or any(device_id not in devices for device_id in named):
                before, past = None, Past()  # a device was forgotten
            if (
                before is None
                or (before.round, before.phase) != (now.round, now.phase)
                or (now.phase == "finished" and before.updates is not now.updates)
            ):
                after = max(past.lines) - 1 if past.lines else max(0, now.round - AT_ONCE)
                past = _with(past, store.rounds(name, after), max(1, min(past.first, after + 1)))
            while past.first > 1 and time.monotonic() < end_s:
                after = max(0, past.first - 1 - AT_ONCE)
                past = _with(past, store.rounds(name, after, past.first - 1), after + 1)
            self._pasts[now.settings.run_id] = len(devices), now, past
            return past


def _with(past: Past, records: list[RoundRecord], first: int) -> Past:
    """Return closed rounds with those of more records. `first`: the first round that was read."""
    before = past.evaluated
    latest = next((record for record in reversed(records) if accuracy_of(record)), before)
    evaluated = (
        before if latest is None or (before is not None and before.round > latest.round) else latest
    )
    lines = {
        record.round: RoundLine(
            record.round,
            record.phase,
            record.opened_at_s,
            record.closed_at_s,
            len(record.evaluated),
            spread(accuracy_of(record).values()),
            mean_loss(record.evaluated.values()),
            sizes_of(record.groups),
            record.bytes_up,
            record.bytes_down,
            {name: record.notes[name] for name in NOTED if name in record.notes},
            record.views,
        )
        for record in records
    }
    return Past(past.lines | lines, evaluated, first)


def mean_loss(reported: Iterable[Metrics]) -> float | None:
    """Return the mean over devices of their mean losses; None where no device has a finite
    loss."""
    losses = [
        metrics.mean_loss
        for metrics in reported
        if metrics.num_examples and math.isfinite(metrics.loss_sum)
    ]
    return sum(losses) / len(losses) if losses else None
