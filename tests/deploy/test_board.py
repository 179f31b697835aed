"""`deploy/board/shoal-board` in a root of its own, with small wheels and a script for systemd: it
installs, updates, and goes back from what does not run; wherever it is cut short, the board has a
whole version. One test installs the wheel of this checkout and enrols."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.tools import DEPLOY, debian
from tests.support.enrolment import enrolment_bench
from tests.support.shared import shared_folder

pytestmark = pytest.mark.full

SCRIPT = DEPLOY / "board" / "shoal-board"
SYSTEMCTL = """\
#!/bin/sh
# A service that runs while the program of its unit ends well.
echo "$*" >>"$SHOAL_ROOT/asked"
case $1 in
  restart)
    [ ! -e "$SHOAL_ROOT/hang" ] || { touch "$SHOAL_ROOT/hangs"; exec sleep 600; }
    rm -f "$SHOAL_ROOT/active"
    "$SHOAL_ROOT/opt/shoal/current/bin/shoal-edge" run >>"$SHOAL_ROOT/ran" 2>&1 &&
      touch "$SHOAL_ROOT/active" ;;
  is-active) [ -e "$SHOAL_ROOT/active" ] ;;
  show) echo 0 ;;
esac
"""
PYTHON = """\
#!/bin/sh
# A Python that makes environments in a moment: copies of one that it has made.
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3" && exec cp -a {template}/. "$3"; fi
exec {python} "$@"
"""
PROGRAM = """
    import sys
    def main():
        if sys.argv[1:] == ["--version"]:
            print("shoal {version}")
        elif {runs}:
            print("{version} runs")
        else:
            sys.exit("{version} fails")
"""
UNIT = """
    def unit(program, data, state):
        return f"[Service]\\nExecStart={program} run --data {data} --state {state}\\n"
"""


@dataclass
class Board:
    """A root, and the wheels that it is given."""

    root: Path

    def wheel(self, version: str, runs: bool = True) -> Path:
        """A wheel with a client that does next to nothing."""
        path, info = self.root / f"shoal-{version}-py3-none-any.whl", f"shoal-{version}.dist-info"
        files = {
            "edge_client/__init__.py": "",
            "edge_client/enrolment/__init__.py": "",
            "edge_client/enrolment/unit.py": textwrap.dedent(UNIT),
            "edge_client/main.py": textwrap.dedent(PROGRAM).format(version=version, runs=runs),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: shoal\nVersion: {version}\n"
            "Provides-Extra: edge\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: "
            "py3-none-any\n",
            f"{info}/entry_points.txt": "[console_scripts]\nshoal-edge = edge_client.main:main\n",
        }
        with zipfile.ZipFile(path, "w") as packed:
            for name, text in files.items():
                packed.writestr(name, text)
            packed.writestr(
                f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
            )
        return path

    def start(self, *words: str | Path, **environment: str) -> "subprocess.Popen[str]":
        """Give the command."""
        own = {
            "SHOAL_ROOT": str(self.root),
            "SHOAL_SETTLE_S": "0",
            "PYTHON": str(self.root / "bin" / "python"),
        }
        own |= {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.root),
            "PIP_EXTRA_INDEX_URL": "",
            "PYTHONPATH": "",
        }
        own["PATH"] = f"{self.root / 'bin'}:/usr/bin:/bin:/usr/sbin"
        own |= environment
        command = [str(SCRIPT), *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            env={**os.environ, **own},
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )

    def gives(self, *words: str | Path) -> tuple[int, str]:
        """Give the command, to its end: status, and the last line that it says."""
        process = self.start(*words)
        out, err = process.communicate(timeout=250)
        assert "Traceback" not in err
        return process.returncode, ((err if process.returncode else out).splitlines() or [""])[-1]

    def cut_short(self, *words: str | Path, at: Path) -> None:
        """Give the command and kill it, with all that it has started, once something is there."""
        process = self.start(*words)
        for _ in range(2500):
            if at.exists():
                break
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)

    @property
    def versions(self) -> dict[str, str]:
        """Return the current and the previous version, without the hash in the name."""
        links = {name: self.root / "opt" / "shoal" / name for name in ("current", "previous")}
        return {
            name: link.readlink().name.partition("-")[0]
            for name, link in links.items()
            if link.is_symlink()
        }

    @property
    def ran(self) -> list[str]:
        return (self.root / "ran").read_text().splitlines()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip, to be copied."""
    return shared_folder(
        tmp_path_factory, "environment", lambda folder: venv.create(folder, with_pip=True)
    )


@pytest.fixture
def board(tmp_path: Path, template: Path) -> Board:
    debian("flock", "util-linux")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "systemctl").write_text(SYSTEMCTL)
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    (tmp_path / "bin" / "python").write_text(
        PYTHON.format(template=template, python=sys.executable)
    )
    (tmp_path / "bin" / "python").chmod(0o755)
    return Board(tmp_path)


def test_it_installs_updates_goes_back_and_keeps_two_versions(board: Board) -> None:
    assert board.gives("install", board.wheel("1.0"))[0] == 0
    assert board.versions == {"current": "1.0"}
    unit = (board.root / "etc" / "systemd" / "system" / "shoal-edge.service").read_text()
    assert f"ExecStart={board.root}/opt/shoal/current/bin/shoal-edge run" in unit
    assert (board.root / "opt" / "shoal" / "bin" / "shoal-edge").exists(), (
        "where the units of deploy/systemd look"
    )
    assert board.gives("update", board.wheel("2.0"))[0] == 0
    assert board.versions == {"current": "2.0", "previous": "1.0"}
    status, told = board.gives("update", board.wheel("3.0"))
    names = {
        path.name.partition("-")[0]: path.name
        for path in (board.root / "opt" / "shoal" / "versions").iterdir()
    }
    assert (status, told) == (0, f"shoal-board: {names['3.0']} runs; {names['2.0']} is kept")
    assert board.versions == {"current": "3.0", "previous": "2.0"}
    assert len(list((board.root / "opt" / "shoal" / "versions").iterdir())) == 2
    assert board.gives("rollback")[0] == 0
    assert board.versions == {"current": "2.0", "previous": "3.0"}
    assert board.ran[-1] == "2.0 runs"


def test_a_version_that_does_not_run_is_taken_back_and_given_up_after_three_times(
    board: Board,
) -> None:
    board.gives("install", board.wheel("1.0"))
    broken = board.wheel("2.0", runs=False)
    for _ in range(3):
        status, told = board.gives("update", broken)
        assert (status, "does not run with 2.0-" in told, board.versions) == (
            2,
            True,
            {"current": "1.0"},
        )
        assert board.ran[-2:] == ["2.0 fails", "1.0 runs"]
    tried = len(board.ran)
    status, told = board.gives("update", broken)
    assert (status, "was tried 3 times and never ran" in told, len(board.ran)) == (2, True, tried)
    assert board.gives("update", board.wheel("3.0"))[0] == 0
    assert board.versions == {"current": "3.0", "previous": "1.0"}


def test_an_update_that_is_killed_while_it_is_tried_is_taken_back_by_the_next_command(
    board: Board,
) -> None:
    first = board.wheel("1.0")
    board.gives("install", first)
    (board.root / "hang").touch()
    board.cut_short("update", board.wheel("2.0"), at=board.root / "hangs")
    assert board.versions == {"current": "2.0"}
    (board.root / "hang").unlink()
    assert board.gives("update", first)[0] == 0
    assert board.versions == {"current": "1.0"}
    assert board.ran[-1] == "1.0 runs"


def test_an_update_that_is_killed_while_it_installs_changes_nothing(board: Board) -> None:
    board.gives("install", board.wheel("1.0"))
    before = {path.name for path in (board.root / "opt" / "shoal" / "versions").iterdir()}
    newer = board.wheel("2.0")
    for at in ("incomplete", "bin/python", "bin/shoal-edge"):
        name = subprocess.run(
            ["sha256sum", newer], capture_output=True, text=True, check=True
        ).stdout[:12]
        board.cut_short(
            "update", newer, at=board.root / "opt" / "shoal" / "versions" / f"2.0-{name}" / at
        )
        assert (board.versions, board.ran[-1]) == ({"current": "1.0"}, "1.0 runs")
    status, _ = board.gives("update", board.root / "shoal-1.0-py3-none-any.whl")
    assert status == 0
    assert {path.name for path in (board.root / "opt" / "shoal" / "versions").iterdir()} == before
    assert board.gives("update", newer)[0] == 0
    assert board.versions == {"current": "2.0", "previous": "1.0"}


def test_without_a_source_the_newest_of_the_index_is_taken(board: Board) -> None:
    board.wheel("1.0")
    assert board.gives("install")[0] == 0
    board.wheel("1.1")
    assert board.gives("update")[0] == 0
    assert board.versions == {"current": "1.1", "previous": "1.0"}
    assert board.gives("update") == (0, "shoal-board: 1.1 runs already")


def test_what_was_rolled_back_is_not_taken_again_by_itself(board: Board) -> None:
    board.wheel("1.0")
    board.gives("install")
    board.wheel("1.1")
    board.gives("update")
    assert board.gives("rollback")[0] == 0
    assert board.gives("update") == (
        0,
        "shoal-board: 1.1 was rolled back, 1.0 stays; shoal-board update 1.1 takes it again",
    )
    assert board.versions["current"] == "1.0"
    board.wheel("1.2")
    assert board.gives("update")[0] == 0
    assert board.versions == {"current": "1.2", "previous": "1.0"}
    board.gives("rollback")
    assert board.gives("update", "1.2")[0] == 0, "who names it takes it again"
    assert board.versions["current"] == "1.2"
    assert board.gives("update") == (0, "shoal-board: 1.2 runs already")


def test_it_installs_itself_and_the_timer_of_its_updates(board: Board) -> None:
    board.gives("install", board.wheel("1.0"))
    assert (
        board.root / "usr" / "local" / "sbin" / "shoal-board"
    ).read_bytes() == SCRIPT.read_bytes()
    for name in ("shoal-update.service", "shoal-update.timer"):
        assert (board.root / "etc" / "systemd" / "system" / name).read_bytes() == (
            SCRIPT.parent / name
        ).read_bytes()
    assert "enable --now shoal-update.timer" in (board.root / "asked").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("install", "/nowhere/shoal-1.0-py3-none-any.whl"), "there is no such file"),
        (("install", "latest"), "expected a version"),
        (("install", "--enrol", "https://a"), "expected URL and TOKENFILE"),
        (("install", "--force"), "no such option"),
        (("update",), "nothing is installed"),
        (("rollback",), "there is no version before"),
        (("uninstall",), "usage: "),
        ((), "usage: "),
    ],
)
def test_what_cannot_be_done_is_one_line(board: Board, words: tuple[str, ...], told: str) -> None:
    process = board.start(*words)
    err = process.communicate(timeout=60)[1]
    assert (process.returncode, len(err.splitlines())) == (2, 1), err
    assert told in err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_of_this_checkout_is_installed_and_enrols(
    board: Board, wheel: Path, tmp_path: Path
) -> None:
    with enrolment_bench(tmp_path / "service", serves=True) as service:
        (tmp_path / "token").write_text(service.token())
        words = ["--enrol", service.url, str(tmp_path / "token"), "--device", "pi-1"]
        done = board.start("install", wheel, *words, PIP_NO_INDEX="", PIP_FIND_LINKS="")
        err = done.communicate(timeout=800)[1]
    assert done.returncode == 2, "the script that stands for systemd runs it without data"
    assert "shoal-edge does not run with" in err.splitlines()[-1]
    assert (tmp_path / "var" / "lib" / "shoal" / "state" / "enrolled" / "device.pem").exists(), err
    unit = (tmp_path / "etc" / "systemd" / "system" / "shoal-edge.service").read_text()
    assert "WatchdogSec=" in unit
