"""A scenario: test windows, labelled windows and newcomers of a fleet. Pure.

``labels=N``: each device has one labelled stretch per class, N consecutive windows, as from a
person who labels an activity for a while. Overlapping windows are less informative than as many
windows from a whole recording. The stretch lies around a window that the seed draws, which is the
same for every N, so that a larger N includes the windows of a smaller one.
"""

import zlib
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import msgspec
import numpy as np

from algorithms.spec import Choice
from edge_client.core.ports import Windows
from edge_client.data.labels import has_classes
from simulation.datasets.windows import FleetData
from simulation.newcomers import hold_out
from simulation.settings import SimulationSettings
from simulation.splits import read_split, split_anew
from wire.arrays.tensors import Array
from wire.errors import ConfigError, DataError

Labels = Annotated[int, msgspec.Meta(ge=1)] | Literal["all", "none"]
"""Maximum number of labelled windows of each class on a device, ``all`` or ``none``.

With ``none``, newcomers have no labels, and devices that train have all of them.
"""
OWN = read_split("own")
SALT = 0x1ABE15


@dataclass(frozen=True)
class Scenario:
    """A scenario as values: labels, split and number of newcomers."""

    labels: Labels = "all"
    split: Choice = OWN
    newcomers: int = 0
    """Number of devices that join when training is over.

    0 with ``labels=none`` stands for a quarter of the devices, at least one.
    """

    def num_newcomers(self, num_devices: int) -> int:
        """Return the number of newcomers in a fleet of `num_devices` devices."""
        return (
            max(1, num_devices // 4)
            if self.labels == "none" and not self.newcomers
            else self.newcomers
        )


def scenario_of(settings: SimulationSettings) -> Scenario:
    """Return the scenario of these settings.

    Raises:
        ConfigError: labels or split cannot be read.
    """
    return Scenario(read_labels(settings.labels), read_split(settings.split), settings.newcomers)


def read_labels(text: str) -> Labels:
    """Read ``all``, ``none`` or a number from 1.

    Raises:
        ConfigError: the text is none of them.
    """
    words: tuple[Literal["all", "none"], ...] = ("all", "none")
    for word in words:
        if word == text:
            return word
    if text.isascii() and text.isdigit() and 0 < (count := int(text)) < 10**9:
        return count
    raise ConfigError(
        "labels must be all, none, or a number from 1, the labelled windows of each class, got "
        f"{text!r}"
    )


def check_scenario(scenario: Scenario, partition: Choice) -> None:
    """Check that a scenario fits a partition.

    Raises:
        ConfigError: the scenario splits the data anew, but the partition separates windows from
        their recordings or has a split of its own.
    """
    if scenario.split.name == "own":
        return
    if partition.name not in ("user", "real-world"):
        raise ConfigError(
            f"split {scenario.split.name} does not work with partition {partition.name}, which "
            "puts the examples of all devices together. Use the partition's option split."
        )
    if partition.options["split"] != "time":
        raise ConfigError(
            f"split {scenario.split.name} does not work with partition {partition}, which divides "
            "each person's windows at random"
        )


def set_scene(data: FleetData, scenario: Scenario, seed: int) -> FleetData:
    """Return a fleet with the split and the labels of a scenario.

    The same fleet, scenario and seed give the same bits. Newcomers stay in the fleet.

    Raises:
        ConfigError: there are too many newcomers for the fleet.
        DataError: the data do not allow the split, or their labels are not classes although labels
        are counted by class.
    """
    count = scenario.num_newcomers(len(data.devices))
    if not 0 <= count < len(data.devices):
        raise ConfigError(
            f"newcomers must be less than the {len(data.devices)} devices, because at least one "
            f"has to train, got {count}"
        )
    data = split_anew(data, scenario.split, seed)
    if scenario.labels == "all":
        return data
    if scenario.labels == "none":
        _, newcomers = hold_out(data, count, seed)
        return replace(
            data,
            devices={
                d: _keep(w, np.zeros(0, np.int64)) if d in newcomers else w
                for d, w in data.devices.items()
            },
        )
    few = scenario.labels
    if not has_classes(data.sample()[1]):
        raise DataError(
            f"labels must be all or none, because the labels of data {data.name} are not classes, "
            f"got {few}"
        )
    return replace(
        data,
        devices={d: _keep(w, labelled(w.train_y, few, d, seed)) for d, w in data.devices.items()},
    )


def labelled(y: Array, count: int, device_id: str, seed: int) -> Array:
    """Return the indices (m,), ascending, of the windows that keep their label.

    For each class in y (n,), these are at most `count` consecutive windows of that class.
    """
    rng = np.random.default_rng([seed, SALT, zlib.crc32(device_id.encode())])
    chosen = [np.zeros(0, np.int64)]
    for label in np.unique(y):
        at = np.flatnonzero(y == label)
        begin = min(max(int(rng.integers(len(at))) - (count - 1) // 2, 0), max(len(at) - count, 0))
        chosen.append(at[begin : begin + count])
    return np.sort(np.concatenate(chosen))


def _keep(windows: Windows, at: Array) -> Windows:
    """Return the windows with labels at these indices only; the others become unlabelled."""
    rest = np.ones(windows.num_train, bool)
    rest[at] = False
    before = [windows.unlabelled_x] if windows.num_unlabelled else []
    unlabelled = np.concatenate([*before, windows.train_x[rest]])
    return Windows(
        windows.train_x[at], windows.train_y[at], windows.test_x, windows.test_y, unlabelled
    )
