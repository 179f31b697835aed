"""Options of a simulation's computation, none of which changes results beyond rounding."""

from importlib.util import find_spec

import torch
from msgspec import structs

from algorithms.core.stack import cuda_devices
from host.settings import check
from simulation.settings import EngineSettings
from wire.errors import ConfigError

AUTO = "auto"
"""Device of a run that takes CUDA where it is faster than the processor."""


class EngineOptions(EngineSettings, frozen=True):
    """Backend of the graphs, and its place.

    Backend ``auto`` is native if the C++ engine knows the model's layers and steps are plain SGD,
    hybrid if it knows the layers alone, else eager. Backends batched and messages run only if they
    are named; with device ``auto``, batched too where it is measured to be faster.
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
        if self.device not in ("", AUTO, "cpu", *cuda_devices()):
            devices = ", ".join(cuda_devices()) or "torch finds no GPU here"
            raise ConfigError(
                f"device must be auto, cpu or a CUDA device ({devices}), got {self.device!r}"
            )
        only = {"": self.backend, AUTO: "auto"}.get(self.device, "batched")
        if self.backend != only:
            raise ConfigError(
                f"device {self.device!r} needs backend {only}, got backend {self.backend}; leave "
                "out one of them"
            )
        if self.cluster and self.device == AUTO:
            raise ConfigError(
                f"cluster {self.cluster!r} cannot be used with device auto, which measures this "
                "machine alone; leave out one of them"
            )
        if self.bf16 and self.backend != "batched":
            raise ConfigError(f"bf16 is only for backend batched, not for {self.backend}")

    @property
    def accelerator(self) -> torch.device | None:
        """Device of backend batched; None if none is named and torch finds no CUDA."""
        named = "" if self.device == AUTO else self.device
        name = named or next(iter(cuda_devices()), "")
        return torch.device(name) if name else None


DEFAULT = EngineOptions()
