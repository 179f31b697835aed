"""`shoal` itself: it starts at once, lists its commands, and says what a command needs that is not
installed."""

import inspect
import subprocess
import sys
import tomllib
import typing
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from export import bundle
from export.runtimes import ONNX
from shoal.api.run import FEW
from shoal.cli import COMMANDS, GROUPS, application
from simulation.comparison import grid
from simulation.datasets.download import SOURCES
from tests.support.commands import FUNCTIONS, Missing, functions
from wire.errors import ConfigError

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "onnx",
    "onnxruntime",
    "executorch",
}
HEAVY |= {
    "matplotlib",
    "rich",
    "cryptography",
    "paho",
    "jinja2",
    "opacus",
    "ray",
    "seglearn",
    "safetensors",
}
"""Packages that only what carries a command out may import."""


@pytest.mark.parametrize("module", ["shoal", "edge_client.main"])
def test_version_is_that_of_the_project(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"shoal {VERSION}\n")


def test_help_lists_every_command_with_its_line_and_imports_no_package_of_an_extra() -> None:
    code = (
        "import sys; from shoal.cli import main; sys.argv = ['shoal', '--help']\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print([name for name in ('torch', 'numpy', 'typer', 'rich', 'matplotlib') if name in "
        "sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = " ".join(done.stdout.split())
    assert [
        name for name, command in COMMANDS.items() if f"{name} {command.summary}" not in told
    ] == []
    assert "'shoal[export]' for download, export" in told
    assert done.stderr == "[]\n"


def test_help_and_usage_errors_import_nothing_that_a_command_needs_to_run() -> None:
    lines = [[*words.split(), option] for words in FUNCTIONS for option in ("--help", "--nothing")]
    code = (
        "import sys; from shoal.cli import main\n"
        f"for words in {lines}:\n"
        "    sys.argv = ['shoal', *words]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert end.code == (0 if words[-1] == '--help' else 2), "
        "words\n"
        f"    assert not sys.modules.keys() & {HEAVY}, (words, sys.modules.keys() & {HEAVY})\n"
        "    assert not any(name.startswith('shoal.api') for name in sys.modules), words\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]


def test_what_help_says_of_choices_is_so() -> None:
    told = {
        words: " ".join(str(option.help) for option in infos(FUNCTIONS[words]))
        for words in ("compare", "export", "download", "simulate")
    }
    assert (
        f"labels {','.join(map(str, grid.LABELS))} and split {','.join(grid.SPLITS)} when not given"
        in told["compare"]
    )
    assert f"{grid.SEEDS} with --scenarios" in told["compare"]
    assert f"{ONNX}, or {','.join(bundle.RUNTIMES)}" in told["export"]
    assert told["download"].startswith(", ".join(SOURCES))
    assert f"more than {FEW} devices" in told["simulate"]
    assert inspect.signature(FUNCTIONS["export"]).parameters["runtimes"].default == ONNX
    for words in ("export", "models export"):
        assert (
            inspect.signature(FUNCTIONS[words]).parameters["max_batch"].default == bundle.MAX_BATCH
        )


def infos(command: Callable[..., None]) -> list[Any]:
    """Return Typer's settings of the options of a command."""
    return [
        each
        for hint in typing.get_type_hints(command, include_extras=True).values()
        for each in getattr(hint, "__metadata__", ())
    ]


@pytest.mark.parametrize(
    "words",
    [[name, "--help"] for name in COMMANDS]
    + [["export", "inspect", "--help"], ["simulate", "--nothing"]],
)
def test_help_and_usage_are_plain_as_those_of_the_whole_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        application(words[0])(words, prog_name="shoal")
    told = "".join(capsys.readouterr())
    assert f"Usage: shoal {words[0]}" in told
    assert not set(told) & set("╭│╰─")


def test_the_list_of_commands_has_each_once_and_its_examples_are_in_the_docs() -> None:
    from tests.support.pages import COMMANDS as DOCUMENTED

    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    examples = [(name, line) for name, command in COMMANDS.items() for line in command.examples]
    assert {name for name, _ in examples} == set(COMMANDS)
    assert [
        line
        for name, line in examples
        if line not in DOCUMENTED or not line.startswith(f"shoal {name}")
    ] == []


@pytest.mark.parametrize(
    "words", [words for name in COMMANDS for words in functions(name) if " " in words]
)
def test_the_help_of_a_command_of_a_group_ends_with_its_own_example_of_the_docs(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.operator import PAGE
    from tests.support.pages import COMMANDS as DOCUMENTED

    with pytest.raises(SystemExit):
        application(words.partition(" ")[0])([*words.split(), "--help"], prog_name="shoal")
    _, _, example = capsys.readouterr().out.rstrip().rpartition("Examples:\n    ")
    assert example.startswith(f"shoal {words} ")
    assert example in DOCUMENTED or f"`{example}`" in PAGE


def test_each_example_within_a_group_is_of_a_command_of_its_own() -> None:
    for name, command in COMMANDS.items():
        own = [words for words in functions(name) if " " in words]
        assert sorted(" ".join(line.split()[1:3]) for line in command.within) == sorted(own)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_ends_with_an_example_on_a_line_of_its_own(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        application(name)([name, "--help"], prog_name="shoal")
    assert (
        capsys.readouterr().out.rstrip().endswith(f"Examples:\n    {COMMANDS[name].examples[-1]}")
    )


def test_a_command_that_there_is_not_is_answered_with_what_was_meant() -> None:
    for word, told in (
        ("simulat", "did you mean simulate?"),
        ("xyzzy", "`shoal --help` lists all"),
    ):
        done = subprocess.run([sys.executable, "-m", "shoal", word], capture_output=True, text=True)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (
            2,
            f"shoal: error: there is no command {word!r}; {told}",
        )


def test_every_line_in_the_list_of_commands_is_a_sentence() -> None:
    assert [
        command.summary for command in COMMANDS.values() if not command.summary.endswith(".")
    ] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_own_help_begins_with_its_line(name: str) -> None:
    command = getattr(import_module(f"shoal.commands.{name}"), name)
    text = command.info.help if isinstance(command, typer.Typer) else command.__doc__
    assert text is not None
    assert " ".join(text.split()).startswith(COMMANDS[name].summary)


def test_every_module_of_the_commands_is_listed() -> None:
    modules = {path.stem for path in (ROOT / "shoal" / "commands").glob("*.py")} - {
        "__init__",
        "options",
    }
    assert modules == set(COMMANDS)


def test_extras_of_the_commands_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {command.extra for command in COMMANDS.values()} <= extras.keys()


def test_a_missing_package_is_named_with_the_extra_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "fastapi",
        "aggregator.main",
        "aggregator.http.api",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing("fastapi"), *sys.meta_path])
    with pytest.raises(
        ConfigError,
        match=r"^shoal serve needs the package fastapi: pip install 'shoal\[aggregator\]'$",
    ):
        application("serve")(["serve", "--folder", "f"], standalone_mode=False)


def test_a_broken_package_is_not_taken_for_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aggregator.main",):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing("aggregator.main"), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=r"aggregator\.main"):
        application("serve")(["serve", "--folder", "f"], standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "status"), [([], 2), (["nothing"], 2), (["simulate", "--nothing"], 2)]
)
def test_wrong_command_lines_end_with_usage_and_status_2(arguments: list[str], status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *arguments], capture_output=True, text=True
    )
    assert done.returncode == status
    assert "usage: shoal" in (done.stdout + done.stderr).lower()


@pytest.mark.parametrize("model", [None, "mlp"])
def test_a_simulation_loads_neither_a_compiler_nor_a_runtime(model: str | None) -> None:
    """They would double the time until the first step."""
    code = (
        "import sys, numpy, shoal\n"
        "x = numpy.random.default_rng(0).normal(size=(120, 3, 16)).astype('float32')\n"
        "y = numpy.arange(120) % 2\n"
        f"shoal.simulate(shoal.load(x, y, y), rounds=1, model={model!r})\n"
        "print(sys.modules.keys() & {'torch._dynamo', 'onnx', 'onnxruntime', 'executorch'})\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "set()"
