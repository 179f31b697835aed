"""Updates in int8: the vectors, what is rounded and what is not, and by how much."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.wire import quantised_vectors
from wire.arrays import names
from wire.arrays.quantised import BLOCK, LARGEST, change_bytes, decoded, encoded
from wire.arrays.tensors import Array, Tensors, encode_tensors
from wire.errors import WrongLayout

VECTORS = json.loads(quantised_vectors.FILE.read_text())
F32 = np.float32


def layout(tensors: Tensors) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, str(value.dtype), value.shape) for name, value in tensors.items()]


def numbers(bits: list[int], shape: Any = (-1,)) -> Array:
    return np.array(bits, np.uint32).view(F32).reshape(shape)


@pytest.mark.parametrize("case", VECTORS["encoded"], ids=lambda case: case["name"])
def test_the_change_of_a_vector_has_its_values_and_scales(case: dict[str, Any]) -> None:
    tensors = {
        names.delta(name): numbers(held["bits"], held["shape"])
        for name, held in case["changes"].items()
    }
    sent = encoded(tensors, "int8", case["seed"], case["device_id"])
    if case["values"] is None:
        assert sent is tensors
        return
    assert sent.keys() == {names.INT8_VALUES, names.INT8_SCALES}
    assert sent[names.INT8_VALUES].tolist() == case["values"]
    assert sent[names.INT8_SCALES].view(np.uint32).tolist() == case["scales"]
    back = decoded(sent, layout(tensors))
    assert {
        names.name_of(name): value.ravel().view(np.uint32).tolist() for name, value in back.items()
    } == case["decoded"]
    assert layout(back) == sorted(layout(tensors))


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["name"])
def test_hostile_tensors_of_a_vector_have_another_layout_or_are_not_finite(
    case: dict[str, Any],
) -> None:
    tensors = {name: quantised_vectors.array(held) for name, held in case["tensors"].items()}
    if case["reason"] == "wrong-layout":
        with pytest.raises(WrongLayout):
            decoded(tensors, [("delta/w", "float32", (300,))])
    else:
        assert not np.isfinite(decoded(tensors, [("delta/w", "float32", (300,))])["delta/w"]).all()


def test_only_changes_of_float32_are_encoded() -> None:
    rng = np.random.default_rng(0)
    others: Tensors = {
        "delta/counts": rng.integers(0, 9, 5),
        "response/survey.mean.norm": rng.normal(size=8).astype(F32),
        "statistic/norm.running_var": rng.random(8).astype(F32),
    }
    change = {"delta/w": rng.normal(size=(4, 5)).astype(F32)}
    sent = encoded({**others, **change}, "int8", 1, "a")
    assert {
        name: value for name, value in sent.items() if names.role_of(name) != names.INT8
    } == others
    back = decoded(sent, layout({**others, **change}))
    assert list(back) == sorted({**others, **change})
    assert all(back[name] is value for name, value in others.items())
    assert encoded(others, "int8", 1, "a") is others
    assert encoded(change, "float32", 1, "a") is change


@given(
    hnp.arrays(
        F32,
        st.integers(1, 700),
        elements=st.floats(-(2.0**96), 2.0**96, width=32, allow_subnormal=False),
    ),
    st.integers(0, 2**53),
)
def test_a_number_is_off_by_less_than_a_step_of_its_block(change: Array, seed: int) -> None:
    back = decoded(
        encoded({"delta/w": change}, "int8", seed, "a"), [("delta/w", "float32", change.shape)]
    )["delta/w"]
    peaks = [np.abs(change[at : at + BLOCK]).max() for at in range(0, len(change), BLOCK)]
    step = np.repeat(peaks, BLOCK)[: len(change)].astype(np.float64) / LARGEST
    assert (
        np.abs(back - change.astype(np.float64)) <= step * (1 + 1e-4) + 2.0**-149 * LARGEST
    ).all()


def test_the_mean_over_many_roundings_is_the_number() -> None:
    change = {"delta/w": np.linspace(-1, 1, 500, dtype=F32) ** 3}
    rounds = [
        decoded(encoded(change, "int8", seed, "a"), layout(change))["delta/w"].astype(np.float64)
        for seed in range(2000)
    ]
    off = np.abs(np.mean(rounds, axis=0) - change["delta/w"])
    assert (
        off.max() < 5 * 0.5 / LARGEST / 2000**0.5
    )  # a rounding is off by at most half a step in the root of the mean square
    assert np.abs(rounds[0] - change["delta/w"]).max() > 10 * off.max()


def test_another_seed_or_device_rounds_otherwise() -> None:
    change = {"delta/w": np.random.default_rng(0).normal(size=400).astype(F32)}
    made = [
        encoded(change, "int8", *drawn)[names.INT8_VALUES].tobytes()
        for drawn in ((1, "a"), (2, "a"), (1, "b"), (1, "a"))
    ]
    assert len(set(made)) == 3
    assert made[0] == made[3]


def test_a_small_payload_cannot_stand_for_a_large_change() -> None:
    sent: Tensors = {names.INT8_VALUES: np.zeros(4, np.int8), names.INT8_SCALES: np.ones(1, F32)}
    with pytest.raises(
        WrongLayout, match=r"'int8/scales' is float32\[1\], expected float32\[1000\]"
    ):
        decoded(sent, [("delta/w", "float32", (1000, BLOCK))])


@pytest.mark.parametrize("size", [1, BLOCK, 100_000])
def test_change_bytes_is_what_the_tensors_of_an_update_take(size: int) -> None:
    change: Tensors = {"delta/w": np.ones(size, F32), "delta/b": np.ones(3, F32)}
    for encoding in ("float32", "int8"):
        sent = encoded(change, encoding, 0, "a")
        assert change_bytes(layout(change), encoding) == sum(
            value.nbytes for value in sent.values()
        )
        assert len(encode_tensors(sent)) - change_bytes(layout(change), encoding) < 400
    assert names.of_role(sent, names.INT8)
