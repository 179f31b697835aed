"""Application of an algorithm to the updates of a closed round.

Updates, models and memory are blobs; the same blobs give the same bytes again. The service uses
`aggregate`: blobs in, an event of the fleet's state machine out. Simulations without messages use
`apply_algorithm` and `round_notes`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from aggregator.aggregation.admission import with_change
from aggregator.aggregation.bounds import bounded, too_far, worse_than
from aggregator.aggregation.placing import place_members
from aggregator.aggregation.pulls import Pull, PullSample
from aggregator.aggregation.stored import (
    groups_in,
    load_models,
    programs_of,
    store_state,
    work_of,
)
from aggregator.core.policies import staleness_weights
from aggregator.core.settings import RunSettings
from aggregator.core.training import TrainingSettings
from aggregator.fleet.events import Aggregated
from aggregator.fleet.plan import round_seed
from aggregator.fleet.records import AdmittedUpdate, Campaign, Standstill, Version
from aggregator.fleet.rounds import counted_updates
from aggregator.ports import Blobs, Clock
from algorithms.algorithm import MOST_SHARES, Algorithm, Contribution, State, decode_memory
from algorithms.core.contract import (
    Grouped,
    LocalModel,
    Probe,
    Programs,
    exchanged,
)
from algorithms.core.keys import NEWCOMER
from algorithms.means.streaming import Branch
from algorithms.schedules import rate_in
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Tensors, encode_tensors
from wire.codec import decode_update


def aggregate(
    campaign: Campaign, algorithm: Algorithm, probe: Probe, blobs: Blobs, clock: Clock
) -> Aggregated:
    """Apply the algorithm to the updates that count in a round and are within bounds.

    The bounds are in `aggregator.aggregation.bounds`. If the new models are not fit to be offered,
    the last ones stay. If devices report that the last ones are much worse than earlier ones, the
    earlier ones are offered again. The event has the time at which its models were stored.

    Raises:
        BlobLost: an update, a survey, a model or the memory can no longer be read.
        StorageFailed: a blob cannot be read or written.
    """
    received, settings = counted_updates(campaign), campaign.settings
    if (better := worse_than(campaign)) is not None:
        version, drop = better
        reason = (
            f"the mean accuracy of devices that evaluated both fell by {drop:.3f}; at most "
            f"{settings.max_drop:g} is accepted (max_drop)"
        )
        rolled_back = {
            "from": campaign.version.round,
            "to": version.round,
            "reason": reason,
            "made_by": list(campaign.made_by),
        }
        return _offered_again(
            campaign, algorithm, blobs, clock(), version, {"rolled_back": rolled_back}
        )
    updates, left_out, norms = bounded(settings, received, campaign.norms)
    remarks: dict[str, Any] = {"left_out": left_out} if left_out else {}
    starts = () if campaign.preparing else sorted({each.start for each in received.values()})
    evidence = dict.fromkeys(left_out, 1.0)
    if late := {d: update.staleness for d, update in received.items() if update.staleness}:
        remarks["staleness"] = late

    def set_aside(reason: str) -> Aggregated:
        note = remarks | {"set_aside": reason}
        again = _offered_again(campaign, algorithm, blobs, clock(), campaign.version, note)
        unchanged = dict.fromkeys(starts, Standstill("bounds", reason))
        return msgspec.structs.replace(again, pulls=evidence, unchanged=unchanged)

    # of more than two updates, a minority that is out of bounds cannot stop the round
    needed = min(settings.min_updates, len(received) // 2 + 1)
    if len(updates) < needed:
        return set_aside(f"{len(updates)} updates are within bounds, at least {needed} are needed")
    last_models = load_models(campaign.version, blobs)
    before = {key: exchanged(tensors) for key, tensors in last_models.items()}
    sample = PullSample(len(updates), algorithm.secret, campaign.round)
    contributions = [
        Contribution(
            d,
            update.num_train,
            update.num_steps,
            update.start,
            partial(sample.read, d, partial(_read, blobs, settings, update, before[update.start])),
            update.trained.mean_loss,
        )
        for d, update in updates.items()
    ]
    last = replace(
        decode_memory(blobs.get(campaign.version.memory), before), rounds=campaign.trained
    )  # rounds whose models were given up have spent privacy too
    groups_before = set(last.memory.membership.values())
    state, grouped = apply_algorithm(
        algorithm, last, contributions, probe, settings, campaign.round, campaign.preparing
    )
    if not campaign.preparing:
        pulls = sample.pulls(
            updates,
            {d: algorithm.grouping.start(state.memory, d) for d in updates},
            _weights(algorithm, updates, grouped),
        )
        evidence |= {d: pull.evidence for d, pull in pulls.items()}
        remarks |= {"pulls": noted} if (noted := _noted(pulls)) else {}
    for key, model in state.models.items():
        for name, array in model.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return set_aside(
                    f"tensor {name!r} of model {key!r} would hold values that are not finite"
                )
    distances: dict[str, float] = {}
    unmoved: dict[str, Standstill] = {}
    if not campaign.preparing:
        started = {d: update.start for d, update in updates.items()}
        sizes, origins = _origins(state, algorithm, started, before)
        small = {key: size for key, size in sizes.items() if 0 < size < settings.min_group}
        state = _with_last(state, origins, small, last)
        far, distances = too_far(campaign, state.models, origins, before)
        state = _with_last(state, origins, far, last)
        remarks |= {"too_small": small} if small else {}
        remarks |= {"too_far": far} if far else {}
        if far and not distances:
            return set_aside("every new model is too far from the last one")
        unmoved = _unchanged(state, sizes, before, small, far)
    unchanged = {
        key: (last_models[key], campaign.models[key])
        for key in last_models
        if state.models.get(key) is before[key]
    }
    stored = store_state(campaign.next_settings, algorithm, state, blobs, unchanged)
    return Aggregated(
        at_s=clock(),
        campaign=campaign.name,
        round=campaign.round,
        version=stored.version(
            campaign.round,
            NEWCOMER if campaign.preparing else algorithm.grouping.start(state.memory, ""),
        ),
        groups=changed_groups(
            campaign, {} if campaign.preparing else groups_in(state, algorithm.grouping)
        ),
        placed=place_members(campaign, algorithm, state, blobs, groups_before),
        preparing=stored.preparing,
        norms=norms,
        distances=distances,
        left_out=tuple(sorted(left_out)),
        pulls=evidence,
        unchanged=unmoved,
        notes=round_notes(state, grouped)
        | rate_noted(settings, campaign.version.programs)
        | remarks,
        views=blobs.put(encode_views(grouped))[0] if grouped.views else "",
    )


def _weights(
    algorithm: Algorithm, updates: Mapping[str, AdmittedUpdate], grouped: Grouped
) -> Mapping[str, float]:
    """Return the weight of each device in its group's mean; empty if the mean gives none."""
    if algorithm.mean.averages:
        return {d: u.num_train if algorithm.mean.by_examples else 1 for d, u in updates.items()}
    shares: Mapping[str, float] = grouped.notes.get("shares", {})
    return shares if updates.keys() <= shares.keys() else {}


def _noted(pulls: Mapping[str, Pull]) -> dict[str, Any]:
    """Return the note of the pulls of a round, by device.

    In rounds of more than `MOST_SHARES` devices, only as many are noted, those that stand out most.
    """
    devices = sorted(pulls, key=lambda d: (-pulls[d].evidence, d))[:MOST_SHARES]
    return {
        d: msgspec.to_builtins(pulls[d]) | {"evidence": pulls[d].evidence} for d in sorted(devices)
    }


def rate_noted(settings: TrainingSettings[Any], programs: Programs) -> dict[str, float]:
    """Return the note of a round's scheduled learning rate; empty without a schedule."""
    lr = rate_in(programs.get("", ())) if settings.lr_schedule else None
    return {} if lr is None else {"lr": lr}


def _offered_again(
    campaign: Campaign,
    algorithm: Algorithm,
    blobs: Blobs,
    at_s: float,
    version: Version,
    remarks: dict[str, Any],
) -> Aggregated:
    """Return the end of a round that offers the models of an existing version.

    Its notes have the privacy spent so far, which includes the updates of this round.
    """
    spent: dict[str, float] = {}
    if not campaign.preparing:
        models = [
            LocalModel(device_id, update.num_train, update.num_steps, update.start, {})
            for device_id, update in counted_updates(campaign).items()
        ]
        epsilon = algorithm.privacy.epsilon_after(
            campaign.trained + 1, models, work_of(campaign.settings)
        )
        if epsilon is not None and math.isfinite(epsilon):
            spent = {"epsilon": epsilon}
    state = decode_memory(blobs.get(version.memory), {})
    is_same = version.memory == campaign.version.memory
    groups_before = set(state.memory.membership.values()) if is_same else set[str]()
    trained = campaign.trained + 1
    programs = programs_of(version, campaign.next_settings, algorithm, blobs, trained)
    groups = {} if is_same else changed_groups(campaign, groups_in(state, algorithm.grouping))
    return Aggregated(
        at_s=at_s,
        campaign=campaign.name,
        round=campaign.round,
        version=msgspec.structs.replace(version, programs=programs),
        groups=groups,
        placed=place_members(campaign, algorithm, state, blobs, groups_before),
        preparing=campaign.preparing,
        reverted=True,
        notes=spent | rate_noted(campaign.settings, campaign.version.programs) | remarks,
    )


def changed_groups(campaign: Campaign, groups: Mapping[str, str]) -> dict[str, str]:
    """Return the changed groups by device; an empty group if a device is no longer in any."""
    gone = {d: "" for d, m in sorted(campaign.members.items()) if m.group and d not in groups}
    changed = {
        d: group
        for d, group in groups.items()
        if d not in campaign.members or campaign.members[d].group != group
    }
    return gone | changed


def _origins(
    state: State, algorithm: Algorithm, started: Mapping[str, str], before: Mapping[str, Tensors]
) -> tuple[dict[str, int], dict[str, str | None]]:
    """Return each new model's number of counted devices, and the key of its last model.

    The key is None if there is no last model. A new group's last model is the one that its first
    device started from (`started`).
    """
    members: dict[str, list[str]] = {}
    for device_id in started:
        members.setdefault(algorithm.grouping.start(state.memory, device_id), []).append(device_id)
    sizes = {key: len(members.get(key, [])) for key in state.models}
    origins = {
        key: key if key in before else started[members[key][0]] if sizes[key] else None
        for key in state.models
    }
    return sizes, origins


def _with_last(
    state: State, origins: Mapping[str, str | None], keys: Iterable[str], last: State
) -> State:
    """Return the state with the last models of these groups and their server optimizer moments."""
    origin_of = {key: origin for key in keys if (origin := origins[key]) is not None}
    models = {key: last.models[origin] for key, origin in origin_of.items()}
    moments = {
        key: last.moments[origin] for key, origin in origin_of.items() if origin in last.moments
    }
    others = {key: tensors for key, tensors in state.moments.items() if key not in origin_of}
    return (
        replace(state, models=state.models | models, moments=others | moments)
        if origin_of
        else state
    )


def _unchanged(
    state: State,
    sizes: Mapping[str, int],
    before: Mapping[str, Tensors],
    small: Mapping[str, int],
    far: Mapping[str, str],
) -> dict[str, Standstill]:
    """Return the reason that a model is the same as before although devices trained it, by key.

    Models of groups that are too small are among them if there are no others. `sizes`: number of
    each group's devices. `small`, `far`: size of the groups that are too small, and why new models
    are too far from the last ones, by key.
    """
    trained = {key for key, size in sizes.items() if size}
    unchanged = {key: Standstill("bounds", f"its new model: {why}") for key, why in far.items()}
    if trained == small.keys():
        what = "its group has fewer devices than --min-group"
        return {key: Standstill("small", f"{what}: {size}") for key, size in small.items()}
    for key in trained & before.keys() - small.keys() - far.keys():
        model, last = state.models[key], before[key]
        shared = [name for name in last if names.role_of(name) == names.SHARED]
        if shared and all(np.array_equal(model[name], last[name]) for name in shared):
            unchanged[key] = Standstill("nothing", "the mean change of its devices is zero")
    return unchanged


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
    """Return the algorithm's state after a round, and the groups of its devices.

    `branches`: as for `Algorithm.apply`.
    """
    if preparing:
        return algorithm.prepare(state, contributions), Grouped(state.memory)
    return algorithm.apply(
        state, contributions, probe, round_seed(settings.seed, number), work_of(settings), branches
    )


def round_notes(state: State, grouped: Grouped) -> dict[str, Any]:
    """Return the notes of a round: those of the grouping, and the privacy spent so far."""
    return grouped.notes | ({"epsilon": state.epsilon} if state.epsilon is not None else {})


def _read(blobs: Blobs, settings: RunSettings, received: AdmittedUpdate, model: Tensors) -> Tensors:
    tensors = decode_update(blobs.get(received.blob), OWN_FILES)[1]
    if received.quantised:
        tensors = with_change(settings, received.quantised, tensors)
    return (
        weakened(tensors, float(staleness_weights(np.array(received.staleness))), model)
        if received.staleness
        else tensors
    )


def weakened(tensors: Tensors, weight: float, model: Tensors) -> Tensors:
    """Return an update whose change is multiplied by `weight`.

    Statistics change from those of `model`, which may be newer than the update's start.
    """
    weak = dict(tensors)
    for key, value in tensors.items():
        role = names.role_of(key)
        if role == names.DELTA:
            weak[key] = np.float32(weight) * value
        elif role == names.STATISTIC:
            weak[key] = model[key] + np.float32(weight) * (value - model[key])
    return weak


def encode_views(grouped: Grouped) -> bytes:
    """Return a round's distance matrices with the ids of their devices, for people."""
    arrays = {name: matrix.astype("float32") for name, matrix in grouped.views.items()}
    return encode_tensors(arrays, msgspec.json.encode({"device_ids": grouped.device_ids}))
