"""`shoal completion` in a real bash."""

import shutil
import subprocess
from pathlib import Path

import pytest

from shoal.cli import COMMANDS
from shoal.commands.completion import script


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script, as a file."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed: apt-get install bash would run this")
    path = tmp_path_factory.mktemp("completion") / "shoal"
    path.write_text(script())
    return path


def completed(bash: Path, *words: str) -> set[str]:
    """Return bash's completions of the last of these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    program = (
        f"source {bash}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shoal; printf "
        f"'%s\\n' \"${{COMPREPLY[@]}}\""
    )
    # no Python is on the path: completing starts none
    done = subprocess.run(
        ["bash", "-c", program],
        capture_output=True,
        text=True,
        env={"PATH": ""},
        executable=shutil.which("bash"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("shoal", "sim"), {"simulate"}),
        (("shoal", "simulate", "--ro"), {"--rounds"}),
        (("shoal", "simulate", "--data", "watch", "--rou"), {"--rounds"}),
        (("shoal", "enrol", "token", "--exp"), {"--expires"}),
        (("shoal", "serve", "--min-dev"), {"--min-devices"}),
    ],
)
def test_bash_completes(bash: Path, words: tuple[str, ...], offered: set[str]) -> None:
    assert completed(bash, *words) == offered


def test_every_command_is_offered(bash: Path) -> None:
    assert completed(bash, "shoal", "") == {*COMMANDS, "--help", "--version"}


def test_commands_of_a_command_and_files_are_offered(bash: Path) -> None:
    assert {"token", "list", "approve"} <= completed(bash, "shoal", "enrol", "")
    assert str(bash) in completed(bash, "shoal", "ui", str(bash)[:-1])
