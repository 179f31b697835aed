"""Callbacks, called after each round of a simulation: the protocol, and four implementations."""

import csv
from dataclasses import asdict, fields
from pathlib import Path
from typing import Literal, Protocol, get_args

from shoal.api.progress import Progress
from shoal.api.tables import RoundMetrics
from simulation.engine.progress import STOP, Stop
from wire.errors import ConfigError

Measure = Literal["accuracy_mean", "accuracy_worst", "accuracy_worst_tenth", "test_loss"]


class Callback(Protocol):
    """An object that is called after each round; an exception in it ends the run."""

    def on_round(self, progress: Progress) -> Stop | None:
        """Look at a round that is over, and return `STOP` to end the training.

        The round is a preparation, a round of training, or the round after the last, in which
        devices test their personal models. After `STOP`, that last round follows. A run that
        resumes from a checkpoint calls this for its new rounds only; `Progress.history` also has
        the earlier ones.
        """


class CsvLog:
    """A log with a line for each round and the fields of `RoundMetrics` as columns."""

    def __init__(self, path: str | Path, measures: bool = False) -> None:
        """Log to the file `path`.

        Args:
            path: path of the CSV file.
            measures: True to add columns for `Progress.measures`, for which each device's model
                answers its test windows. They are empty for rounds before an interruption.
        """
        self._path, self._begun, self._measures = Path(path), False, measures
        self._columns = [column.name for column in fields(RoundMetrics)]

    def on_round(self, progress: Progress) -> None:
        """Append the round; the first call starts the file with the rounds before an interruption.

        Raises:
            ConfigError: the file cannot be written.
        """
        lines = [
            asdict(metrics)
            for metrics in (progress.history[-1:] if self._begun else progress.history)
        ]
        if self._measures:
            lines[-1] |= progress.measures()
        if self._measures and not self._begun:
            self._columns += progress.measured
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a" if self._begun else "w", newline="") as file:
                writer = csv.DictWriter(file, self._columns)
                if not self._begun:
                    writer.writeheader()
                writer.writerows(lines)
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}") from None
        self._begun = True


class EarlyStopping:
    """A stop of the run when a measure no longer improves.

    The run stops after `patience` rounds of training in which the measure improves by no more than
    `min_delta`. A loss improves by falling. The measure is over the devices' own test windows, so a
    choice that depends on it has seen them (`shoal.validation` sets them aside).
    """

    def __init__(
        self, patience: int, min_delta: float = 0.0, measure: Measure = "accuracy_mean"
    ) -> None:
        """Stop after `patience` rounds of training without improvement.

        Raises:
            ConfigError: `patience` is not at least 1, or there is no such measure.
        """
        if patience < 1:
            raise ConfigError(f"patience must be at least 1 round, got {patience}")
        if measure not in get_args(Measure):
            allowed = ", ".join(get_args(Measure))
            raise ConfigError(f"measure must be one of {allowed}, got {measure!r}")
        self._patience, self._min_delta, self._measure = patience, min_delta, measure

    def on_round(self, progress: Progress) -> Stop | None:
        """Return `STOP` if none of the last `patience` rounds of training improved the measure."""
        best, since = float("-inf"), 0
        for metrics in progress.history:
            value = getattr(metrics, self._measure)
            if metrics.phase == "training" and value is not None:
                value = -value if self._measure == "test_loss" else value
                better = value > best + self._min_delta
                best, since = (value, 0) if better else (best, since + 1)
        return STOP if since >= self._patience else None


class MLflow:
    """A log of each round's numbers as metrics of the active MLflow run, or of a new one.

    The step is the number of rounds of training behind the models that were tested. MLflow's own
    settings (``mlflow.set_tracking_uri``) say where it logs to. The run's tag `accuracy` says what
    accuracy is the share of.
    """

    def __init__(self, measures: bool = False) -> None:
        """Log to MLflow.

        Args:
            measures: True to log `Progress.measures` too, for which each device's model answers its
                test windows. The last step has them twice: of the served models and of the personal
                models.

        Raises:
            ConfigError: MLflow is not installed.
        """
        try:
            import mlflow
        except ModuleNotFoundError:
            raise ConfigError(
                "shoal.MLflow needs the package mlflow: pip install 'shoal[mlflow]'"
            ) from None
        self._log, self._tag, self._measures = mlflow.log_metrics, mlflow.set_tag, measures

    def on_round(self, progress: Progress) -> None:
        """Log the round, unless it is a preparation.

        A preparation tests no model that rounds have trained.
        """
        metrics = progress.metrics
        if metrics.phase == "preparing":
            return
        self._tag("accuracy", progress.accuracy_is)
        self._log(metrics.numbers(), step=metrics.evaluated)
        if self._measures:
            self._log(progress.measures(), step=metrics.round)


class TensorBoard:
    """A log of each round's numbers as TensorBoard scalars.

    The accuracy of each device is `accuracy/DEVICE`. The step is the number of rounds of training
    behind the models that were tested. The text `accuracy` says what accuracy is the share of.
    """

    def __init__(self, folder: str | Path, devices: bool = True, measures: bool = False) -> None:
        """Log to a folder.

        Args:
            folder: path of the folder for the event files.
            devices: True if each device has a curve of its own.
            measures: True to write `Progress.measures` too, for which each device's model answers
                its test windows. The last step has them twice: of the served models and of the
                personal models.

        Raises:
            ConfigError: TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise ConfigError(
                "shoal.TensorBoard needs the package tensorboard: pip install 'shoal[tensorboard]'"
            ) from None
        self._writer, self._devices, self._measures = SummaryWriter(str(folder)), devices, measures
        self._told = False

    def on_round(self, progress: Progress) -> None:
        """Write the round, unless it is a preparation.

        A preparation tests no model that rounds have trained.
        """
        metrics = progress.metrics
        if metrics.phase == "preparing":
            return
        numbers = metrics.numbers()
        if self._devices:
            numbers |= {
                f"accuracy/{device_id}": value for device_id, value in progress.accuracies.items()
            }
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, metrics.evaluated)
        for name, value in progress.measures().items() if self._measures else ():
            self._writer.add_scalar(name, value, metrics.round)
        if not self._told:
            self._writer.add_text("accuracy", progress.accuracy_is)
            self._told = True
        self._writer.flush()
