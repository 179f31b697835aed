"""Applies an algorithm to the updates of a closed round. Updates, models and memory are blobs; the
same blobs give the same bytes again.

`start_run` and `aggregate` are the service's: blobs in, an event for the round core out.
`apply_algorithm`, `round_notes` and `store_state` are what a simulation without messages has in
common with them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median_low
from typing import Any

import msgspec
import numpy as np

from aggregator.aggregation.placing import place_unlabelled
from aggregator.aggregation.stored import (
    load_models,
    programs_of,
    store_state,
    work_of,
)
from aggregator.core.admission import norms_of, with_change
from aggregator.core.plan import round_seed
from aggregator.core.ports import Blobs, Clock
from aggregator.core.round.cohort import staleness_weights
from aggregator.core.round.influence import bounded, bounds_of, first_beyond
from aggregator.core.settings import RunSettings
from aggregator.core.state import ModelVersion, Received, RoundAggregated, RunState
from aggregator.core.training import TrainingSettings
from aggregator.core.versions import worse_than
from algorithms.algorithm import Algorithm, Contribution, State, decode_memory
from algorithms.core.contract import (
    Grouped,
    LocalModel,
    Probe,
    Programs,
    exchanged,
)
from algorithms.means.streaming import Branch
from algorithms.schedules import rate_in
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Tensors, encode_tensors
from wire.codec import decode_update


def aggregate(
    run: RunState, algorithm: Algorithm, probe: Probe, blobs: Blobs, clock: Clock
) -> RoundAggregated:
    """The event that answers the command `Aggregate`: the algorithm, applied to the updates that
    the run's state names, as far as they are within bounds (`aggregator.core.round.influence`).
    Where what comes out is not fit to be offered, the last models stay; where devices say that they
    are much worse than earlier ones (`aggregator.core.versions`), those are offered again. It is
    dated when its models are there: from then on the next round's deadline is counted."""
    if (better := worse_than(run)) is not None:
        version, drop = better
        reason = (
            f"the mean accuracy of devices that evaluated both fell by {drop:.3f}: more than "
            f"{run.settings.max_drop:g}"
        )
        rolled_back = {
            "from": run.made_in,
            "to": version.round,
            "reason": reason,
            "made_by": list(run.made_by),
        }
        return _offered_again(
            run, algorithm, blobs, clock(), version, version.round, {"rolled_back": rolled_back}
        )
    kept, left_out, norms = bounded(run.settings, run.received, run.norms)
    remarks: dict[str, Any] = {"left_out": left_out} if left_out else {}
    if late := {d: r.staleness for d, r in sorted(run.received.items()) if r.staleness}:
        remarks["staleness"] = late

    def set_aside(reason: str) -> RoundAggregated:
        return _offered_again(
            run, algorithm, blobs, clock(), run, run.made_in, remarks | {"set_aside": reason}
        )

    if len(kept) < min(len(run.received), run.settings.min_updates):
        return set_aside(
            f"{len(kept)} updates are within bounds, at least {run.settings.min_updates} are needed"
        )
    held = load_models(run, blobs)
    before = {key: exchanged(tensors) for key, tensors in held.items()}
    contributions = [
        Contribution(
            d,
            r.num_train,
            r.num_steps,
            r.start,
            partial(_read, blobs, run.settings, r, before[r.start]),
            r.trained.mean_loss,
        )
        for d, r in sorted(kept.items())
    ]
    last = replace(
        decode_memory(blobs.get(run.memory), before), rounds=run.trained
    )  # rounds that were given up have spent privacy too
    groups_before = set(last.memory.membership.values())
    state, grouped = apply_algorithm(
        algorithm, last, contributions, probe, run.settings, run.round, run.preparing
    )
    for key, model in state.models.items():
        for name, array in model.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return set_aside(
                    f"tensor {name!r} of model {key!r} would hold values that are not finite"
                )
    distances: dict[str, float] = {}
    if not run.preparing:
        groups = _groups(state, algorithm, {d: r.start for d, r in kept.items()}, before)
        small = {
            key: size for key, (size, _) in groups.items() if 0 < size < run.settings.min_group
        }
        state = _with_last(state, groups, small, last)
        far, distances = _distances(run, state, groups, before)
        state = _with_last(state, groups, far, last)
        remarks |= {"too_small": small} if small else {}
        remarks |= {"too_far": far} if far else {}
        if far and not distances:
            return set_aside("every new model is too far from the last one")
    unchanged = {
        key: (held[key], run.models[key]) for key in held if state.models.get(key) is before[key]
    }
    stored = store_state(run.next_settings, algorithm, state, blobs, unchanged)
    starts = {
        device_id: algorithm.grouping.start(state.memory, device_id)
        for device_id in state.memory.membership
    }
    return RoundAggregated(
        at_s=clock(),
        round=run.round,
        models=stored.models,
        memory=stored.memory,
        starts={} if run.preparing else starts | {"": algorithm.grouping.start(state.memory, "")},
        programs=stored.programs,
        preparing=stored.preparing,
        views=blobs.put(encode_views(grouped))[0] if grouped.views else "",
        notes=round_notes(state, grouped) | rate_noted(run.settings, run.programs) | remarks,
        norms=norms,
        left_out=tuple(sorted(left_out)),
        distances=distances,
        placed=place_unlabelled(run, algorithm, state, blobs, groups_before),
    )


def rate_noted(settings: TrainingSettings[Any], programs: Programs) -> dict[str, float]:
    """For the notes of a round with a scheduled learning rate: the rate with which these programs
    train."""
    lr = rate_in(programs.get("", ())) if settings.lr_schedule else None
    return {} if lr is None else {"lr": lr}


def _offered_again(
    run: RunState,
    algorithm: Algorithm,
    blobs: Blobs,
    at_s: float,
    version: RunState | ModelVersion,
    made_in: int,
    remarks: dict[str, Any],
) -> RoundAggregated:
    """A round that ends with models that were there before: those of this version, which the round
    `made_in` had made. Its notes say what the privacy mechanism has spent, the updates of this
    round included."""
    spent: dict[str, float] = {}
    if not run.preparing:
        models = [
            LocalModel(device_id, r.num_train, r.num_steps, r.start, {})
            for device_id, r in sorted(run.received.items())
        ]
        epsilon = algorithm.privacy.epsilon(run.trained + 1, models, work_of(run.settings))
        if epsilon is not None and math.isfinite(epsilon):
            spent = {"epsilon": epsilon}
    state = decode_memory(blobs.get(version.memory), {})
    same = set(state.memory.membership.values()) if version.memory == run.memory else set()
    return RoundAggregated(
        at_s=at_s,
        round=run.round,
        models=version.models,
        memory=version.memory,
        starts=version.starts,
        programs=programs_of(version, run.next_settings, algorithm, blobs, run.trained + 1),
        preparing=run.preparing,
        notes=spent | rate_noted(run.settings, run.programs) | remarks,
        made_in=made_in,
        placed=place_unlabelled(run, algorithm, state, blobs, same),
    )


def _groups(
    state: State, algorithm: Algorithm, started: Mapping[str, str], before: Mapping[str, Tensors]
) -> dict[str, tuple[int, str | None]]:
    """Return, for each group that has a model, the number of its devices that were counted and the
    key of its last model, or None.

    A new group's last model is the one that its first device started from (`started`)."""
    members: dict[str, list[str]] = {}
    for device_id in started:
        members.setdefault(algorithm.grouping.start(state.memory, device_id), []).append(device_id)
    return {
        key: (
            len(devices := members.get(key, [])),
            key if key in before else started[devices[0]] if devices else None,
        )
        for key in state.models
    }


def _with_last(
    state: State, groups: Mapping[str, tuple[int, str | None]], keys: Iterable[str], last: State
) -> State:
    """The state with the last models of these groups, and with what the server optimizer remembered
    of those."""
    origins = {key: origin for key in keys if (origin := groups[key][1]) is not None}
    models = {key: last.models[origin] for key, origin in origins.items()}
    moments = {
        key: last.moments[origin] for key, origin in origins.items() if origin in last.moments
    }
    others = {key: held for key, held in state.moments.items() if key not in origins}
    return (
        replace(state, models=state.models | models, moments=others | moments) if origins else state
    )


def _distances(
    run: RunState,
    state: State,
    groups: Mapping[str, tuple[int, str | None]],
    before: Mapping[str, Tensors],
) -> tuple[dict[str, str], dict[str, float]]:
    """By key, why a new model is too far from every last one; and by role, the median distance of
    the others from their own last ones."""
    # without distances of earlier rounds, nothing is too far
    roles = sorted({role for distance in run.distances for role in distance})
    usual = {role: [d[role] for d in run.distances if role in d] for role in roles}
    bounds = bounds_of(run.settings, usual)
    far, near = dict[str, str](), list[dict[str, float]]()
    for key, (_, origin) in groups.items():
        model, last = state.models[key], None if origin is None else before[origin]
        if last is None or model is last or run.settings.norm_cap <= 0:
            continue
        distance = _distance(model, last)
        beyond = first_beyond(distance, bounds)
        if beyond and all(
            first_beyond(_distance(model, other), bounds) for other in before.values()
        ):
            far[key] = (
                f"the distance of its {beyond} is {distance[beyond]:.3g}: more than "
                f"{bounds[beyond]:.3g} is not usual in this run"
            )
        else:
            near.append(distance)
    roles = sorted({role for distance in near for role in distance})
    return far, {role: median_low(distance.get(role, 0.0) for distance in near) for role in roles}


def _distance(model: Tensors, other: Tensors) -> dict[str, float]:
    """By role, the Euclidean distance of two models."""
    return norms_of(
        {name: array - other[name] for name, array in model.items() if array.dtype.kind == "f"}
    )


def apply_algorithm(
    algorithm: Algorithm,
    state: State,
    contributions: Sequence[Contribution],
    probe: Probe,
    settings: RunSettings,
    number: int,
    preparing: bool,
    branches: Mapping[str, Sequence[Branch]] | None = None,
) -> tuple[State, Grouped]:
    """The algorithm's state after the round of this number, and how it grouped the devices.
    `branches` as in `Algorithm.apply`."""
    if preparing:
        return algorithm.prepare(state, contributions), Grouped(state.memory)
    return algorithm.apply(
        state, contributions, probe, round_seed(settings, number), work_of(settings), branches
    )


def round_notes(state: State, grouped: Grouped) -> dict[str, Any]:
    """What a round's record says about it: the grouping's notes, and what the privacy mechanism has
    spent so far."""
    return grouped.notes | ({"epsilon": state.epsilon} if state.epsilon is not None else {})


def _read(blobs: Blobs, settings: RunSettings, received: Received, model: Tensors) -> Tensors:
    tensors = decode_update(blobs.get(received.blob), OWN_FILES)[1]
    if received.quantised:
        tensors = with_change(settings, received.quantised, tensors)
    return (
        weakened(tensors, float(staleness_weights(np.array(received.staleness))), model)
        if received.staleness
        else tensors
    )


def weakened(tensors: Tensors, weight: float, model: Tensors) -> Tensors:
    """An update whose change counts `weight` times, as one to this model, however old the model is
    that it started from."""
    made = dict(tensors)
    for key, value in tensors.items():
        role = names.role_of(key)
        if role == names.DELTA:
            made[key] = np.float32(weight) * value
        elif role == names.STATISTIC:
            made[key] = model[key] + np.float32(weight) * (value - model[key])
    return made


def encode_views(grouped: Grouped) -> bytes:
    """A round's distance matrices and whose they are, for people to look at."""
    arrays = {name: matrix.astype("float32") for name, matrix in grouped.views.items()}
    return encode_tensors(arrays, msgspec.json.encode({"device_ids": grouped.device_ids}))
