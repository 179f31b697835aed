"""The wheel of this checkout, and the script that sets up environments."""

import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [name.removesuffix("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
VERSION = PROJECT["project"]["version"]


@pytest.fixture(scope="session")
def setup_script() -> dict[str, Any]:
    """What `deploy/setup` defines, by name."""
    return runpy.run_path(str(ROOT / "deploy" / "setup"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout, so that nothing which earlier builds left behind gets into it."""
    pytest.importorskip("setuptools", reason="setuptools is not installed: pip install 'shoal[dev]' would run this")
    source, out = tmp_path_factory.mktemp("source") / "shoal", tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "android_bridge", "build", "dist", "runs")
    shutil.copytree(ROOT, source, ignore=left_out)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", build], cwd=source, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))
