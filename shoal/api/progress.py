"""What a callback is told after each round."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from aggregator.core.record import RoundRecord
from aggregator.core.summary import accuracy_of, group_number
from shoal.api.own_model import device_model, network_with, torch_tensors
from shoal.api.tables import RoundMetrics as RoundMetrics
from shoal.api.tables import round_metrics
from simulation.engine.progress import HeldModels
from wire.errors import ConfigError
from wire.tensors import Tensors

SHOWN = 10
"""Devices that an error names, at most."""


@dataclass(frozen=True)
class Progress:
    """A round is over. Models are made when they are asked for, until the next round begins."""

    history: tuple[RoundMetrics, ...]
    """Every round so far, also those before an interruption; the last one is this one."""
    accuracies: Mapping[str, float]
    """By device, of the models that devices tested in this round, which are `RoundMetrics.evaluated` rounds old."""
    groups: Mapping[str, int]
    """By device, its group after the round; devices without a group are left out."""
    _models: "Models" = field(repr=False)

    @property
    def metrics(self) -> RoundMetrics:
        """This round."""
        return self.history[-1]

    @property
    def round(self) -> int:
        """Rounds of training so far."""
        return self.metrics.round

    def model(self, *, group: int | None = None, device: str | None = None) -> nn.Module:
        """A copy of the model of a group or a device, as `Result.model` gives it.

        Raises:
            ConfigError: there is no such group or device.
        """
        return self._models.model(self.groups, group, device)


@dataclass(frozen=True)
class Models:
    """The models of a run as modules, by what an engine holds."""

    held: HeldModels
    devices: Collection[str]

    def model(self, groups: Mapping[str, int], group: int | None, device: str | None) -> nn.Module:
        """A copy of a model: of the only group where neither is named.

        Raises:
            ConfigError: both are named, or there is no such group or device.
        """
        if device is not None:
            if group is not None:
                raise ConfigError(f"group {group} and device {device}: expected one of them")
            return device_model(self.held.objective, torch_tensors(self.of_device(device)), f"device {device}")
        number = self.number(groups, group)
        return network_with(self.held.objective, torch_tensors(self.held.of_group(str(number))), f"group {number}")

    def of_device(self, device: str) -> Tensors:
        """Every tensor that a device answers with.

        Raises:
            ConfigError: there is no such device.
        """
        self.check_device(device)
        return self.held.of_device(device)

    def check_device(self, device: str) -> None:
        """
        Raises:
            ConfigError: there is no such device.
        """
        if device not in self.devices:
            raise ConfigError(f"there is no device {device!r}; the devices are {_some(self.devices)}")

    @staticmethod
    def number(groups: Mapping[str, int], group: int | None) -> int:
        """The number of a group: of the only one where none is named.

        Raises:
            ConfigError: there is none of this number; or none is named and there are several.
        """
        known = sorted(set(groups.values()))
        if group is None and len(known) == 1:
            return known[0]
        if group is not None and group in known:
            return group
        said = "name a group or a device" if group is None else f"there is no group {group}"
        raise ConfigError(f"{said}: the groups are {', '.join(map(str, known)) or 'none yet'}")


def _some(devices: Collection[str]) -> str:
    names = sorted(devices)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def groups_of(groups: Mapping[str, str]) -> dict[str, int]:
    """By device, the number of the group whose model has this key; devices without a group are left out."""
    return {device_id: number for device_id, key in sorted(groups.items()) if (number := group_number(key)) is not None}


def progress_of(records: Sequence[RoundRecord], models: Models) -> Progress:
    """The progress after the last of these rounds."""
    last = records[-1]
    return Progress(round_metrics(records), accuracy_of(last), groups_of(last.groups), models)
