"""A callback for TensorBoard."""

from pathlib import Path

from shoal.api.progress import Progress
from wire.errors import ConfigError


class TensorBoard:
    """Writes the numbers of each round as scalars, and the accuracy of each device as `accuracy/DEVICE`. The step is the number of rounds
    of training behind the models that were tested."""

    def __init__(self, folder: str | Path, devices: bool = True) -> None:
        """`devices`: whether each device has a curve of its own.

        Raises:
            ConfigError: TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise ConfigError("shoal.TensorBoard needs the package tensorboard: pip install 'shoal[tensorboard]'") from None
        self._writer, self._devices = SummaryWriter(str(folder)), devices

    def on_round(self, progress: Progress) -> None:
        """Write the round; preparations are left out, in which no model is tested that is trained by rounds."""
        metrics = progress.metrics
        if metrics.phase == "preparing":
            return
        numbers = metrics.numbers()
        if self._devices:
            numbers |= {f"accuracy/{device_id}": value for device_id, value in progress.accuracies.items()}
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, metrics.evaluated)
        self._writer.flush()
