"""A virtual environment per peer, with every version pinned.

torch is installed first, together with what it needs, and the same version everywhere; the rest is
installed exactly as its file lists it (`--no-deps`), so that no resolver replaces torch.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from benchmarks.peers.systems import TORCH, System

MARK = "installed.txt"


class InstallationFailed(Exception):
    """pip did not succeed; the last lines it wrote are the text."""


def python_of(system: System, folder: Path) -> Path:
    """The interpreter that runs a system."""
    return (
        folder / f"venv-{system.environment}" / "bin" / "python"
        if system.environment
        else Path(sys.executable)
    )


def install(system: System, folder: Path, tell: Callable[[str], None], timeout_s: float) -> None:
    """Make the system's environment unless it is there with these versions; `tell` gets pip's lines
    as they come.

    Raises:
        InstallationFailed: the environment could not be made.
    """
    home = folder / f"venv-{system.environment}"
    wanted = sha256(f"{TORCH}\n{system.requirements.read_text()}".encode()).hexdigest()
    mark = home / MARK
    if mark.exists() and mark.read_text() == wanted:
        return
    tell(f"{system.environment}: new virtual environment in {home}")
    venv.create(home, with_pip=True, clear=True)
    pip = [
        str(home / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
    ]
    for step in (
        ["-c", str(system.requirements), TORCH],
        ["--no-deps", "-r", str(system.requirements)],
    ):
        _run([*pip, *step], lambda line: tell(f"{system.environment}: {line}"), timeout_s)
    mark.write_text(wanted)


def _run(command: list[str], tell: Callable[[str], None], timeout_s: float) -> None:
    last: list[str] = []
    bounded = ["timeout", "--kill-after=10", str(int(timeout_s)), *command]
    with subprocess.Popen(
        bounded, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_clean()
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if line.strip():
                tell(line.strip())
                last = [*last[-4:], line.strip()]
    if pip.returncode == 124:
        raise InstallationFailed(
            f"pip was not done after {timeout_s:.0f} s: {last[-1] if last else ''}"
        )
    if pip.returncode:
        errors = [line for line in last if "ERROR" in line] or last
        raise InstallationFailed(" ".join(errors))


def _clean() -> dict[str, str]:
    """Our environment without what points Python at our own packages."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
