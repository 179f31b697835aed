"""A callback for MLflow."""

from shoal.api.progress import Progress
from wire.errors import ConfigError


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
