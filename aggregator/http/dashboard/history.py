"""Closed rounds for charts, cached between requests: records of large rounds are slow to read.

A request reads for `BUDGET_S` at most: the latest rounds first, older ones in later requests.
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
from aggregator.view.round_record import SUMMED, SURVEYED, RoundRecord
from aggregator.view.summary import Spread, spread_of
from wire.messages import LARGEST_COUNT, MaybeDigest, Metrics

NOTED = (
    "epsilon",
    "rolled_back",
    "set_aside",
    "left_out",
    "too_small",
    "too_far",
    "diverges",
    "untested",
    SURVEYED,
)
"""Notes of a round that pages show."""
BUDGET_S = 0.3
AT_ONCE = 4
"""Number of rounds that are read from the store together."""


class RoundLine(NamedTuple):
    """Closed round, without the reports of single devices."""

    round: int
    phase: str
    opened_at_s: float
    closed_at_s: float
    devices: int
    accuracy: Spread
    loss: float | None
    """Mean over devices of the mean loss on their test windows; None if there are no windows."""
    sizes: dict[int, int]
    """Number of devices in each group after this round."""
    bytes_up: int
    bytes_down: int
    notes: dict[str, Any]
    views: MaybeDigest


@dataclass
class Past:
    """Closed rounds of a campaign, as far as they were read."""

    lines: dict[int, RoundLine] = field(default_factory=dict)
    evaluated: RoundRecord | None = None
    """Last record in which devices reported an accuracy."""
    first: int = LARGEST_COUNT
    """First round that was read; 1 if all were."""

    @property
    def rounds(self) -> list[RoundLine]:
        """Lines of the rounds, by round."""
        return [self.lines[number] for number in sorted(self.lines)]

    @property
    def viewed(self) -> RoundLine | None:
        """Last round in which distances between devices were computed; None if there is none."""
        return next((line for line in reversed(self.rounds) if line.views), None)


@dataclass
class History:
    """Cache of the closed rounds of campaigns.

    It reads the rounds of a campaign that it has not read yet, and the last one again, since
    devices may add to it.
    """

    _pasts: dict[str, tuple[int, Campaign, Past]] = field(default_factory=dict)
    """Number of devices and campaign at the last read, and its closed rounds, by run."""
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
    """Return closed rounds together with more records. `first`: the first round that was read."""
    before = past.evaluated
    latest = next((r for r in reversed(records) if spread_of(r).mean is not None), before)
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
            spread_of(record),
            record.notes.get(SUMMED, {}).get("loss") or mean_loss(record.evaluated.values()),
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
    """Return the mean over devices of their mean losses; None if no device has a finite loss."""
    losses = [
        metrics.mean_loss
        for metrics in reported
        if metrics.num_examples and math.isfinite(metrics.loss_sum)
    ]
    return sum(losses) / len(losses) if losses else None
