"""Callbacks, called after each round of a simulation: the protocol, and four ready made."""

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
    """Called after each round. What it raises ends the run."""

    def on_round(self, progress: Progress) -> Stop | None:
        """A round is over: a preparation, a round of training, or the one after the last, in which
        devices test what they keep. `STOP` as an answer ends the training: what follows is that
        last round. A run that goes on from a checkpoint tells of its own rounds, and
        `Progress.history` has those before them."""


class CsvLog:
    """Writes a file with a line for each round, and the fields of `RoundMetrics` as columns."""

    def __init__(self, path: str | Path, measures: bool = False) -> None:
        """`measures`: whether there are columns for `Progress.measures` too, which each device's
        model then answers its test windows for; those of rounds before an interruption are empty.
        """
        self._path, self._begun, self._measures = Path(path), False, measures
        self._columns = [column.name for column in fields(RoundMetrics)]

    def on_round(self, progress: Progress) -> None:
        """Add the round; the first time begin the file, with the rounds before an interruption.

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
    """Stops a run when a measure has not got better by more than `min_delta` for `patience` rounds
    of training.

    The measure is over devices' own test windows: a choice that goes by it has seen them
    (`shoal.validation` sets them aside). A loss gets better by getting smaller.
    """

    def __init__(
        self, patience: int, min_delta: float = 0.0, measure: Measure = "accuracy_mean"
    ) -> None:
        """
        Raises:
            ConfigError: `patience` is not at least 1, or there is no such measure.
        """
        if patience < 1:
            raise ConfigError(f"patience = {patience}: expected a number of rounds from 1")
        if measure not in get_args(Measure):
            raise ConfigError(f"measure {measure!r}: expected {', '.join(get_args(Measure))}")
        self._patience, self._min_delta, self._measure = patience, min_delta, measure

    def on_round(self, progress: Progress) -> Stop | None:
        """Look at all rounds of training so far."""
        best, since = float("-inf"), 0
        for metrics in progress.history:
            value = getattr(metrics, self._measure)
            if metrics.phase == "training" and value is not None:
                value = -value if self._measure == "test_loss" else value
                better = value > best + self._min_delta
                best, since = (value, 0) if better else (best, since + 1)
        return STOP if since >= self._patience else None


class MLflow:
    """Logs the numbers of each round as metrics of the active MLflow run, or of a new one where
    none is active; the step is the number of rounds of training behind the models that were tested.
    Where it logs to is for MLflow's own settings (``mlflow.set_tracking_uri``). What accuracy is
    the share of is the run's tag `accuracy`."""

    def __init__(self, measures: bool = False) -> None:
        """`measures`: whether `Progress.measures` are logged too, which each device's model then
        answers its test windows for; the last step has them twice, of the models served and of
        those kept.

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
        """Log the round; preparations are left out, in which no model is tested that is trained by
        rounds."""
        metrics = progress.metrics
        if metrics.phase == "preparing":
            return
        self._tag("accuracy", progress.accuracy_is)
        self._log(metrics.numbers(), step=metrics.evaluated)
        if self._measures:
            self._log(progress.measures(), step=metrics.round)


class TensorBoard:
    """Writes the numbers of each round as scalars, and the accuracy of each device as
    `accuracy/DEVICE`. The step is the number of rounds of training behind the models that were
    tested. What accuracy is the share of is the text `accuracy`."""

    def __init__(self, folder: str | Path, devices: bool = True, measures: bool = False) -> None:
        """`devices`: whether each device has a curve of its own. `measures`: whether
        `Progress.measures` are written too, which each device's model then answers its test windows
        for; the last step has them twice, of the models served and of those kept.

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
        """Write the round; preparations are left out, in which no model is tested that is trained
        by rounds."""
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
