"""Number of passes of a method over a device's training windows, which must be equal, or stated,
where methods are ranked."""

from functools import lru_cache

import torch

from algorithms.build import build_objective
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Work
from algorithms.objectives.coordinator import DefaultCoordinator
from wire.bundle import Window
from wire.messages import Train, Verb

_BATCH = 32


@lru_cache
def passes(algorithm: str) -> str:
    """The passes of training in a round with one local epoch, and those after the last round:
    ``1``, ``2 + 10 at the end``.

    A pass through training batches counts, whichever graph runs over them. What finds groups or
    weights before, and what one step computes more than another, is not counted.
    """
    spec = read_algorithm(algorithm)
    objective = build_objective(spec, Window(tuple("abcdef"), 64, 64), 3, torch.ones(6), seed=0)
    initial = {name: value.numpy() for name, value in objective.initial().items()}
    coordinator = make_algorithm(spec).coordinator
    context, work = coordinator.begin(initial, 0), Work(_BATCH, 1)
    assert isinstance(coordinator, DefaultCoordinator)
    verbs = (
        coordinator.training(context, work)
        if coordinator.preparing(context)
        else coordinator.programs(context, work)[""]
    )
    return _shown(verbs, "") + _shown(coordinator.closing(context, work), " at the end")


def _shown(verbs: tuple[Verb, ...], when: str) -> str:
    trained = [verb for verb in verbs if isinstance(verb, Train)]
    parts = [str(sum(verb.epochs for verb in trained if verb.steps is None) or "")]
    parts += [
        f"{verb.steps} step{'s' * (verb.steps > 1)}" for verb in trained if verb.steps is not None
    ]
    text = " + ".join(filter(None, parts))
    return f" + {text}{when}" if text and when else text
