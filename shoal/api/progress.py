"""Progress of a run, as callbacks receive it after each round."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from torch import nn

from aggregator.view.round_record import RoundRecord
from aggregator.view.summary import accuracy_of, group_number
from shoal.api.own_model import answers_of, device_model, network_with, torch_tensors
from shoal.api.tables import RoundMetrics as RoundMetrics
from shoal.api.tables import round_metrics
from simulation.datasets.windows import FleetData, says_anomalies
from simulation.engine.progress import HeldModels
from simulation.measures import measure, measured_in
from wire.arrays.tensors import Tensors
from wire.errors import ConfigError
from wire.tasks import RECONSTRUCTION

SHOWN = 10
"""Maximum number of devices that an error names."""


@dataclass(frozen=True)
class Progress:
    """A run after one of its rounds.

    A model is made when it is requested, and only until the next round begins.
    """

    history: tuple[RoundMetrics, ...]
    """Every round so far, including those before an interruption; the last is the current one."""
    accuracies: Mapping[str, float]
    """Accuracy by device of the models tested in this round.

    They have `RoundMetrics.evaluated` rounds of training.
    """
    groups: Mapping[str, int]
    """Group by device after the round, without devices that have none."""
    _models: "Models" = field(repr=False)
    _scene: Callable[[], FleetData] = field(repr=False)
    settings: Mapping[str, str | float] = field(default_factory=dict, repr=False)
    """Settings of the run by name, with its data; the same object in every round of one run."""

    @property
    def accuracy_is(self) -> str:
        """Kind of answers, such as correct ones, whose share is the accuracy of this run's task."""
        return self._models.tensor_source.objective.task.accuracy

    @property
    def metrics(self) -> RoundMetrics:
        """The current round."""
        return self.history[-1]

    @property
    def is_last(self) -> bool:
        """True in the last call of a run, about the round that tests personal models."""
        return self.metrics.phase == "evaluating"

    @property
    def round(self) -> int:
        """Number of rounds of training so far."""
        return self.metrics.round

    def model(self, *, group: int | None = None, device: str | None = None) -> nn.Module:
        """Return a copy of the model of a group or a device (see `Result.model`).

        Raises:
            ConfigError: there is no such group or device.
        """
        return self._models.model(self.groups, group, device)

    @property
    def measured(self) -> tuple[str, ...]:
        """Names that `measures` may have in this run's task."""
        return measured_in(self._models.tensor_source.objective.task.of, self._scene().classes)

    def measures(self) -> dict[str, float]:
        """Return the task's measures other than accuracy, for the models after this round.

        Each is the mean over devices with test windows and a group: ``macro_f1`` for classes,
        ``macro_f1`` and ``auc`` for several labels, ``mae/NAME`` for a quantity in the user's
        units, ``auc`` for a reconstruction if anomalies are known. The call lets each device's
        model answer its test windows.
        """
        data, objective = self._scene(), self._models.tensor_source.objective
        task = objective.task.of
        if task == RECONSTRUCTION and not says_anomalies(data.classes):
            return {}
        values_by_name: dict[str, list[float]] = {}
        for device_id in sorted(self.groups.keys() & data.devices.keys()):
            windows = data.devices[device_id]
            if windows.num_test:
                answers = answers_of(self.model(device=device_id), objective, windows.test_x)
                for name, value in (
                    measure(task, windows.test_y, answers).named(data.classes).items()
                ):
                    values_by_name.setdefault(name, []).append(value)
        return {name: fmean(values) for name, values in values_by_name.items()}


@dataclass(frozen=True)
class Models:
    """The models of a run as modules, made from the tensors that an engine holds."""

    tensor_source: HeldModels
    devices: Collection[str]

    def model(self, groups: Mapping[str, int], group: int | None, device: str | None) -> nn.Module:
        """Return a copy of a model: that of the only group if neither is named.

        Raises:
            ConfigError: both are named, or there is no such group or device.
        """
        if device is not None:
            if group is not None:
                raise ConfigError(f"Name a group ({group}) or a device ({device!r}), not both.")
            return device_model(
                self.tensor_source.objective,
                torch_tensors(self.of_device(device)),
                f"device {device}",
            )
        number = self.number(groups, group)
        return network_with(
            self.tensor_source.objective,
            torch_tensors(self.tensor_source.of_group(str(number))),
            f"group {number}",
        )

    def of_device(self, device: str) -> Tensors:
        """Return every tensor with which a device answers.

        Raises:
            ConfigError: there is no such device.
        """
        self.check_device(device)
        return self.tensor_source.of_device(device)

    def check_device(self, device: str) -> None:
        """Raise ConfigError if there is no such device."""
        if device not in self.devices:
            names = sorted(self.devices)
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ConfigError(
                f"No device {device!r}. Known devices: {', '.join(names[:SHOWN])}{more}."
            )

    @staticmethod
    def number(groups: Mapping[str, int], group: int | None) -> int:
        """Return the number of a group: that of the only one if none is named.

        Raises:
            ConfigError: there is no such group, or none is named and there are several.
        """
        numbers = sorted(set(groups.values()))
        if group is None and len(numbers) == 1:
            return numbers[0]
        if group is not None and group in numbers:
            return group
        problem = "Name a group or a device" if group is None else f"No group {group}"
        listed = ", ".join(map(str, numbers)) or "none yet"
        raise ConfigError(f"{problem}. Known groups: {listed}.")


def progress_of(
    records: Sequence[RoundRecord],
    models: Models,
    scene: Callable[[], FleetData],
    settings: Mapping[str, str | float],
) -> Progress:
    """Return the progress after the last of these rounds.

    `scene` returns the devices' data in the form of the task; `settings` are those of the run.
    """
    last = records[-1]
    groups = {  # devices without a group are left out
        device_id: number
        for device_id, key in sorted(last.groups.items())
        if (number := group_number(key)) is not None
    }
    return Progress(round_metrics(records), accuracy_of(last), groups, models, scene, settings)
