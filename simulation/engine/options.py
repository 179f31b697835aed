"""How a simulation is to be computed. It changes no result beyond rounding."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import torch

from wire.errors import ConfigError

PathName = Literal["auto", "native", "compiled", "eager", "batched", "messages"]


TOGETHER = 128
"""Devices that are trained together on an accelerator, unless another number is asked for."""

LOCAL_RAY, ANY_RAY = "local", "any"
"""In place of an address: a cluster of this machine alone, for the time of the run; or one that this machine is part of, if there is one,
and else that."""


@dataclass(frozen=True)
class Engine:
    """``auto`` takes the fastest path that can train the model: batched where there is CUDA, else native, else compiled where the run is
    long enough, else eager."""

    path: PathName = "auto"
    workers: int = 0
    """Devices that are worked on at a time; 0: one for each core, or `TOGETHER` on an accelerator."""
    checkpoint: Path | None = None
    """A folder in which every round is kept, and from which an interrupted run goes on."""
    ray: str = ""
    """Address of a Ray cluster that carries out the plans, ``auto`` for one that this machine is part of, ``local`` for one that is started
    on this machine, ``any`` for ``auto`` where there is one and else ``local``. `workers` is then the number of its workers, 0 for one for
    each CPU of the cluster."""
    device: str = ""
    """The torch device of the batched path: ``cuda``, ``cuda:1``, ``cpu``; empty: CUDA, where torch finds it."""
    bf16: bool = False
    """Whether the batched path multiplies in bfloat16, which is faster on an accelerator and rounds more coarsely."""

    def __post_init__(self) -> None:
        if self.path not in get_args(PathName):
            raise ConfigError(f"path {self.path!r}: expected one of {', '.join(get_args(PathName))}")
        if self.ray and self.path in ("messages", "batched"):
            raise ConfigError(f"ray {self.ray!r}: path {self.path} is for one process")
        if self.ray and find_spec("ray") is None:
            raise ConfigError(f"ray {self.ray!r}: Ray is not installed: pip install 'shoal[simulation,ray]'")
        if self.device not in ("", "cpu", *_cuda_devices()):
            raise ConfigError(f"device {self.device!r}: expected cpu, or cuda where torch finds one")
        if self.device and self.path not in ("batched", "auto"):
            raise ConfigError(f"device {self.device!r}: path {self.path} has no choice of one")
        if self.bf16 and self.path != "batched":
            raise ConfigError(f"bf16: for path batched, not for path {self.path}")

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self.workers or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else self.workers or os.cpu_count() or 1

    @property
    def num_together(self) -> int:
        """Number of devices that are trained together."""
        return self.workers or TOGETHER

    @property
    def accelerator(self) -> torch.device | None:
        """Where the batched path runs; None where torch finds no CUDA and no device was asked for, and on a cluster."""
        name = self.device or next(iter(_cuda_devices()), "")
        return torch.device(name) if name and not self.ray else None


def _cuda_devices() -> list[str]:
    count = torch.cuda.device_count()
    return ["cuda", *(f"cuda:{i}" for i in range(count))] if count else []


USUAL = Engine()
