"""`shoal` itself: it starts at once, lists its commands, and says what a command needs that is not installed."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import typer

from shoal.cli import COMMANDS, application
from wire.errors import ConfigError

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("module", ["shoal", "edge_client.main"])
def test_version_is_that_of_the_project(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"shoal {VERSION}\n")


def test_help_lists_every_command_with_its_line_and_imports_no_package_of_an_extra() -> None:
    code = (
        "import sys; from shoal.cli import main; sys.argv = ['shoal', '--help']\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print([name for name in ('torch', 'numpy', 'typer', 'rich', 'matplotlib') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = " ".join(done.stdout.split())
    assert [name for name, command in COMMANDS.items() if f"{name} {command.summary}" not in told] == []
    assert "'shoal[export]' for export" in told
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("words", [[name, "--help"] for name in COMMANDS] + [["export", "inspect", "--help"], ["simulate", "--nothing"]])
def test_help_and_usage_are_plain_as_those_of_the_whole_are(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        application(words[0])(words, prog_name="shoal")
    told = "".join(capsys.readouterr())
    assert f"Usage: shoal {words[0]}" in told
    assert not set(told) & set("╭│╰─")


def test_every_line_in_the_list_of_commands_is_a_sentence() -> None:
    assert [command.summary for command in COMMANDS.values() if not command.summary.endswith(".")] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_own_help_begins_with_its_line(name: str) -> None:
    command = getattr(import_module(f"shoal.commands.{name}"), name)
    text = command.info.help if isinstance(command, typer.Typer) else command.__doc__
    assert text is not None
    assert text.startswith(COMMANDS[name].summary)


def test_every_module_of_the_commands_is_listed() -> None:
    modules = {path.stem for path in (ROOT / "shoal" / "commands").glob("*.py")} - {"__init__", "options", "releases", "model_files"}
    assert modules == set(COMMANDS)


def test_extras_of_the_commands_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {command.extra for command in COMMANDS.values()} <= extras.keys()


def test_a_missing_package_is_named_with_the_extra_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fastapi", "shoal.commands.serve", "aggregator.main", "aggregator.adapters.http_api"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing("fastapi"), *sys.meta_path])
    with pytest.raises(ConfigError, match=r"^shoal serve needs the package fastapi: pip install 'shoal\[aggregator\]'$"):
        application("serve")


def test_a_broken_package_is_not_taken_for_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("shoal.commands.serve", "aggregator.main"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing("aggregator.main"), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=r"aggregator\.main"):
        application("serve")


class Missing:
    """A finder for which one module does not exist."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse the module; leave all others to the finders that follow."""
        if name == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["nothing"], 2), (["simulate", "--nothing"], 2)])
def test_wrong_command_lines_end_with_usage_and_status_2(arguments: list[str], status: int) -> None:
    done = subprocess.run([sys.executable, "-m", "shoal", *arguments], capture_output=True, text=True)
    assert done.returncode == status
    assert "usage: shoal" in (done.stdout + done.stderr).lower()
