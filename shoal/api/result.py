"""What a simulation left: numbers, models and predictions."""

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
    """A finished simulation. Devices are those that trained; newcomers have numbers in `summary`,
    and models."""

    outcome: SimulationResult
    """What the simulation itself returned."""
    files: tuple[Path, ...] = ()
    """Files and folders that were written, where `simulate` was given a folder."""

    @property
    def summary(self) -> Summary:
        """All numbers of ``summary.json`` (docs/simulate.md)."""
        return self.outcome.summary

    @property
    def data(self) -> FleetData:
        """What the devices had of the data."""
        return self.outcome.data

    @property
    def accuracy(self) -> Spread:
        """Accuracy over devices in the end, of what each keeps, on its own test windows: `mean`,
        `std`, `worst`, `worst_tenth`."""
        return self.summary.accuracy

    @property
    def macro_f1(self) -> Spread:
        """Macro F1 over devices, as `accuracy`: of classes, of windows or of their steps, or of
        several labels.

        Raises:
            ConfigError: the task has neither.
        """
        self._check_task("macro_f1", CLASSIFICATION, SEQUENCE, MULTI_LABEL)
        assert (
            self.summary.macro_f1 is not None
        )  # of a simulation of these tasks there always is one
        return self.summary.macro_f1

    @property
    def auc(self) -> Spread:
        """The area under the ROC curve over devices, as `accuracy`: of each device the mean over
        names; in a reconstruction, how well the error of a window tells anomalous ones from usual
        ones.

        Raises:
            ConfigError: the task is neither about several labels nor a reconstruction, or the data
                do not say which windows are anomalous.
        """
        self._check_task("auc", MULTI_LABEL, RECONSTRUCTION)
        if self.summary.auc is None:
            raise ConfigError(
                f"auc: data {self.data.name} do not say which test windows are anomalous "
                "(docs/algorithms.md)"
            )
        return self.summary.auc

    @property
    def mae(self) -> Mapping[str, Spread]:
        """By quantity, the mean absolute error over devices in the user's units, as `accuracy`; the
        worst is the largest.

        Raises:
            ConfigError: the task is not about quantities.
        """
        self._check_task("mae", REGRESSION)
        assert self.summary.mae is not None
        return self.summary.mae

    @property
    def groups(self) -> Mapping[int, Sequence[str]]:
        """By number of a group, its devices."""
        found: dict[int, list[str]] = {}
        for device_id, device in self.summary.devices.items():
            if device.group is not None:
                found.setdefault(device.group, []).append(device_id)
        return dict(sorted(found.items()))

    # Numbers by round

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """Every test of a device, by round: plain records."""
        return evaluations(self.outcome.records)

    @property
    def accuracies(self) -> "pd.DataFrame":
        """`evaluations` as a DataFrame, a row each.

        Raises:
            ConfigError: pandas is not installed; `evaluations` needs none.
        """
        return to_frame(self.evaluations, [column.name for column in fields(Evaluation)]).astype(
            {"group": "Int64"}
        )

    @property
    def rounds(self) -> tuple[RoundMetrics, ...]:
        """Every round that was made: plain records, as callbacks are told them."""
        return round_metrics(self.outcome.records)

    # Models

    def model(self, *, group: int | None = None, device: str | None = None) -> nn.Module:
        """A copy of a model, in evaluation: x (n, \\*window) float32, in the sensor's units ->
        logits (n, classes) float32, of steps (n, steps, classes).

        Of a group it is the network that its devices receive; the only group's where nothing is
        named. Of a device it is what the device answers with: its network where that alone answers,
        else a `shoal.OwnModel`, which has all that the device keeps beside it (a memory of windows,
        a model of its own) and the network as `.network`. The softmax of its logits is what the
        device answers; in other tasks `predict` makes the answers of what it gives.

        Raises:
            ConfigError: there is no such group or device; or devices keep a part of the network, so
                that the group has no whole one.
        """
        return self._models.model(self._groups, group, device)

    def predict(
        self, x: ArrayLike, *, group: int | None = None, device: str | None = None
    ) -> Numbers:
        """Class probabilities (n, classes) float32 of examples x (n, \\*window) in the sensor's
        units, by the model of a group or a device; of steps (n, steps, classes), of several labels
        the probability (n, names) of each name, of a regression the quantities (n, quantities) in
        the user's units, in a reconstruction the error (n, 1) of each window.

        Raises:
            ConfigError: as of `model`.
            DataError: x has another shape, or holds values that are not finite.
        """
        examples = np.asarray(x)
        check_windows(examples, self.data.window.shape)
        model, objective = self.model(group=group, device=device), self.outcome.models.objective
        return answers_of(model, objective, examples) if len(examples) else self._no_answers()

    def predictions(self, device: str) -> NDArray[Any]:
        """The class (n,) int64 that a device predicts for each of its test windows, by the backend
        that the run was computed with; of steps (n, steps); of several labels (n, names), 1 for
        each name that it predicts and 0 for others; of a regression the quantities (n, quantities)
        float32.

        Raises:
            ConfigError: there is no such device, or the task needs no labels.
        """
        self._check_task("predictions", CLASSIFICATION, SEQUENCE, MULTI_LABEL, REGRESSION)
        Models(self.outcome.models, self.data.devices).check_device(device)
        x = self.data.devices[device].test_x
        answers = self.outcome.predict(device, x) if len(x) else self._no_answers()
        if self._task.of == REGRESSION:
            return answers
        told: NDArray[Any] = (
            answers >= PRESENT if self._task.of == MULTI_LABEL else answers.argmax(-1)
        )
        return told.astype(np.int64)

    def confusion(self, device: str | None = None) -> Labels:
        """How often windows of a class (rows) were taken for a class (columns), (classes, classes)
        int64: of a device's test windows, or over those of all devices. Of steps, those that have a
        label are counted.

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
        """What is answered to no examples."""
        task, steps = self._task, self.data.window.steps
        return np.zeros(
            (0, *answer_of(task.of, len(task.answers(self.data.classes)), steps)), np.float32
        )

    @property
    def _task(self) -> Task:
        return self.outcome.models.objective.task

    def _check_task(self, asked: str, *tasks: TaskName) -> None:
        if self._task.of not in tasks:
            told = ", ".join(self._task.answers(self.data.classes))
            raise ConfigError(
                f"{asked}: expected a task of {' or '.join(tasks)}, this is {self._task.name}; "
                f"`predict` says {told}"
            )

    def save(self, folder: str | Path, devices: Sequence[str] | None = None) -> tuple[Written, ...]:
        """Write the model of each group and each device, or of these devices, as ``.safetensors``,
        ``.pt`` and ``.onnx``. The list that is returned is ``models.json``, too. Where a file
        cannot be made, it says why.

        Raises:
            ConfigError: a file cannot be written, or there is no such device.
        """
        from shoal.api.model_files import (
            ModelFiles,
        )  # with all that traces networks, which takes longer to import than some runs

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
                group, keeps = device.group, device.kept
            elif came := self.summary.newcomers:
                group, keeps = group_number(came.groups[device_id]), came.kept[device_id]
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
