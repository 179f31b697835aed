"""Rounds with updates of a tiny model."""

import numpy as np

from algorithms.algorithm import Algorithm, Contribution, State
from algorithms.core.contract import Probe, Work
from algorithms.core.keys import NEWCOMER
from wire.arrays.tensors import Tensors

WORK = Work(8, 1)
PROBE = Probe(lambda tensors, x: (x, []), (1, 1), (), ())
MODEL = {
    "shared/conv.weight": (2, 3, 2),
    "shared/head.bias": (3,),
    "statistic/norm.running_mean": (2,),
    "statistic/norm.running_var": (2,),
}


def tensors(rng: np.random.Generator, scale: float = 1.0) -> Tensors:
    drawn = {k: (scale * rng.normal(size=shape)).astype(np.float32) for k, shape in MODEL.items()}
    return {
        k: np.abs(v) + np.float32(0.1) if k.endswith("running_var") else v for k, v in drawn.items()
    }


def begin(algorithm: Algorithm) -> State:
    return algorithm.begin(tensors(np.random.default_rng(0)), PROBE, 0)


def updates(num: int, seed: int, start: str = NEWCOMER) -> list[Contribution]:
    """Updates of so many devices; the second one's does not carry its bias nor its running mean."""
    rng, made = np.random.default_rng(seed), []
    for i in range(num):
        drawn = tensors(rng, 0.3)
        carried = {k.replace("shared/", "delta/"): v for k, v in drawn.items()}
        if i == 1:
            del carried["delta/head.bias"], carried["statistic/norm.running_mean"]
        made.append(Contribution(f"d{i:03d}", 5 + 3 * i, 2, start, carried, 1.0))
    return made
