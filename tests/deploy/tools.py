"""The programs with which files of deploy/ are checked: those of `make tools`, and Debian's. A test
whose program is missing is skipped."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = Path(os.environ.get("SHOAL_TOOLS", ROOT / ".tools")) / "bin"
"""Where `make tools` puts programs; SHOAL_TOOLS names another environment."""


def tool(name: str) -> str:
    """The path of a program of deploy/tools.txt."""
    if not (TOOLS / name).exists():
        pytest.skip(f"{name} is not installed: make tools would run this")
    return str(TOOLS / name)


def debian(name: str, package: str) -> str:
    """The path of a program of a Debian package."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install {package} would run this")
    return found


def run(
    *words: str | Path, cwd: Path = ROOT, timeout_s: float = 280, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end; `environment` is added to this process's."""
    command = [str(word) for word in words]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **environment},
    )
