"""Checks that a choice's methods do what the choice declares.

Faster code paths are taken by the declarations alone.
"""

import numpy as np

from algorithms.core.contract import Mean, PlainSgd, ServerOptimizer, Slice
from algorithms.core.stack import Stack
from algorithms.means.streaming import StreamingMean
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.supervised import Supervised
from algorithms.personalisation.choices import ByRecipe
from algorithms.privacy.base import DefaultPrivacy
from simulation.contract.rounds import Broken
from wire.arrays import names
from wire.arrays.tensors import Tensors

TRAINING = ("step", "loss", "correct", "forward", "trained")
ANSWERS = ("evaluate", "predict", "answer", "forward")
ROWS, COLUMNS = 7, 24
CLOSE = 1e-5
"""Tolerance, relative to a mean's largest value: another order of a sum rounds differently."""


def plain_steps(device: type[Supervised]) -> str:
    """Check that a step is declared plain SGD exactly if the objective overrides none of it.

    An objective with `columns` of its own is exempt.

    Raises:
        Broken: the declaration is wrong.
    """
    overridden = [
        method for method in TRAINING if getattr(device, method) is not getattr(Supervised, method)
    ]
    declared = device.sgd_graphs.get("step") == PlainSgd()
    if overridden and declared and not device.columns:
        raise Broken(
            f"it overrides {overridden[0]}, so its step is not plain SGD: set sgd_graphs = {{}}"
        )
    if not overridden and not declared and not device.columns:
        raise Broken(
            "its step is plain SGD and could run natively: set sgd_graphs = {'step': PlainSgd()}"
        )
    return ""


def own_answers(device: type[Supervised]) -> str:
    """Check that answers are declared the model's exactly if the objective overrides none of them.

    Raises:
        Broken: the declaration is wrong.
    """
    overridden = [
        method for method in ANSWERS if getattr(device, method) is not getattr(Supervised, method)
    ]
    if device.model_answers == bool(overridden):
        raise Broken(
            f"model_answers is {device.model_answers}, but it overrides "
            f"{', '.join(overridden) or 'no method that answers'}"
        )
    return ""


def absorbing(device: type[Supervised]) -> str:
    """Check that the coordinator declares `absorbs` exactly if it overrides `absorb`.

    Raises:
        Broken: the declaration is wrong.
    """
    server = device.server
    if server.absorbs != (server.absorb is not DefaultCoordinator.absorb):
        raise Broken(
            f"{server.__name__}.absorbs is {server.absorbs}, but absorb is "
            f"{'' if server.absorbs else 'not '}the default's"
        )
    return ""


def same_declarations(personalisation: ByRecipe, objective: Supervised) -> str:
    """Check that a personalisation leaves the declarations of an objective that it wraps.

    It must also declare a memory exactly if it replaces `predict`.

    Raises:
        Broken: a declaration has changed, or that of the memory is wrong.
    """
    before = objective.sgd_graphs, objective.model_answers, objective.evaluate
    predict = objective.predict
    personalisation.wrap_device(objective)
    if (objective.sgd_graphs, objective.model_answers, objective.evaluate) != before:
        raise Broken(
            f"on {objective.name} it changes sgd_graphs, model_answers or evaluate, which belong "
            "to the objective"
        )
    if objective.has_memory != (objective.predict != predict):
        raise Broken(
            f"on {objective.name} has_memory is {objective.has_memory}, but predict is "
            f"{'' if objective.has_memory else 'not '}the objective's"
        )
    return ""


def server_noise(mechanism: type[DefaultPrivacy]) -> str:
    """Check that a privacy mechanism declares `server_noise` exactly if it overrides `noise`.

    Raises:
        Broken: the declaration is wrong.
    """
    adds = mechanism.noise.__qualname__ != f"{DefaultPrivacy.__name__}.noise"
    if mechanism.server_noise != adds:
        raise Broken(
            f"server_noise is {mechanism.server_noise}, but noise is "
            f"{'its own' if adds else 'the default'}"
        )
    return ""


def mean_of_models(mean: Mean) -> str:
    """Check the result of a mean, and that it is the plain average if the mean declares so.

    The result must be one finite float32 model, must not depend on the order of rows, and must
    equal the models if all of them are equal. The shares must add up to 1 or all be NaN.

    Raises:
        Broken: one of these does not hold.
    """
    rng = np.random.default_rng(0)
    rows, counts = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32), rng.integers(20, 60, ROWS)
    layout = [
        Slice(names.shared("body.weight"), 0, 18, (3, 3, 2)),
        Slice(names.shared("head.weight"), 18, COLUMNS, (3, 2)),
    ]
    average = mean.combine(Stack(rows.copy()), counts, layout, 0)
    if (
        average.flat.shape != (COLUMNS,)
        or average.flat.dtype != np.float32
        or not np.isfinite(average.flat).all()
    ):
        raise Broken(
            f"the mean of {ROWS} models of {COLUMNS} values must be finite float32[{COLUMNS}], got "
            f"{average.flat.dtype}{list(average.flat.shape)}"
        )
    shares = np.asarray(average.weights)
    if shares.shape != (ROWS,) or not (
        np.isnan(shares).all() or abs(float(shares.sum()) - 1) < CLOSE
    ):
        raise Broken(f"shares must be {ROWS} that add up to 1, or NaN, got {list(shares)}")
    order = rng.permutation(ROWS)
    _check_close(
        mean.combine(Stack(rows[order].copy()), counts[order], layout, 0).flat,
        average.flat,
        "with rows in another order",
    )
    _check_close(
        mean.combine(Stack(rows[:1].repeat(ROWS, 0)), counts, layout, 0).flat,
        rows[0],
        "of models that are all the same",
    )
    if mean.averages:
        streamed = StreamingMean(COLUMNS)
        for row, count in zip(rows, counts, strict=True):
            streamed.add(row, int(count) if mean.by_examples else 1)
        _check_close(
            average.flat,
            streamed.result(),
            f"which declares averages, and by_examples {mean.by_examples},",
        )
    return ""


def _check_close(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    off = float(np.abs(actual - expected).max())
    if not off <= CLOSE * float(np.abs(expected).max()):
        raise Broken(f"the mean {what} is off by {off:.3g}")


def parameter_by_parameter(optimizer: ServerOptimizer) -> str:
    """Check that a server optimizer treats every parameter independently.

    Its steps must be finite, and its moments must be finite and the declared ones.

    Raises:
        Broken: one of these does not hold.
    """
    rng = np.random.default_rng(0)
    before: Tensors = {name: np.full(COLUMNS, first) for name, first in optimizer.moments.items()}
    for _ in range(ROWS):
        change = rng.normal(size=COLUMNS)
        moved = optimizer.step(change, before)
        if moved.moments.keys() != optimizer.moments.keys():
            raise Broken(
                f"it remembers {sorted(moved.moments)}, but declares {sorted(optimizer.moments)}"
            )
        for column in range(COLUMNS):
            alone = slice(column, column + 1)
            one = optimizer.step(
                change[alone], {name: values[alone] for name, values in before.items()}
            )
            if not np.allclose(one.step, moved.step[alone], rtol=CLOSE):
                raise Broken("the step of a parameter depends on other parameters")
        before = moved.moments
        if not all(np.isfinite(values).all() for values in (moved.step, *moved.moments.values())):
            raise Broken("a step or one of the moments is not finite")
    return ""
