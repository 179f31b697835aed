"""Options of a simulation's computation, none of which changes results beyond rounding."""

from importlib.util import find_spec

import torch
from msgspec import structs

from algorithms.core.stack import cuda_devices
from host.settings import check
from simulation.settings import EngineSettings
from wire.errors import ConfigError


class EngineOptions(EngineSettings, frozen=True):
    """Backend of the graphs, and its place.

    Backend ``auto`` is native if the C++ engine knows the model's layers and steps are plain SGD,
    hybrid if it knows the layers alone, else eager. Backends batched and messages run only if they
    are named.
    """

    def __post_init__(self) -> None:
        check(EngineSettings, structs.asdict(self))
        if self.cluster and self.backend in ("messages", "batched"):
            raise ConfigError(
                f"cluster {self.cluster!r}: backend {self.backend} runs in one process only"
            )
        if self.checkpoint and self.backend == "messages":
            raise ConfigError(
                f"checkpoint {self.checkpoint}: backend messages cannot write checkpoints"
            )
        if self.cluster and find_spec("ray") is None:
            raise ConfigError(
                f"cluster {self.cluster!r} needs the package Ray: pip install "
                "'shoal[simulation,ray]'"
            )
        if self.device not in ("", "cpu", *cuda_devices()):
            raise ConfigError(
                f"device must be cpu, or cuda if torch finds a GPU here, got {self.device!r}"
            )
        if self.device and self.backend != "batched":
            raise ConfigError(
                f"device {self.device!r} is only for backend batched, not for {self.backend}"
            )
        if self.bf16 and self.backend != "batched":
            raise ConfigError(f"bf16 is only for backend batched, not for {self.backend}")

    @property
    def accelerator(self) -> torch.device | None:
        """Device of backend batched; None without a `device` if torch finds no CUDA."""
        name = self.device or next(iter(cuda_devices()), "")
        return torch.device(name) if name else None


DEFAULT = EngineOptions()
