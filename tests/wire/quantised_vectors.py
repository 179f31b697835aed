"""The vectors of updates in int8, ``int8.json``.

``encoded``: the changes of an update by their names, as the 32 bits of each number (no text loses
one), a seed, a device id, and what the update holds of them: the values, and the 32 bits of each
scale; or neither, where it stays in float32. ``refused``: what an update may hold in their place,
and the reason for which it is refused; ``decoded``: what it holds, and the numbers that it stands
for.
"""

import json
from typing import Any

import numpy as np

from tests.wire.signed_vectors import VECTORS
from wire.arrays import names
from wire.arrays.quantised import BLOCK, decoded, encoded
from wire.arrays.tensors import Array, Tensors

FILE = VECTORS / "int8.json"
F32 = np.float32
LARGEST, SMALLEST = np.finfo(F32).max, np.finfo(F32).smallest_subnormal


def cases() -> dict[str, Tensors]:
    """Return the changes of updates, by name."""
    rng = np.random.default_rng(8)
    some = rng.normal(size=(3, 200)).astype(F32)
    spread = (rng.normal(size=BLOCK + 3) * 10.0 ** rng.integers(-9, 9, BLOCK + 3)).astype(F32)
    tiny = np.array([0, -1, 126, 200, -0.0], F32) * SMALLEST
    huge = some.copy()
    huge[1, 7], huge[2, 3] = LARGEST, -LARGEST
    nan, infinite = some.copy(), some.copy()
    nan[2, 199], infinite[0, 0] = np.nan, -np.inf
    return {
        "one-number": {"w": np.array(-0.25, F32)},
        "blocks-end-with-tensors": {
            "b": some[0, :3],
            "a.weight": some,
            "\uffff": some[1:, :1],
            "\U0001f600": some[2, :2],
        },
        "exactly-one-block": {"w": rng.normal(size=BLOCK).astype(F32)},
        "one-more-than-a-block": {"w": spread},
        "only-zeros": {"w": np.zeros(BLOCK + 1, F32)},
        "nothing-in-it": {"w": np.zeros((0, 3), F32), "v": some[0, :2]},
        "subnormal": {"w": tiny},
        "as-large-as-can-be": {"w": huge},
        "not-a-number": {"b": some[0, :3], "w": nan},
        "infinite": {"w": infinite},
    }


def hostile() -> dict[str, tuple[dict[str, tuple[str, list[int], list[Any]]], str]]:
    """Return tensors in place of those of a change of 300 numbers, by name: each with its dtype,
    shape and numbers, and the reason of their refusal."""
    values, scales = ("int8", [300], [1] * 300), ("float32", [2], [0.5, 0.5])

    def made(values: Any = values, scales: Any = scales, **others: Any) -> dict[str, Any]:
        held = {names.INT8_VALUES: values, names.INT8_SCALES: scales, **others}
        return {name: value for name, value in held.items() if value is not None}

    return {
        "scale-not-a-number": (made(scales=("float32", [2], [0.5, "nan"])), "not-finite"),
        "scale-infinite": (made(scales=("float32", [2], ["inf", 0.5])), "not-finite"),
        "scale-infinite-of-zeros": (
            made(("int8", [300], [0] * 300), ("float32", [2], [0.5, "inf"])),
            "not-finite",
        ),
        "product-overflows": (
            made(("int8", [300], [127] * 300), ("float32", [2], [3e38, 0.5])),
            "not-finite",
        ),
        "scales-missing": (made(scales=None), "wrong-layout"),
        "values-missing": (made(values=None), "wrong-layout"),
        "one-value-less": (made(("int8", [299], [1] * 299)), "wrong-layout"),
        "one-value-more": (made(("int8", [301], [1] * 301)), "wrong-layout"),
        "values-in-two-dimensions": (made(("int8", [3, 100], [1] * 300)), "wrong-layout"),
        "values-uint8": (made(("uint8", [300], [1] * 300)), "wrong-layout"),
        "values-float32": (made(("float32", [300], [1.0] * 300)), "wrong-layout"),
        "one-scale-less": (made(scales=("float32", [1], [0.5])), "wrong-layout"),
        "one-scale-more": (made(scales=("float32", [3], [0.5] * 3)), "wrong-layout"),
        "scales-int32": (made(scales=("int32", [2], [1, 1])), "wrong-layout"),
        "the-change-as-well": (
            made(**{"delta/w": ("float32", [300], [0.0] * 300)}),
            "wrong-layout",
        ),
        "another-name": (made(**{"int8/w": ("int8", [300], [1] * 300)}), "wrong-layout"),
    }


def array(held: tuple[str, list[int], list[Any]]) -> Array:
    """A tensor of `hostile`."""
    dtype, shape, numbers = held
    return np.array([float(n) if isinstance(n, str) else n for n in numbers], dtype).reshape(shape)


def _bits(value: Array) -> list[int]:
    return [int(n) for n in value.ravel().view(np.uint32)]


def _case(name: str, changes: Tensors, seed: int, device_id: str) -> dict[str, Any]:
    tensors = {names.delta(key): value for key, value in changes.items()}
    sent = encoded(tensors, "int8", seed, device_id)
    given = {
        key: {"shape": list(value.shape), "bits": _bits(value)} for key, value in changes.items()
    }
    case = {"name": name, "seed": seed, "device_id": device_id, "changes": given}
    if not names.of_role(sent, names.INT8):
        return case | {"values": None, "scales": None, "decoded": None}
    back = decoded(sent, [(key, "float32", value.shape) for key, value in tensors.items()])
    stands_for = {names.name_of(key): _bits(value) for key, value in back.items()}
    return case | {
        "values": sent[names.INT8_VALUES].tolist(),
        "scales": _bits(sent[names.INT8_SCALES]),
        "decoded": stands_for,
    }


def text() -> str:
    """The file."""
    made = [
        _case(name, changes, 3_000_012 + i, f"phone.{i}")
        for i, (name, changes) in enumerate(cases().items())
    ]
    refused = [
        {"name": name, "tensors": held, "reason": reason}
        for name, (held, reason) in hostile().items()
    ]
    return json.dumps({"encoded": made, "refused": refused}) + "\n"
