"""The quick starts of an operator and of two device developers: from nothing to a release in use,
with TLS."""

import json
import re
import socket
import sys
from pathlib import Path

import pytest

from benchmarks.quick_starts import BOARDS, commands, follow_fleet_and_devices
from tests.end_to_end.fleet import find_mosquitto
from tests.support.pages import ROOT


@pytest.fixture
def ports() -> None:
    """The ports that the pages' commands use are free; the test is skipped where they are not."""
    for port in (8883, 8443, 8080):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port}, which the pages' commands use, is taken on this machine")


def test_the_page_for_operators_has_the_commands_of_the_quick_start() -> None:
    text = (
        (ROOT / "docs" / "enrol.md")
        .read_text()
        .partition("## TLS and enrolled devices, in ten minutes")[2]
    )
    section = re.findall(
        r"^    (\S.*)$", re.split(r"^#+ ", text, flags=re.MULTILINE)[0], re.MULTILINE
    )
    both = {line.split(" #")[0].strip() for line in section} & set(commands("operator"))
    assert {command.split()[0] + command.split()[1] for command in both} >= {
        "shoalinit",
        "mosquitto-c",
        "shoalserve",
        "shoalenrol",
    }


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("ports")
def test_from_nothing_to_a_release_in_use(tmp_path: Path) -> None:
    find_mosquitto()
    programs = Path(sys.executable).parent
    follow_fleet_and_devices(tmp_path, programs, programs)
    for board in BOARDS:
        assert (
            json.loads((tmp_path / f"state-{board}" / "current" / "model.json").read_text())[
                "release"
            ]
            >= 1
        )
