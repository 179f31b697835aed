"""The wheel of this checkout, and the script that sets up environments."""

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulation.datasets.windows import FleetData
from tests.support.installed import Install, Installed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [
    name.removesuffix("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
]
VERSION = PROJECT["project"]["version"]


@pytest.fixture(scope="session")
def setup_script() -> dict[str, Any]:
    """Return the definitions of `deploy/setup`, by name."""
    return runpy.run_path(str(ROOT / "deploy" / "setup"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout, so that nothing which earlier builds left behind
    gets into it."""
    pytest.importorskip(
        "setuptools", reason="setuptools is not installed: pip install 'shoal[dev]' would run this"
    )
    source, out = tmp_path_factory.mktemp("source") / "shoal", tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns(
        ".*", "__pycache__", "*.egg-info", "android_bridge", "build", "dist", "runs"
    )
    shutil.copytree(ROOT, source, ignore=left_out)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-c", build],
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return next(out.glob("*.whl"))


def run_uv(setup: dict[str, Any], *arguments: str) -> None:
    """Run uv with pip's settings, as `deploy/setup` does.

    The test is skipped where uv is missing or the package index cannot be reached.
    """
    if importlib.util.find_spec("uv") is None:
        pytest.skip("uv is not installed: pip install uv would run this")
    result = subprocess.run(
        [sys.executable, "-m", "uv", "--quiet", *arguments],
        env=setup["uv_environment"](setup["pip_settings"](Path(sys.prefix)), os.environ),
        capture_output=True,
        text=True,
        timeout=280,
    )
    if result.returncode and (
        "Failed to fetch" in result.stderr or "error sending request" in result.stderr
    ):
        pytest.skip(f"the package index cannot be reached: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr


@pytest.fixture
def install(wheel: Path, tmp_path: Path, setup_script: dict[str, Any]) -> Install:
    """Install the wheel with an extra and run both commands; skip without uv or a package index."""
    uv = partial(run_uv, setup_script)

    def install(extra: str) -> Installed:
        environment, folder = tmp_path / "environment", tmp_path / "empty"
        folder.mkdir()
        uv("venv", "--python", sys.executable, str(environment))
        constraints = str(setup_script["CONSTRAINTS"])
        uv(
            "pip",
            "install",
            "--python",
            str(environment),
            "-c",
            constraints,
            f"shoal[{extra}] @ {wheel.as_uri()}",
        )
        installed = Installed(environment, folder)
        for name in ("shoal", "shoal-edge"):
            assert installed.succeeds(name, "--version") == f"shoal {VERSION}\n"
            assert f"usage: {name}" in installed.succeeds(name, "--help")
        return installed

    return install


@pytest.fixture
def recordings(fleet: FleetData, tmp_path: Path) -> str:
    """The path of a ``.npz`` with the windows of four people."""
    people = list(fleet.devices.values())
    x, y = np.concatenate([p.train_x for p in people]), np.concatenate([p.train_y for p in people])
    np.savez(
        tmp_path / "recordings.npz",
        X=x,
        y=y,
        subject=np.repeat(np.arange(len(people)), [p.num_train for p in people]),
    )
    return str(tmp_path / "recordings.npz")
