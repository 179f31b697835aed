"""Callbacks, called after each round of a simulation: the protocol, and its implementations."""

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import ClassVar, Literal, Protocol, get_args

from host.files import file_error
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
    """A log with a line for each round and the fields of `RoundMetrics` as columns.

    Each run has a file: a second run with the same object is logged to `NAME-2.csv`.
    """

    def __init__(self, path: str | Path, measures: bool = False) -> None:
        """Log to the file `path`.

        Args:
            path: path of the CSV file.
            measures: True to add columns for `Progress.measures`, for which each device's model
                answers its test windows. They are empty for rounds before an interruption.
        """
        self._first, self._path, self._measures = Path(path), Path(path), measures
        self._settings: Mapping[str, str | float] | None = None
        self._columns: list[str] = []
        self._runs = 0

    def on_round(self, progress: Progress) -> None:
        """Append the round; the first call starts the file with the rounds before an interruption.

        Raises:
            ConfigError: the file cannot be written.
        """
        begins = progress.settings is not self._settings
        if begins:
            self._settings, self._runs = progress.settings, self._runs + 1
            self._columns = [column.name for column in fields(RoundMetrics)]
            self._columns += progress.measured if self._measures else ()
            if self._runs > 1:
                self._path = self._first.with_stem(f"{self._first.stem}-{self._runs}")
        lines = [
            asdict(metrics) for metrics in (progress.history if begins else progress.history[-1:])
        ]
        if self._measures:
            lines[-1] |= progress.measures()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("w" if begins else "a", newline="") as file:
                writer = csv.DictWriter(file, self._columns)
                if begins:
                    writer.writeheader()
                writer.writerows(lines)
        except OSError as error:
            raise ConfigError(file_error(self._path, error)) from None


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


class Tracker(ABC):
    """A callback that logs each simulation as a run of its own, with its settings as parameters."""

    _settings: Mapping[str, str | float] | None = None

    def __init__(self, measures: bool) -> None:
        """Log `Progress.measures` too if `measures` is True.

        Each device's model then answers its test windows. The last step has them twice: of the
        served models and of the personal models.
        """
        self._measures = measures

    def on_round(self, progress: Progress) -> None:
        """Log the round, unless it is a preparation, and end the run after its last round.

        A preparation tests no model that rounds have trained.
        """
        metrics = progress.metrics
        if progress.settings is not self._settings:
            if self._settings is not None:
                self.end("failed")
            self._settings = progress.settings
            self.begin(progress)
        if metrics.phase != "preparing":
            self.log(self.numbers(progress), metrics.evaluated)
            if self._measures:
                self.log(progress.measures(), metrics.round)
        if progress.is_last:
            self.end("finished")
            self._settings = None

    def numbers(self, progress: Progress) -> dict[str, float]:
        """Return the numbers of a round by name."""
        return progress.metrics.numbers()

    @abstractmethod
    def begin(self, progress: Progress) -> None:
        """Begin a run with the settings in `progress`."""

    @abstractmethod
    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Log numbers to the present run."""

    @abstractmethod
    def end(self, status: Literal["finished", "failed"]) -> None:
        """End the present run."""


class MLflow(Tracker):
    """A log of each round's numbers as metrics of an MLflow run.

    The active MLflow run is used for the first simulation in it. Every other simulation has a new
    run, inside the active one if there is one. The step is the number of rounds of training behind
    the models that were tested. MLflow's own settings (``mlflow.set_tracking_uri``) say where it
    logs to. The run's tag `accuracy` says what accuracy is the share of.
    """

    used: ClassVar[set[str]] = set()
    """Ids of the active runs that this process has logged to."""

    def __init__(self, measures: bool = False) -> None:
        """Log to MLflow.

        Args:
            measures: True to log `Progress.measures` too (see `Tracker`).

        Raises:
            ConfigError: MLflow is not installed.
        """
        super().__init__(measures)
        try:
            import mlflow
        except ModuleNotFoundError:
            raise ConfigError(
                "shoal.MLflow needs the package mlflow: pip install 'shoal[mlflow]'"
            ) from None
        self._mlflow, self._run, self._owned = mlflow, "", False

    def begin(self, progress: Progress) -> None:
        """Begin a run, or use the active one."""
        active, self._client = self._mlflow.active_run(), self._mlflow.MlflowClient()
        self._owned = active is None or active.info.run_id in self.used
        if self._owned:
            with self._mlflow.start_run(nested=active is not None) as run:
                self._run = run.info.run_id
            self._client.update_run(self._run, status="RUNNING")  # logged to by its id
        else:
            self._run = active.info.run_id
            self.used.add(self._run)
        self._client.set_tag(self._run, "accuracy", progress.accuracy_is)
        for name, value in progress.settings.items():
            self._client.log_param(self._run, name, value)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Log metrics to the run, which need not be the active one."""
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    def end(self, status: Literal["finished", "failed"]) -> None:
        """End the run, unless it was active before."""
        if self._owned:
            self._client.set_terminated(self._run, status.upper())


class TensorBoard(Tracker):
    """A log of each round's numbers as TensorBoard scalars.

    The accuracy of each device is `accuracy/DEVICE`. The step is the number of rounds of training
    behind the models that were tested. The texts `settings` and `accuracy` have the run's settings
    and say what accuracy is the share of.
    """

    def __init__(self, folder: str | Path, devices: bool = True, measures: bool = False) -> None:
        """Log to a folder.

        Args:
            folder: path of the folder for the event files. Other runs than its first one have
                folders in it, `run-2` and so on. A run that resumes from a checkpoint continues in
                the last one.
            devices: True if each device has a curve of its own.
            measures: True to write `Progress.measures` too (see `Tracker`).

        Raises:
            ConfigError: TensorBoard is not installed.
        """
        super().__init__(measures)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise ConfigError(
                "shoal.TensorBoard needs the package tensorboard: pip install 'shoal[tensorboard]'"
            ) from None
        self._make_writer, self._folder, self._devices = SummaryWriter, Path(folder), devices

    def begin(self, progress: Progress) -> None:
        """Begin a run in a folder without events."""
        folders, number = [self._folder], 1
        while any(folders[-1].glob("events.out.tfevents.*")):
            number += 1
            folders.append(self._folder / f"run-{number}")
        resumes = len(progress.history) > 1 and len(folders) > 1
        self._writer = self._make_writer(str(folders[-2] if resumes else folders[-1]))
        if not resumes:
            rows = (f"| {name} | {value} |" for name, value in progress.settings.items())
            self._writer.add_text(
                "settings", "\n".join(["| setting | value |", "|---|---|", *rows])
            )
            self._writer.add_text("accuracy", progress.accuracy_is)

    def numbers(self, progress: Progress) -> dict[str, float]:
        """Return the numbers of a round, with the accuracy of each device."""
        devices = progress.accuracies.items() if self._devices else ()
        return super().numbers(progress) | {f"accuracy/{name}": value for name, value in devices}

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write scalars."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, status: Literal["finished", "failed"]) -> None:
        """Close the event file."""
        self._writer.close()


class WandB(Tracker):
    """A log of each round's numbers in a run of Weights & Biases, whose config has the settings.

    The metric `round` is the number of rounds of training behind the models that were tested. The
    environment of W&B says where it logs to (``WANDB_MODE=offline`` for a folder).
    """

    def __init__(self, project: str = "shoal", measures: bool = False) -> None:
        """Log to a project.

        Args:
            project: name of the project.
            measures: True to log `Progress.measures` too (see `Tracker`).

        Raises:
            ConfigError: W&B's client is not installed.
        """
        super().__init__(measures)
        try:
            import wandb
        except ModuleNotFoundError:
            raise ConfigError(
                "shoal.WandB needs the package wandb: pip install 'shoal[wandb]'"
            ) from None
        self._wandb, self._project = wandb, project

    def begin(self, progress: Progress) -> None:
        """Begin a run, also while another one is active."""
        self._run = self._wandb.init(
            project=self._project, config=dict(progress.settings), reinit="create_new"
        )
        self._run.config["accuracy"] = progress.accuracy_is
        self._run.define_metric("*", step_metric="round")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Log metrics beside their `round`."""
        self._run.log({**numbers, "round": step})

    def end(self, status: Literal["finished", "failed"]) -> None:
        """Finish the run."""
        self._run.finish(exit_code=0 if status == "finished" else 1)
