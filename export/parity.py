"""Parity check: compares exported graphs with eager torch in float32 and float64."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from algorithms.core.contract import TorchTensors
from algorithms.objectives.supervised import Supervised
from export.describe import to_numpy
from export.runtimes import load_graph, load_whole, runtimes_of
from wire.arrays import names
from wire.arrays.onnx_model import PREDICT, apart, whole_model
from wire.arrays.tensors import Tensors
from wire.bundle import Bundle
from wire.errors import BundleError

TYPICAL = 1e-4
"""Maximum difference after one step in most steps, as a fraction of a tensor's scale."""
FLIPPED = 0.1
"""Maximum difference after any step, as a fraction of a tensor's scale.

A ReLU or a maximum within rounding of zero may flip. The limit grows for a smaller batch, in which
a single example has more weight.
"""
AS_OFTEN, MOST_OFTEN = 2, 0.75
"""Limits of the number of steps in which a graph differs by more than `TYPICAL`.

It may do so in half of the steps. In a deep network something flips at every other step, in eager
float32 as well: a graph may also differ `AS_OFTEN` times as often as eager float32, in at most the
fraction `MOST_OFTEN` of the steps.
"""
FLOOR = 0.01
"""Minimum scale of a tensor, as a fraction of the largest value of its role.

A tensor's scale is its largest value. But the gradient of a bias before BatchNorm is zero up to
rounding, and its own size would be no measure.
"""

STILL = 5
"""Divisor of the number of steps for a graph that changes no tensor.

Its steps differ in the batch only, so fewer of them are enough.
"""

ALIKE = 4.0
"""Factor on eager float32's largest difference, for a tensor that is only rounding at a step.

A tensor is only rounding if half of its values are further than `TYPICAL` from float64 in eager
float32, too. Adam, for example, divides the gradient of a bias before BatchNorm by its own size.
"""

WHOLE = 1e-5
"""Maximum difference (`wire.arrays.onnx_model.apart`) of the one-file model from the graph."""

Step = Callable[[Tensors, dict[str, np.ndarray]], Tensors]
"""Function from tensors and a batch to a graph's outputs."""


class ParityError(BundleError):
    """A difference between an exported graph and eager torch that is larger than rounding."""


@dataclass(frozen=True)
class Parity:
    """Largest differences over all graphs and runtimes, relative to a tensor's scale.

    `step_error` is the median over steps of the largest difference after one step. The drifts are
    the differences from float64 after all `steps`, for the graph and for eager float32.
    """

    steps: int
    step_error: float
    graph_drift: float
    eager_drift: float


def check_parity(
    bundle: Bundle,
    objective: Supervised,
    x: np.ndarray,
    y: np.ndarray,
    steps: int = 50,
    batch_size: int = 32,
) -> Parity:
    """Compare every output of every graph with eager torch, at every step and on every runtime.

    Training is chaotic: float32 drifts from float64 (1e-5 after 20 steps, more later), as a ReLU or
    a maximum that flips changes the gradient. At every step of the first runtime's trajectory, the
    graph on every runtime and eager torch therefore start from the same tensors. The difference of
    one step must be of the size of rounding. The drift over all steps is reported, with that of
    eager float32.

    Args:
        bundle: the exported bundle.
        objective: the objective that it was exported from.
        x: examples (n, \\*window) float32.
        y: labels (n, \\*label).
        steps: number of steps; a fifth of them for a graph that changes no tensor.
        batch_size: number of examples in a batch. Every fifth batch is a third of it.

    Raises:
        ParityError: a difference is too large. The text names the tensor, the step, the difference
            and the limit.
    """
    graphs = bundle.manifest.graphs.items()
    moving = {n for n, g in graphs if any(names.role_of(key) == names.NEXT for key in g.outputs)}
    parities, tensors = [], bundle.initial
    for name in sorted(bundle.manifest.graphs, key=lambda n: n not in moving):
        start, count = (bundle.initial, steps) if name in moving else (tensors, -(-steps // STILL))
        by_runtime, end_tensors = _check_graph(
            bundle, objective, name, start, x, y, count, batch_size
        )
        parities += by_runtime
        tensors = tensors | end_tensors
    _check_whole(bundle, tensors, x)
    return Parity(
        steps,
        *(
            max(getattr(f, n) for f in parities)
            for n in ("step_error", "graph_drift", "eager_drift")
        ),
    )


def _check_whole(bundle: Bundle, tensors: Tensors, x: np.ndarray) -> None:
    """Compare the one-file model with its graph, for batches of three sizes.

    One of them is a single example, which the graph gets in a padded batch.
    """
    if not (onnx := whole_model(bundle, tensors, {})):
        return
    graph = load_graph(bundle, PREDICT)
    for count in (1, bundle.manifest.min_batch, min(len(x), 33)):
        padded = x[: max(count, bundle.manifest.min_batch)]
        error = apart(
            load_whole(onnx)(x[:count]),
            graph({**tensors, names.X: padded})[names.PROBABILITIES][:count],
        )
        if not error <= WHOLE:
            raise ParityError(
                f"bundle {bundle.manifest.name}: the model in one file differs from graph "
                f"{PREDICT!r} by {error:.3g}; at most {WHOLE:g} is allowed"
            )


def _check_graph(
    bundle: Bundle,
    objective: Supervised,
    name: str,
    start: Tensors,
    x: np.ndarray,
    y: np.ndarray,
    steps: int,
    batch_size: int,
) -> tuple[list[Parity], Tensors]:
    """Return a graph's differences on every runtime, and the first one's tensors at the end.

    The graph begins with the tensors `start`.
    """
    rng = np.random.default_rng(0)
    graphs = {runtime: _graph_step(bundle, name, runtime) for runtime in runtimes_of(bundle)}
    first = next(iter(graphs))
    eager = _eager_step(objective, name, torch.float32)
    exact = _eager_step(objective, name, torch.float64)
    measured = {
        k: rng.random(shape, np.float32)
        for g in bundle.manifest.graphs
        for k, _, shape in bundle.manifest.responses(g)
    }
    tensors_eager = tensors_exact = {**start, **measured}
    tensors = dict.fromkeys(graphs, tensors_exact)
    differences: dict[str, list[tuple[float, str, float]]] = {runtime: [] for runtime in graphs}
    flips = 0
    for step in range(1, steps + 1):
        chosen = rng.integers(0, len(y), size=batch_size if step % 5 else max(2, batch_size // 3))
        batch = {"x": x[chosen], "y": y[chosen]} | _draw(objective, len(chosen), rng)
        here = tensors[first]
        right, rounded = exact(here, batch), eager(here, batch)
        flips += max(_errors(rounded, right, len(chosen), rounded).values()) > TYPICAL
        for runtime, graph in graphs.items():
            outputs = graph(here, batch)
            worst, where = max(
                (error if error == error else float("inf"), f"{key} after step {step}")
                for key, error in _errors(outputs, right, len(chosen), rounded).items()
            )
            differences[runtime].append((worst, where, FLIPPED * batch_size / len(chosen)))
            if names.part(outputs, names.NEXT):
                after = outputs if runtime == first else graph(tensors[runtime], batch)
                tensors[runtime] = tensors[runtime] | names.part(after, names.NEXT)
        if names.part(right, names.NEXT):
            tensors_eager, tensors_exact = (
                state | names.part(step_of(state, batch), names.NEXT)
                for state, step_of in ((tensors_eager, eager), (tensors_exact, exact))
            )
    parities = []
    half = steps - 1 - steps // 2
    may_differ = max(half, min(AS_OFTEN * flips, int(MOST_OFTEN * steps)))
    for runtime, by_step in differences.items():
        by_step.sort()
        often, where_often, _ = by_step[steps - 1 - may_differ]
        for error, where, allowed in ((often, where_often, TYPICAL), *by_step):
            if error > allowed:
                raise ParityError(
                    f"bundle {bundle.manifest.name}, graph {name} on {runtime}: {where} differs "
                    f"from float64 by {error:.3g} of its scale; at most {allowed:g} is allowed"
                )
        drifts = _drift(tensors[runtime], tensors_exact), _drift(tensors_eager, tensors_exact)
        parities.append(Parity(steps, by_step[steps // 2][0], *drifts))
    return parities, tensors[first]


def _draw(objective: Supervised, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a batch's random columns, random inputs, and places of the split ``windows``."""
    columns = {
        name: rng.uniform(0.5, 1.5, (size, *shape)).astype(np.float32)
        for name, shape in objective.columns.items()
    }
    uniform = {
        n: rng.random((size, *shape), np.float32)
        for n, shape in objective.random.items()
        if names.role_of(n) == names.UNIFORM
    }
    normal = {
        n: rng.standard_normal(shape, np.float32)
        for n, shape in objective.random.items()
        if names.role_of(n) == names.NORMAL
    }
    places = dict(
        zip(
            names.PLACES,
            (np.arange(size), np.full(size, size), rng.random(size) < 0.5),
            strict=True,
        )
    )
    return (
        columns
        | uniform
        | normal
        | {name: values.astype(np.float32) for name, values in places.items()}
    )


def _drift(tensors: Tensors, exact: Tensors) -> float:
    """Return the largest difference over the tensors that remain after a round.

    These are the shared and private tensors, the statistics, and the memory.
    """
    stays = {k: v for k, v in exact.items() if _role(k) in (*names.OF_MODEL, names.PRIVATE)}
    return max(_errors(tensors, stays).values(), default=0.0)


def _errors(
    results: Tensors, exact: Tensors, num_examples: int = 1, eager: Tensors | None = None
) -> dict[str, float]:
    """Return the largest difference of each tensor relative to its scale.

    If `eager` float32 shows that a tensor is only rounding, differences within `ALIKE` count as 0.
    """
    # a count has the number of examples as its scale
    floor: dict[str, float] = {names.NUM_CORRECT: num_examples}
    for key, value in exact.items():
        floor[_role(key)] = max(floor.get(_role(key), 1e-30), FLOOR * float(np.abs(value).max()))
    errors = {}
    for key, value in exact.items():
        scale = max(floor[_role(key)], floor.get(key, 0.0), float(np.abs(value).max()))
        apart = np.abs(results[key].astype(np.float64) - value) / scale
        if eager is not None:
            rounding = np.abs(eager[key].astype(np.float64) - value) / scale
            if np.isfinite(rounding).all() and np.median(rounding) > TYPICAL:
                apart = np.where(apart <= ALIKE * rounding.max(), 0.0, apart)
        errors[key] = float(apart.max())
    return errors


def _role(key: str) -> str:
    return names.role_of(key.removeprefix(names.following.text))


def _graph_step(bundle: Bundle, name: str, runtime: str) -> Step:
    run, hyper = load_graph(bundle, name, runtime), bundle.manifest.hyper

    def step(state: Tensors, batch: dict[str, np.ndarray]) -> Tensors:
        scalars = {names.hyper(k): np.asarray(v, np.float32) for k, v in hyper.items()}
        return run({**state, **scalars, **{names.batch(k): v for k, v in batch.items()}})

    return step


def _eager_step(objective: Supervised, name: str, dtype: torch.dtype) -> Step:
    def cast(values: Tensors) -> TorchTensors:
        tensors = {k: torch.from_numpy(np.array(v)) for k, v in values.items()}
        return {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}

    objective = copy.deepcopy(objective)
    for part in vars(objective).values():
        # fixed values of a model are constants of the graph and not among its tensors
        if isinstance(part, nn.Module):
            part.to(dtype)

    def step(state: Tensors, batch: dict[str, np.ndarray]) -> Tensors:
        hyper = {k: torch.tensor(v, dtype=dtype) for k, v in objective.hyper.items()}
        return to_numpy(objective.graphs()[name](cast(state), cast(batch), hyper))

    return step
