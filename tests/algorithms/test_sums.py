"""Secret mode: what each choice declares, and models from sums alone."""

from typing import Any

import numpy as np
import pytest

from algorithms.algorithm import State, decode_memory, encode_memory
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Work
from algorithms.core.keys import NEWCOMER
from algorithms.privacy.gaussian import SharedGaussian
from algorithms.registry import CHOICES
from algorithms.sums import (
    KINDS,
    GroupSum,
    apply_sums,
    check_in_sums,
    measured_in,
    noise_of,
    parts_of,
)
from wire.errors import ConfigError
from wire.secret.messages import ACCURACY, LOSS, SCALARS
from wire.secret.question import Part

CHOSEN = [(kind, name) for kind in KINDS for name in CHOICES[kind]]
WORK = Work(8, 1)
DEVICES = ["d0", "d1", "d2", "d3"]


def needs_single_devices(kind: str, part: Any) -> bool:
    """True if the code of a choice uses models or measurements of single devices."""
    match kind:
        case "objective":
            return bool(part.server.absorbs or part.server.responds)
        case "grouping":
            return bool(part.chooses or (part.reads_models and not part().surveys))
        case "mean":
            return not part.averages
        case "privacy":
            return bool(part.protects and part.in_clear)
    return bool(kind == "memory")  # its mean is computed of each device's


class TestDeclarations:
    @pytest.mark.parametrize(("kind", "name"), CHOSEN)
    def test_every_choice_declares_itself_what_its_code_allows(self, kind: str, name: str) -> None:
        part = CHOICES[kind][name]
        assert "in_sums" in vars(part), "declare in_sums: it is not inherited"
        assert part.in_sums in ("works", "over cells", "cannot")
        if part.in_sums == "works":
            assert not needs_single_devices(kind, part)

    @pytest.mark.parametrize(
        "name",
        [
            "fedavg+uniform",
            "fedprox+uniform+fedadam",
            "fedavg+personal+none+uniform",
            "distfl+fedprox",
            "fedavg+median",
        ],
    )
    def test_what_works_in_sums_is_accepted(self, name: str) -> None:
        check_in_sums(read_algorithm(name))

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            (
                "apple",
                "Secret mode cannot run 'apple', the objective of algorithm 'apple': it needs "
                "more of single devices than sums, or keeps tensors on them between rounds. "
                "Allowed: fedavg, fedprox, lg-net, per-fedavg.",
            ),
            ("personal", "'robust', the mean of .*: .* Allowed: krum, .*, uniform."),
            ("ifca+uniform", "'ifca', the grouping of algorithm .*. Allowed: distfl, none."),
            (
                "distfl:signature=labels",
                "signature of grouping distfl must be both in secret mode, got labels",
            ),
            ("distfl:resurvey=3", "resurvey of grouping distfl must be 0 in secret mode, got 3"),
            ("fedavg+uniform+mr", "'mr', the memory of algorithm .*: .* rounds. Leave it out."),
            (
                "dp-sgd+uniform",
                "'dp-sgd', the privacy of .*: no-privacy, shared-gaussian.",
            ),
            (
                "fedavg",
                "'weighted', the mean of .* Allowed: krum, .*, uniform.",
            ),
        ],
    )
    def test_what_needs_single_devices_is_named(self, name: str, error: str) -> None:
        with pytest.raises(ConfigError, match=error):
            check_in_sums(read_algorithm(name))


def state_of(**fields: Any) -> State:
    model = {"shared/w": np.ones((2, 3), np.float32), "statistic/m": np.zeros(2, np.float32)}
    return State({NEWCOMER: model}, **fields)


class TestSums:
    def test_clips_are_the_first_ones_and_then_follow_the_mean_change(self) -> None:
        algorithm, state = make_algorithm(read_algorithm("fedavg+uniform")), state_of()
        assert (
            parts_of(algorithm, state, NEWCOMER)
            == {
                "shared/w": Part(6, 0.25),
                "statistic/m": Part(2, 8.0),
            }
            | SCALARS
        )
        sums = {"shared/w": np.full(6, 0.4), "statistic/m": np.zeros(2)}
        state, grouped = apply_sums(algorithm, state, {NEWCOMER: GroupSum(sums, DEVICES)}, 0, WORK)
        assert grouped.memory.membership == dict.fromkeys(DEVICES, "0")
        np.testing.assert_array_equal(state.models["0"]["shared/w"], np.float32(1.1))
        assert parts_of(algorithm, state, "0")["shared/w"].clip == pytest.approx(16 * 0.1)
        assert parts_of(algorithm, state, "0")["statistic/m"].clip == 1e-4
        again = decode_memory(encode_memory(state), state.models)
        assert parts_of(algorithm, again, "0") == parts_of(algorithm, state, "0")


def test_with_noise_a_sum_has_the_tensors_alone_with_one_norm_for_all() -> None:
    algorithm = make_algorithm(read_algorithm("fedavg+shared-gaussian:clip_norm=3"))
    parts = parts_of(algorithm, state_of(clips={NEWCOMER: {"shared/w": 0.1}}), NEWCOMER)
    assert parts == {"shared/w": Part(6, 3.0), "statistic/m": Part(2, 3.0)}
    assert noise_of(algorithm, state_of(), 20) == SharedGaussian(clip_norm=3).shares(8, 20)
    assert measured_in([GroupSum({"shared/w": np.zeros(6)}, DEVICES)]) == {}


def test_means_of_devices_come_out_of_sums() -> None:
    sums = {ACCURACY: np.array([3.0]), LOSS: np.array([6.0])}
    assert measured_in([GroupSum(sums, DEVICES)]) == {"accuracy": 0.75, "loss": 1.5}
    sums[ACCURACY] = np.array([4.01])  # rounded up
    assert measured_in([GroupSum(sums, DEVICES)])["accuracy"] == 1.0
