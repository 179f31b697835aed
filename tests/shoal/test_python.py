"""`import shoal`: it loads nothing, has every name of the page, and its options are those of the
commands."""

import inspect
import json
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.command import IN_JSON
from shoal.commands import check as check_command
from shoal.commands import compare as compare_command
from shoal.commands import export as export_command
from shoal.commands import simulate as simulate_command
from tests.support.commands import Missing
from tests.support.fleets import synthetic_fleet
from tests.support.pages import ROOT

OF_THE_TERMINAL = {"context", "as_json", IN_JSON.name}
"""Parameters of commands that say how something is printed."""


def test_importing_it_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import shoal, sys; print([n for n in ('torch', 'numpy', 'pandas') if n in sys.modules], "
        "'simulate' in dir(shoal))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n"


@pytest.mark.parametrize("package", [name for name in shoal.PACKAGES if name != "shoal"])
def test_a_file_that_hides_a_package_is_named(tmp_path: Path, package: str) -> None:
    (tmp_path / f"{package}.py").write_text("mine = 1\n")
    (tmp_path / "run.py").write_text("import shoal\n")
    run = subprocess.run(
        [sys.executable, tmp_path / "run.py"], capture_output=True, text=True, check=False
    )
    error = f"ImportError: {tmp_path / package}.py hides Shoal's package of that name. Give it an"
    assert (run.returncode, error in run.stderr) == (1, True), run.stderr


class Broken(nn.Module):
    """A model whose second line fails in torch."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.layer(x.flatten(1)))


def test_an_error_in_a_library_has_the_users_line() -> None:
    def on_progress(progress: object) -> None:
        json.loads(str(object))

    cases: tuple[dict[str, Any], ...] = ({"model": Broken}, {"on_progress": on_progress})
    for words in cases:
        with pytest.raises((shoal.ConfigError, ValueError)) as caught:
            shoal.simulate("watch", algorithm="fedavg", rounds=1, backend="eager", **words)
        name = "Broken.forward" if "model" in words else "on_progress"
        (note,) = caught.value.__notes__
        assert note.startswith(f"From {__file__}, line ")
        assert note.endswith(name)


def test_every_name_is_there() -> None:
    assert [name for name in shoal.__all__ if getattr(shoal, name, None) is None] == []
    placed = [name for names in shoal._PLACES.values() for name in names]
    assert sorted(placed) == sorted(shoal.__all__), "the reference lists what has a place"
    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'nothing'"):
        shoal.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("simulate", "run", "simulation"), ("export", "exporting", "export")],
)
def test_a_missing_package_is_named_with_the_extra_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    monkeypatch.delitem(vars(shoal), name, raising=False)
    for loaded in (f"shoal.api.{module}", "missing_package"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)

    class Needs(Missing):
        def find_spec(self, name: str, *rest: object) -> None:
            if name == self.name:
                raise ModuleNotFoundError(
                    "No module named 'missing_package'", name="missing_package"
                )

    monkeypatch.setattr(sys, "meta_path", [Needs(f"shoal.api.{module}"), *sys.meta_path])
    with pytest.raises(
        ImportError,
        match=rf"^shoal\.{name} needs the package missing_package: pip install 'shoal\[{extra}\]'$",
    ):
        getattr(shoal, name)


def parameters(function: Callable[..., object]) -> dict[str, object]:
    """The parameters of a function with their defaults."""
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


NONE = inspect.Parameter.empty


@pytest.mark.parametrize(
    ("python", "command", "differing", "of_python"),
    [
        (
            shoal.simulate,
            simulate_command.simulate,
            {"hyper": None, "out": None},
            {"callbacks", "on_progress"},
        ),
        # what is empty is the command's value, or a grid's; one process, since a script that starts
        # others needs a guard
        (
            shoal.compare,
            compare_command.compare,
            {"hyper": None, "labels": "", "split": "", "seeds": None, "workers": 1, "out": None},
            {"on_progress"},
        ),
        (shoal.export, export_command.write, {"data": NONE, "out": NONE}, {"on_progress"}),
        (shoal.check, check_command.check, {}, {"on_progress"}),
    ],
)
def test_command_and_function_have_the_same_options_with_the_same_defaults(
    python: Callable[..., object],
    command: Callable[..., object],
    differing: dict[str, object],
    of_python: set[str],
) -> None:
    ours, theirs = parameters(python), parameters(command)
    for name in OF_THE_TERMINAL & theirs.keys():
        del theirs[name]
    assert ours.keys() - theirs.keys() == of_python, "what the command cannot do"
    assert theirs.keys() - ours.keys() == set(), "what the function cannot do"
    assert {name: ours[name] for name in differing} == differing
    same = theirs.keys() - differing.keys()
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 0}, "rounds must be a whole number between 1 and 1000000, got 0"),
        ({"rounds": "3"}, "rounds must be a whole number between 1 and 1000000, got '3'"),
        ({"min_delta": 2.0}, "min_delta must be between 0 and 1, got 2.0"),
        ({"batch_size": 5000}, "batch_size must be a whole number between 2 and 4096, got 5000"),
        ({"lr": -1.0}, "lr must be between 0 and 1000000, got -1.0"),
        ({"hyper": {"momentum": float("nan")}}, "hyper must be NAME=VALUE with a number"),
        ({"backend": "fast"}, "backend must be one of auto, native"),
        ({"algorithm": "fedavgg"}, "fedavgg"),
        ({"devices": 99}, "devices must be between 1 and 20, the devices of data watch, got 99"),
        (
            {"pretrain": "watch", "model": lambda shape, classes: None},
            "pretrain must be left out with a model of your own, which brings its weights",
        ),
        (
            {"backend": "messages", "callbacks": [shoal.EarlyStopping(1)]},
            "callbacks must be left out with the backend messages",
        ),
    ],
)
def test_options_that_cannot_be_are_one_clear_error(
    options: dict[str, typing.Any], said: str
) -> None:
    with pytest.raises(shoal.ShoalError, match=re.escape(said)):
        shoal.simulate("watch", **options)


TYPED = """
import shoal

data = shoal.load({"a": ([[[0.0]]], [0])})
result = shoal.simulate(data, callbacks=[shoal.CsvLog("rounds.csv"), shoal.EarlyStopping(3)])
reveal_type(result)
reveal_type(result.accuracy)
reveal_type(result.evaluations[0])
reveal_type(result.model(group=0))
reveal_type(result.predict([], device="a"))
reveal_type(result.groups)
reveal_type(shoal.compare(["fedavg"], "watch").rows)
reveal_type(shoal.export("watch", "out"))
shoal.nothing
shoal.simulate("watch", round=1)
shoal.load("watch", stride="64")
shoal.simulate("watch", callbacks=[object()])
"""
REVEALED = [
    "shoal.api.result.Result",
    "aggregator.view.summary.Spread",
    "shoal.api.tables.Evaluation",
    "torch.nn.modules.module.Module",
    "numpy.ndarray[tuple[Any, ...], numpy.dtype[numpy.floating[numpy._typing._nbit_base._32Bit]]]",
    "typing.Mapping[int, typing.Sequence[str]]",
    "list[dict[str, Any]]",
    "export.publish.Publication",
]


@pytest.mark.full
def test_a_type_checker_knows_every_type_and_finds_mistakes(tmp_path: Path) -> None:
    programs = [
        tmp_path / "program.py",
        *(tmp_path / path.name for path in (ROOT / "examples").glob("*.py")),
    ]
    for (
        path
    ) in programs:  # said in the files: an option would make mypy look at all that they import anew
        text = TYPED if path.name == "program.py" else (ROOT / "examples" / path.name).read_text()
        path.write_text(f"{text}\n# mypy: allow-untyped-calls\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        *sorted(map(str, programs)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    revealed = re.findall(r'Revealed type is "(.+?)"$', done.stdout, re.MULTILINE)
    assert [said.replace("builtins.", "") for said in revealed] == REVEALED, done.stdout
    errors = [
        re.search(r":(\d+): error: .+\[(.+)\]$", line) for line in lines if ": error:" in line
    ]
    found = {(int(error[1]), error[2]) for error in errors if error is not None}
    last = len(TYPED.splitlines())
    assert {line for line, _ in found} == {last - 3, last - 2, last - 1, last}, done.stdout
    assert (last - 3, "attr-defined") in found


class OneThread(nn.Linear):
    """A model that notes the number of threads of each of its passes."""

    threads: ClassVar[set[int]] = set()

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(shape[0] * shape[1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        self.threads.add(torch.get_num_threads())
        return super().forward(x.flatten(1))


def test_every_step_before_the_rounds_is_said_and_all_compute_with_one_thread(
    tmp_path: Path,
) -> None:
    """Threads that wait for each other made a recurrent model's checks fifty times as long."""
    fleet, said = synthetic_fleet(2), list[object]()
    words: dict[str, Any] = {"algorithm": "fedavg", "model": OneThread}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        shoal.simulate(
            fleet, rounds=1, backend="eager", on_progress=said.append, out=tmp_path / "run", **words
        )
        shoal.export(fleet, tmp_path / "bundle", **words)
    finally:
        torch.set_num_threads(before)
    assert OneThread.threads == {1}
    first = next(n for n, each in enumerate(said) if not isinstance(each, str))
    assert [str(each).split()[0] for each in said[:first]] == [
        "reading",
        "making",
        "checking",
        "compiling",
    ]
