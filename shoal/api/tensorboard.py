"""A callback for TensorBoard."""

from pathlib import Path

from shoal.api.progress import Progress
from wire.errors import ConfigError


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
