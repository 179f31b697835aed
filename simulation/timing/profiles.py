"""Profiles of devices: columns with one row per device, from a named distribution or a trace.

    phones      speeds and bandwidths lognormal, available mostly at night, on a charger from 22:00
    boards      Raspberry Pi and Jetson: mains, wired, nearly always available, far apart in speed
    uniform     each quantity between half and one and a half times its value
    always      all alike, always available, no drop-outs: rounds that can be computed by hand
    trace       one line of a CSV file per device, `simulation.timing.traces`

Sources of the numbers. They are round on purpose; set an option if a study measured another value.

- Form: compute time per example is lognormal with sigma 0.6 in FedScale's own client model (F. Lai
  et al., ICML 2022; source file client_metadata.py, which refers to Papaya, D. Huba et al., MLSys
  2022). With 0.6, one phone of a thousand is 6 times slower than the median one. The speed of a
  median device depends on the model that it trains: set `speed`; 200 examples per second stands for
  a small network on sensor windows.
- Bandwidth: FedScale takes it from MobiPerf's measurements of mobile networks; an entry that is
  quoted in public reads 5.6 Mbit/s. A median of 8 Mbit/s down, half of that up, and sigma 1 (one of
  a thousand 20 times slower) are ours.
- Availability and drop-outs: K. Bonawitz et al., Towards federated learning at scale, MLSys 2019,
  section 9: four times as many devices at night as by day, 6 to 10 % of them drop out; 8 % is used
  here. The share available at the peak is not published: 40 % is a guess.
- Phones' accelerators nearly double in speed with each generation (A. Ignatov et al., AI Benchmark:
  all about deep learning on smartphones in 2019), so that a few generations lie an order of
  magnitude apart. Boards, from a Raspberry Pi to a Jetson, lie further apart still: sigma 1 for
  these, and 100 examples per second, are ours.
- Battery: a twentieth of 15 Wh, at 5 W and 200 examples per second, trains about 100,000 examples.
  A full charge takes two hours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from algorithms.spec import Choice, Option, Options, read
from simulation.timing.availability import DAY_S, HOUR_S, Always, Availability, Curve
from simulation.timing.traces import read_trace
from wire.arrays.tensors import Array
from wire.errors import ConfigError

CHARGE_S = 2 * HOUR_S
"""Seconds on the charger that fill an empty battery."""

NIGHT = (1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.25, 0.5, 0.75, 1)
"""Weight of the night's share of available devices by local hour: 1 is night, 0 is day."""


@dataclass(frozen=True)
class Profiles:
    """N devices as columns (N,) of float64."""

    examples_per_s: Array = field(repr=False)
    """Training examples per second, with the model in question."""
    down_bytes_per_s: Array = field(repr=False)
    up_bytes_per_s: Array = field(repr=False)
    latency_s: Array = field(repr=False)
    """Latency of one direction; a job has two: the plan comes, the update goes."""
    dropout: Array = field(repr=False)
    """Probability that a job is not finished.

    A device that becomes unavailable during a job is not included.
    """
    battery_examples: Array = field(repr=False)
    """Examples that a full charge trains; infinity on mains."""
    charge_from_s: Array = field(repr=False)
    """Virtual second, modulo a day, at which the device is put on its charger."""
    charge_s: Array = field(repr=False)
    """Seconds of each day on the charger."""
    availability: Availability = field(repr=False)

    def __len__(self) -> int:
        return len(self.examples_per_s)


_OPTIONS: Options = {
    "speed": Option(0.0, "examples a second that the median device trains", low=1e-6),
    "spread": Option(
        0.0, "sigma of the lognormal speed; uniform: half width as a share", low=0, high=10
    ),
    "down": Option(0.0, "bytes a second to the median device", low=1e-3),
    "up": Option(0.0, "bytes a second from the median device", low=1e-3),
    "network": Option(
        0.0, "sigma of the lognormal bandwidths; uniform: half width as a share", low=0, high=10
    ),
    "latency": Option(0.0, "seconds that a message is under way", low=0),
    "dropout": Option(0.0, "probability that a job is not finished", low=0, high=1),
    "available": Option(0.0, "share of devices available at the best hour", low=0, high=1),
    "ratio": Option(0.0, "how many times more are available at night than by day", low=1),
    "zones": Option(0.0, "hours over which the devices' time zones are spread", low=0, high=24),
    "hour": Option(
        0.0, "hour of the day of the first time zone at virtual second 0", low=0, high=24
    ),
    "battery": Option(0.0, "examples a device can train per charge; 0: mains", low=0),
    "charging": Option(0.0, "hours of each day on the charger, from 22:00", low=0, high=24),
}
"""Options of a distribution, without its defaults (`_DEFAULTS`)."""
_DEFAULTS: Mapping[str, tuple[float, ...]] = {
    "phones": (200.0, 0.6, 1e6, 5e5, 1.0, 0.1, 0.08, 0.4, 4.0, 4.0, 0.0, 1e5, 8.0),
    "boards": (100.0, 1.0, 5e6, 1e6, 0.5, 0.05, 0.01, 0.98, 1.0, 0.0, 0.0, 0.0, 24.0),
    "uniform": (200.0, 0.5, 1e6, 1e6, 0.5, 0.1, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 24.0),
    "always": (200.0, 0.0, 1e6, 1e6, 0.0, 0.1, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 24.0),
}
_TRACE = {
    "devices": Option("", "CSV file with one line per device"),
    "intervals": Option("", "CSV file with lines device,start_s,end_s; empty: always available"),
}

DISTRIBUTIONS: Mapping[str, Options] = {
    **{
        name: {
            key: replace(option, default=default)
            for (key, option), default in zip(_OPTIONS.items(), defaults, strict=True)
        }
        for name, defaults in _DEFAULTS.items()
    },
    "trace": _TRACE,
}
"""Options of every source of profiles, by name."""


def read_profiles(text: str) -> Choice:
    """Read a source of profiles with its options, see `DISTRIBUTIONS`.

    Raises:
        ConfigError: there is no such distribution or option, or a value is not allowed.
    """
    return read(text, DISTRIBUTIONS, "profiles")


def make_profiles(choice: Choice, devices: int, seed: int) -> Profiles:
    """Return the profiles of `devices` devices from the chosen source.

    Raises:
        ConfigError: `devices` is less than 1, or an option does not fit the distribution.
        DataError: a trace cannot be read, or has too few devices.
    """
    options, where = choice.options, f"profiles {str(choice)!r}"
    if devices < 1:
        raise ConfigError(f"{where}: devices must be at least 1, got {devices}")
    if choice.name == "trace":
        if not options["devices"]:
            raise ConfigError(f"{where} needs a file: trace:devices=FILE.csv")
        files = (
            Path(options["devices"]),
            Path(options["intervals"]) if options["intervals"] else None,
        )
        columns, availability = read_trace(*files, devices)
        return Profiles(**columns, availability=availability)
    if choice.name == "uniform" and max(options["spread"], options["network"]) >= 1:
        raise ConfigError(
            f"{where}: spread and network must be below 1, got {options['spread']:g} and "
            f"{options['network']:g}"
        )
    return _draw(choice.name, options, devices, seed)


def _draw(name: str, numbers: Mapping[str, float], devices: int, seed: int) -> Profiles:
    rng = np.random.default_rng([seed, 0xDE7])
    factors: Callable[[float], Array]
    if name == "uniform":
        factors = lambda width: rng.uniform(1 - width, 1 + width, devices)  # noqa: E731
    else:
        factors = lambda sigma: np.exp(sigma * rng.standard_normal(devices))  # noqa: E731
    speed, network = factors(numbers["spread"]), factors(numbers["network"])
    zone_s = HOUR_S * np.floor(rng.uniform(0, max(numbers["zones"], 1), devices))
    offset_s = HOUR_S * numbers["hour"] + zone_s
    best, least = numbers["available"], numbers["available"] / numbers["ratio"]
    by_hour = [least + (best - least) * night for night in NIGHT]
    same = np.ones(devices)
    return Profiles(
        examples_per_s=numbers["speed"] * speed,
        down_bytes_per_s=numbers["down"] * network,
        up_bytes_per_s=numbers["up"] * network,  # a bad network is bad in both directions
        latency_s=numbers["latency"] * same,
        dropout=numbers["dropout"] * same,
        battery_examples=(numbers["battery"] or np.inf) * same,
        charge_from_s=(22 * HOUR_S - offset_s) % DAY_S,
        charge_s=HOUR_S * numbers["charging"] * same,
        availability=Always() if least == 1 else Curve(by_hour, offset_s, seed),
    )
