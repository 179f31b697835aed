"""Runs `shoal-edge` and kills it (-9) before the step of this number: a file that gets its name or
loses it, a request, an answer."""

import http.client
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_client.main import main


def kill_before_step(number: int) -> None:
    """Count steps from 1; the process ends before the one of this number."""
    taken = 0

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal taken
            taken += 1
            if taken == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*arguments, **options)

        return step

    for kind, name in (
        (Path, "replace"),
        (Path, "unlink"),
        (http.client.HTTPSConnection, "request"),
        (http.client.HTTPResponse, "read"),
    ):
        setattr(kind, name, counted(getattr(kind, name)))


if __name__ == "__main__":
    kill_before_step(int(sys.argv.pop(1)))
    main()
