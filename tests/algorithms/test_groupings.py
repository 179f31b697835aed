"""Groupings: one contract for all of them, the simple ones, and devices that come late."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.algorithm import State, decode_memory, encode_memory
from algorithms.core.contract import GroupingMemory
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.autocfl import AutoCFL
from algorithms.groupings.base import FIRST, SKETCH, Defaults, place, settle, sketch
from algorithms.groupings.cfl import Cfl, compare
from algorithms.groupings.hierarchical import Hierarchical
from algorithms.groupings.ifca import Ifca
from algorithms.groupings.individual import Individual
from algorithms.groupings.single import SingleGroup
from tests.contracts.grouping import (
    SEEDS,
    SIZE,
    by_truth,
    initial_model,
    labelled,
    local_model,
    names,
    partition,
    run,
)
from wire.errors import ConfigError

MAKERS: dict[str, Callable[[], Defaults]] = {
    "none": SingleGroup,
    "individual": Individual,
    "ifca": lambda: Ifca(3),
    "autocfl": lambda: AutoCFL(earliest=2),
    "cfl": Cfl,
    "hierarchical": lambda: Hierarchical(rounds=2),
}


@pytest.mark.parametrize("name", MAKERS)
class TestContract:
    def test_says_what_it_is(self, name: str) -> None:
        grouping = MAKERS[name]()
        assert grouping.name == name
        assert grouping.citation
        assert grouping.mean == ("uniform" if name == "ifca" else "weighted")
        assert grouping.surveys is False
        assert grouping.chooses is (name == "ifca")
        grouping.check(initial_model(), None)

    def test_everybody_begins_together(self, name: str) -> None:
        assert MAKERS[name]().start(GroupingMemory(), "d0") == ("0" if name == "ifca" else NEWCOMER)

    @settings(max_examples=15)
    @given(count=st.integers(1, 9), seed=SEEDS)
    def test_memberships_are_complete_decimal_and_survive_a_restart(
        self, name: str, count: int, seed: int
    ) -> None:
        ids = names(count)
        for grouped in run(MAKERS[name](), ids, labelled(noise=1.0), 4, seed):
            memory = grouped.memory
            assert set(memory.membership) == set(ids)
            assert all(group.isdecimal() for group in memory.membership.values())
            assert set(grouped.extra_epochs) <= set(ids)
            assert all(
                view.shape == (len(grouped.device_ids),) * 2 for view in grouped.views.values()
            )
            again = decode_memory(encode_memory(State({}, memory)), {}).memory
            assert again.membership == memory.membership
            assert again.info == memory.info
            assert again.arrays.keys() == memory.arrays.keys()
            assert all(
                np.array_equal(again.arrays[key], value) for key, value in memory.arrays.items()
            )

    @settings(max_examples=10)
    @given(seed=SEEDS)
    def test_same_inputs_same_answer(self, name: str, seed: int) -> None:
        first, second = (
            run(MAKERS[name](), names(7), labelled(noise=1.0), 4, seed)[-1] for _ in range(2)
        )
        assert first.memory.membership == second.memory.membership
        assert first.extra_epochs == second.extra_epochs
        assert first.notes == second.notes

    @settings(max_examples=10)
    @given(seed=SEEDS)
    def test_names_of_devices_do_not_matter(self, name: str, seed: int) -> None:
        ids = names(8)
        other = [str(d) for d in np.random.default_rng(seed).permutation(ids)]
        change = labelled(noise=0.5)
        renamed = dict(zip(ids, other, strict=True))
        for before, after in zip(
            run(MAKERS[name](), ids, change, 4, seed),
            run(MAKERS[name](), other, change, 4, seed),
            strict=True,
        ):
            assert {
                frozenset(renamed[d] for d in group)
                for group in partition(before.memory.membership)
            } == partition(after.memory.membership)
            assert {
                renamed[d]: epochs for d, epochs in before.extra_epochs.items()
            } == after.extra_epochs

    def test_arguments_are_not_changed(self, name: str) -> None:
        grouping = MAKERS[name]()
        memory = run(grouping, names(6), labelled(), 2)[-1].memory
        copy = decode_memory(encode_memory(State({}, memory)), {}).memory
        run(grouping, names(8), labelled(), 2, memory=memory)
        assert memory.membership == copy.membership
        assert memory.info == copy.info
        assert memory.arrays.keys() == copy.arrays.keys()


class TestSingleAndIndividual:
    def test_one_group(self) -> None:
        grouping = SingleGroup()
        memory = run(grouping, names(3), labelled(), 1)[0].memory
        assert memory.membership == dict.fromkeys(names(3), "0")
        assert grouping.start(memory, "new") == "0"

    def test_numbers_stay_with_devices(self) -> None:
        grouping = Individual()
        memory = run(grouping, ["b", "d"], labelled(), 1)[0].memory
        assert memory.membership == {"b": "0", "d": "1"}
        memory = run(grouping, ["a", "c", "d"], labelled(), 1, memory=memory)[0].memory
        assert memory.membership == {"a": "2", "b": "0", "c": "3", "d": "1"}
        assert grouping.start(memory, "d") == "1"
        assert grouping.start(memory, "new") == NEWCOMER


class TestIfca:
    def test_models_are_drawn_like_the_initial_one(self) -> None:
        rng = np.random.default_rng(0)
        initial = {
            "shared/weight": rng.normal(0.5, 2.0, (200, 100)).astype(np.float32),
            "shared/ones": np.ones(8, np.float32),
            "statistic/norm.running_mean": rng.normal(size=8).astype(np.float32),
            "private/bias": np.ones(2, np.float32),
        }
        models = Ifca(3).begin(initial, seed=4)
        assert sorted(models) == ["0", "1", "2"]
        for key, model in models.items():
            assert list(model) == [name for name in initial if name != "private/bias"]
            assert all(
                model[name].dtype == np.float32 and model[name].shape == initial[name].shape
                for name in model
            )
            assert np.array_equal(model["shared/ones"], initial["shared/ones"])
            assert np.array_equal(
                model["statistic/norm.running_mean"], initial["statistic/norm.running_mean"]
            )
            assert model["shared/weight"].mean() == pytest.approx(0.5, abs=0.1)
            assert model["shared/weight"].std() == pytest.approx(2.0, abs=0.1)
            assert np.array_equal(model["shared/weight"], initial["shared/weight"]) is (key == "0")
        assert not np.array_equal(models["1"]["shared/weight"], models["2"]["shared/weight"])

    def test_the_seed_alone_decides(self) -> None:
        initial = initial_model()
        backwards = dict(reversed(initial.items()))
        one, two, other = (
            Ifca(2).begin(initial, 1),
            Ifca(2).begin(backwards, 1),
            Ifca(2).begin(initial, 2),
        )
        assert all(np.array_equal(one["1"][name], two["1"][name]) for name in initial)
        assert not np.array_equal(one["1"]["shared/head.weight"], other["1"]["shared/head.weight"])

    def test_membership_is_the_choice(self) -> None:
        grouping, change = Ifca(3), np.zeros(SIZE)
        models = [
            local_model("a", change, "2"),
            local_model("b", change, "0"),
            local_model("c", change, "2"),
        ]
        memory = grouping.group(GroupingMemory(), models, None, 0).memory
        assert memory.membership == {"a": "2", "b": "0", "c": "2"}
        memory = grouping.group(memory, [local_model("a", change, "1")], None, 0).memory
        assert memory.membership == {"a": "1", "b": "0", "c": "2"}
        assert grouping.start(memory, "a") == "1"

    def test_refuses_what_it_does_not_have(self) -> None:
        with pytest.raises(ConfigError, match=r"k must be .*, got '0'"):
            Ifca(0)
        with pytest.raises(ValueError, match="'7'"):
            Ifca(2).group(GroupingMemory(), [local_model("a", np.zeros(SIZE), "7")], None, 0)


class TestLateDevices:
    """Devices that come, or come back, when the fleet is already in groups."""

    GROUPINGS = (AutoCFL(earliest=2), Hierarchical(rounds=3), Cfl())

    @pytest.mark.parametrize("grouping", GROUPINGS, ids=lambda grouping: grouping.name)
    def test_are_placed_by_their_first_model(self, grouping: Defaults) -> None:
        change = labelled(2)
        seen = run(grouping, names(10), change, 5)
        memory = seen[-1].memory
        assert len(set(memory.membership.values())) == 2
        late = [f"d{i}" for i in range(10, 14)]
        assert all(grouping.start(memory, d) == NEWCOMER for d in late)
        models = [
            local_model(
                d, change(int(d[1:]), 0, np.random.default_rng(9)), grouping.start(memory, d)
            )
            for d in late
        ]
        after = grouping.group(memory, models, None, 0).memory
        assert by_truth(after.membership, 2) == 1.0
        assert {d: after.membership[d] for d in memory.membership} == memory.membership
        assert all(grouping.start(after, d) == after.membership[d] for d in late)

    @pytest.mark.parametrize("grouping", GROUPINGS, ids=lambda grouping: grouping.name)
    def test_go_with_their_like_when_they_miss_the_split(self, grouping: Defaults) -> None:
        change = labelled(2)
        memory = run(grouping, names(12), change, 1)[-1].memory

        def later(i: int, number: int, rng: np.random.Generator) -> np.ndarray:
            return change(i, number + 1, rng)

        memory = run(grouping, names(10), later, 4, memory=memory)[-1].memory
        assert len(memory.membership) == 12
        assert by_truth(memory.membership, 2) == 1.0

    @pytest.mark.parametrize("grouping", GROUPINGS, ids=lambda grouping: grouping.name)
    def test_begin_anew_when_nothing_is_known_of_them(self, grouping: Defaults) -> None:
        change = labelled(2)
        memory = run(grouping, names(10), change, 1)[-1].memory
        guest = local_model(
            "guest", change(0, 1, np.random.default_rng(3)), grouping.start(memory, "guest")
        )
        assert guest.start == "0"
        others = [
            local_model(d, change(i, 1, np.random.default_rng(i)), "0", loss=1 - 0.01 * i)
            for i, d in enumerate(names(10))
        ]
        if grouping.name != "autocfl":  # which clusters in this round already
            memory = grouping.group(memory, [*others, guest], None, 0).memory
            assert memory.membership["guest"] == "0"
        memory = run(
            grouping, names(10), lambda i, number, rng: change(i, number + 2, rng), 4, memory=memory
        )[-1].memory
        assert "guest" not in memory.membership
        assert grouping.start(memory, "guest") == NEWCOMER

    def test_join_the_only_group(self) -> None:
        for grouping in self.GROUPINGS:
            memory = run(grouping, names(4), labelled(1, noise=0.3), 1)[-1].memory
            assert grouping.start(memory, "new") == "0"

    def test_settle_always_finds_a_place(self) -> None:
        membership = {"a": "0", "b": "1", "c": "1"}
        change = np.zeros(SIZE)
        assert settle(membership, [local_model("x", change, "0")], {})["x"] == "0"
        assert settle(membership, [local_model("x", change, "5")], {})["x"] == "1"
        assert settle({}, [local_model("x", change)], {})["x"] == "0"

    def test_place_by_directions_ignores_lengths(self) -> None:
        arrays = {
            f"{FIRST}{d}": np.array(row, np.float32)
            for d, row in {"a": [9, 0], "b": [0, 1], "x": [0.5, 0.1]}.items()
        }
        membership = {"a": "0", "b": "1"}
        assert place(["x", "nobody"], membership, arrays, directions=True) == {"x": "0"}
        assert place(["x", "nobody"], membership, arrays) == {"x": "1"}
        assert place(["x"], membership, {}) == {}

    def test_sketches_keep_distances_and_angles(self) -> None:
        rows = np.random.default_rng(0).normal(size=(6, 50_000)).astype(np.float32)
        rows[3:] += 1.5 * rows[0]
        short = np.stack([sketch(row) for row in rows])
        assert short.shape == (6, SKETCH)
        for i, j in combinations(range(6), 2):
            assert np.linalg.norm(short[i] - short[j]) == pytest.approx(
                np.linalg.norm(rows[i] - rows[j]), rel=0.1
            )
        np.testing.assert_allclose(compare(short)[1], compare(rows)[1], atol=0.1)
        assert np.array_equal(sketch(rows[0, :SKETCH]), rows[0, :SKETCH])

    def test_needs_something_shared(self) -> None:
        private = {
            name.replace("shared/", "private/"): value for name, value in initial_model().items()
        }
        nothing = (
            "compares devices' updates, and with this objective all tensors stay on the device"
        )
        reasons = {
            "autocfl": "compares the weights of the last linear layer, and none is shared; shared "
            "tensors: none",
            "hierarchical": nothing,
            "cfl": nothing,
        }
        for grouping in self.GROUPINGS:
            with pytest.raises(
                ConfigError,
                match=f"^{grouping.name} {reasons[grouping.name]}; choose another grouping or "
                "objective$",
            ):
                grouping.check(private, None)


def test_models_of_one_device_are_enough() -> None:
    for make in MAKERS.values():
        grouping = make()
        model = local_model("only", np.zeros(SIZE), grouping.start(GroupingMemory(), "only"))
        grouped = grouping.group(GroupingMemory(), [replace(model, num_examples=0)], None, 0)
        assert grouped.memory.membership == {"only": "0"}
