"""When a campaign takes no further round of training: its rounds are over, its days are, or its
models no longer get better. Pure.

Each budget stands for itself, and the first that is spent ends the training. A round that is open
goes on; then comes the evaluation. Time is that of events.

What no longer gets better is the *mean accuracy*: of the models that devices were given, on their
own test windows, every device counting the same. Devices report it with their updates, so that a
round says how good the models of the round before are. A round in which no device tells one counts
neither way.
"""

import math
from collections.abc import Iterable
from statistics import fmean

from msgspec.structs import replace

from aggregator.core.settings import Ended
from aggregator.core.state import RunState
from wire.messages import Metrics

DAY_S = 86_400.0


def spent(state: RunState, at_s: float) -> Ended:
    """The budget that is spent; empty while a round of training may be opened."""
    settings = state.settings
    if state.trained >= settings.rounds:
        return "rounds"
    if settings.days and at_s >= state.started_at_s + settings.days * DAY_S:
        return "days"
    return "patience" if settings.patience and state.unimproved >= settings.patience else ""


def measured(state: RunState) -> RunState:
    """The state after a round of training, by what its devices said of the models that they were
    given."""
    accuracy = mean_accuracy(received.evaluated for received in state.received.values())
    if accuracy is None:
        return replace(state, unmeasured=True)
    best, unimproved = improvement(state.best, state.unimproved, accuracy, state.settings.min_delta)
    return replace(state, best=best, unimproved=unimproved, unmeasured=False)


def improvement(
    best: float | None, unimproved: int, accuracy: float, min_delta: float
) -> tuple[float, int]:
    """The best mean accuracy, and the number of rounds since it got better by more than
    `min_delta`, after a round with this one."""
    return (accuracy, 0) if best is None or accuracy > best + min_delta else (best, unimproved + 1)


def improvement_of(
    accuracies: Iterable[float | None], min_delta: float
) -> tuple[float | None, int]:
    """The same after rounds with these mean accuracies, in their order."""
    best, unimproved = None, 0
    for accuracy in accuracies:
        if accuracy is not None:
            best, unimproved = improvement(best, unimproved, accuracy, min_delta)
    return best, unimproved


def mean_accuracy(evaluated: Iterable[Metrics]) -> float | None:
    """The mean over devices; None where none has tested a model."""
    known = [
        metrics.accuracy
        for metrics in evaluated
        if metrics.num_examples and math.isfinite(metrics.accuracy)
    ]
    return fmean(known) if known else None


def why_ended(state: RunState) -> str:
    """Why a campaign trains no further, for people; or why it may not end as it was told to. Empty
    where there is nothing to say."""
    settings = state.next_settings
    match state.ended:
        case "rounds":
            return f"its {state.trained} round{' is' if state.trained == 1 else 's are'} over"
        case "days":
            return f"its {settings.days:g} days are over"
        case "patience":
            best = f"{state.best:.4f}" if state.best is not None else "none"
            return (
                f"the mean accuracy has not got better by more than {settings.min_delta:g} for "
                f"{state.unimproved} rounds (best: {best})"
            )
        case "order":
            return "it was aborted"
    return (
        "its devices tell no accuracy: --patience cannot end it"
        if settings.patience and state.unmeasured
        else ""
    )
