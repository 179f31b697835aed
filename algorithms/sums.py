"""Secret mode: the server learns only sums over devices (SPEC.md, 'Secret sums').

A device sends its change of each exchanged tensor. The clip of a tensor, the largest absolute value
that counts, is public, and follows from the mean change of the round before.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from algorithms import registry
from algorithms.algorithm import Algorithm, State
from algorithms.composition import AlgorithmSpec
from algorithms.core.arena import layout_of
from algorithms.core.contract import Grouped, Work
from algorithms.core.keys import NEWCOMER
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import ConfigError
from wire.secret.messages import ACCURACY, LOSS, SCALARS
from wire.secret.question import Part

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
        if part.in_sums == "works" and not (server and (server.absorbs or server.responds)):
            continue
        needs = (
            "sums over fixed cells of devices, which secret mode does not have"
            if part.in_sums == "over cells"
            else "more of single devices than sums, or keeps tensors on them between rounds"
        )
        allowed = [n for n, each in registry.CHOICES[kind].items() if each.in_sums == "works"]
        way = f"Allowed: {', '.join(allowed)}" if allowed else "Leave it out"
        raise ConfigError(
            f"Secret mode cannot run {choice.name!r}, the {kind} of algorithm {str(spec)!r}: it "
            f"needs {needs}. {way}."
        )


def parts_of(state: State) -> dict[str, Part]:
    """Return the parts of the next round's question.

    They are every tensor, and the accuracy and the loss of the received model.
    """
    parts = {}
    for piece in layout_of(state.models[NEWCOMER]):
        if count := piece.stop - piece.start:
            first = FIRST_CLIPS[names.role_of(piece.key)]
            parts[piece.key] = Part(count, state.clips.get(piece.key, first))
    return parts | SCALARS


def measured_in(sums: Tensors, num_devices: int) -> dict[str, float]:
    """Return the mean accuracy (fraction) and the mean loss of the devices of a sum."""
    accuracy, loss = (float(sums[name][0]) / num_devices for name in (ACCURACY, LOSS))
    return {"accuracy": min(max(accuracy, 0.0), 1.0), "loss": loss}


def apply_sums(
    algorithm: Algorithm,
    state: State,
    sums: Tensors,
    device_ids: Sequence[str],
    seed: int,
    work: Work,
) -> tuple[State, Grouped]:
    """Return the state after a round, and the round's grouping.

    Args:
        algorithm: the algorithm.
        state: the state from which the question's parts were taken (`parts_of`).
        sums: sum (n,) float64 of the devices' numbers, by part.
        device_ids: devices of the sum.
        seed: seed of the round.
        work: work of a device.
    """
    parts, clips = parts_of(state), dict[str, float]()
    change: dict[str, Array] = {}
    for key, model in state.models[NEWCOMER].items():
        if key not in parts:
            change[key] = np.zeros(model.size)
            continue
        clip = parts[key].clip  # rounding may bring a mean beyond it
        change[key] = np.clip(sums[key] / len(device_ids), -clip, clip)
        clips[key] = max(CHANGE_FACTOR * float(np.sqrt(np.mean(change[key] ** 2))), LEAST_CLIP)
    following, grouped = algorithm.apply_mean(state, device_ids, change, seed, work)
    return replace(following, clips=state.clips | clips), grouped
