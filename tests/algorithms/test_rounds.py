"""Results of a round's updates, compared with a plain implementation: every device's model, and the
mean of each group."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.algorithm import MOST_SHARES, Contribution
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Placement, Probe
from algorithms.core.keys import NEWCOMER
from algorithms.core.stack import cuda_devices, moved
from algorithms.groupings.base import Defaults
from tests.algorithms.round_cases import MODEL, PROBE, WORK, begin, updates
from tests.support.objectives import OBJECTIVES
from wire.arrays.privacy import clip
from wire.arrays.tensors import Array, Tensors
from wire.errors import ConfigError


def plain_local(received: Tensors, c: Contribution) -> Tensors:
    update = c.read()
    local = {
        k: v + update.get(k.replace("shared/", "delta/"), 0)
        for k, v in received.items()
        if k.startswith("shared/")
    }
    return local | {k: update.get(k, v) for k, v in received.items() if k.startswith("statistic/")}


def plain_mean(
    received: Tensors, contributions: list[Contribution], uniform: bool = False
) -> Tensors:
    weights = np.array([1 if uniform else c.num_examples for c in contributions], np.float64)
    locals_ = [plain_local(received, c) for c in contributions]
    return {
        k: np.average([m[k].astype(np.float64) for m in locals_], axis=0, weights=weights)
        for k in received
    }


def near(one: Tensors, two: Tensors) -> None:
    assert one.keys() == two.keys()
    for key in one:
        assert one[key] == pytest.approx(two[key], rel=1e-5, abs=1e-6), key


class Watching(Defaults):
    """A grouping that puts every device in one group and remembers what it saw."""

    name: ClassVar[str] = "watching"
    citation: ClassVar[str] = ""

    def __init__(self, compares: bool) -> None:
        super().__init__()
        self.compares = compares
        self.seen: list[LocalModel] = []

    def start(self, memory: GroupingMemory, device_id: str) -> str:
        return memory.membership.get(device_id, NEWCOMER)

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        self.seen = list(models)
        return Grouped(GroupingMemory({m.device_id: "0" for m in models}))

    def place_by_inputs(self, memory: GroupingMemory, survey: Tensors) -> Placement | None:
        raise NotImplementedError

    def forget(self, memory: GroupingMemory, device_id: str) -> GroupingMemory:
        raise NotImplementedError


class TestArena:
    @pytest.mark.parametrize("compares", [True, False])
    def test_groupings_see_every_model_and_ask_for_updates(self, compares: bool) -> None:
        grouping = Watching(compares)
        algorithm = replace(make_algorithm(read_algorithm("fedavg+median")), grouping=grouping)
        state, contributions = begin(algorithm), updates(4, 1)
        algorithm.apply(state, contributions[::-1], PROBE, 0, WORK)
        assert [m.device_id for m in grouping.seen] == [c.device_id for c in contributions]
        arena = next(iter(grouping.seen[0].tensors.values())).base
        for model, c in zip(grouping.seen, contributions, strict=True):
            near(model.tensors, plain_local(state.models[NEWCOMER], c))
            assert all(np.shares_memory(v, arena) for v in model.tensors.values())
            changes = [
                c.read().get(k.replace("shared/", "delta/"), np.zeros(MODEL[k])).ravel()
                for k in MODEL
                if k.startswith("shared/")
            ]
            assert np.array_equal(
                model.update, np.concatenate(changes).astype(np.float32) if compares else []
            )

    @pytest.mark.parametrize(
        "name", ["fedavg", "fedavg+uniform", "ifca:k=2", "fedavg+median", "fedavg+gaussian"]
    )
    def test_updates_are_read_once_and_one_at_a_time(self, name: str) -> None:
        algorithm = make_algorithm(read_algorithm(name))
        state, order = begin(algorithm), []
        reads: list[str] = []
        start = NEWCOMER if algorithm.grouping.name != "ifca" else "0"

        def reader(c: Contribution) -> Callable[[], Tensors]:
            def read() -> Tensors:
                reads.append(c.device_id)
                return c.read()

            return read

        for c in updates(5, 1, start):
            order.append(replace(c, tensors=reader(c)))
        once, _ = algorithm.apply(state, order[::-1], PROBE, 0, WORK)
        assert sorted(reads) == [c.device_id for c in order]
        direct, _ = algorithm.apply(state, updates(5, 1, start), PROBE, 0, WORK)
        for key, model in direct.models.items():
            assert all(np.array_equal(v, once.models[key][k]) for k, v in model.items())

    def test_a_round_without_updates_is_an_error(self) -> None:
        algorithm = make_algorithm(read_algorithm("fedavg"))
        with pytest.raises(ValueError, match="without a single contribution"):
            algorithm.apply(begin(algorithm), [], PROBE, 0, WORK)


class TestStreaming:
    def test_applies_where_nobody_looks_at_single_models(self) -> None:
        wanted = {
            "fedavg": True,
            "fedprox+uniform": True,
            "fedavg+gaussian": True,
            "fedavg+local-gaussian": True,
        }
        wanted |= {
            "fedavg+median": False,
            "distfl": False,
            "ifca:k=2": False,
            "scaffold": False,
            "fedavg+individual": False,
        }
        assert {name: make_algorithm(read_algorithm(name)).streams for name in wanted} == wanted
        assert not any(
            make_algorithm(read_algorithm(name)).streams
            for name in OBJECTIVES
            if OBJECTIVES[name].server.absorb.__qualname__ != "DefaultCoordinator.absorb"
        )

    @given(num=st.integers(1, 9), seed=st.integers(0, 1000), uniform=st.booleans())
    def test_equals_the_plain_mean(self, num: int, seed: int, uniform: bool) -> None:
        algorithm, contributions = (
            make_algorithm(read_algorithm("fedavg+uniform" if uniform else "fedavg")),
            updates(num, seed),
        )
        state = begin(algorithm)
        following, grouped = algorithm.apply(state, contributions, PROBE, 0, WORK)
        near(following.models["0"], plain_mean(state.models[NEWCOMER], contributions, uniform))
        assert grouped.notes == {}

    def test_equals_the_arena_when_newcomers_are_left_out(self) -> None:
        streaming = make_algorithm(read_algorithm("fedavg"))
        arena = replace(streaming, grouping=Watching(False))
        first, _ = streaming.apply(begin(streaming), updates(3, 1), PROBE, 0, WORK)
        second = [
            *updates(3, 2, "0"),
            *(replace(c, device_id=f"late{c.device_id}") for c in updates(2, 3)),
        ]
        one, two = (
            streaming.apply(first, second, PROBE, 1, WORK)[0],
            arena.apply(first, second, PROBE, 1, WORK)[0],
        )
        near(one.models["0"], two.models["0"])
        near(one.models["0"], plain_mean(first.models["0"], second[:3]))
        alone, _ = streaming.apply(first, second[3:], PROBE, 1, WORK)
        assert alone.models["0"] is first.models["0"]

    def test_every_update_is_clipped_before_it_is_added(self) -> None:
        algorithm = make_algorithm(
            read_algorithm("fedavg+gaussian:clip_norm=0.5:noise_multiplier=0")
        )
        state, contributions = begin(algorithm), updates(6, 1)
        received = state.models[NEWCOMER]

        def flat(model: Tensors) -> Array:
            return np.concatenate([v.ravel() for v in model.values()])

        changes = [flat(plain_local(received, c)) - flat(received) for c in contributions]
        expected = flat(received) + np.mean(
            [clip(c.astype(np.float32), 0.5) for c in changes], axis=0
        )
        assert max(np.linalg.norm(c) for c in changes) > 1
        found, _ = algorithm.apply(state, contributions, PROBE, 0, WORK)
        assert flat(found.models["0"]) == pytest.approx(expected, abs=1e-5)


class TestShares:
    def test_say_who_was_left_out(self) -> None:
        algorithm = make_algorithm(read_algorithm("fedavg+multi-krum:num_attackers=2"))
        contributions = updates(9, 1)
        for c in contributions[:2]:
            assert isinstance(c.tensors, dict)
            c.tensors["delta/conv.weight"] += np.float32(50)
        _, grouped = algorithm.apply(begin(algorithm), contributions, PROBE, 0, WORK)
        assert grouped.notes["shares"] == {
            c.device_id: 0.0 if i < 2 else round(1 / 7, 4) for i, c in enumerate(contributions)
        }

    @pytest.mark.parametrize(
        "name",
        ["fedavg", "fedavg+uniform", "fedavg+median", "fedavg+trimmed:share=0.2", "fedavg+gra"],
    )
    def test_are_not_told_where_nobody_is_left_out_or_they_differ_between_parameters(
        self, name: str
    ) -> None:
        algorithm = make_algorithm(read_algorithm(name))
        _, grouped = algorithm.apply(begin(algorithm), updates(7, 1), PROBE, 0, WORK)
        assert "shares" not in grouped.notes

    def test_are_left_out_in_large_rounds(self) -> None:
        algorithm = make_algorithm(read_algorithm("fedavg+krum"))
        for num in (MOST_SHARES, MOST_SHARES + 1):
            _, grouped = algorithm.apply(begin(algorithm), updates(num, 1), PROBE, 0, WORK)
            assert ("shares" in grouped.notes) == (num == MOST_SHARES)


def test_models_are_combined_on_the_cpu_or_a_gpu_that_torch_finds() -> None:
    assert make_algorithm(read_algorithm("fedavg")).accelerator == "cpu"
    with pytest.raises(ConfigError, match=r"accelerator must be auto, cpu, or cuda .*, got 'tpu'"):
        replace(make_algorithm(read_algorithm("fedavg")), accelerator="tpu")


@pytest.mark.parametrize("device", ["auto", *cuda_devices()])
@pytest.mark.parametrize("name", ["fedavg", "fedavg+median", "fedavg+krum", "fedavg+trimmed"])
def test_models_are_the_same_on_every_device(name: str, device: str) -> None:
    algorithm = make_algorithm(read_algorithm(name))
    elsewhere = replace(algorithm, accelerator=device)
    states = [a.apply(begin(a), updates(9, 1), PROBE, 0, WORK)[0] for a in (algorithm, elsewhere)]
    assert states[0].memory.membership == states[1].memory.membership
    for key, model in states[0].models.items():
        for tensor, values in model.items():
            np.testing.assert_allclose(states[1].models[key][tensor], values, rtol=1e-6, atol=1e-7)


def test_models_that_do_not_fit_on_a_gpu_are_combined_on_the_cpu_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arena = np.zeros((4, 1000), np.float32)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _device: (2**30, 2**34))
    assert moved(arena, "cuda") is arena
    assert "do not fit" in caplog.text
    assert "free_mib=1024" in caplog.text
