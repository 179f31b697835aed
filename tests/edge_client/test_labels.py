"""Labels of a device: which ones a task takes, as every implementation does, and what an error says
of the others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.core.ports import Windows
from edge_client.data.labels import as_held, check_labels, fit_labels_of, no_labels, strata
from simulation.measures import macro_auc, macro_f1_of_names
from tests.wire.label_vectors import CASES, fits, manifest_of
from wire.errors import DataError
from wire.tasks import TaskName, label_of


@pytest.mark.parametrize(("task", "names", "dtype", "values", "taken"), CASES)
def test_a_task_takes_its_own_labels_alone(
    task: TaskName, names: int, dtype: str, values: object, taken: bool
) -> None:
    assert fits(task, names, np.array(values, dtype)) is taken


def test_labels_that_fit_are_left_as_they_are_and_none_are_shaped_as_the_task_has_them() -> None:
    x, y = np.zeros((2, 1, 4), np.float32), np.array([[0, 1, 1], [0, 0, 0]])
    windows = Windows(x, y, x, y)
    assert fit_labels_of(windows, manifest_of("multi-label", 3)) is windows
    none = Windows(x[:0], np.zeros(0, np.int64), x[:0], np.zeros(0, np.int64), x)
    assert fit_labels_of(none, manifest_of("multi-label", 3)).train_y.shape == (0, 3)
    assert no_labels(2, label_of("multi-label", 3, 0)).tolist() == [[-1] * 3] * 2


def test_an_error_says_where_a_number_is_neither_there_nor_not() -> None:
    x, y = np.zeros((2, 1, 4), np.float32), np.array([[0, 1, 1], [0, 5, 0]])
    with pytest.raises(
        DataError,
        match="train: y must be 1 where a name applies, else 0, for multi-label, got 5 at window "
        "1, name 1",
    ):
        fit_labels_of(Windows(x, y, x, y), manifest_of("multi-label", 3))


@given(st.integers(1, 20), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_rows_of_0_and_1_are_read_and_divided_as_one_stratum(
    count: int, names: int, seed: int
) -> None:
    y = np.random.default_rng(seed).integers(0, 2, (count, names))
    check_labels(y, count, "here")
    check_labels(y.astype(bool), count, "here")
    assert as_held(y[:, 0].astype(float)).shape == (count, 1), "a quantity is a row of one"
    assert strata(y).tolist() == [0] * count
    with pytest.raises(DataError, match="here: y is int64"):
        check_labels(y - 3, count, "here")


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_measures_of_names_are_those_of_every_pair(count: int, names: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, scores = rng.integers(0, 2, (count, names)), rng.integers(0, 4, (count, names)) / 4
    areas, told = [], scores >= 0.5
    for there, score in zip(y.T, scores.T, strict=True):
        pairs = [(a > b) + (a == b) / 2 for a in score[there == 1] for b in score[there == 0]]
        areas += [float(np.mean(pairs))] if pairs else []
    assert macro_auc(y, scores) == (pytest.approx(np.mean(areas)) if areas else None)
    counted = [
        (int((y[:, i] & told[:, i]).sum()), int(y[:, i].sum() + told[:, i].sum()))
        for i in range(names)
    ]
    f1 = [2 * hits / total for hits, total in counted if total]
    assert macro_f1_of_names(y, told) == pytest.approx(np.mean(f1) if f1 else 1.0)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (["idle", "", "run"], r"y must hold names, got '' at window 1 \(no label\)"),
        (["idle", "run", "idle "], r"y must hold names, got 'idle ' at window 2 \(likely 'idle'\)"),
        ([" ", "run", "idle"], r"y must hold names, got ' ' at window 0 \(no label\)"),
    ],
)
def test_names_that_are_blank_or_have_blanks_around_are_refused(y: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        check_labels(np.array(y), 3, "here")
