"""The build script of `android_bridge`, for tests."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "android_bridge" / "build"
MISSING = 3
"""The script's exit status where a tool is not installed."""


def run_build(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run the build script; what it printed. Skips the test where a tool is missing, with the
    script's word on what would provide it."""
    done = subprocess.run(
        [sys.executable, str(BUILD), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | (environment or {}),
    )
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, (
        done.stdout[max(done.stdout.rfind("Failures ("), -8000) :] + done.stderr[-3000:]
    )
    return done.stdout


def host_command(entry: str) -> list[str]:
    """The command that runs one of the host's entry points on this machine's JVM."""
    return shlex.split(run_build("phone", "--entry", entry))
