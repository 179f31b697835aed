"""Reports of personal models in updates; impossible ones are left out."""

from typing import Any

import numpy as np
import pytest

from algorithms.composition import read_algorithm
from algorithms.personalisation.kept import PersonalChoice, kept_of
from algorithms.registry import CHOICES
from wire.arrays.tensors import Tensors

CANDIDATES = ("one", "two", "three")


def said(kept: Any = (0, 1, 0), loss: Any = (0.5, 0.25, 1.0), windows: Any = 12.0) -> Tensors:
    values = {"choice": kept, "loss": loss, "windows": windows}
    return {
        f"response/choose.{name}": np.asarray(value, np.float32) for name, value in values.items()
    }


def test_the_candidate_its_loss_and_those_of_the_others_are_read() -> None:
    expected = PersonalChoice("two", 12, 0.25, {"one": 0.5, "three": 1.0})
    assert kept_of(CANDIDATES, said()) == expected
    assert (
        kept_of(CANDIDATES, {**said(), "response/gauge.share": np.ones((), np.float32)}) == expected
    )


def test_standard_errors_are_read_where_they_are_told() -> None:
    error = {"response/choose.error": np.array([0.1, 0.0, 0.2], np.float32)}
    found = kept_of(CANDIDATES, said() | error)
    assert found is not None
    assert found.errors == pytest.approx({"one": 0.1, "two": 0.0, "three": 0.2})
    for wrong in ((0.1, np.nan, 0.0), (0.1, -1.0, 0.0), (0.1, 99.0, 0.0), (0.1, 0.0)):
        assert (
            kept_of(CANDIDATES, said() | {"response/choose.error": np.array(wrong, np.float32)})
            is None
        )


def test_what_cannot_be_used_is_read_where_it_is_told() -> None:
    def usable(*flags: float) -> Tensors:
        return {"response/choose.usable": np.array(flags, np.float32)}

    assert kept_of(CANDIDATES, said() | usable(1, 1, 1)) == kept_of(CANDIDATES, said())
    assert kept_of(CANDIDATES, said() | usable(0, 0.9999, 1)) == PersonalChoice(
        "two", 12, 0.25, {"one": 0.5, "three": 1.0}, unusable=("one",)
    )
    for wrong in ((1, 0, 1), (1, 1), (1, 1, 2), (0.5, 1, 1), (np.nan, 1, 1)):
        assert kept_of(CANDIDATES, said() | usable(*wrong)) is None


def test_what_a_runtime_has_rounded_is_read() -> None:
    assert kept_of(
        CANDIDATES, said((1e-6, 0.9999, 0), (0.5, -1e-7, 1.0), 11.9999)
    ) == PersonalChoice("two", 12, 0.0, {"one": 0.5, "three": 1.0})


def test_without_windows_there_are_no_losses() -> None:
    assert kept_of(CANDIDATES, said((1, 0, 0), (0, 0, 0), 0)) == PersonalChoice("one", 0)


@pytest.mark.parametrize(
    "hostile",
    [
        {},
        {"response/choose.choice": np.array([0, 1, 0], np.float32)},
        said(kept=(0, 0, 0)),
        said(kept=(0, 1, 1)),
        said(kept=(0, 0.5, 0.5)),
        said(kept=(-1, 1, 1)),
        said(kept=(0, np.nan, 1)),
        said(kept=(0, np.inf, 0)),
        said(kept=(0, 1)),
        said(kept=((0, 1, 0),)),
        said(kept=1),
        said(loss=(0.5, np.nan, 1.0)),
        said(loss=(0.5, -1.0, 1.0)),
        said(loss=(0.5, np.inf, 1.0)),
        said(loss=(0.5, 0.25)),
        said(windows=-1),
        said(windows=2.5),
        said(windows=np.nan),
        said(windows=np.inf),
        said(windows=1e30),
        said(windows=(12.0,)),
        {name: value.astype(np.int64) for name, value in said().items()},
    ],
)
def test_what_cannot_be_is_not_told(hostile: Tensors) -> None:
    assert kept_of(CANDIDATES, hostile) is None


def test_a_run_whose_devices_do_not_choose_is_told_nothing() -> None:
    assert (
        kept_of((), {**said((), ()), "response/choose.windows": np.zeros((), np.float32)}) is None
    )


@pytest.mark.parametrize("name", CHOICES["personalisation"])
def test_the_names_of_candidates_are_those_of_the_recipe(name: str) -> None:
    candidates = read_algorithm(f"fedavg+{name}").candidates
    recipe = getattr(CHOICES["personalisation"][name], "recipe", None)
    assert candidates == (
        () if recipe is None else tuple(str(candidate) for candidate in recipe.candidates)
    )
    assert len(set(candidates)) == len(candidates)
