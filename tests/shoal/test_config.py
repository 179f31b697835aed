"""`shoal init`, and what `shoal serve` takes from a file and from the environment."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from aggregator.service_settings import ServeSettings
from shoal.cli import main

Captured = pytest.CaptureFixture[str]


class Asked(Exception):
    """A service would run with these settings."""

    def __init__(self, settings: ServeSettings) -> None:
        super().__init__()
        self.settings = settings


@pytest.fixture(autouse=True)
def nothing_is_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ask(settings: ServeSettings, *_: Any) -> None:
        raise Asked(settings)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("aggregator.main.serve", ask)
    monkeypatch.setattr("host.logs.log_to_stderr", lambda *_, **__: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def shoal(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["shoal", *words])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def asked(monkeypatch: pytest.MonkeyPatch, *words: str) -> ServeSettings:
    with pytest.raises(Asked) as raised:
        shoal(monkeypatch, "serve", *words)
    return raised.value.settings


def test_the_file_that_init_writes_is_a_service_with_all_defaults(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert shoal(monkeypatch, "init") == 0
    assert "serve.toml is written" in capsys.readouterr().out
    plain = asked(monkeypatch, "--folder", "runs/served", "--bundle", "runs/bundle")
    assert asked(monkeypatch, "--config", "serve.toml") == plain
    text = re.sub(r"^# (\w+ = )", r"\1", Path("serve.toml").read_text(), flags=re.MULTILINE)
    Path("all.toml").write_text(text)
    assert len(tomllib.loads(text)) > 25
    assert asked(monkeypatch, "--config", "all.toml") == plain, "what it says of the defaults is so"


def test_init_overwrites_nothing(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    Path("mine.toml").write_text("rounds = 3")
    assert shoal(monkeypatch, "init", "mine.toml") == 2
    assert "mine.toml exists already, and is not changed" in capsys.readouterr().err
    assert shoal(monkeypatch, "init", "none/mine.toml") == 2
    assert Path("mine.toml").read_text() == "rounds = 3"


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("c.toml").write_text(
        'folder = "f"\nbundle = "b"\nrounds = 3\nmin-devices = 3\ngrace = 3\nhyper = '
        '["momentum=0"]\nstay = false'
    )
    monkeypatch.setenv("SHOAL_SERVE_MIN_DEVICES", "4")
    monkeypatch.setenv("SHOAL_SERVE_GRACE", "4")
    made = asked(monkeypatch, "--config", "c.toml", "--grace", "5")
    assert (made.rounds, made.min_devices, made.grace_s, made.hyper, made.stay) == (
        3,
        4,
        5.0,
        {"momentum": 0.0},
        False,
    )
    monkeypatch.setenv("SHOAL_SERVE_CONFIG", "c.toml")
    assert asked(monkeypatch).folder == Path("f")


def test_a_misspelt_variable_is_a_warning() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "serve", "--folder", "f", "--bundle", "none"],
        capture_output=True,
        text=True,
        env=os.environ | {"SHOAL_SERVE_ROUND": "3"},
    )
    assert done.returncode
    assert done.stderr.splitlines()[0] == (
        "warning: the environment variable SHOAL_SERVE_ROUND is not an option of this command; did "
        "you mean SHOAL_SERVE_ROUNDS?"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "roundz = 3",
            "--config c.toml, line 1: this command has no setting 'roundz'; did you mean 'rounds'?",
        ),
        ("config = 'x'", "--config c.toml, line 1: this command has no setting 'config'"),
        ("[serve]\nrounds = 3", "--config c.toml: this command has no setting 'serve'"),
        ("rounds = ", "--config c.toml: not TOML: Invalid value (at end of document)"),
        (
            "rounds = 'three'",
            "between 1 and 1000000, got three (c.toml, line 1)",
        ),
        (
            "rounds = 0",
            "between 1 and 1000000, got 0 (c.toml, line 1)",
        ),
        ("stay = 'maybe'", "stay must be true or false, got 'maybe' (c.toml, line 1)"),
        ("deadline = inf", "deadline_s must be between 1 and 31622400, got inf (c.toml, line 1)"),
    ],
)
def test_a_mistake_in_the_file_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, text: str, told: str
) -> None:
    Path("c.toml").write_text(text)
    assert shoal(monkeypatch, "serve", "--folder", "f", "--bundle", "b", "--config", "c.toml") == 2
    assert told in capsys.readouterr().err


def test_a_file_that_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert shoal(monkeypatch, "serve", "--config", "none.toml") == 2
    assert "--config none.toml: No such file or directory" in capsys.readouterr().err
