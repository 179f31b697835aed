"""Secret mode: the server learns only sums over devices (SPEC.md, 'Secret sums').

A device sends its change of each exchanged tensor. The clip of a tensor, the largest absolute value
that counts, is public, and follows from the mean change of its group in the round before. A
grouping that needs surveys finds its groups before the first round, from sums as well
(`algorithms.groupings.sums`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from algorithms import registry
from algorithms.algorithm import SURVEY, Algorithm, State
from algorithms.composition import AlgorithmSpec
from algorithms.core.arena import flatten, layout_of, size_of, views
from algorithms.core.cells import LEAST_CELLS, start_of
from algorithms.core.contract import Grouped, GroupingMemory, Mean, Work
from algorithms.core.keys import NEWCOMER, UNLABELLED
from algorithms.core.stack import Stack
from algorithms.groupings.sums.tree import (
    Tree,
    after_sums,
    next_exchanges,
    tell_of,
    tree_in,
    untold,
    with_places,
    with_tree,
)
from algorithms.privacy.gaussian import SharedGaussian
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Layout
from wire.errors import ConfigError
from wire.secret.messages import ACCURACY, LOSS, SCALARS
from wire.secret.question import Noise, Part
from wire.secret.survey import SurveySum, TellGroup
from wire.secret.survey import parts_of as exchange_parts
from wire.verbs import Verb

KINDS = ("objective", "memory", "bias", "grouping", "mean", "privacy")
"""Kinds of choices that declare `in_sums`; all others know nothing of single devices."""
FIRST_CLIPS = {names.SHARED: 0.25, names.STATISTIC: 8.0}
"""Clips of the first round, by role."""
CHANGE_FACTOR = 16.0
"""Clip of a tensor, in multiples of the root mean square of its last mean change."""
LEAST_CLIP = 1e-4


def check_in_sums(spec: AlgorithmSpec) -> None:
    """Raise ConfigError if secret mode cannot run a part of an algorithm."""
    for kind in KINDS:
        if (choice := getattr(spec, kind)) is None:
            continue
        part = registry.class_of(choice)
        server = part.server if kind == "objective" else None
        if part.in_sums != "cannot" and not (server and (server.absorbs or server.responds)):
            continue
        allowed = [n for n, each in registry.CHOICES[kind].items() if each.in_sums != "cannot"]
        way = f"Allowed: {', '.join(allowed)}" if allowed else "Leave it out"
        raise ConfigError(
            f"Secret mode cannot run {choice.name!r}, the {kind} of algorithm {str(spec)!r}: it "
            f"needs more of single devices than sums, or keeps tensors on them between rounds. "
            f"{way}."
        )
    parts = spec.parts
    parts.grouping.check_in_sums()
    if has_cells(parts.mean) and parts.grouping.surveys:
        raise ConfigError(
            f"Secret mode cannot run {spec.mean.name!r} in groups: it is a mean of sums over "
            "cells, and groups have one sum each. Use mean=uniform, or the grouping none."
        )


def has_cells(mean: Mean) -> bool:
    """Return True if a mean compares sums, so that each is over one cell of the devices."""
    return mean.in_sums == "over cells"


def check_cells(mean: Mean, num_devices: int, min_sum: int) -> None:
    """Raise ConfigError if a mean compares sums, and devices are too few for `LEAST_CELLS`."""
    if has_cells(mean) and num_devices < (least := LEAST_CELLS * min_sum):
        raise ConfigError(
            f"mean {mean.name!r} compares sums over {LEAST_CELLS} cells of devices or more in "
            f"secret mode: there must be at least {least} devices with min_sum {min_sum}, got "
            f"{num_devices}. Use mean=uniform, or a smaller min_sum."
        )


def check_in_clear(spec: AlgorithmSpec) -> None:
    """Raise ConfigError if an algorithm protects devices in secret mode alone."""
    if not spec.parts.privacy.in_clear:
        raise ConfigError(
            f"{spec.privacy.name} protects in secret mode alone, where a device's share of the "
            "noise is added up with all others: add --secret, or use gaussian or local-gaussian"
        )


@dataclass(frozen=True)
class GroupSum:
    """Sum over the devices that started from one model, or that are in one node."""

    sums: Tensors
    """Sum (n,) float64 of the devices' numbers, by part."""
    device_ids: Sequence[str]


def noise_of(algorithm: Algorithm, state: State, min_sum: int) -> Noise | None:
    """Return the noise that each device adds to its share of a sum, or None without any."""
    privacy, layout = algorithm.privacy, layout_of(state.models[NEWCOMER])
    if not isinstance(privacy, SharedGaussian):
        return None
    return privacy.shares(size_of(layout), min_sum)


def parts_of(algorithm: Algorithm, state: State, start: str) -> dict[str, Part]:
    """Return the parts of the next question to devices that start from the model of this key.

    They are every tensor, and the accuracy and the loss of the received model. With noise in
    shares, they are the tensors alone.
    """
    parts, clips, privacy = {}, state.clips.get(start, {}), algorithm.privacy
    shared = privacy.clip_norm if isinstance(privacy, SharedGaussian) else None
    for piece in layout_of(state.models[NEWCOMER]):
        if count := piece.stop - piece.start:
            first = FIRST_CLIPS[names.role_of(piece.key)]
            parts[piece.key] = Part(count, shared or clips.get(piece.key, first))
    return parts if shared else parts | SCALARS


def measured_in(groups: Sequence[GroupSum]) -> dict[str, float]:
    """Return the mean accuracy (fraction) and the mean loss of the devices of sums.

    Empty if the sums have none, because of noise.
    """
    if any(ACCURACY not in group.sums for group in groups):
        return {}
    count = sum(len(group.device_ids) for group in groups)
    accuracy, loss = (
        float(sum(group.sums[name][0] for group in groups)) / count for name in (ACCURACY, LOSS)
    )
    return {"accuracy": min(max(accuracy, 0.0), 1.0), "loss": loss}


def apply_sums(
    algorithm: Algorithm, state: State, groups: Mapping[str, GroupSum], seed: int, work: Work
) -> tuple[State, Grouped]:
    """Return the state after a round, and the round's grouping.

    Args:
        algorithm: the algorithm.
        state: the state from which the questions' parts were taken (`parts_of`).
        groups: sum of the devices that started from each model, by its key, or of each cell of
            them, by its `cell_key`.
        seed: seed of the round.
        work: work of a device.
    """
    by_start: dict[str, list[GroupSum]] = {}
    for key, group in sorted(groups.items()):
        by_start.setdefault(start_of(key), []).append(group)
    changes: dict[str, dict[str, Array]] = {}
    clips: dict[str, dict[str, float]] = {}
    for start, sums in by_start.items():
        parts, following = parts_of(algorithm, state, start), dict[str, float]()
        change = _combined(algorithm.mean, [_mean_of(each, parts) for each in sums], seed)
        for key in change:
            moved = CHANGE_FACTOR * float(np.sqrt(np.mean(change[key] ** 2)))
            following[key] = max(moved, LEAST_CLIP)
        still = {k: np.zeros(v.size) for k, v in state.models[start].items() if k not in parts}
        changes[start], clips[start] = still | change, following
    device_ids = {s: tuple(d for e in each for d in e.device_ids) for s, each in by_start.items()}
    after, grouped = algorithm.apply_means(state, changes, device_ids, seed, work)
    membership, all_clips = after.memory.membership, dict(state.clips)
    for start, devices in device_ids.items():
        all_clips[membership[devices[0]]] = clips[start]
    return replace(after, clips=all_clips), grouped


def _mean_of(group: GroupSum, parts: Mapping[str, Part]) -> dict[str, Array]:
    """Return the mean change float64 (n,) of each tensor, over the devices of a sum."""
    return {  # rounding may bring a mean beyond the clip
        key: np.clip(group.sums[key] / len(group.device_ids), -part.clip, part.clip)
        for key, part in parts.items()
        if key not in SCALARS
    }


def _combined(mean: Mean, changes: Sequence[dict[str, Array]], seed: int) -> dict[str, Array]:
    """Return the mean change of each tensor, from those of one sum or of the cells' sums."""
    if len(changes) == 1:
        return changes[0]
    layout = layout_of(changes[0])
    stack = Stack(np.stack([flatten(change, layout) for change in changes]).astype(np.float32))
    return views(mean.combine(stack, np.ones(len(changes)), layout, seed).flat, layout)


def tree_of(state: State) -> Tree:
    """Return the facts about the groups of devices."""
    return tree_in(state.memory.info)


def exchanges_in(state: State, min_sum: int) -> dict[str, SurveySum]:
    """Return the next exchanges by node.

    There are none while devices have to tell their sides of splits, and none once groups are found:
    newcomers begin no survey of their group.
    """
    tree = tree_of(state)
    waits = state.memory.membership or untold(tree)
    return {} if waits else next_exchanges(tree, min_sum)


def is_surveying(algorithm: Algorithm, state: State, min_sum: int) -> bool:
    """Return True if groups are still to be found from sums, before the next round of training."""
    if not algorithm.grouping.surveys:
        return False
    return bool(untold(tree_of(state)) or exchanges_in(state, min_sum))


def survey_verbs(verb: SurveySum | TellGroup) -> tuple[Verb, ...]:
    """Return the verbs of a plan that ends with an exchange: it makes the survey first."""
    return (msgspec.structs.replace(SURVEY, report=False), verb)


def exchange_of(verbs: Sequence[Verb]) -> SurveySum:
    """Return the exchange in the verbs of a plan."""
    return next(verb for verb in verbs if isinstance(verb, SurveySum))


def survey_programs(state: State, min_sum: int) -> dict[str, tuple[Verb, ...]]:
    """Return the verbs of the next exchanges by ``node:PATH``, and those by which devices tell."""
    programs = {
        f"node:{node}": survey_verbs(exchange)
        for node, exchange in exchanges_in(state, min_sum).items()
    }
    tell = tell_of(tree_of(state))
    return programs if tell is None else programs | {UNLABELLED: survey_verbs(tell)}


def survey_parts(exchange: SurveySum, responses: Mapping[str, Layout]) -> dict[str, Part]:
    """Return the parts of the question about an exchange.

    `responses`: layout of the responses of each graph of the bundle.
    """
    return exchange_parts(exchange, num_inputs(responses))


def num_inputs(responses: Mapping[str, Layout]) -> int:
    """Return the number of means in a survey: one for each channel of BatchNorm layers."""
    prefix = names.response(names.SURVEY) + "." + names.MEAN_OF
    return sum(
        int(np.prod(shape, dtype=int))
        for name, _, shape in responses.get(names.SURVEY, ())
        if name.startswith(prefix)
    )


def survey_notes(state: State) -> dict[str, dict[str, Any]]:
    """Return the notes about the nodes that were tested, by path: evidence and verdict."""
    tree = tree_of(state)
    return {
        path: {
            "devices": sum(place.startswith(path) for place in tree.places.values()),
            "p": round(node.p, 4),
            "share": round(node.share, 3),
            "split": node.plane is not None,
        }
        for path, node in sorted(tree.nodes.items())
        if node.tested
    }


def after_exchanges(
    state: State, results: Mapping[str, tuple[SurveySum, GroupSum]], min_sum: int
) -> State:
    """Return the state after the sums of exchanges, by node."""
    tree = tree_of(state)
    for exchange, group in results.values():
        devices = tuple(sorted(group.device_ids))
        tree = after_sums(tree, exchange, group.sums, devices, min_sum)
    return _with_groups(state, tree, min_sum)


def after_telling(state: State, nodes: Mapping[str, str], min_sum: int) -> State:
    """Return the state after devices have told their nodes."""
    return _with_groups(state, with_places(tree_of(state), nodes, min_sum), min_sum)


def _with_groups(state: State, tree: Tree, min_sum: int) -> State:
    """Return the state with a tree; with its groups, once they are found."""
    membership, models = state.memory.membership, state.models
    if not untold(tree) and (membership or not next_exchanges(tree, min_sum)):
        membership = tree.groups
        fresh = dict.fromkeys(set(membership.values()) - models.keys(), models[NEWCOMER])
        models = models | dict(sorted(fresh.items()))
    memory = GroupingMemory(membership, state.memory.arrays, with_tree(state.memory.info, tree))
    return replace(state, memory=memory, models=models)
