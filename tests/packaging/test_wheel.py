"""Content of the wheel, and agreement of the package lists."""

import zipfile
from pathlib import Path

import pytest

from tests.support.wheel import PACKAGES, PROJECT, ROOT, VERSION

pytestmark = pytest.mark.full


def test_wheel_has_every_file_of_the_packages_the_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        metadata = packed.read(f"shoal-{VERSION}.dist-info/METADATA").decode()
        licence = packed.read(f"shoal-{VERSION}.dist-info/licenses/LICENSE")
    files = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file()
    }
    files = {name for name in files if "__pycache__" not in name}
    assert {name for name in names if not name.startswith(f"shoal-{VERSION}.dist-info/")} == files
    assert {f"{name}/py.typed" for name in PACKAGES} <= names
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_every_top_level_package_is_checked() -> None:
    """setuptools, mypy and the import contracts each have a list of the packages."""
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert set(PACKAGES) == folders
    assert set(PROJECT["tool"]["mypy"]["packages"]) >= folders
    assert set(PROJECT["tool"]["importlinter"]["root_packages"]) == folders
