"""Published files: the wheel has the same bytes wherever it is built, its parts are listed, and a
board's packages exist for arm64."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.tools import ROOT, run, tool
from tests.support.wheel import PROJECT, VERSION

pytestmark = pytest.mark.full


def test_two_builds_of_the_wheel_have_the_same_bytes(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git: a clone would run this")
    pytest.importorskip(
        "setuptools", reason="setuptools is not installed: pip install 'shoal[dev]' would run this"
    )
    built = []
    for name, umask, zone in (("a", "022", "UTC"), ("b", "077", "Asia/Tokyo")):
        words = f"umask {umask} && exec deploy/release {tmp_path / name}"
        done = run("/bin/sh", "-c", words, PYTHON=sys.executable, TZ=zone, PYTHONHASHSEED=umask)
        assert done.returncode == 0, done.stderr
        built.append((tmp_path / name / f"shoal-{VERSION}-py3-none-any.whl").read_bytes())
        assert (
            run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=tmp_path / name).returncode
            == 0
        )
    assert built[0] == built[1]


def test_a_release_with_another_setuptools_is_refused(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git: a clone would run this")
    (tmp_path / "python").write_text("#!/bin/sh\necho 1.0\n")
    (tmp_path / "python").chmod(0o755)
    done = run(ROOT / "deploy" / "release", tmp_path / "out", PYTHON=str(tmp_path / "python"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: setuptools must be ")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_list_of_parts_names_every_package_that_shoal_needs(tmp_path: Path) -> None:
    out = tmp_path / "sbom.json"
    words = [
        "environment",
        sys.executable,
        "--pyproject",
        str(ROOT / "pyproject.toml"),
        "--output-reproducible",
        "--of",
        "JSON",
        "-o",
        str(out),
    ]
    done = run(tool("cyclonedx-py"), *words)
    assert done.returncode == 0, done.stderr
    read = json.loads(out.read_text())
    assert (
        read["bomFormat"],
        read["metadata"]["component"]["name"],
        read["metadata"]["component"]["version"],
    ) == (
        "CycloneDX",
        "shoal",
        VERSION,
    )
    listed = {
        component["name"].lower().replace("_", "-"): component["version"]
        for component in read["components"]
    }
    needed = {requirement.partition(">")[0] for requirement in PROJECT["project"]["dependencies"]}
    assert needed - listed.keys() == set()
    assert all(
        component.get("purl", "pkg:pypi/").startswith("pkg:") for component in read["components"]
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_boards_packages_are_there_for_arm64(tmp_path: Path) -> None:
    """In the versions of constraints.txt, as wheels, for the C library of Debian 12 and Ubuntu
    22.04."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed: python -m ensurepip would run this")
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["edge"]]
    platforms = [
        word
        for version in (17, 27, 28, 31, 34, 35)
        for word in ("--platform", f"manylinux_2_{version}_aarch64")
    ]
    words = [
        "--only-binary=:all:",
        *platforms,
        "--platform",
        "manylinux2014_aarch64",
        "--python-version",
        "3.11",
        "--implementation",
        "cp",
    ]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
        *words,
        "-d",
        str(tmp_path),
        *wanted,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, env=os.environ)
    if "Temporary failure in name resolution" in done.stderr or "Connection" in done.stderr:
        pytest.skip("the package index cannot be reached: a network would run this")
    assert done.returncode == 0, done.stderr
    fetched = {path.name.partition("-")[0].lower() for path in tmp_path.iterdir()}
    assert fetched >= {"numpy", "msgspec", "cryptography", "paho_mqtt", "onnxruntime"}
    assert [
        path.name
        for path in tmp_path.iterdir()
        if "aarch64" not in path.name and not path.name.endswith("-none-any.whl")
    ] == []


def test_every_file_names_the_same_version() -> None:
    places = {
        "deploy/containers/aggregator.Dockerfile": r"^ARG VERSION=(.+)$",
        "deploy/containers/edge.Dockerfile": r"^ARG VERSION=(.+)$",
        "deploy/containers/helper.Dockerfile": r"^ARG VERSION=(.+)$",
        "deploy/compose/compose.yaml": r"shoal-aggregator:([\d.]+)\}",
        "deploy/compose/setup": r"shoal-aggregator:([\d.]+)\}",
        "deploy/helm/shoal/Chart.yaml": r"^(?:version|appVersion): (.+)$",
        "deploy/helm/shoal-helper/Chart.yaml": r"^(?:version|appVersion): (.+)$",
        "CHANGELOG.md": r"^## \[([\d.]+)\]",
    }
    named = {
        place: re.findall(pattern, (ROOT / place).read_text(), re.MULTILINE)
        for place, pattern in places.items()
    }
    assert {
        place: found
        for place, found in named.items()
        if not found or found[0] != VERSION or found[-1] != VERSION
    } == {}
