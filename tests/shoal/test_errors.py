"""Errors of commands about wrong input: the option, the value, the expectation."""

import re
from pathlib import Path

import numpy as np
import pytest

from shoal.cli import application
from wire.errors import ConfigError, DataError, ShoalError

TEXT = Path(__file__)
"""A file that is none of those which commands read."""


def shoal(*arguments: str) -> None:
    """Run a command in this process."""
    application(arguments[0])(arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            "simulate --checkpoint /dev/null",
            "--checkpoint /dev/null: the folder cannot be created: File exists",
        ),
        (
            f"export --out o --key {TEXT}",
            f"signing key {TEXT} is not an Ed25519 private key in PEM, as `shoal export` writes it",
        ),
        ("download cifar10 --to /dev/null", "--to /dev/null: File exists"),
        (
            "simulate --backend native --model har-cnn-gn --algorithm fedavg --devices 2",
            "backend native: extractor.norm1 is GroupNorm. The engine in C++ supports time windows "
            "and images, with layers Conv1d, ",
        ),
        ("simulate --lr -1", "lr must be between 0 and 1000000, got -1 (--lr)"),
        ("compare --algorithms fedavg --hyper lr=-1", "lr must be a number of at least 0, got -1"),
        (
            "simulate --hyper momentum=nan",
            "hyper must be NAME=VALUE with a number, got 'momentum=nan' (--hyper)",
        ),
        (
            "simulate --cohort 99 --algorithm fedavg --devices 3",
            "cohort must be at most 3, the devices that can train, got 99",
        ),
        (
            "simulate --labels some",
            "labels must be all, none, or a number from 1, the labelled windows of each class, "
            "got 'some'",
        ),
        (
            "simulate --split now",
            "No split 'now'. Did you mean own? Known splits: own, time, session, random.",
        ),
        (
            "simulate --split session",
            "split session: device p01-left of data watch has no recording to hold out. It "
            "needs one whose classes are all in",
        ),
        (
            "simulate --split time --partition iid",
            "split time does not work with partition iid, which puts the examples of all devices "
            "together",
        ),
        (
            "simulate --labels none --newcomers 20",
            "newcomers must be less than the 20 devices, because at least one has to train, got 20",
        ),
        (
            "compare --algorithms fedavg --labels all,5",
            "labels must be a single value without scenarios, got all,5",
        ),
        (
            "compare --algorithms fedavg --split time,own",
            "split must be a single value without scenarios, got time,own",
        ),
        (
            "compare --algorithms fedavg --reference local",
            "reference must be one of fedavg, got local",
        ),
        (
            "compare --algorithms fedavg --scenarios --target 0.9",
            "target must be left out with scenarios, which count no rounds, got 0.9",
        ),
        (
            "compare --algorithms fedavg --scenarios --split session",
            "scenarios: no cell of the grid can run. Reason for the first: split session: device "
            "p01-left of data watch has no recording to hold out",
        ),
        ("simulate --data nowhere --model har-cn", "No model 'har-cn'. Did you mean "),
        (
            "simulate --data nowhere --model gru.py",
            "model 'gru.py' names no function. Write FILE.py:FUNCTION, the function that returns "
            "the model.",
        ),
        ("simulate --data nowhere --model gru.py:Gru", "model file gru.py: there is no such file"),
        (
            f"export inspect {TEXT}",
            f"{TEXT}: expected a bundle that `shoal export` wrote: bundle of ",
        ),
    ],
)
def test_what_cannot_be_used_is_named(
    arguments: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShoalError, match="^" + re.escape(error)):
        shoal(*arguments.split())


def test_a_misspelt_model_is_guessed() -> None:
    with pytest.raises(ShoalError, match=r"Did you mean har-cnn or har-cnn-gn"):
        shoal("simulate", "--model", "har-cn")


@pytest.mark.parametrize("target", ["3", "-0.1"])
def test_a_target_is_a_fraction(target: str) -> None:
    error = f"target must be between 0 and 1, got {target} (--target)"
    with pytest.raises(ConfigError, match=f"^{re.escape(error)}$"):
        shoal("compare", "--algorithms", "fedavg", "--target", target)


@pytest.mark.representatives("compare*")
@pytest.mark.parametrize(
    "command",
    [
        "simulate --rounds 1 --algorithm fedavg",
        "compare --rounds 1 --algorithms fedavg,local --workers 1",
    ],
)
def test_data_of_one_class_is_a_warning(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).normal(size=(24, 2, 16)).astype(np.float32)
    for name, y in (("alike", np.full(24, 1)), ("mixed", np.arange(24) % 2)):
        np.savez(tmp_path / f"{name}.npz", X=x, y=y, subject=np.repeat([0, 1], 12))
        shoal(
            *command.split(), "--data", str(tmp_path / f"{name}.npz"), "--out", str(tmp_path / name)
        )
    told = (
        "warning: data alike: all training examples are of class 1, so there is nothing to learn\n"
    )
    assert capsys.readouterr().err == told


def test_the_demo_refuses_data_with_which_no_device_can_train(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "few.npz",
        X=np.ones((3, 2, 16), np.float32),
        y=np.arange(3),
        subject=np.arange(3),
    )
    with pytest.raises(
        DataError,
        match=r"^data few: a device needs at least 2 training windows, and the most that one of 3 "
        r"has is 1$",
    ):
        shoal("demo", "--data", str(tmp_path / "few.npz"), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
