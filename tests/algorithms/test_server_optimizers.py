"""Server optimizers: their steps against plain programs of the papers' equations, and what becomes
of what they remember."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregator.aggregation.forgetting import forget
from algorithms.algorithm import Algorithm, State, decode_memory, encode_memory, origin_of
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Probe
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.base import Defaults
from algorithms.registry import CHOICES
from algorithms.server_optimizers.momentum import FedAvgM
from algorithms.server_optimizers.stepping import advance
from simulation.contract import declarations, rounds
from simulation.contract.fleet import difference, make_field
from tests.algorithms.round_cases import MODEL, PROBE, WORK, begin, updates
from tests.support.objectives import OBJECTIVES
from wire.arrays.tensors import Array, Tensors

MOVING = [name for name, made in CHOICES["server optimizer"].items() if made.moves]


def plain_adaptive(
    kind: str, changes: list[list[float]], lr: float, beta1: float, beta2: float, tau: float
) -> list[list[float]]:
    """Algorithm 2 of Reddi et al., line by line, one number at a time: the steps x_{t+1} - x_t."""
    m, v, steps = [0.0] * len(changes[0]), [tau**2] * len(changes[0]), []
    for delta in changes:
        row = []
        for i, d in enumerate(delta):
            m[i] = beta1 * m[i] + (1 - beta1) * d
            if kind == "fedadagrad":
                v[i] = v[i] + d**2
            elif kind == "fedyogi":
                v[i] = v[i] - (1 - beta2) * d**2 * (1 if v[i] > d**2 else -1 if v[i] < d**2 else 0)
            else:
                v[i] = beta2 * v[i] + (1 - beta2) * d**2
            row.append(lr * m[i] / (math.sqrt(v[i]) + tau))
        steps.append(row)
    return steps


def plain_momentum(changes: list[list[float]], lr: float, beta: float) -> list[list[float]]:
    v, steps = [0.0] * len(changes[0]), []
    for delta in changes:
        v = [beta * before + d for before, d in zip(v, delta, strict=True)]
        steps.append([lr * value for value in v])
    return steps


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("fedavgm", (1.0, 0.9)),
        ("fedavgm:server_lr=0.3:beta=0.5", (0.3, 0.5)),
        ("fedadagrad", (0.01, 0.0, 0.0, 0.001)),
        ("fedadam", (0.01, 0.9, 0.99, 0.001)),
        ("fedyogi", (0.01, 0.9, 0.99, 0.001)),
        ("fedyogi:server_lr=0.1:beta1=0.5:beta2=0.8:tau=0.1", (0.1, 0.5, 0.8, 0.1)),
    ],
)
def test_six_rounds_are_those_of_the_papers_equations(name: str, args: tuple[float, ...]) -> None:
    """The plain program is given the change of each round as FedAvg makes it from where the model
    is, and adds its steps up."""
    algorithm, fedavg = (
        make_algorithm(read_algorithm(name)),
        make_algorithm(read_algorithm("fedavg")),
    )
    state, start, changes, where = begin(algorithm), NEWCOMER, [], []
    first = flat(state.models[NEWCOMER])
    for number in range(6):
        contributions = updates(4, number, start)
        mean = flat(fedavg.apply(state, contributions, PROBE, 0, WORK)[0].models["0"])
        changes.append((mean - flat(state.models[start])).tolist())
        state, _ = algorithm.apply(state, contributions, PROBE, 0, WORK)
        where.append(flat(state.models["0"]))
        start = "0"
    kind = name.partition(":")[0]
    steps = (
        plain_momentum(changes, *args)
        if kind == "fedavgm"
        else plain_adaptive(kind, changes, *args)
    )
    expected = first + np.cumsum(np.array(steps), axis=0)
    np.testing.assert_allclose(np.array(where), expected, rtol=1e-5, atol=1e-6)


def flat(model: Tensors) -> Array:
    return np.concatenate(
        [model[key].ravel() for key in MODEL if key.startswith("shared/")]
    ).astype(np.float64)


FLOATS = arrays(np.float32, 12, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(FLOATS, FLOATS)
def test_without_momentum_a_whole_step_is_the_mean_to_the_bit(model: Array, mean: Array) -> None:
    following, _ = advance(
        FedAvgM(server_lr=1.0, beta=0.0), {"shared/w": model}, {"shared/w": mean}, {}
    )
    assert following["shared/w"].tobytes() == mean.tobytes()


@pytest.mark.parametrize("rest", ["none", "ifca:k=2", "distfl:signature=statistics", "none+median"])
def test_without_momentum_whole_rounds_are_those_of_fedavg_to_the_bit(rest: str) -> None:
    plain, moved = (
        make_field(f"fedavg+{rest}{more}").play(3) for more in ("", "+fedavgm:server_lr=1:beta=0")
    )
    assert not difference(replace(plain, moments={}), replace(moved, moments={}))


@given(FLOATS, FLOATS, st.sampled_from(MOVING), st.integers(1, 4))
def test_what_is_remembered_is_finite_and_float32_whatever_comes(
    model: Array, mean: Array, name: str, times: int
) -> None:
    optimizer, moments = make_algorithm(read_algorithm(name)).server_optimizer, Tensors()
    with np.errstate(over="ignore"):
        for _ in range(times):
            _, moments = advance(optimizer, {"shared/w": model}, {"shared/w": mean}, moments)
    assert {key: (value.dtype, value.shape) for key, value in moments.items()} == {
        f"{moment}/shared/w": (np.dtype(np.float32), (12,)) for moment in optimizer.moments
    }
    assert all(np.isfinite(value).all() for value in moments.values())


@pytest.mark.parametrize("name", MOVING)
def test_statistics_are_averaged_and_parameters_are_moved(name: str) -> None:
    plain, moved = (
        make_algorithm(read_algorithm(text)) for text in ("fedavg", f"fedavg+{name}:server_lr=0.5")
    )
    means, made = (
        algorithm.apply(begin(algorithm), updates(3, 1), PROBE, 0, WORK)[0].models["0"]
        for algorithm in (plain, moved)
    )
    for key in MODEL:
        assert np.array_equal(means[key], made[key]) == key.startswith("statistic/")


class Scripted(Defaults):
    """The groups that a test says."""

    name: ClassVar[str] = "scripted"
    citation: ClassVar[str] = ""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        return Grouped(GroupingMemory(memory.membership | self.said))


class TestGroups:
    """State that is remembered when groups come, go, split and merge."""

    def play(self, *memberships: dict[str, str]) -> list[State]:
        """The state after each round, in which all devices take part; the last one names the
        devices that are there."""
        grouping = Scripted()
        algorithm = replace(
            make_algorithm(read_algorithm("fedavg+individual+fedadam")), grouping=grouping
        )
        state, states = begin(algorithm), []
        for number, said in enumerate(memberships):
            grouping.said = said
            starts = {d: state.memory.membership.get(d, NEWCOMER) for d in sorted(said)}
            drawn = zip(starts.items(), updates(len(starts), number), strict=True)
            contributions = [replace(c, device_id=d, start=start) for (d, start), c in drawn]
            state, _ = algorithm.apply(state, contributions, PROBE, number, WORK)
            states.append(state)
        return states

    def test_both_halves_of_a_group_go_on_from_it(self) -> None:
        first, second = self.play(
            dict.fromkeys("abcd", "0"), {"a": "0", "b": "0", "c": "1", "d": "1"}
        )
        assert first.moments.keys() == {"0"}
        assert second.moments.keys() == {"0", "1"}
        for group in ("0", "1"):
            self.step_is_from(first, "0", second, group)

    def test_groups_that_merge_go_on_from_the_one_that_most_devices_come_from(self) -> None:
        first, second = self.play({"a": "0", "b": "1", "c": "1"}, dict.fromkeys("abc", "0"))
        assert first.moments.keys() == {"0", "1"}
        assert second.moments.keys() == {"0"}
        self.step_is_from(first, "1", second, "0")

    def test_newcomers_begin_a_group_of_their_own_from_nothing(self) -> None:
        first, second = self.play({"a": "0", "b": "0"}, {"a": "0", "b": "0", "c": "1"})
        self.step_is_from(first, NEWCOMER, second, "1")
        self.step_is_from(first, "0", second, "0")

    def test_a_group_whose_devices_were_away_stays_as_it_was_and_a_new_one_of_theirs_takes_it_along(
        self,
    ) -> None:
        first, second, third = self.play({"a": "0", "b": "1"}, {"a": "0"}, {"a": "0", "b": "0"})
        assert second.moments["1"] is first.moments["1"]
        assert third.moments.keys() == {"0"}
        grouping = Scripted()
        grouping.said = {"a": "0", "b": "7"}
        algorithm = replace(
            make_algorithm(read_algorithm("fedavg+individual+fedadam")), grouping=grouping
        )
        moved, _ = algorithm.apply(
            first, [replace(updates(1, 1, "0")[0], device_id="a")], PROBE, 1, WORK
        )
        assert moved.models["7"] is first.models["1"]
        assert moved.moments["7"] is first.moments["1"]

    def step_is_from(self, before: State, origin: str, after: State, group: str) -> None:
        """A group's last step started from this model and from what was remembered of it: m_t and
        v_t of one change give its length."""
        held, made = before.moments.get(origin, {}), after.moments[group]
        for key in (k for k in MODEL if k.startswith("shared/")):
            old_m, old_v = (
                held.get(f"momentum/{key}", np.float32(0)),
                held.get(f"square/{key}", np.float32(1e-6)),
            )
            change = (made[f"momentum/{key}"].astype(np.float64) - 0.9 * old_m) / 0.1
            np.testing.assert_allclose(
                made[f"square/{key}"], 0.99 * np.float64(old_v) + 0.01 * change**2, rtol=1e-3
            )
            step = 0.01 * made[f"momentum/{key}"] / (np.sqrt(made[f"square/{key}"]) + 0.001)
            np.testing.assert_allclose(
                after.models[group][key], before.models[origin][key] + step, atol=1e-6
            )


def test_the_largest_origin_counts_and_of_equals_the_first() -> None:
    assert [origin_of(starts) for starts in (["1", "0", "1"], ["1", "0"], [NEWCOMER])] == [
        "1",
        "0",
        NEWCOMER,
    ]


@settings(max_examples=20)
@given(st.sampled_from(["fedadam", "fedavgm"]), st.integers(0, 3))
def test_a_run_goes_on_from_its_store_with_the_same_bits(name: str, after: int) -> None:
    algorithm = make_algorithm(read_algorithm(f"ifca:k=2+{name}"))

    def run(stored_after: int) -> State:
        state = begin(algorithm)
        for number in range(4):
            state, _ = algorithm.apply(
                state, updates(4, number, str(number % 2)), PROBE, number, WORK
            )
            if number == stored_after:
                state = decode_memory(encode_memory(state), state.models)
        return state

    assert encode_memory(run(after)) == encode_memory(run(-1))


def test_nothing_is_remembered_of_the_group_of_a_device_that_is_forgotten() -> None:
    algorithm = make_algorithm(read_algorithm("fedavg+individual+fedadam"))
    state = played(algorithm)
    assert state.moments.keys() == {"0", "1", "2"}
    gone = state.memory.membership["d001"]
    left = forget(algorithm, state, "d001")
    assert left.moments.keys() == {"0", "1", "2"} - {gone}
    without_models = forget(
        algorithm, decode_memory(encode_memory(state), {}), "d001"
    )  # as a service does it
    assert encode_memory(without_models) == encode_memory(left)
    mark = state.moments[gone]["square/shared/head.bias"].tobytes()
    assert mark in encode_memory(state)
    assert mark not in encode_memory(left)


def played(algorithm: Algorithm) -> State:
    return algorithm.apply(begin(algorithm), updates(3, 1), PROBE, 0, WORK)[0]


@pytest.mark.parametrize("name", CHOICES["server optimizer"])
def test_what_it_declares_holds(name: str) -> None:
    declarations.parameter_by_parameter(make_algorithm(read_algorithm(name)).server_optimizer)


@pytest.mark.full
def test_it_goes_with_every_objective_grouping_and_mean_but_scaffold() -> None:
    objectives = [f"{rounds.small(name)}+fedadam" for name in OBJECTIVES]
    others = [
        f"fedavg+{rounds.small(name)}+fedyogi" for name in (*CHOICES["grouping"], *CHOICES["mean"])
    ]
    assert (
        rounds.compose_with(objectives)
        == "refused with a reason: scaffold+fedadam, scaffold+dbe+fedadam"
    )
    assert not rounds.compose_with(others)
    read_algorithm("scaffold+no-server-optimizer")
