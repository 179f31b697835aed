"""Exports and builds that are made once in a test run, for all workers of pytest-xdist."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def shared_folder(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], None]) -> Path:
    """A folder that the first worker fills and that all of them read. The others wait until it is
    full."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared-{name}"
    with FileLock(f"{folder}.lock"):
        if not (folder / "full").exists():
            folder.mkdir(exist_ok=True)
            fill(folder)
            (folder / "full").touch()
    return folder
