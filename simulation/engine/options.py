"""How a simulation is to be computed. It changes no result beyond rounding."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from wire.errors import ConfigError

PathName = Literal["auto", "native", "compiled", "eager", "cuda", "messages"]

LOCAL_RAY = "local"
"""In place of an address: a cluster of this machine alone, for the time of the run."""


@dataclass(frozen=True)
class Engine:
    """``auto`` takes the fastest path that can train the model: native, else compiled where the run is long enough, else eager."""

    path: PathName = "auto"
    workers: int = 0
    """Devices that are worked on at a time; 0: one for each core."""
    checkpoint: Path | None = None
    """A folder in which every round is kept, and from which an interrupted run goes on."""
    ray: str = ""
    """Address of a Ray cluster that carries out the plans, ``auto`` for one that this machine is part of, ``local`` for one that is started
    on this machine; `workers` is then the number of its workers, 0 for one for each CPU of the cluster."""

    def __post_init__(self) -> None:
        if self.path not in get_args(PathName):
            raise ConfigError(f"path {self.path!r}: expected one of {', '.join(get_args(PathName))}")
        if self.ray and self.path == "messages":
            raise ConfigError(f"ray {self.ray!r}: path messages is for one process")
        if self.ray and find_spec("ray") is None:
            raise ConfigError(f"ray {self.ray!r}: Ray is not installed: pip install 'shoal[simulation,ray]'")

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self.workers or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else self.workers or os.cpu_count() or 1


USUAL = Engine()
