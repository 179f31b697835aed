"""numpy's random numbers, which Kotlin's generator has to draw too. ``python -m
tests.android.numpy_vectors`` writes the committed ones."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

FILE = (
    Path(__file__).parents[2]
    / "android_bridge"
    / "core"
    / "src"
    / "test"
    / "resources"
    / "numpy.json"
)


def committed_cases() -> list[dict[str, Any]]:
    """Seeds, and what ``default_rng`` draws from them: permutations, then float32 numbers (as
    bits)."""
    return cases(random.Random(1), 60, 100)


def cases(rng: random.Random, number: int, largest: int) -> list[dict[str, Any]]:
    """Cases of some usual seeds, and of so many random ones, with permutations of at most
    `largest`."""
    made = []
    seeds = [
        [0],
        [1],
        [2**32],
        [2**53, 0],
        [0, 0],
        [3000012, 1234567890],
        [2**32 - 1, 2**32 - 1],
        [1, 2, 3, 4, 5, 2**40],
    ]
    seeds += [
        [rng.randrange(2 ** rng.randrange(1, 54)), rng.randrange(2**32)] for _ in range(number)
    ]
    for each in seeds:
        generator = np.random.default_rng(each)
        counts = list(dict.fromkeys([1, 2, rng.randrange(3, 40), rng.randrange(40, largest)]))
        orders = {str(n): generator.permutation(n).tolist() for n in counts}
        bits = generator.random(rng.randrange(1, 9), np.float32).view(np.uint32).tolist()
        made.append({"seeds": each, "counts": counts, "orders": orders, "float_bits": bits})
    return made


def text() -> str:
    """The committed file, a case a line."""
    return lines(committed_cases())


def lines(made: list[dict[str, Any]]) -> str:
    """A file of these cases, one a line."""
    return "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in made) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(text())
