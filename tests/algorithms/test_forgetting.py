"""Memory of groupings and objectives without a device."""

import numpy as np
import pytest

from aggregator.aggregation.forgetting import forget
from algorithms.algorithm import State, encode_memory
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import GroupingMemory, LocalModel, ObjectiveMemory
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.surveys import GRADIENT, PREFIX, Surveys
from wire.arrays.tensors import Tensors

MARK = np.full(3, 0.0123456, np.float32)


def state(memory: GroupingMemory, context: ObjectiveMemory | None = None) -> State:
    model: Tensors = {"shared/w": np.zeros(2, np.float32)}
    return State(
        {NEWCOMER: model, **dict.fromkeys(sorted({*memory.membership.values()}), model)},
        memory,
        context or ObjectiveMemory(),
    )


def left(algorithm: str, before: State) -> tuple[State, bytes]:
    after = forget(make_algorithm(read_algorithm(algorithm)), before, "gone")
    return after, encode_memory(after)


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "distfl", "cfl", "autocfl", "hierarchical", "ifca:k=2", "individual"]
)
def test_nothing_of_a_device_is_in_the_memory_of_a_grouping(algorithm: str) -> None:
    first = (
        {"first/gone": MARK, "first/kept": np.ones(3, np.float32)}
        if algorithm in ("cfl", "autocfl", "hierarchical")
        else {}
    )
    info = (
        {"losses": {"gone": 1.0, "kept": 2.0}, "variances": [1.0]} if algorithm == "autocfl" else {}
    )
    grouping = "fedavg+" + algorithm if algorithm in ("individual",) else algorithm
    after, text = left(
        grouping, state(GroupingMemory({"gone": "0", "kept": "0", "other": "1"}, first, info))
    )
    assert after.memory.membership == {"kept": "0", "other": "1"}
    assert b"gone" not in text
    assert MARK.tobytes() not in text
    assert set(after.models) == {NEWCOMER, "0", "1"}


def test_a_survey_is_gone_and_those_of_others_stay_with_their_devices() -> None:
    def model(device_id: str, value: float) -> LocalModel:
        gradient = np.array([value, 0, 0, 0], np.float32)
        return LocalModel(device_id, 10, 1, NEWCOMER, {}, {PREFIX + GRADIENT: gradient})

    surveys = Surveys().with_reports([model("a", 1.0), model("gone", 7.25), model("z", 3.0)])
    info = {
        "device_ids": list(surveys.device_ids),
        "num_examples": list(surveys.num_examples),
        "num_tested": 3,
    }
    after, text = left(
        "distfl", state(GroupingMemory({"a": "0", "gone": "1", "z": "0"}, surveys.arrays, info))
    )
    kept = Surveys.of(after.memory)
    assert (kept.device_ids, kept.arrays[GRADIENT][:, 0].tolist()) == (("a", "z"), [1.0, 3.0])
    assert np.full(4, 7.25, np.float32).tobytes() not in text
    assert "1" not in after.models, (
        "the model of a group that it was alone in was made of its updates alone"
    )


def test_what_an_objective_keeps_for_its_own_group_is_gone() -> None:
    memory = GroupingMemory({"gone": "1", "kept": "0"})
    fomo = ObjectiveMemory(
        info={
            "round": 3,
            "seed": 0,
            "num_others": 1,
            "known": ["0", "1"],
            "affinity": {"0": {"1": 0.5}, "1": {"0": 2.0}},
        }
    )
    assert left("fedfomo", state(memory, fomo))[0].context.info["affinity"] == {"0": {}}
    apple = ObjectiveMemory(
        info={
            "round": 3,
            "num_others": 1,
            "known": ["0", "1"],
            "others": {"0": ["1"], "1": ["0"]},
            "examples": {"0": 5, "1": 7},
        }
    )
    told = left("apple", state(memory, apple))[0].context.info
    assert (told["known"], told["others"], told["examples"]) == (["0"], {"0": []}, {"0": 5})
    arrays = {
        "0/control.w": np.ones(3, np.float32),
        "1/control.w": MARK,
        f"{NEWCOMER}/control.w": np.zeros(3, np.float32),
    }
    after, text = left("scaffold+distfl", state(memory, ObjectiveMemory(arrays)))
    assert set(after.context.arrays) == {"0/control.w", f"{NEWCOMER}/control.w"}
    assert MARK.tobytes() not in text


def test_a_device_that_an_objective_has_weighted_is_no_longer_listed() -> None:
    context = ObjectiveMemory(info={"weighted": ["gone", "kept"], "losses": [], "prepared": True})
    assert left("feddisk", state(GroupingMemory({"gone": "0", "kept": "0"}), context))[
        0
    ].context.info["weighted"] == ["kept"]


def test_a_device_that_is_called_as_a_field_of_the_memory_takes_no_field_with_it() -> None:
    cfl = make_algorithm(read_algorithm("cfl")).grouping
    assert cfl.forget(GroupingMemory(info={"scale": 0.5}), "scale").info == {"scale": 0.5}
    feddisk = make_algorithm(read_algorithm("feddisk")).coordinator
    context = ObjectiveMemory(info={"weighted": ["kept", "weighted"], "prepared": True})
    assert feddisk.forget(context, "weighted", None).info == {
        "weighted": ["kept"],
        "prepared": True,
    }
