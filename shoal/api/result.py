"""Results of a simulation: numbers, models and predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from aggregator.view.summary import Spread, Summary, group_number
from algorithms.tasks.base import Task
from edge_client.models.loaded import check_windows
from shoal.api.model_files import Written
from shoal.api.own_model import answers_of
from shoal.api.progress import Models
from shoal.api.tables import Evaluation, RoundMetrics, evaluations, round_metrics, to_frame
from simulation.datasets.windows import FleetData
from simulation.measures import confusion
from simulation.simulate import SimulationResult
from wire.errors import ConfigError
from wire.tasks import (
    CLASSIFICATION,
    MULTI_LABEL,
    PRESENT,
    RECONSTRUCTION,
    REGRESSION,
    SEQUENCE,
    TaskName,
    answer_of,
)

if TYPE_CHECKING:
    import pandas as pd

Numbers = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Result:
    """A finished simulation.

    Its devices are those that trained. Newcomers have numbers in `summary`, and models.
    """

    outcome: SimulationResult
    """Result of the simulation itself."""
    files: tuple[Path, ...] = ()
    """Paths of files and folders that were written; empty if `simulate` has no folder."""

    @property
    def summary(self) -> Summary:
        """All numbers of ``summary.json`` (docs/summary.md)."""
        return self.outcome.summary

    @property
    def data(self) -> FleetData:
        """The devices' data in this simulation."""
        return self.outcome.data

    @property
    def accuracy(self) -> Spread:
        """Final accuracy over devices, of their personal models on their own test windows.

        It has `mean`, `std`, `worst` and `worst_tenth`.
        """
        return self.summary.accuracy

    @property
    def macro_f1(self) -> Spread:
        """Macro F1 over devices, with the fields of `accuracy`.

        It is over the classes of windows or of their steps, or over several labels.

        Raises:
            ConfigError: the task has neither.
        """
        self._check_task("macro_f1", CLASSIFICATION, SEQUENCE, MULTI_LABEL)
        assert self.summary.macro_f1 is not None  # a simulation of these tasks always has one
        return self.summary.macro_f1

    @property
    def auc(self) -> Spread:
        """Area under the ROC curve over devices, with the fields of `accuracy`.

        For several labels, a device's value is the mean over names. For a reconstruction, it
        measures how well the error of a window separates anomalous from usual windows.

        Raises:
            ConfigError: the task is neither about several labels nor a reconstruction, or the data
                do not say which windows are anomalous.
        """
        self._check_task("auc", MULTI_LABEL, RECONSTRUCTION)
        if self.summary.auc is None:
            raise ConfigError(
                f"auc: data {self.data.name} do not say which test windows are anomalous "
                "(docs/anomalies.md)"
            )
        return self.summary.auc

    @property
    def mae(self) -> Mapping[str, Spread]:
        """Mean absolute error over devices by quantity, in the user's units.

        Each has the fields of `accuracy`; the worst is the largest.

        Raises:
            ConfigError: the task is not about quantities.
        """
        self._check_task("mae", REGRESSION)
        assert self.summary.mae is not None
        return self.summary.mae

    @property
    def groups(self) -> Mapping[int, Sequence[str]]:
        """Ids of the devices by number of their group."""
        ids_by_group: dict[int, list[str]] = {}
        for device_id, device in self.summary.devices.items():
            if device.group is not None:
                ids_by_group.setdefault(device.group, []).append(device_id)
        return dict(sorted(ids_by_group.items()))

    # Numbers by round

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """Every test of a device, by round, as plain records."""
        return evaluations(self.outcome.records)

    @property
    def accuracies(self) -> "pd.DataFrame":
        """The `evaluations` as a DataFrame, a row each.

        Raises:
            ConfigError: pandas is not installed; `evaluations` needs none.
        """
        return to_frame(self.evaluations, [column.name for column in fields(Evaluation)]).astype(
            {"group": "Int64"}
        )

    @property
    def rounds(self) -> tuple[RoundMetrics, ...]:
        """Every round, as plain records that callbacks receive too."""
        return round_metrics(self.outcome.records)

    # Models

    def model(self, *, group: int | None = None, device: str | None = None) -> nn.Module:
        """Return a copy of a model, in evaluation mode.

        It maps x (n, \\*window) float32, in the sensor's units, to logits (n, classes) float32, for
        steps (n, steps, classes).

        The model of a group is the network that its devices receive. Without a name it is that of
        the only group. The model of a device is its network if the network alone answers. Otherwise
        it is a `shoal.OwnModel`: the network as `.network`, and the device's other tensors (a
        memory of windows, a model of its own). The softmax of the logits is the device's answer; in
        other tasks `predict` turns the output into answers.

        Raises:
            ConfigError: there is no such group or device; or devices keep a part of the network, so
                that the group has no whole one.
        """
        return self._models.model(self._groups, group, device)

    def predict(
        self, x: ArrayLike, *, group: int | None = None, device: str | None = None
    ) -> Numbers:
        """Return the answers of a group's or a device's model to examples.

        x is (n, \\*window), in the sensor's units. The answers are float32: class probabilities
        (n, classes), for steps (n, steps, classes); for several labels the probability of each name
        (n, names); for a regression the quantities (n, quantities) in the user's units; for a
        reconstruction the error of each window (n, 1).

        Raises:
            ConfigError: there is no such model (see `model`).
            DataError: x has another shape, or holds values that are not finite.
        """
        examples = np.asarray(x)
        check_windows(examples, self.data.window.shape)
        model, objective = self.model(group=group, device=device), self.outcome.models.objective
        return answers_of(model, objective, examples) if len(examples) else self._no_answers()

    def predictions(self, device: str) -> NDArray[Any]:
        """Return a device's predicted classes (n,) int64 for its test windows.

        The backend of the run computes them. For steps they are (n, steps); for several labels
        (n, names), 1 for each predicted name and 0 for others; for a regression the quantities
        (n, quantities) float32.

        Raises:
            ConfigError: there is no such device, or the task needs no labels.
        """
        self._check_task("predictions", CLASSIFICATION, SEQUENCE, MULTI_LABEL, REGRESSION)
        Models(self.outcome.models, self.data.devices).check_device(device)
        x = self.data.devices[device].test_x
        answers = self.outcome.predict(device, x) if len(x) else self._no_answers()
        if self._task.of == REGRESSION:
            return answers
        labels: NDArray[Any] = (
            answers >= PRESENT if self._task.of == MULTI_LABEL else answers.argmax(-1)
        )
        return labels.astype(np.int64)

    def confusion(self, device: str | None = None) -> Labels:
        """Return the confusion matrix (classes, classes) int64 of a device, or of all together.

        An entry is the number of test windows of the row's class with the column's class as
        prediction. Of steps, those with a label count.

        Raises:
            ConfigError: there is no such device, or the task has no classes.
        """
        self._check_task("confusion", CLASSIFICATION, SEQUENCE)
        counts = np.zeros((len(self.data.classes), len(self.data.classes)), np.int64)
        for device_id in self.data.devices if device is None else (device,):
            predicted = self.predictions(device_id)
            counts += confusion(
                self.data.devices[device_id].test_y, predicted, len(self.data.classes)
            )
        return counts

    def _no_answers(self) -> Numbers:
        task, steps = self._task, self.data.window.steps
        return np.zeros(
            (0, *answer_of(task.of, len(task.answers(self.data.classes)), steps)), np.float32
        )

    @property
    def _task(self) -> Task:
        return self.outcome.models.objective.task

    def _check_task(self, asked: str, *tasks: TaskName) -> None:
        if self._task.of not in tasks:
            answer_names = ", ".join(self._task.answers(self.data.classes))
            raise ConfigError(
                f"{asked} needs a task of {' or '.join(tasks)}, got {self._task.name}, where "
                f"`predict` answers {answer_names}"
            )

    def save(self, folder: str | Path, devices: Sequence[str] | None = None) -> tuple[Written, ...]:
        """Write the model of each group and each device, or of these devices, and return the list.

        The files are ``.safetensors``, ``.pt`` and ``.onnx``. The list is written too, to
        ``models.json``; it says why a file could not be made.

        Raises:
            ConfigError: a file cannot be written, or there is no such device.
        """
        from shoal.api.model_files import (
            ModelFiles,
        )  # it imports the tracing of networks, which takes longer than some runs

        about = {
            "classes": "\n".join(self.data.classes),
            "algorithm": self.summary.algorithm,
            "data": self.data.name,
        }
        chosen = (
            sorted((*self.data.devices, *self.outcome.newcomers)) if devices is None else devices
        )
        for device_id in chosen:
            self._models.check_device(device_id)
        files = ModelFiles(Path(folder), self.outcome.models, self.data.window, about)
        for number in self.groups:
            files.write_group(number)
        for device_id in chosen:
            group, keeps = None, None
            if device_id not in self.outcome.newcomers:
                device = self.summary.devices[device_id]
                group, keeps = device.group, device.personal_model
            elif came := self.summary.newcomers:
                group = group_number(came.groups[device_id])
                keeps = came.personal_models[device_id]
            files.write_device(device_id, group, keeps.candidate if keeps else "")
        return files.finish()

    @cached_property
    def _models(self) -> Models:
        return Models(self.outcome.models, (*self.data.devices, *self.outcome.newcomers))

    @property
    def _groups(self) -> Mapping[str, int]:
        return {
            device_id: number for number, members in self.groups.items() for device_id in members
        }
