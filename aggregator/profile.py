"""What a fleet's devices are like, as simulations read it (`simulation.timing.traces`): a line of
CSV for each, from the registry.

Of a device's last plan that trained, the registry knows how many examples it trained on in how many
seconds, when it was asked, when its update was there, and the bytes both ways. From these:

- examples a second are the examples over the seconds of the whole plan, evaluations included;
- bytes a second are the bytes both ways over the rest of the time, the same number down and up. In
  it are the broker, the aggregator, and what the device waited for, so that a job of the simulation
  takes as long as the plan did;
- drop-outs are declined plans over declined plans and updates.

Of a device that has not trained yet, and of one whose update was there at once, it takes the median
of the others. Batteries and hours are not known: every device of the profile is on mains and always
there.
"""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from aggregator.core.registry import Entry
from wire.errors import ConfigError

COLUMNS = ("device", "examples_per_s", "down_bytes_per_s", "up_bytes_per_s", "dropout")
BYTES_PER_S = 1e6
"""Of a fleet in which no transfer could be measured."""


@dataclass(frozen=True)
class FleetProfile:
    """A fleet's profile, and the devices of which it holds an assumption."""

    text: str
    """CSV, by device id."""
    devices: int
    untrained: tuple[str, ...]
    """Their speed is the median of the others."""
    unmeasured: tuple[str, ...]
    """Their bytes a second are the median of the others, or `BYTES_PER_S`."""


def profile_of(entries: Mapping[str, Entry]) -> FleetProfile:
    """The profile of these devices, but for those that are banned or have never been here.

    Raises:
        ConfigError: none of them has trained yet.
    """
    here = {
        d: entry
        for d, entry in sorted(entries.items())
        if entry.said is not None and entry.ban is None
    }
    speeds, rates = (
        {d: _speed(entry) for d, entry in here.items()},
        {d: _rate(entry) for d, entry in here.items()},
    )
    known = [speed for speed in speeds.values() if speed]
    if not known:
        raise ConfigError(
            f"profile: none of {len(here)} devices has trained yet; it is made of what they say "
            "of their training"
        )
    usual_speed, usual_rate = (
        median(known),
        median([rate for rate in rates.values() if rate] or [BYTES_PER_S]),
    )
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(COLUMNS)
    for device_id, entry in here.items():
        rate = f"{rates[device_id] or usual_rate:.6g}"
        dropout = entry.declines / (entry.declines + entry.updates) if entry.updates else 0.0
        lines.writerow(
            (device_id, f"{speeds[device_id] or usual_speed:.6g}", rate, rate, f"{dropout:.6g}")
        )
    untrained, unmeasured = (tuple(d for d in here if not found[d]) for found in (speeds, rates))
    return FleetProfile(out.getvalue(), len(here), untrained, unmeasured)


def _speed(entry: Entry) -> float:
    """Examples a second; 0: not known."""
    done = entry.training
    return done.examples / done.train_s if done is not None and 0 < done.train_s < math.inf else 0.0


def _rate(entry: Entry) -> float:
    """Bytes a second; 0: not known."""
    done = entry.training
    if done is None:
        return 0.0
    rest_s, total = done.answer_s - done.train_s, done.bytes_up + done.bytes_down
    return total / rest_s if rest_s > 0 and total > 0 else 0.0
