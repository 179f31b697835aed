"""Does the exported step do what the objective does? Compared over many steps with eager torch in
float32 and float64.

Training is chaotic: float32 drifts from float64 (1e-5 after 20 steps, more later) because a ReLU or
a maximum that flips changes the gradient. So at every step of the graph's own trajectory both start
from the same tensors: a difference is then that of one step, and it has to be of the size of
rounding. The drift over all steps is reported, beside that of eager float32.
"""

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
"""In most steps the largest difference after one step is at most this part of a tensor's scale."""
FLIPPED = 0.1
"""One step's largest difference may be this much: a ReLU or a maximum within rounding of zero may
go either way. In a smaller batch an example counts for more, and so does what flips in it."""
AS_OFTEN, MOST_OFTEN = 2, 0.75
"""In a deep network something flips at every other step, in eager float32 too: a graph may differ
by more than `TYPICAL` in half of the steps, or so many times as often as eager float32 does, and in
this share of the steps at most."""
FLOOR = 0.01
"""A tensor's scale is its largest value, but at least this part of the largest of its role: the
gradient of a bias in front of BatchNorm is zero but for rounding, and its own size would be no
measure."""

STILL = 5
"""A graph that moves no tensor does the same at every step, of another batch: it is run for one
step in so many."""

ALIKE = 4.0
"""Where half of the values of a tensor are further than TYPICAL from float64 in eager float32 too,
it is only rounding at that step: Adam divides the gradient of a bias in front of BatchNorm by its
own size. Its values may then be so many times as far as the furthest."""

WHOLE = 1e-5
"""So far may the answers of the model in one file be from those of the graph
(`wire.arrays.onnx_model.apart`)."""

Step = Callable[[Tensors, dict[str, np.ndarray]], Tensors]
"""From the tensors and a batch to the outputs."""


class ParityError(BundleError):
    """The exported step differs from eager torch by more than rounding."""


@dataclass(frozen=True)
class Parity:
    """What was found on all runtimes: `step_error`, the median over steps of the largest difference
    after one step, and the drift over all `steps` of what stays, for the graph and for eager
    float32; each relative to the tensor's scale."""

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
    """Run every graph for `steps` steps, or for a fifth of them where it moves no tensor, on every
    runtime that the bundle has graphs for, and compare every output at every step. Examples are x
    (n, \\*window) float32 with labels y (n, \\*label).

    Raises:
        ParityError: names the tensor, the step, the difference and what is allowed.
    """
    graphs = bundle.manifest.graphs.items()
    moving = {n for n, g in graphs if any(names.role_of(key) == names.NEXT for key in g.outputs)}
    found = []
    for runtime in runtimes_of(bundle):
        held = bundle.initial
        for name in sorted(bundle.manifest.graphs, key=lambda n: n not in moving):
            start, count = (bundle.initial, steps) if name in moving else (held, -(-steps // STILL))
            parity, at = _check_graph(
                bundle, objective, name, runtime, start, x, y, count, batch_size
            )
            found.append(parity)
            held = held | at
    _check_whole(bundle, held, x)
    return Parity(
        steps,
        *(max(getattr(f, n) for f in found) for n in ("step_error", "graph_drift", "eager_drift")),
    )


def _check_whole(bundle: Bundle, tensors: Tensors, x: np.ndarray) -> None:
    """Hold the model in one file against the graph that it was made from, with a single example
    too."""
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
                f"{PREDICT!r} by {error:.3g}"
            )


def _check_graph(
    bundle: Bundle,
    objective: Supervised,
    name: str,
    runtime: str,
    start: Tensors,
    x: np.ndarray,
    y: np.ndarray,
    steps: int,
    batch_size: int,
) -> tuple[Parity, Tensors]:
    """Return the differences of a graph on a runtime from these tensors, and the tensors as it
    leaves them."""
    rng = np.random.default_rng(0)
    graph, eager, exact = (
        _graph_step(bundle, name, runtime),
        _eager_step(objective, name, torch.float32),
        _eager_step(objective, name, torch.float64),
    )
    measured = {
        k: rng.random(shape, np.float32)
        for g in bundle.manifest.graphs
        for k, _, shape in bundle.manifest.responses(g)
    }
    at, at_eager, at_exact = ({**start, **measured} for _ in range(3))
    found: list[tuple[float, str, float]] = []
    flips = 0
    for step in range(1, steps + 1):
        chosen = rng.integers(0, len(y), size=batch_size if step % 5 else max(2, batch_size // 3))
        batch = {"x": x[chosen], "y": y[chosen]} | _draw(objective, len(chosen), rng)
        outputs, right, rounded = graph(at, batch), exact(at, batch), eager(at, batch)
        errors = _errors(outputs, right, len(chosen), rounded)
        flips += max(_errors(rounded, right, len(chosen), rounded).values()) > TYPICAL
        worst, where = max(
            (error if error == error else float("inf"), f"{key} after step {step}")
            for key, error in errors.items()
        )
        found.append((worst, where, FLIPPED * batch_size / len(chosen)))
        if moved := names.part(outputs, names.NEXT):
            at = at | moved
            at_eager, at_exact = (
                state | names.part(step_of(state, batch), names.NEXT)
                for state, step_of in ((at_eager, eager), (at_exact, exact))
            )
    found.sort()
    half = steps - 1 - steps // 2
    may_differ = max(half, min(AS_OFTEN * flips, int(MOST_OFTEN * steps)))
    often, where_often, _ = found[steps - 1 - may_differ]
    for error, where, allowed in ((often, where_often, TYPICAL), *found):
        if error > allowed:
            raise ParityError(
                f"bundle {bundle.manifest.name}, graph {name} on {runtime}: {where} differs from "
                f"float64 by {error:.3g} of its scale, "
                f"allowed is {allowed:g}"
            )
    drifts = _drift(at, at_exact), _drift(at_eager, at_exact)
    return Parity(steps, found[steps // 2][0], *drifts), at


def _draw(objective: Supervised, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A batch's columns, random inputs, and what the split ``windows`` says of its windows."""
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
    """Over what stays when a round is over: the shared and private tensors, the statistics, and the
    memory."""
    stays = {k: v for k, v in exact.items() if _role(k) in (*names.OF_MODEL, names.PRIVATE)}
    return max(_errors(tensors, stays).values(), default=0.0)


def _errors(
    found: Tensors, exact: Tensors, num_examples: int = 1, eager: Tensors | None = None
) -> dict[str, float]:
    """The largest difference of each tensor, relative to its scale; where a tensor is only
    rounding, as `eager` float32 says, what is alike is none."""
    floor: dict[str, float] = {
        names.NUM_CORRECT: num_examples
    }  # a count: its scale is what was counted
    for key, value in exact.items():
        floor[_role(key)] = max(floor.get(_role(key), 1e-30), FLOOR * float(np.abs(value).max()))
    errors = {}
    for key, value in exact.items():
        scale = max(floor[_role(key)], floor.get(key, 0.0), float(np.abs(value).max()))
        apart = np.abs(found[key].astype(np.float64) - value) / scale
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
        if isinstance(
            part, nn.Module
        ):  # what is fixed in a model is a constant of the graph, not among its tensors
            part.to(dtype)

    def step(state: Tensors, batch: dict[str, np.ndarray]) -> Tensors:
        hyper = {k: torch.tensor(v, dtype=dtype) for k, v in objective.hyper.items()}
        return to_numpy(objective.graphs()[name](cast(state), cast(batch), hyper))

    return step
