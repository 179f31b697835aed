"""The Kotlin client: its own tests, on what the Python side wrote for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.android.kotlin_vectors import NUMPY, numpy_text, write

BUILD = Path(__file__).parents[2] / "android_bridge" / "build"
MISSING = 3
"""The script's exit status where a tool is not installed."""


def run_build(*arguments: str, vectors: Path | None = None) -> str:
    """Run the build script; what it printed. Skips the test where a tool is missing, with the script's word on what would provide it."""
    environment = os.environ | ({"SHOAL_KOTLIN_TESTS": str(vectors)} if vectors else {})
    done = subprocess.run([sys.executable, str(BUILD), *arguments], capture_output=True, text=True, env=environment)
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[max(done.stdout.rfind("Failures ("), -8000) :] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(900)
def test_kotlin_core(tmp_path: Path) -> None:
    write(tmp_path)
    printed = run_build("test", "core", vectors=tmp_path)
    assert "0 tests failed" in printed
    skipped = [line for line in printed.splitlines() if "[S]" in line]
    assert all("mosquitto" in line.lower() for line in skipped), skipped


def test_numpy_vectors_are_those_of_this_numpy() -> None:
    assert NUMPY.read_text() == numpy_text(), "run python -m tests.android.kotlin_vectors"
