"""The programs of the pages about adding a part do what the pages say."""

import math
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aggregator.aggregation.stored import load_state
from algorithms.composition import read_algorithm
from algorithms.registry import CHOICES, KINDS
from tests.support.pages import ADDING, PROGRAMS, ROOT, page
from wire.errors import ConfigError

pytestmark = pytest.mark.full


TEXT = "".join(map(page, ADDING))


def example(kind: str, number: int = 0) -> dict[str, Any]:
    """Return the definitions of a program of the page about parts of a kind."""
    made: dict[str, Any] = {"__name__": "example"}
    exec(PROGRAMS.findall(page(f"add-{kind}"))[number], made)
    return made


def test_the_programs_of_the_pages_about_parts_pass_the_checks_of_the_repository(
    tmp_path: Path,
) -> None:
    files = []
    for number, program in enumerate(PROGRAMS.findall(TEXT)):
        files.append(tmp_path / f"example_{number}.py")
        opening = "" if program.startswith('"""') else '"""An example."""\n\n'
        files[-1].write_text(opening + program)
    for check in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        options = [
            "--config-file" if check[0] == "mypy" else "--config",
            str(ROOT / "pyproject.toml"),
        ]
        done = subprocess.run(
            [sys.executable, "-m", *check, *options, *map(str, files)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "kind", "made", "options"),
    [
        (("objective", 0), "objective", "Shrinking", "shrinking:decay=0.1"),
        (("grouping", 0), "grouping", "BySize", "by-size:examples=20"),
        (("mean", 0), "mean", "MiddleHalf", "middle-half"),
        (("optimizer", 1), "server optimizer", "SignStep", "fedavg+sign-step:server_lr=0.01"),
        (("personal", 0), "personalisation", "Neighbourly", "fedavg+neighbourly:holdout=0.5"),
        (("optimizer", 0), "optimizer", "SignDescent", "fedavg+sign-descent:max_norm=1"),
        (("task", 0), "task", "Focal", "fedavg+focal:gamma=1"),
        (("privacy", 0), "privacy", "Shortened", "fedavg+shortened:length=0.5"),
    ],
)
def test_the_choices_of_the_pages_about_parts_work(
    monkeypatch: pytest.MonkeyPatch, program: tuple[str, int], kind: str, made: str, options: str
) -> None:
    """They are registered with the words of the page, and pass the contract of every choice."""
    from simulation.contract import declarations, rounds

    folder = f"`algorithms/{KINDS[kind].folder}/`"
    assert f"In {folder}, the file makes `{example(*program)[made].name}`" in page(
        f"add-{program[0]}"
    )
    assert folder in page("extend")
    objective = example(*program)[made]
    monkeypatch.setitem(CHOICES[kind], objective.name, objective)
    if kind == "objective":
        declarations.plain_steps(objective)
        declarations.own_answers(objective)
        declarations.absorbing(objective)
    rounds.repeats(options)
    rounds.places(options)


def test_the_option_of_the_page_is_that_of_the_grouping() -> None:
    (program,) = PROGRAMS.findall(page("extend"))
    made: dict[str, Any] = {}
    exec(program, made)
    assert made["examples"] == vars(example("grouping")["BySize"])["examples"]


def test_the_mean_of_the_pages_about_parts_drops_both_ends() -> None:
    from algorithms.core.stack import Stack

    rows = np.array([[0.0], [1.0], [3.0], [1000.0]], np.float32)
    assert example("mean")["MiddleHalf"]().combine(
        Stack(rows), np.ones(4), [], 0
    ).flat.tolist() == [2.0]


def test_the_task_of_the_pages_about_parts_is_the_papers() -> None:
    """Without its factor it is the cross-entropy; with gamma 2 a window told with probability 0.5
    counts a quarter."""
    logits, target = torch.zeros(1, 2), torch.tensor([0])
    assert float(example("task")["Focal"](gamma=0.0).losses(logits, target)) == pytest.approx(
        math.log(2)
    )
    assert float(example("task")["Focal"]().losses(logits, target)) == pytest.approx(
        math.log(2) / 4
    )


def test_the_grouping_of_the_pages_about_parts_checks_its_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setitem(CHOICES["grouping"], "by-size", example("grouping")["BySize"])
    with pytest.raises(
        ConfigError,
        match="algorithm 'by-size:examples=0': examples must be a whole number from 1, got '0'",
    ):
        read_algorithm("by-size:examples=0")


def test_the_objective_of_the_pages_about_parts_reports_to_its_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from simulation.settings import SimulationSettings
    from simulation.simulate import simulate
    from tests.support.fleets import synthetic_fleet

    made = example("objective")
    monkeypatch.setitem(CHOICES["objective"], "shrinking", made["Shrinking"])
    outcome = simulate(
        synthetic_fleet(3), SimulationSettings(read_algorithm("shrinking:decay=0.1"), 1)
    )
    assert outcome.summary.accuracy.mean is not None
    state = load_state(outcome.campaign.version, outcome.blobs)
    assert state.context.info.keys() == {"d0", "d1", "d2"}
    assert all(length > 0 for length in state.context.info.values())


def test_what_a_device_keeps_of_the_pages_about_parts_is_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from simulation.contract.fleet import tiny_windows
    from tests.algorithms.closing_cases import close, played

    monkeypatch.setitem(
        CHOICES["personalisation"], "neighbourly", example("personal")["Neighbourly"]
    )
    result, _ = close(played("neighbourly:holdout=0.5"), tiny_windows(0))
    assert result.tensors["response/choose.choice"].shape == (3,)
    assert float(result.tensors["response/choose.windows"]) == 9
    assert result.num_steps == 0
    with pytest.raises(ConfigError, match=r"holdout must be a number above 0 below 1.*, got '1'"):
        read_algorithm("neighbourly:holdout=1")


def test_the_command_of_the_pages_about_parts_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shoal import cli

    text = page("add-command")
    entry = re.search(r'is `"windows": (Command\(.+?\))`', text)
    assert entry is not None
    command = eval(entry[1], {"Command": cli.Command})
    module = types.ModuleType("shoal.commands.windows")
    exec(PROGRAMS.findall(text)[-1], module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert sys.modules["shoal.commands.windows"].windows.__doc__.startswith(command.summary)
    monkeypatch.setitem(cli.COMMANDS, "windows", command)
    cli.application("windows")(["windows", "--data", "watch"], standalone_mode=False)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 20
    assert re.fullmatch(r"p01-left \d+ \d+", printed[0])
