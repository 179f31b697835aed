"""`deploy/setup`: what pip is configured with reaches uv, and what goes wrong is one line."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.wheel import ROOT


def test_uv_is_told_what_pip_is_configured_with(setup_script: dict[str, Any]) -> None:
    settings = {
        "index-url": "https://packages.example/simple",
        "extra-index-url": "\nhttps://one.example/simple\nhttps://two.example/simple",
        "find-links": "/wheels /more",
        "constraint": "/etc/constraints.txt",
        "default-timeout": "100",
        "timeout": "180",
        "disable-pip-version-check": "1",
    }
    assert setup_script["uv_environment"](settings, {}) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://packages.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "UV_HTTP_TIMEOUT": "180",
    }


def test_what_uv_is_told_already_stays(setup_script: dict[str, Any]) -> None:
    assert setup_script["uv_environment"](
        {"index-url": "https://a.example", "cert": "/a.pem"},
        {"UV_DEFAULT_INDEX": "https://b.example", "PATH": "/bin"},
    ) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://b.example",
        "SSL_CERT_FILE": "/a.pem",
        "PATH": "/bin",
    }


def test_variables_take_precedence_over_files_as_for_pip(
    setup_script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip("pip is not installed: python -m ensurepip would run this")
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nfind-links = /global\nextra-index-url =\n  https://one.example\n  "
        "https://two.example\n[install]\nproxy = p:1\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_FIND_LINKS", "/variable")
    setup_script["pip_settings"].cache_clear()
    settings = setup_script["pip_settings"](Path(sys.prefix))
    setup_script["pip_settings"].cache_clear()
    assert settings["find-links"] == "/variable"
    assert settings["extra-index-url"].split() == ["https://one.example", "https://two.example"]
    assert settings["proxy"] == "p:1"


def test_without_uv_a_line_says_so_and_pip_is_used(
    setup_script: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    asked: list[list[str]] = []

    def run(command: list[Any], **_: object) -> "subprocess.CompletedProcess[str]":
        asked.append([str(word) for word in command])
        refused = any(str(word).startswith("uv==") for word in command)
        return subprocess.CompletedProcess(
            command,
            int(refused),
            "",
            "ERROR: No matching distribution found for uv" if refused else "",
        )

    monkeypatch.setattr(subprocess, "run", run)
    uv = setup_script["install_uv"](tmp_path)
    assert uv is None
    assert (
        "uv cannot be installed (ERROR: No matching distribution found for uv): pip installs"
        in capsys.readouterr().out
    )
    setup_script["install"](tmp_path, uv, "something")
    assert asked[-1][1:4] == ["-m", "pip", "install"]
    assert asked[-1][-1] == "something"


def test_wrong_arguments_are_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "setup")], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert (
        done.stderr
        == "usage: deploy/setup FOLDER EXTRAS, for example deploy/setup .venv edge,simulation\n"
    )
