"""Memory of a device: the graphs' arithmetic compared with a plain program of numpy, window by
window, and invariants."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from algorithms.personalisation.kept import LEAST, WORST
from algorithms.personalisation.memory import (
    EVIDENCE,
    FLOOR,
    KEYS,
    LABELLED,
    LABELS,
    NEAREST,
    SCALE,
    SHARE,
    SPREAD,
    TIMES,
    UNITS,
    Memory,
    answer,
    empty,
    neighbours,
    normalised,
)

Numbers = np.ndarray[Any, np.dtype[np.float64]]
CLASSES, WIDTH = 3, 4
SHARES = (0.0, 0.3, 1.0)


def memory_of(seed: int, labelled: list[int], held: list[int], rows: int) -> Memory:
    """`len(labelled)` windows with a class each (-1: none) in the first of so many rows."""
    rng = np.random.default_rng(seed)
    keys, guess, labels, out = (
        np.zeros((rows, WIDTH)),
        np.zeros((rows, CLASSES)),
        np.zeros((rows, CLASSES)),
        np.zeros(rows),
    )
    for row, label in enumerate(labelled):
        keys[row] = np.array([1.0, 0.3, 0.2, 0.1]) + rng.normal(0, 0.15, WIDTH)
        raw = np.exp(rng.normal(0, 1, CLASSES))
        guess[row] = raw / raw.sum()
        out[row] = held[row] if label >= 0 else 0
        if label >= 0:
            labels[row, label] = 1
    made = [torch.from_numpy(a.astype(np.float32)) for a in (keys, guess, labels, out)]
    return Memory(keys=made[0], guess=made[1], labels=made[2], holdout=made[3])


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    """Any memory of up to nine windows, with empty rows behind them."""
    labelled = draw(st.lists(st.integers(-1, CLASSES - 1), max_size=9))
    held = draw(st.lists(st.integers(0, 1), min_size=len(labelled), max_size=len(labelled)))
    return memory_of(
        draw(st.integers(0, 2**16)), labelled, held, len(labelled) + draw(st.integers(1, 3))
    )


def plain_smoothed(memory: Memory, known: list[bool], silent: list[bool]) -> list[Numbers]:
    """Labels for every window by loops: `known` windows keep theirs, `silent` ones tell no other
    window anything."""
    keys, guess, labels = (t.double().numpy() for t in (memory.scaled, memory.guess, memory.labels))
    count = len(keys)
    soft = [labels[i] if known[i] else guess[i] for i in range(count)]
    for _ in range(TIMES):
        following = []
        for i in range(count):
            if known[i]:
                following.append(labels[i])
                continue
            total, near = 0.0, np.zeros(CLASSES)
            for j in range(count):
                if j != i and guess[j].sum() > 0 and not silent[j]:
                    weight = (
                        math.exp(-((keys[i] - keys[j]) ** 2).mean() / SCALE)
                        if guess[i].sum() > 0
                        else 0.0
                    )
                    weight *= 1 + (LABELLED - 1) * labels[j].sum()
                    total, near = total + weight, near + weight * soft[j]
            following.append((1 - SPREAD) * guess[i] + SPREAD * (near / max(total, NEAREST)))
        soft = following
    return soft


def plain_loss(memory: Memory, row: int, share: float) -> float:
    """The loss of one held-out window, by loops."""
    keys, guess, labels, held = (
        t.double().numpy() for t in (memory.scaled, memory.guess, memory.labels, memory.holdout)
    )
    judged = [bool(held[j] > 0 and labels[j].sum() > 0) for j in range(len(keys))]
    soft = plain_smoothed(
        memory, [bool(labels[j].sum() > 0) and not judged[j] for j in range(len(keys))], judged
    )
    total, near = 0.0, np.zeros(CLASSES)
    for j in range(len(keys)):
        if j != row and not judged[j] and guess[j].sum() > 0:
            weight = math.exp(-((keys[row] - keys[j]) ** 2).mean() / SCALE)
            weight *= 1 + (LABELLED - 1) * labels[j].sum()
            total, near = total + weight, near + weight * soft[j]
    near = near / max(total, NEAREST)
    mixed = share * near + (1 - share * near.sum()) * guess[row]
    return -math.log(max(LEAST, float(mixed[labels[row].argmax()])))


@given(memory=memories())
def test_labels_spread_as_in_a_plain_program(memory: Memory) -> None:
    rows = range(int((memory.guess.sum(1) > 0).sum()))
    expected = plain_smoothed(memory, memory.has_label.tolist(), [False] * len(memory.keys))
    actual = memory.smoothed(memory.weights, memory.has_label)
    for row in rows:
        np.testing.assert_allclose(actual[row].numpy(), expected[row], atol=2e-4)


@pytest.mark.parametrize("distance", [0.3, 0.5, 1.0, 2.0, 3.0, 3.2])
def test_a_far_window_still_tells_what_it_is_until_it_counts_as_nobody(distance: float) -> None:
    memory = memory_of(3, [0, -1], [0, 0], 3)
    keys = torch.zeros(3, WIDTH)
    keys[1] = math.sqrt(distance)
    memory.__dict__["scaled"] = keys
    expected = plain_smoothed(memory, [True, False, False], [False] * 3)
    np.testing.assert_allclose(
        memory.smoothed(memory.weights, memory.has_label)[1].numpy(), expected[1], atol=2e-4
    )
    assert bool(expected[1].sum() > 0.999) == (LABELLED * math.exp(-distance / SCALE) > NEAREST)


@given(memory=memories())
def test_units_are_the_mean_and_the_deviation_within_classes(memory: Memory) -> None:
    rows = [i for i in range(len(memory.keys)) if memory.guess[i].sum() > 0]
    if not rows:
        assert torch.equal(memory.scaled, torch.zeros_like(memory.keys))
        return
    keys = memory.keys.double().numpy()[rows]
    shares = np.stack(
        [
            (memory.guess if memory.labels[i].sum() == 0 or memory.holdout[i] else memory.labels)[i]
            .double()
            .numpy()
            for i in rows
        ]
    )
    within = np.zeros(WIDTH)
    for column in shares.T:
        if column.sum() > 0:
            centre = (column[:, None] * keys).sum(0) / column.sum()
            within += (column[:, None] * (keys - centre) ** 2).sum(0)
    variance = within / len(rows)
    mean, deviation = memory.units.numpy()
    np.testing.assert_allclose(mean, keys.mean(0), atol=1e-5)
    expected = np.sqrt(variance + FLOOR * variance.mean())
    np.testing.assert_allclose(deviation, expected, rtol=2e-2, atol=1e-3)


@given(seed=st.integers(0, 99), size=st.sampled_from([1e-3, 1.0, 1e3]))
def test_neighbours_are_the_same_in_any_unit_of_a_representation(seed: int, size: float) -> None:
    memory = memory_of(seed, [0, 1, 2, 0, 1, 2, -1, -1], [0] * 8, 9)
    factors = torch.tensor([1.0, 1.0, 1.0, 1.0]) * size
    other = Memory(memory.keys * factors, memory.guess, memory.labels, memory.holdout)
    torch.testing.assert_close(other.weights, memory.weights, rtol=2e-2, atol=1e-5)


@given(memory=memories())
def test_losses_are_those_of_a_plain_program_and_zero_elsewhere(memory: Memory) -> None:
    losses, judged = memory.losses(SHARES)
    assert judged.tolist() == [
        float(h > 0 and k)
        for h, k in zip(memory.holdout.tolist(), memory.has_label.tolist(), strict=True)
    ]
    for row, is_judged in enumerate(judged.tolist()):
        expected = [plain_loss(memory, row, share) if is_judged else 0.0 for share in SHARES]
        np.testing.assert_allclose(losses[row].numpy(), expected, atol=2e-3)


@given(memory=memories(), seed=st.integers(0, 99))
def test_a_held_out_label_changes_its_own_loss_alone(memory: Memory, seed: int) -> None:
    losses, judged = memory.losses(SHARES)
    rows = torch.nonzero(judged).flatten().tolist()
    if not rows:
        return
    row = rows[seed % len(rows)]
    labels = memory.labels.clone()
    labels[row] = labels[row].roll(1)
    changed, still = Memory(memory.keys, memory.guess, labels, memory.holdout).losses(SHARES)
    assert torch.equal(still, judged)
    same = [r for r in range(len(labels)) if r != row]
    assert torch.equal(changed[same], losses[same])
    assert (
        not torch.equal(changed[row], losses[row])
        or float((memory.guess[row] - memory.guess[row].roll(1)).abs().max()) < 1e-3
    )


@given(memory=memories())
def test_a_window_with_a_label_keeps_it_and_others_get_no_more_than_one(memory: Memory) -> None:
    soft = memory.smoothed(memory.weights, memory.has_label)
    assert torch.equal(soft[memory.has_label], memory.labels[memory.has_label])
    assert float(soft.min()) >= 0
    assert float(soft.sum(1).max()) <= 1 + 1e-5
    assert float(soft[memory.guess.sum(1) == 0].abs().sum()) == 0


@given(memory=memories(), share=st.floats(0, 1), seed=st.integers(0, 99), far=st.booleans())
def test_an_answer_is_a_probability_distribution(
    memory: Memory, share: float, seed: int, far: bool
) -> None:
    rng = torch.Generator().manual_seed(seed)
    keys = torch.randn(5, WIDTH, generator=rng) * (100.0 if far else 0.1) + torch.tensor(
        [1.0, 0.3, 0.2, 0.1]
    )
    probabilities = torch.softmax(torch.randn(5, CLASSES, generator=rng), 1)
    found = answer(memory.answering() | {SHARE: torch.tensor(share)}, keys, probabilities)
    assert float(found.min()) >= -1e-6
    torch.testing.assert_close(found.sum(1), torch.ones(5), atol=1e-5, rtol=0)


def test_an_empty_memory_answers_as_the_model_alone_whatever_the_share() -> None:
    probabilities, features = torch.softmax(torch.randn(6, CLASSES), 1), torch.randn(6, WIDTH)
    tensors = empty(8, WIDTH, CLASSES)
    assert torch.equal(answer(tensors, features, probabilities), probabilities)
    assert torch.equal(
        answer(tensors | {SHARE: torch.tensor(0.5)}, features, probabilities), probabilities
    )


def test_neighbours_far_away_leave_the_answer_to_the_model() -> None:
    tensors = empty(2, WIDTH, CLASSES) | {SHARE: torch.tensor(1.0)}
    tensors[UNITS][0, 0], tensors[UNITS][1, 0] = 2.0, 0.5
    tensors[KEYS][0, 0] = 1.0
    tensors[LABELS][0, 2] = tensors[EVIDENCE][0] = 1.0
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]])
    keys = torch.tensor([[2.5, 0.0, 0.0, 0.0], [-2.5, 0.0, 0.0, 0.0]])
    found = answer(tensors, keys, probabilities)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0, 1.0], [0.7, 0.2, 0.1]]))


def test_a_neighbour_counts_by_its_squared_distance_and_an_empty_row_does_not() -> None:
    keys = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.1]])
    weights = neighbours(keys[:1], keys, torch.tensor([1.0, 1.0, 0.0]))
    apart = float(((keys[0] - keys[1]) ** 2).mean())
    np.testing.assert_allclose(weights.numpy(), [[1.0, math.exp(-apart / SCALE), 0.0]], rtol=1e-4)
    np.testing.assert_allclose(normalised(weights).sum(1).numpy(), [1.0], rtol=1e-6)


def test_answers_that_are_no_numbers_have_the_worst_loss_and_windows_not_judged_none() -> None:
    memory = memory_of(3, [0, 1, 2, 0, 1, -1], [1, 1, 0, 0, 0, 0], 7)
    losses, judged = Memory(
        memory.keys, memory.guess * math.nan, memory.labels, memory.holdout
    ).losses(SHARES)
    assert judged.tolist() == [1, 1, 0, 0, 0, 0, 0]
    torch.testing.assert_close(losses, judged[:, None] * torch.full((7, len(SHARES)), WORST))


def test_a_probability_of_zero_has_the_worst_loss() -> None:
    guess: Tensor = torch.tensor([[0.0, 1.0, 0.0]])
    memory = Memory(torch.ones(1, 1), guess, torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1))
    assert float(memory.losses((0.0,))[0]) == pytest.approx(WORST)
