"""How a simulation is to be computed. It changes no result beyond rounding."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from wire.errors import ConfigError

PathName = Literal["auto", "native", "compiled", "eager", "cuda", "messages"]


@dataclass(frozen=True)
class Engine:
    """``auto`` takes the fastest path that can train the model: native, else compiled where the run is long enough, else eager."""

    path: PathName = "auto"
    workers: int = 0
    """Devices that are worked on at a time; 0: one for each core."""
    checkpoint: Path | None = None
    """A folder in which every round is kept, and from which an interrupted run goes on."""

    def __post_init__(self) -> None:
        if self.path not in get_args(PathName):
            raise ConfigError(f"path {self.path!r}: expected one of {', '.join(get_args(PathName))}")

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self.workers or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else self.workers or os.cpu_count() or 1


USUAL = Engine()
