"""Results of a simulation: numbers, models and predictions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from aggregator.view.summary import Spread, Summary, group_number
from algorithms.tasks.base import Task
from edge_client.data.windows import read_windows
from edge_client.models.loaded import check_windows
from host.files import prepare_folder
from shoal.api.columns import is_table, windows_of_table
from shoal.api.examples import windows_of
from shoal.api.own_model import answers_of
from shoal.api.progress import Models
from shoal.api.tables import Evaluation, RoundMetrics, evaluations, round_metrics, to_frame
from shoal.reports.model_list import Written
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

    def predict(self, x: Any, *, group: int | None = None, device: str | None = None) -> Numbers:
        """Return the answers of a group's or a device's model to examples.

        x is (n, \\*window), in the sensor's units; or a mapping of several inputs, as for `load`;
        or recordings: a table of samples, or the path of a file or folder that `shoal.load` could
        read, or of an array in ``.npy`` or ``.npz``. Recordings are cut into windows as the data
        were, with the same words about their columns; labels are not read. The answers are in the
        order of the recordings and of the time in each.

        The answers are float32: class probabilities (n, classes), for steps (n, steps, classes);
        for several labels the probability of each name (n, names); for a regression the quantities
        (n, quantities) in the user's units; for a reconstruction the error of each window (n, 1).

        Raises:
            ConfigError: there is no such model (see `model`).
            DataError: x has another shape, or holds values that are not finite, or a recording
                cannot be read or lacks a channel.
        """
        window, reading = self.data.window, self.data.reading
        words = reading.words if reading else None
        if is_table(x) or (
            isinstance(x, Mapping) and all(np.ndim(column) == 1 for column in x.values())
        ):
            x = windows_of_table(x, words, window)
        elif isinstance(x, str | Path):
            x = read_windows(Path(x), window, words)
        examples = np.asarray(windows_of("x", x))
        check_windows(examples, window.shape)
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

    def confusion(self, device: str | None = None, *, group: int | None = None) -> Labels:
        """Return the confusion matrix (classes, classes) int64 of a device, of a group, or of all.

        An entry is the number of test windows of the row's class with the column's class as
        prediction. Of steps, those with a label count.

        Raises:
            ConfigError: there is no such device or group, or the task has no classes.
        """
        self._check_task("confusion", CLASSIFICATION, SEQUENCE)
        counts = np.zeros((len(self.data.classes), len(self.data.classes)), np.int64)
        if device is not None and group is not None:
            raise ConfigError(f"Name a group ({group}) or a device ({device!r}), not both.")
        chosen: Iterable[str] = self.data.devices if device is None else (device,)
        if group is not None:
            chosen = self.groups[Models.number(self._groups, group)]
        for device_id in chosen:
            predicted = self.predictions(device_id)
            counts += confusion(
                self.data.devices[device_id].test_y, predicted, len(self.data.classes)
            )
        return counts

    def draw_map(
        self,
        path: str | Path,
        by: str | Mapping[str, Any] | Callable[[str], Any] = "group",
    ) -> Path:
        """Draw the devices in a plane by their surveys, and return the path of the picture.

        Devices with similar inputs, or similar labels, are near each other, whatever the
        algorithm; at most 200 devices are drawn. `by` says their colours: ``group``, ``truth``
        (the known groups), ``device``, ``accuracy``, a mapping from device ids to names or
        numbers, or a function of a device's id, such as ``lambda d: d.split("-")[0]``.

        Raises:
            ConfigError: `by` is none of these, no device has labelled windows, or the picture's
                folder cannot be made.
        """
        from shoal.reports.pictures import draw_map
        from simulation.surveys import MOST, distances

        matrices, ids = distances(self.data.some(MOST), self.outcome.models.objective)
        if not matrices:
            raise ConfigError("draw_map: no device has labelled windows, so none has a survey")
        values: Mapping[str, Any]
        if callable(by):
            values, title = {d: by(d) for d in ids}, getattr(by, "__name__", "value").strip("<>")
            title = "" if title == "lambda" else title
        elif isinstance(by, Mapping):
            values, title = by, ""
        else:
            devices = self.summary.devices
            colours: dict[str, Mapping[str, Any]] = {
                "group": self._groups,
                "truth": self.data.truth,
                "device": {d: d for d in ids},
                "accuracy": {d: device.accuracy for d, device in devices.items()},
            }
            if by not in colours:
                raise ConfigError(
                    f"by must be one of {', '.join(colours)}, a mapping, or a function, got {by!r}"
                )
            values, title = colours[by], by
        prepare_folder(Path(path).parent, "path")
        return draw_map(Path(path), matrices, ids, values, title)

    def _no_answers(self) -> Numbers:
        task, steps = self._task, self.data.window.steps
        return np.zeros(
            (0, *answer_of(task.of, len(task.answers(self.data.classes)), steps)), np.float32
        )

    @property
    def _task(self) -> Task:
        return self.outcome.models.objective.task

    def _check_task(self, feature: str, *tasks: TaskName) -> None:
        if self._task.of not in tasks:
            answer_names = ", ".join(self._task.answers(self.data.classes))
            raise ConfigError(
                f"{feature} needs a task of {' or '.join(tasks)}, got {self._task.name}, where "
                f"`predict` answers {answer_names}"
            )

    def save(
        self,
        path: str | Path,
        devices: Sequence[str] | None = None,
        *,
        group: int | None = None,
        device: str | None = None,
    ) -> tuple[Written, ...]:
        """Write models into a folder, or one model as a file, and return the list.

        A path with a suffix is a file: ``.onnx``, ``.pte`` (ExecuTorch), ``.mlpackage`` (Core ML,
        if coremltools is installed), ``.pt`` or ``.safetensors``. It has the model of the group or
        of the device, or of the only group. The first three answer as `predict` does.

        A folder gets the model of each group and each device, or of `devices`, as
        ``.safetensors``, ``.pt`` and ``.onnx``. The list is written too, to ``models.json``; it
        says why a file could not be made. Models that an earlier list names are removed.

        Raises:
            ConfigError: a file cannot be written, or there is no such device or group.
        """
        from shoal.api.model_files import (
            CORE_ML,
            EXECUTORCH_FILE,
            FORMS,
            ModelFiles,
        )  # it imports the tracing of networks, which takes longer than some runs

        window = self.data.window
        about = {
            "classes": "\n".join(self.data.classes),
            "channels": "\n".join(window.channels),
            "length": str(window.length),
            "algorithm": self.summary.algorithm,
            "data": self.data.name,
        }
        path, forms = Path(path), (*FORMS, EXECUTORCH_FILE, CORE_ML)
        if path.suffix in forms:
            if devices is not None:
                raise ConfigError(f"{path} has one model: name a device or a group, not devices")
            number = 0 if device is not None else Models.number(self._groups, group)
            if device is not None:
                self._models.model(self._groups, group, device)
            files = ModelFiles(path.parent, self.outcome.models, window, about)
            keeps = self._keeps(device)[1] if device is not None else ""
            return (files.write_one(path.name, number, device or "", keeps),)
        is_folder = devices is not None or path.is_dir() or not path.suffix[1:2].isalpha()
        if group is not None or device is not None or not is_folder:
            raise ConfigError(
                f"A file of one model must end with one of {', '.join(forms)}, got {path}"
            )
        chosen = (
            sorted((*self.data.devices, *self.outcome.newcomers)) if devices is None else devices
        )
        for device_id in chosen:
            self._models.check_device(device_id)
        files = ModelFiles(path, self.outcome.models, window, about)
        for number in self.groups:
            files.write_group(number)
        for device_id in chosen:
            files.write_device(device_id, *self._keeps(device_id))
        return files.finish()

    def _keeps(self, device_id: str) -> tuple[int | None, str]:
        """Return a device's group, and the candidate that it chose as its personal model or ""."""
        group, keeps = None, None
        if device_id not in self.outcome.newcomers:
            summary = self.summary.devices[device_id]
            group, keeps = summary.group, summary.personal_model
        elif came := self.summary.newcomers:
            group = group_number(came.placed[device_id].group)
            keeps = came.personal_models[device_id]
        return group, keeps.candidate if keeps else ""

    @cached_property
    def _models(self) -> Models:
        return Models(self.outcome.models, (*self.data.devices, *self.outcome.newcomers))

    @property
    def _groups(self) -> Mapping[str, int]:
        return {
            device_id: number for number, members in self.groups.items() for device_id in members
        }
