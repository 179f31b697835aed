"""Personal models in tasks whose labels are no classes: the arithmetic compared with plain numpy,
and complete closing plans on tiny devices."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.composition import make_objective, read_algorithm
from algorithms.personalisation.answers import ANSWERS, with_weight
from algorithms.personalisation.kept import LEAST, WORST
from algorithms.personalisation.memory import (
    KEYS,
    LABELLED,
    LABELS,
    SCALE,
    SHARE,
    SPREAD,
    TIMES,
    Memory,
    Scores,
    answer,
    empty,
)
from edge_client.core.kept import own_tensors
from edge_client.core.ports import Windows
from edge_client.data.labels import no_labels
from edge_client.work.executor import Executor, PlanResult
from simulation.contract.fleet import CLASSES, Field, make_field, tiny_model, tiny_windows
from tests.algorithms.closing_cases import close, labelled, played
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.errors import ConfigError
from wire.tasks import MULTI_LABEL, RECONSTRUCTION, REGRESSION, TaskName, label_of

NEIGHBOURLY = (MULTI_LABEL, REGRESSION)
ALONE = ("sequence", RECONSTRUCTION)
SHARES = (0.0, 0.5, 1.0)
WIDTH, NAMES = 4, 2


def memory_of(
    task: TaskName, seed: int, labelled: list[bool], held: list[bool], rows: int
) -> Memory:
    """Return a memory of so many rows, with windows in the first ones. Some labels are zeros."""
    rng, count = np.random.default_rng(seed), len(labelled)
    keys = np.array([1.0, 0.3, 0.2, 0.1]) + rng.normal(0, 0.15, (count, WIDTH))
    target = (
        rng.integers(0, 2, (count, NAMES))
        if task == MULTI_LABEL
        else rng.integers(-1, 2, (count, NAMES)) * 1.5
    )
    nobody = no_labels(count, label_of(task, NAMES, 0))
    target = np.where(np.array(labelled, bool)[:, None], target, nobody)
    of = ANSWERS[task]
    made = {
        "keys": torch.from_numpy(keys).float(),
        "guess": of.guess(torch.from_numpy(rng.normal(0, 1, (count, NAMES))).float()),
        "labels": of.labels(torch.from_numpy(target).float(), NAMES),
        "holdout": torch.tensor([float(h and k) for h, k in zip(held, labelled, strict=True)]),
    }
    return Memory(
        **{
            name: torch.cat([t, torch.zeros(rows - count, *t.shape[1:])])
            for name, t in made.items()
        },
        of=of,
    )


@st.composite
def memories(draw: st.DrawFn) -> tuple[TaskName, Memory, list[bool]]:
    """Any memory of up to eight windows, with empty rows behind them, and which have labels."""
    task = draw(st.sampled_from(NEIGHBOURLY))
    known = draw(st.lists(st.booleans(), min_size=1, max_size=8))
    held = draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    return task, memory_of(task, draw(st.integers(0, 2**16)), known, held, len(known) + 2), known


def plain_losses(
    task: TaskName, memory: Memory, known: list[bool], share: float
) -> dict[int, float]:
    """The loss of each held-out window by loops in float64, with what neighbours say and its weight
    apart."""
    keys, guess, labels = (
        t.double().numpy() for t in (memory.scaled, memory.guess[:, :-1], memory.labels[:, :-1])
    )
    count = len(known)
    judged = [i for i in range(count) if memory.holdout[i] > 0]
    told = [j for j in range(count) if j not in judged]

    def near(i: int, soft: list[Any], weights: list[float]) -> tuple[Any, float]:
        """The sum of what neighbours say, each by its weight, and how much of an answer that is."""
        by = [
            (LABELLED if known[j] else 1.0) * math.exp(-((keys[i] - keys[j]) ** 2).mean() / SCALE)
            if j != i
            else 0.0
            for j in told
        ]
        total = max(sum(by), 1e-12)
        said = sum((w / total * soft[j] for w, j in zip(by, told, strict=True)), np.zeros(NAMES))
        return said, sum(w / total * weights[j] for w, j in zip(by, told, strict=True))

    own = [known[i] and i not in judged for i in range(count)]
    soft, weights = [labels[i] if own[i] else guess[i] for i in range(count)], [1.0] * count
    for _ in range(TIMES):
        said = [near(i, soft, weights) for i in range(count)]
        soft = [
            labels[i] if own[i] else (1 - SPREAD) * guess[i] + SPREAD * said[i][0]
            for i in range(count)
        ]
        weights = [1.0 if own[i] else (1 - SPREAD) + SPREAD * said[i][1] for i in range(count)]
    found = {}
    for i in judged:
        said_here, part = near(i, soft, weights)
        mix = share * said_here + (1 - share * part) * guess[i]
        if task == MULTI_LABEL:
            chosen = np.where(labels[i] > 0, mix, 1 - mix)
            found[i] = float(-np.log(np.maximum(chosen, LEAST)).mean())
        else:
            found[i] = min(WORST, float(((mix - labels[i]) ** 2).mean()))
    return found


@given(memories())
def test_losses_are_those_of_a_plain_program_and_zero_elsewhere(
    case: tuple[TaskName, Memory, list[bool]],
) -> None:
    task, memory, known = case
    assert memory.has_label.tolist() == [*known, False, False], "a label of zeros is one"
    losses, judged = memory.losses(SHARES)
    for column, share in enumerate(SHARES):
        expected = plain_losses(task, memory, known, share)
        assert np.flatnonzero(judged.numpy()).tolist() == sorted(expected)
        for row in range(len(losses)):
            assert float(losses[row, column]) == pytest.approx(expected.get(row, 0.0), abs=2e-3)
    assert float(memory.elsewhere()) == 0


@given(memories(), st.floats(0, 1), st.integers(0, 99))
def test_answers_lie_between_what_the_model_and_labels_say(
    case: tuple[TaskName, Memory, list[bool]], share: float, seed: int
) -> None:
    task, memory, _ = case
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(5, WIDTH, generator=rng) * 0.1 + torch.tensor([1.0, 0.3, 0.2, 0.1])
    guess = ANSWERS[task].guess(torch.randn(5, NAMES, generator=rng))
    found = answer({**memory.answering(), SHARE: torch.tensor(share)}, features, guess, memory.of)
    every = torch.cat([memory.guess[memory.filled], memory.labels[memory.has_label], guess])
    torch.testing.assert_close(found[:, -1], torch.ones(5), atol=1e-4, rtol=0)
    assert bool(
        (found[:, :-1] >= every.amin(0)[:-1] - 1e-4).all()
        and (found[:, :-1] <= every.amax(0)[:-1] + 1e-4).all()
    )
    alone = answer(
        {**empty(4, WIDTH, NAMES + 1), SHARE: torch.tensor(share)}, features, guess, memory.of
    )
    assert torch.equal(alone, guess), "an empty memory leaves the answer to the model"


def test_losses_of_answers_that_are_no_numbers_or_far_off_are_cut_off() -> None:
    for guess in (math.nan, math.inf, 1e30):
        memory = memory_of(REGRESSION, 0, [True] * 4, [True, True, False, False], 5)
        made = Memory(
            memory.keys,
            torch.full_like(memory.guess, guess),
            memory.labels,
            memory.holdout,
            memory.of,
        )
        torch.testing.assert_close(
            made.losses((0.0,))[0][:, 0], torch.tensor([WORST, WORST, 0, 0, 0])
        )
        assert bool(made.finite) == math.isfinite(guess)
        held = torch.tensor([1.0, 0.0, 1.0])
        scores = Scores(torch.tensor([guess, 1.0, 0.5]), torch.ones(3), held)
        torch.testing.assert_close(scores.losses((0.0,))[0][:, 0], torch.tensor([WORST, 0.0, 0.5]))
        assert bool(scores.finite) == math.isfinite(guess)


def test_a_window_without_labels_has_no_row_of_labels_and_one_with_zeros_has() -> None:
    for task, nobody in ((MULTI_LABEL, -1.0), (REGRESSION, math.nan)):
        target = torch.tensor([[0.0, 0.0], [nobody, nobody]])
        assert ANSWERS[task].labels(target, NAMES).tolist() == [[0, 0, 1], [0, 0, 0]]
        assert ANSWERS[task].weight(with_weight(target)).tolist() == [1, 1]


class TestClosingPlans:
    """On tiny devices: everything labelled, one label, no label."""

    def windows_of(self, field: Field, count: int | None = None) -> Windows:
        every = tiny_windows(0, label=field.bundle.manifest.label)
        return every if count is None else labelled(every, count)

    @pytest.mark.parametrize("task", [*NEIGHBOURLY, *ALONE])
    def test_the_plan_is_carried_out_with_any_labels_and_metrics_are_those_of_the_answers(
        self, task: TaskName
    ) -> None:
        field = played(f"fedavg+personal:memory=32+none+{task}")
        for count in (None, 1, 0):
            windows = self.windows_of(field, count)
            result, model = close(field, windows)
            assert set(result.tensors) == {
                f"response/choose.{name}"
                for name in ("choice", "loss", "error", "usable", "windows")
            }
            kept, losses = (
                result.tensors["response/choose.choice"],
                result.tensors["response/choose.loss"],
            )
            assert len(kept) == (4 if task in NEIGHBOURLY else 2)
            assert kept.sum() == 1
            assert 0 <= losses.min() <= losses.max() <= WORST
            assert all(
                np.isfinite(value).all()
                for value in [*result.private.values(), *result.tensors.values()]
            )
            executor = Executor(field.bundle, field.executors["d0"]._graphs, windows)
            told = executor.predict(model, result.private, windows.test_x)
            assert self.right(task, told, windows) == pytest.approx(
                result.evaluated.num_correct, abs=0.5
            )
            again = executor.evaluate(model, result.private, windows.test_x, windows.test_y)
            assert again.num_correct == result.evaluated.num_correct
            assert again.loss_sum == pytest.approx(result.evaluated.loss_sum, rel=1e-5)
            trained = count is None or task == RECONSTRUCTION  # which needs no labels
            assert (result.num_steps > 0, float(result.tensors["response/choose.windows"]) > 2) == (
                trained,
                trained,
            )

    @staticmethod
    def right(task: TaskName, told: Any, windows: Windows) -> float:
        """Return the number of correct test windows, computed by numpy."""
        if task == MULTI_LABEL:
            return float(((told >= 0.5) == (windows.test_y > 0)).all(1).sum())
        if task == REGRESSION:
            return float((np.abs(told - windows.test_y) <= 0.5).all(1).sum())
        if task == RECONSTRUCTION:
            return float((told <= 0.5).sum())
        return float((told.argmax(2) == windows.test_y).mean(1).sum())

    @pytest.mark.parametrize("task", [*NEIGHBOURLY, *ALONE])
    def test_a_training_that_diverges_leaves_the_model_as_it_was(self, task: TaskName) -> None:
        field = played(f"fedavg:lr=1e30+personal:memory=32+none+{task}", rounds=0)
        with np.errstate(all="ignore"):
            result, model = close(field, self.windows_of(field))
        assert result.num_steps > 0
        assert (
            result.tensors["response/choose.choice"].argmax()
            >= len(result.tensors["response/choose.choice"]) // 2
        )
        assert all(np.isfinite(value).all() for value in result.private.values())
        shared = next(key for key in model if key.startswith("shared/"))
        np.testing.assert_array_equal(result.private[names.personal(shared)], model[shared])

    @pytest.mark.parametrize("task", NEIGHBOURLY)
    def test_a_device_whose_labels_are_others_gets_answers_by_its_own(self, task: TaskName) -> None:
        field = played(f"fedavg+personal:memory=32+none+{task}", rounds=2)
        every = self.windows_of(field)
        turned = Windows(every.train_x, 1 - every.train_y, every.test_x, 1 - every.test_y)
        served, kept = (
            self.loss(field, turned, {}),
            self.loss(field, turned, close(field, turned)[0].private),
        )
        assert kept < served

    @staticmethod
    def loss(field: Field, windows: Windows, private: Tensors) -> float:
        model = field.state.models[field.algorithm.grouping.start(field.state.memory, "d0")]
        executor = Executor(field.bundle, field.executors["d0"]._graphs, windows)
        return executor.evaluate(model, private, windows.test_x, windows.test_y).loss_sum

    @pytest.mark.parametrize("task", ALONE)
    def test_the_model_kept_is_the_one_with_the_least_loss_and_answers_alone(
        self, task: TaskName
    ) -> None:
        field = played(f"fedavg:lr=0.05+personal:memory=32:epochs=3+none+{task}")
        result, model = close(field, self.windows_of(field))
        losses = result.tensors["response/choose.loss"]
        assert result.tensors["response/choose.choice"].tolist() == [1, 0]
        assert losses[0] < losses[1], "three epochs more on its own windows"
        assert float(result.private[names.personal(SHARE)]) == 0
        assert names.of_role(
            own_tensors(field.bundle, model, result.private), names.MEMORY
        ).keys() == {SHARE}

    @pytest.mark.parametrize("task", [*NEIGHBOURLY, *ALONE])
    def test_recalibrated_moves_statistics_alone(self, task: TaskName) -> None:
        field = played(f"fedavg+recalibrated+none+{task}")
        result, _ = close(field, self.windows_of(field, 0))
        assert [key for key in result.private if "shared" in key] == []
        assert any("running_mean" in key for key in result.private)

    @pytest.mark.parametrize("task", NEIGHBOURLY)
    def test_knn_per_takes_the_share_with_the_least_loss(self, task: TaskName) -> None:
        field = played(f"fedavg+knn-per+none+{task}")
        result: PlanResult = close(field, self.windows_of(field))[0]
        losses, kept = (
            result.tensors["response/choose.loss"],
            result.tensors["response/choose.choice"],
        )
        assert losses.shape == (11,)
        assert losses[kept.argmax()] == losses.min()
        assert (result.private[names.personal(LABELS)][:, -1] > 0).sum() == len(
            self.windows_of(field).train_y
        )


def test_classes_have_no_column_more() -> None:
    """So what devices keep of bundles with classes is as it was."""
    for task, more in (("classification", 0), (MULTI_LABEL, 1), (REGRESSION, 1)):
        spec = read_algorithm(f"fedavg+personal+none+{task}")
        tensors = make_objective(spec, tiny_model(spec)).initial()
        assert tensors[LABELS].shape == (256, CLASSES + more)
        assert tensors[KEYS].shape[0] == 256


@pytest.mark.parametrize("task", ALONE)
def test_what_goes_by_neighbours_alone_is_refused_where_there_are_none(task: TaskName) -> None:
    with pytest.raises(
        ConfigError,
        match=f"'fedavg\\+knn-per\\+{task}': knn-per lets devices choose .* neighbours, and the "
        f"task {task} cannot use them",
    ):
        read_algorithm(f"fedavg+knn-per+{task}")
    assert read_algorithm(f"personal+{task}").candidates == (
        "fine-tuned",
        "general",
    )
    assert len(read_algorithm(f"personal+{MULTI_LABEL}").candidates) == 4


@pytest.mark.parametrize("task", ["classification:label_smoothing=0.1", *NEIGHBOURLY, *ALONE])
def test_a_task_alone_names_no_algorithm(task: TaskName) -> None:
    alone, whole = read_algorithm(task), read_algorithm(f"personal+{task}")
    assert (alone.personalisation.name, alone.grouping.name, alone.candidates) == (
        "personal",
        "distfl",
        whole.candidates,
    )
    assert read_algorithm(f"fedavg+{task}").personalisation.name == "served"
    assert read_algorithm(str(alone)) == alone


def test_a_bundle_says_which_graph_measures_what_is_kept() -> None:
    assert (
        make_field(
            "fedavg+personal:memory=32+none+regression", num_devices=1
        ).bundle.manifest.measuring
        == names.ASSESS
    )
    assert (
        make_field("fedavg+none+regression", num_devices=1).bundle.manifest.measuring
        == names.EVALUATE
    )
