"""The programs with which files of deploy/ are checked: those of `make tools`, and Debian's. A test
whose program is missing is skipped."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wire.identity.keys import new_key, private_pem

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = Path(os.environ.get("SHOAL_TOOLS", ROOT / ".tools")) / "bin"
"""Folder into which `make tools` puts programs; SHOAL_TOOLS names another environment."""


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


COMPOSE = DEPLOY / "compose"
GIVEN = {
    "SHOAL_HOME": "/srv/shoal",
    "SHOAL_HOST": "fleet.example",
    "SHOAL_UID": "1000",
    "SHOAL_GID": "1000",
}


def setup(
    folder: Path,
    plugin: str = "/usr/lib/mosquitto_dynamic_security.so",
    *,
    fails: bool = False,
    webhook: str = "",
) -> "subprocess.CompletedProcess[str]":
    """Give the command, with the `shoal` of this environment."""
    bundle = folder / "bundle"
    for made in (bundle, folder / "bin"):
        made.mkdir(exist_ok=True)
    for name in (
        "device.shoal",
        "server.pt2",
        "trust.pem",
    ):  # which `setup` copies and does not read
        (bundle / name).touch()
    (bundle / "signing.key").write_bytes(private_pem(new_key()))
    shoal = folder / "bin" / "shoal"
    shoal.write_text(f'#!/bin/sh\nexec {sys.executable} -m shoal "$@"\n')
    shoal.chmod(0o755)
    words, path = (
        (COMPOSE / "setup", "fleet.example", bundle, folder / "home"),
        f"{folder / 'bin'}:/usr/bin:/bin",
    )
    done = run(
        *words, PATH=path, ENV_FILE=str(folder / "env"), BROKER_PLUGIN=plugin, ALERT_WEBHOOK=webhook
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done
