"""Rounds of devices whose changes are made by hand, for groupings."""

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from algorithms.core.contract import Grouped, GroupingMemory, LocalModel
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.base import Defaults

SEEDS = st.integers(0, 2**31)


def initial_model(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {
        "shared/body.conv.weight": (4, 2, 3),
        "shared/body.norm.weight": (4,),
        "shared/head.weight": (3, 8),
        "shared/head.bias": (3,),
    }
    tensors = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    statistics = {
        "statistic/body.norm.running_mean": np.zeros(4),
        "statistic/body.norm.running_var": np.ones(4),
    }
    return tensors | {name: value.astype(np.float32) for name, value in statistics.items()}


def local_model(
    device_id: str,
    change: np.ndarray,
    start: str = NEWCOMER,
    num_examples: int = 100,
    loss: float = 1.0,
) -> LocalModel:
    """A device that changed the shared tensors of the initial model by `change` (D,)."""
    tensors, at = {}, 0
    for name, value in initial_model().items():
        if name.startswith("shared/"):
            part = change[at : at + value.size].reshape(value.shape)
            tensors[name], at = (value + part).astype(np.float32), at + value.size
        else:
            tensors[name] = value
    return LocalModel(
        device_id, num_examples, 1, start, tensors, update=change.astype(np.float32), loss=loss
    )


SIZE = sum(value.size for name, value in initial_model().items() if name.startswith("shared/"))
Change = Callable[[int, int, np.random.Generator], np.ndarray]


def run(
    grouping: Defaults,
    ids: Sequence[str],
    change: Change,
    rounds: int,
    seed: int = 0,
    memory: GroupingMemory | None = None,
) -> list[Grouped]:
    """Rounds in which the i-th device of `ids` changes its model by change(i, round, noise)."""
    memory = memory or GroupingMemory()
    seen = []
    for number in range(rounds):
        models = [
            local_model(
                device_id,
                change(i, number, np.random.default_rng([seed, number, i])),
                grouping.start(memory, device_id),
                num_examples=50 + 7 * i,
                loss=1.5 - 0.01 * i,
            )
            for i, device_id in enumerate(ids)
        ]
        seen.append(grouping.group(memory, sorted(models, key=lambda m: m.device_id), None, seed))
        memory = seen[-1].memory
    return seen


def directions(count: int) -> np.ndarray:
    """(count, SIZE): one direction for each group, of length 4, with sum zero."""
    rows = np.random.default_rng(5).normal(size=(count, SIZE))
    rows -= rows.mean(0)
    found: np.ndarray = 4 * rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


COMMON = directions(3)[0] * 0.75


def labelled(count: int = 2, noise: float = 0.1) -> Change:
    """Device i is of group i % count: what all do alike fades away, what its group does stays."""
    own = directions(max(2, count))
    return lambda i, number, rng: (
        COMMON * 0.5**number + own[i % count] + noise * rng.normal(size=SIZE)
    )


def names(count: int) -> list[str]:
    return [f"d{i:02}" for i in range(count)]


def partition(membership: dict[str, str]) -> set[frozenset[str]]:
    return {
        frozenset(d for d, g in membership.items() if g == group) for group in membership.values()
    }


def by_truth(membership: dict[str, str], count: int) -> float:
    ids = sorted(membership)
    return float(
        adjusted_rand_score([int(d[1:]) % count for d in ids], [membership[d] for d in ids])
    )
