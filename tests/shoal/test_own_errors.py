"""Errors of commands when a user's own class or model raises: the file, the line, the function, in
one error."""

import re
from pathlib import Path

import pytest

from algorithms.composition import read_algorithm
from shoal.cli import application
from simulation.comparison.processes import run_all
from simulation.comparison.runs import Job
from simulation.contract.suite import checks_of, run_check
from simulation.settings import SimulationSettings
from wire.errors import ConfigError, ShoalError

METHODS = """
import torch
from algorithms.groupings.ifca import Ifca
from algorithms.objectives.fedper import FedPer

class Failing(FedPer):
    name = "failing"
    def loss(self, tensors, batch, hyper):
        raise RuntimeError("my own mistake")

class Later(FedPer):
    name = "later"
    def loss(self, tensors, batch, hyper):
        return super().loss(tensors, batch, hyper) if len(batch["x"]) == 7 else self.deeper(batch)
    def deeper(self, batch):
        return batch["nothing"]

class Groups(Ifca):
    name = "groups"
    def group(self, *arguments):
        return {}["nothing"]

class Noisy(FedPer):
    name = "noisy"
    def loss(self, tensors, batch, hyper):
        loss, made = super().loss(tensors, batch, hyper)
        return loss * (1 + torch.rand(())), made

class Net(torch.nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.out = torch.nn.Linear(shape[0] * shape[1], classes)
    def forward(self, x):
        if len(x) == 7:
            raise RuntimeError("seven")
        return self.out(x.flatten(1))
"""
DRAWS = (
    r"objective noisy: its graph step draws random numbers itself \(aten.rand.default in "
    r"methods.py, line 27: .*\). Random numbers must be inputs"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "methods.py").write_text(METHODS)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--algorithm methods.py:Failing",
            r"methods\.py, line 9, in Failing\.loss: RuntimeError: my own mistake",
        ),
        (
            "--algorithm methods.py:Later --exportable off",
            r"The first one, p.*: .*methods\.py, line 16, in Later\.deeper: KeyError: 'nothing'",
        ),
        (
            "--algorithm fedavg+methods.py:Groups",
            r"methods\.py, line 21, in Groups\.group: KeyError: 'nothing'",
        ),
        (
            "--algorithm fedavg --model methods.py:Net",
            r"methods\.py, line 35, in Net\.forward: RuntimeError: seven",
        ),
        ("--algorithm methods.py:Noisy", DRAWS),
    ],
)
def test_simulate_names_where_it_was_raised(options: str, said: str) -> None:
    words = (
        f"simulate --data watch --devices 2 --rounds 1 --backend eager --out made {options}".split()
    )
    with pytest.raises(ShoalError, match=said):
        application("simulate")(words, standalone_mode=False)


def test_an_error_of_shoal_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("simulation.simulate.make_schedule", fail)
    words = [
        "simulate",
        "--data",
        "watch",
        "--devices",
        "2",
        "--algorithm",
        "methods.py:Groups",
        "--out",
        "made",
    ]
    with pytest.raises(RuntimeError, match="a defect"):
        application("simulate")(words, standalone_mode=False)


@pytest.mark.slow  # about 10 s: a process that loads everything
def test_the_processes_of_a_comparison_say_the_same(tmp_path: Path) -> None:
    settings = SimulationSettings(read_algorithm("methods.py:Failing"), 1, devices=2)
    with pytest.raises(
        ConfigError, match=r"line 9, in Failing\.loss: RuntimeError: my own mistake"
    ):
        run_all([Job("watch", settings)] * 2, tmp_path / "jobs", workers=2)


def test_check_names_an_objective_that_draws_random_numbers() -> None:
    _, _, checks = checks_of("methods.py:Noisy", phones=False)
    failures = [
        outcome.failure
        for outcome in map(
            run_check, (c for c in checks if c.title.startswith(("three rounds", "boards")))
        )
    ]
    assert len(failures) == 2
    assert all(re.search(DRAWS, failure) for failure in failures), failures
