"""Profiles of a fleet's devices for simulations (`simulation.timing.traces`), as lines of CSV."""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from aggregator.core.telemetry import NO_TELEMETRY, DeviceTelemetry
from aggregator.fleet.records import Device
from wire.errors import ConfigError

COLUMNS = ("device", "examples_per_s", "down_bytes_per_s", "up_bytes_per_s", "dropout")
BYTES_PER_S = 1e6
"""Rate of a fleet in which no transfer could be measured (bytes/s)."""


@dataclass(frozen=True)
class FleetProfile:
    """Profile of a fleet, with the devices of which it makes assumptions."""

    text: str
    """CSV, sorted by device id."""
    devices: int
    untrained: tuple[str, ...]
    """Devices that have not trained; their speed is the median of the others."""
    unmeasured: tuple[str, ...]
    """Devices without a measured rate; theirs is the median of the others, or `BYTES_PER_S`."""


def profile_of(
    devices: Mapping[str, Device], telemetry: Mapping[str, DeviceTelemetry]
) -> FleetProfile:
    """Return the profile of these devices, without those that are banned or never checked in.

    Telemetry has, of a device's last training assignment, the number of examples, the seconds of
    work, the seconds until its update, and the bytes in both directions.

    - Examples per second are the examples over the seconds of work, evaluations included.
    - Bytes per second are the bytes in both directions over the rest of the time, the same value
      down and up. They include the delays of broker, aggregator and device, so that a simulated job
      takes as long as the assignment did.
    - Drop-out is the number of declined assignments over that of declines and updates.

    A device that has not trained, or whose update came at once, has the median of the others.
    Batteries and hours are unknown: every device of the profile is on mains and always available.

    Raises:
        ConfigError: none of the devices has trained yet.
    """
    here = {
        d: device
        for d, device in sorted(devices.items())
        if device.facts is not None and device.ban is None
    }
    records = {d: telemetry.get(d, NO_TELEMETRY) for d in here}
    speeds = {d: _speed(record) for d, record in records.items()}
    rates = {d: _rate(record) for d, record in records.items()}
    measured_speeds = [speed for speed in speeds.values() if speed]
    if not measured_speeds:
        raise ConfigError(
            f"No profile yet: none of {len(here)} devices has trained. A profile is made from "
            "their reports of training."
        )
    usual_speed, usual_rate = (
        median(measured_speeds),
        median([rate for rate in rates.values() if rate] or [BYTES_PER_S]),
    )
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(COLUMNS)
    for device_id, device in here.items():
        rate = f"{rates[device_id] or usual_rate:.6g}"
        answers = device.declines + device.updates
        dropout = device.declines / answers if device.updates else 0.0
        lines.writerow(
            (device_id, f"{speeds[device_id] or usual_speed:.6g}", rate, rate, f"{dropout:.6g}")
        )
    untrained, unmeasured = (tuple(d for d in here if not values[d]) for values in (speeds, rates))
    return FleetProfile(out.getvalue(), len(here), untrained, unmeasured)


def _speed(record: DeviceTelemetry) -> float:
    """Return the examples per second; 0 if unknown."""
    training = record.training
    return (
        training.examples / training.train_s
        if training is not None and 0 < training.train_s < math.inf
        else 0.0
    )


def _rate(record: DeviceTelemetry) -> float:
    """Return the bytes per second; 0 if unknown."""
    training = record.training
    if training is None:
        return 0.0
    rest_s, total = training.answer_s - training.train_s, training.bytes_up + training.bytes_down
    return total / rest_s if rest_s > 0 and total > 0 else 0.0
