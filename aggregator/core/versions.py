"""The models of a run's last rounds: what is remembered of them, when they are returned to, and how
far a new model may be from the last.

Devices evaluate the model that they receive before they train it. So a round's updates say how good
the models of the round before are, on the windows of the devices themselves. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec.structs import replace

from aggregator.core.state import ModelVersion, Received, RoundAggregated, RunState
from wire.messages import Metrics, Verb

DISTANCES = 5
"""A new model's distance from the last is held against those of so many rounds."""


def taken_over(state: RunState, event: RoundAggregated) -> RunState:
    """The state with the models that a round ends with. Those before it join the history, unless
    the round returned from them."""
    history, made_in, made_by = state.history, state.made_in, state.made_by
    if not state.preparing and (keep := state.settings.keep_models):
        others = (version for version in history if version.round != made_in)
        history = (*others, latest(state))[-keep:]
    if event.made_in is None:
        made_in, made_by = state.round, tuple(sorted(state.received.keys() - set(event.left_out)))
    elif event.made_in != state.made_in:
        history, made_in, made_by = _up_to(state.history, event.made_in), event.made_in, ()
    return replace(
        state,
        models=event.models,
        memory=event.memory,
        starts=event.starts,
        programs=event.programs,
        norms=event.norms or state.norms,
        made_in=made_in,
        made_by=made_by,
        history=history,
        placed=event.placed,
        distances=(*state.distances, event.distances)[-DISTANCES:]
        if event.distances
        else state.distances,
    )


def remembered(state: RunState, number: int) -> ModelVersion | None:
    """What the round of this number made, if that is remembered."""
    return next((version for version in state.history if version.round == number), None)


def returned(
    state: RunState, number: int, programs: dict[str, tuple[Verb, ...]] | None = None
) -> RunState | None:
    """The state with the models of an earlier round of this number, and with these programs or
    those of then; None where they are not remembered. What came later is forgotten."""
    version = remembered(state, number)
    if version is None:
        return None
    return replace(
        state,
        models=version.models,
        memory=version.memory,
        starts=version.starts,
        programs=programs or version.programs,
        made_in=version.round,
        made_by=(),
        history=_up_to(state.history, number),
    )


def worse_than(state: RunState) -> tuple[ModelVersion, float] | None:
    """The remembered version that is better than the state's models by more than `max_drop`, by the
    most if there are several, and by how much; None if none is.

    Versions are compared on the devices that have evaluated both, at least `min_updates`. Of these
    the one whose accuracy fell most does not count, if there are others: no single device can have
    a round's work set aside by what it says of its accuracy.
    """
    if state.settings.max_drop >= 1 or state.preparing:
        return None
    now, worst = met(state.received), None
    for version in state.history:
        both = now.keys() & version.evaluated.keys()
        if version.round == state.made_in or len(both) < max(1, state.settings.min_updates):
            continue
        drops = sorted(version.evaluated[d].accuracy - now[d].accuracy for d in both)
        drop = fmean(drops[:-1] or drops)
        if drop > state.settings.max_drop and (worst is None or drop >= worst[1]):
            worst = version, drop
    return worst


def met(received: Mapping[str, Received]) -> dict[str, Metrics]:
    """By device, the metrics of the model that it received, where it has evaluated it and the round
    before made it."""
    known = {d: r.evaluated for d, r in received.items() if not r.staleness}
    return {
        d: metrics
        for d, metrics in known.items()
        if metrics.num_examples and math.isfinite(metrics.accuracy)
    }


def latest(state: RunState) -> ModelVersion:
    """The models of the state as a version, with what devices said of them as they are. Where
    devices choose what they keep after the last round, they say then how they answer with that,
    which says nothing of the models."""
    before = next(
        (version.evaluated for version in state.history if version.round == state.made_in), {}
    )
    tells_of_kept = state.phase in ("evaluating", "finished") and bool(state.settings.candidates)
    return ModelVersion(
        round=state.made_in,
        models=state.models,
        memory=state.memory,
        starts=state.starts,
        programs=state.programs,
        evaluated=before if tells_of_kept else {**before, **met(state.received)},
    )


def _up_to(history: Sequence[ModelVersion], number: int) -> tuple[ModelVersion, ...]:
    return tuple(version for version in history if version.round <= number)
