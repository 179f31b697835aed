"""The images: what hadolint says of their files, what they promise, and, where buildah and the base
image are, a board's itself."""

import re
from pathlib import Path

import pytest

from tests.deploy.tools import DEPLOY, ROOT, debian, run, tool
from tests.support.wheel import PROJECT

FILES = sorted((DEPLOY / "containers").glob("*.Dockerfile"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    done = run(tool("hadolint"), "--config", ROOT / ".hadolint.yaml", file)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_an_image_is_of_stages_has_a_user_a_health_check_labels_and_pinned_versions(
    file: Path,
) -> None:
    text = file.read_text()
    stages = text.split("\nFROM ")
    assert len(stages) == 4
    assert re.search(r"^USER 10001:10001$", stages[-1], re.MULTILINE)
    assert "pip install" not in stages[-1], "what installs is not in the image"
    assert "HEALTHCHECK" in stages[-1]
    (program,) = re.findall(r'^ENTRYPOINT \["/opt/shoal/bin/([\w-]+)"\]$', text, re.MULTILINE)
    assert program in PROJECT["project"]["scripts"]
    assert "org.opencontainers.image.version" in stages[-1]
    assert re.search(r"^ARG BASE=docker.io/library/debian:\d+\.\d+-slim$", text, re.MULTILINE)
    assert text.count("-c constraints.txt") == 2, "uv, and what uv installs"


def test_every_package_is_in_what_images_are_built_from() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    taken = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert taken == packages | {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_of_a_board_is_built_and_runs_as_nobody() -> None:
    """It needs the base image, from a registry or made here: `mmdebstrap --variant=minbase bookworm
    - | podman import - IMAGE`."""
    buildah = debian("buildah", "buildah")
    file = DEPLOY / "containers" / "edge.Dockerfile"
    found = re.search(r"^ARG BASE=(.+)$", file.read_text(), re.MULTILINE)
    assert found is not None
    if (
        run(buildah, "inspect", "--type", "image", found[1]).returncode
        and run(buildah, "pull", "--quiet", found[1]).returncode
    ):
        pytest.skip(f"{found[1]} cannot be had: a network with this registry would run this")
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    own = [
        "-v",
        f"{certificates}:/run/ca.pem:ro",
        "--env",
        "PIP_CERT=/run/ca.pem",
        "--env",
        "SSL_CERT_FILE=/run/ca.pem",
    ]
    words = [
        "bud",
        "--layers",
        "--pull-never",
        "--isolation",
        "chroot",
        *own,
        "-f",
        str(file),
        "-t",
        "shoal-edge-test",
        ".",
    ]
    done = run(buildah, *words, timeout_s=1700)
    assert done.returncode == 0, done.stderr[-3000:]
    container = run(buildah, "from", "--pull-never", "localhost/shoal-edge-test").stdout.strip()
    try:
        asked = [buildah, "run", "--isolation", "chroot", "--user", "10001:10001", container, "--"]
        assert run(*asked, "/opt/shoal/bin/shoal-edge", "--version").stdout.startswith("shoal ")
        assert run(*asked, "/bin/sh", "-c", "id -u; command -v pip gcc; true").stdout == "10001\n"
    finally:
        run(buildah, "rm", container)
