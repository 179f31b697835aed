"""One trial of a fault in a deployment."""

import random
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.deployment import PATIENCE_S, Deployment
from tests.chaos.preload import build


class Skipped(Exception):
    """A fault cannot be brought about on this machine; the text says why."""


@dataclass
class Trial:
    """Target of a fault."""

    deployment: Deployment
    rng: random.Random
    began_s: float = field(default_factory=time.monotonic)
    """Start of the fault, or the end of one that lasts for a while."""
    seconds: float = 0.0
    """From then until a round was aggregated."""

    def library(self, name: str) -> Path:
        """A library to preload."""
        try:
            return build(name, self.deployment.folder)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Skipped(f"no C compiler: {error}") from None

    def at_random(self) -> None:
        """Wait for a random moment of a round; the fault begins then."""
        time.sleep(self.rng.uniform(0.0, 2.0))
        self.began_s = time.monotonic()

    def await_round(self, began_s: float | None = None) -> None:
        """Return when a round was aggregated, which has to be within `PATIENCE_S`. `began_s`: as
        the field, if it changes.

        Raises:
            ServiceEnded, TimeoutError: none was.
        """
        self.began_s = began_s or self.began_s
        self.deployment.wait_for_rounds(1, PATIENCE_S)
        self.seconds = time.monotonic() - self.began_s
