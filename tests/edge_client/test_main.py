"""The program `shoal-edge`: it loads no torch, and an error is one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.options import parser
from wire.errors import ConfigError


def test_importing_the_client_loads_no_torch() -> None:
    code = (
        "import sys, edge_client.main; "
        "print([n for n in ('torch', 'onnx', 'sklearn', 'scipy', 'sqlalchemy', 'fastapi', "
        "'matplotlib') if n in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_command_line_errors_are_one_line_and_status_2(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "edge_client.main",
        "run",
        "--id",
        "d",
        "--data",
        str(tmp_path / "none"),
        "--state",
        str(tmp_path / "s"),
        "--insecure",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: data folder")
    assert "Traceback" not in done.stderr


def test_an_option_stands_in_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_EDGE_FLEET", "barn")
    monkeypatch.setenv("SHOAL_BROKER", "mqtt://b")
    explicit = parser().parse_args(["run", "--state", "s", "--fleet", "field"])
    usual = parser().parse_args(["run", "--state", "s"])
    assert (explicit.fleet, usual.fleet, usual.broker) == ("field", "barn", "mqtt://b")
    monkeypatch.setenv("SHOAL_EDGE_THREADS", "x")
    with pytest.raises(ConfigError, match=r"threads must be .*, got x \(SHOAL_EDGE_THREADS\)"):
        parser()


def test_a_misspelt_variable_is_a_warning() -> None:
    words = [sys.executable, "-m", "edge_client.main", "check", "--state", "none", "--insecure"]
    done = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | {"SHOAL_EDGE_THREAD": "2"}
    )
    assert done.stderr.splitlines()[0] == (
        "warning: the environment variable SHOAL_EDGE_THREAD is not an option of this command; did "
        "you mean SHOAL_EDGE_THREADS?"
    )


def test_help_of_enrol_names_the_folder_of_data_that_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["enrol", "--help"])
    assert "(default: /var/lib/shoal/data)" in " ".join(capsys.readouterr().out.split())
