"""Which updates are admitted, and why others are not. Pure: the verdict follows from the run's
state, the update and its topic."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from aggregator.core.plan import asked_alone, place_of_plan, plan_for
from aggregator.core.round.machine import OPEN
from aggregator.core.settings import RunSettings
from aggregator.core.state import Received, RunState
from algorithms.personalisation.kept import kept_of
from wire.arrays import names
from wire.arrays.quantised import decoded
from wire.arrays.tensors import Tensors, check_layout
from wire.bundle import Layout
from wire.errors import WrongLayout
from wire.messages import Apply, Choose, Evaluate, Reason, Train, Update, Verb

LARGEST_NORM = 1e12
"""Statistics and responses with a larger Euclidean norm are refused: sums over devices have to stay
finite."""


@dataclass(frozen=True)
class Refused:
    """The update is not admitted: a reason from the protocol's list, and a text for people."""

    reason: Reason
    detail: str


class Duplicate:
    """The same bytes as the last update of the device that was accepted, whenever that was: they
    are acknowledged again and count once."""


def admit(
    state: RunState,
    topic_device: str,
    update: Update,
    tensors: Tensors,
    blob: str,
    num_bytes: int,
    statistics: Callable[[str], Tensors],
) -> Received | Duplicate | Refused:
    """The verdict on one update. Checks run from cheap to costly; the first that fails is the
    reason.

    `topic_device`: the id in the topic that the update came on. `blob`, `num_bytes`: the digest and
    the size of its bytes. `statistics`: the tensors ``statistic/NAME`` of an offered model, by its
    digest.
    """
    settings, device = state.settings, state.devices.get(topic_device)
    if update.device_id != topic_device and not (device is not None and device.accepted == blob):
        return Refused(
            "wrong-device",
            f"update of device {update.device_id} on the topic of device {topic_device}",
        )
    problem = expect(state, topic_device, update.run_id, update.round, blob)
    if problem is not None:
        return problem
    assert device is not None
    plan, alone = plan_for(state, update.device_id), asked_alone(state, update.device_id)
    start = state.cohort[update.device_id] if alone is None else alone.start
    verbs = plan.verbs
    offered = {
        plan.model,
        *(model for verb in verbs if isinstance(verb, Choose) for model in verb.models),
    }
    attempt = place_of_plan(state, topic_device)[1]
    if update.model not in offered and update.attempt < attempt:
        return Refused(
            "wrong-round",
            f"update of attempt {update.attempt} at round {update.round}, which was opened again "
            f"as attempt {attempt}",
        )
    if update.model not in offered:
        return Refused(
            "wrong-layout", f"update of model {update.model[:12]}, the plan said {plan.model[:12]}"
        )
    if update.model != plan.model:
        start = next(key for key, model in state.models.items() if model == update.model)
    quantised: tuple[str, ...] = ()
    if names.of_role(tensors, names.INT8):
        reporting = [verb.graph for verb in verbs if isinstance(verb, Train) and verb.report]
        quantised = tuple(dict.fromkeys(reporting))
        try:
            tensors = with_change(settings, quantised, tensors)
        except WrongLayout as error:
            return Refused("wrong-layout", str(error))
    norms = norms_of(tensors, statistics(update.model))
    refused = check_tensors(settings, verbs, tensors, norms)
    if refused is not None:
        return refused
    return Received(
        blob=blob,
        start=start,
        num_train=min(update.num_train, device.num_train),
        num_steps=min(update.num_steps, _most_steps(verbs, device.num_train)),
        norms=norms,
        quantised=quantised,
        evaluated=update.evaluated,
        trained=update.trained,
        bytes_up=num_bytes,
        bytes_down=update.bytes_received,
        kept=kept_of(settings.candidates, tensors, device.num_train),
    )


def expect(
    state: RunState, device_id: str, run_id: str, number: int, blob: str
) -> Duplicate | Refused | None:
    """Why an update of a device for this run and round is not to come, by what is known before its
    tensors are read; None if it may. `blob`: the digest of its bytes."""
    device = state.devices.get(device_id)
    if device is not None and device.accepted == blob:
        return Duplicate()
    if run_id != state.settings.run_id:
        return Refused("unknown-run", f"update of run {run_id}, the run is {state.settings.run_id}")
    alone = asked_alone(state, device_id)
    if number != place_of_plan(state, device_id)[0] or (state.phase not in OPEN and alone is None):
        return Refused(
            "wrong-round", f"update of round {number}, round {state.round} is {state.phase}"
        )
    if device is None or (device_id not in state.cohort and alone is None):
        return Refused("not-in-cohort", f"device {device_id} has no plan in round {state.round}")
    if device_id in state.received and alone is None:
        return Refused("duplicate", f"another update of round {number} was accepted before")
    return None


def _most_steps(verbs: tuple[Verb, ...], num_train: int) -> int:
    """Return the maximum number of steps that these verbs make on so many windows. A device that
    says more would have privacy or weights computed for what it cannot have done."""
    return sum(
        verb.epochs * verb.most_passes * -(-num_train // verb.batch_size)
        if verb.steps is None
        else verb.steps
        for verb in verbs
        if isinstance(verb, Train)
    )


def with_change(settings: RunSettings, graphs: tuple[str, ...], tensors: Tensors) -> Tensors:
    """The tensors of an update in int8, with the change that the training with these graphs has
    made.

    Raises:
        WrongLayout: they hold another one.
    """
    return decoded(tensors, [entry for graph in graphs for entry in settings.reported[graph]])


def norms_of(tensors: Tensors, before: Tensors | None = None) -> dict[str, float]:
    """By role, the Euclidean norm of all tensors of numbers, in float64; it is finite only if every
    value is. Of a tensor that is in `before` as well, its change counts: an update holds statistics
    as they are, and ten times the usual ones would ruin a model."""
    squares: dict[str, float] = {}
    for name, array in tensors.items():
        if array.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                flat = (array - before[name] if before and name in before else array).ravel()
                square = float(np.dot(flat, flat))
                if not math.isfinite(square):  # float32 may have overflowed
                    exact = flat.astype(np.float64)
                    square = float(np.dot(exact, exact))
            role = names.role_of(name)
            squares[role] = squares.get(role, 0.0) + square
    return {
        role: math.sqrt(square) if math.isfinite(square) else math.inf
        for role, square in squares.items()
    }


def check_tensors(
    settings: RunSettings, verbs: tuple[Verb, ...], tensors: Tensors, norms: Mapping[str, float]
) -> Refused | None:
    """What is wrong with the names, dtypes, shapes, values or size of an update's tensors after
    these verbs; None if nothing is. `norms` are those that `norms_of` gives."""
    if not tensors and all(
        isinstance(verb, Evaluate) and verb.split in ("windows", "unlabelled") for verb in verbs
    ):
        return None  # a device without a single window has nothing to tell
    wanted: dict[str, tuple[str, str, tuple[int, ...]]] = {}
    for verb in verbs:
        layout: Layout = ()
        if isinstance(verb, Train) and verb.report:
            layout = settings.reported[verb.graph]
        elif isinstance(verb, Apply | Evaluate) and verb.report:
            layout = settings.responses[verb.graph]
        wanted |= {entry[0]: entry for entry in layout}
    try:
        check_layout(tensors, tuple(wanted.values()), "update")
    except WrongLayout as error:
        return Refused("wrong-layout", str(error))
    for name, array in tensors.items():
        if (
            array.dtype.kind == "f"
            and not math.isfinite(norms[names.role_of(name)])
            and not np.isfinite(array).all()
        ):
            return Refused("not-finite", f"tensor {name!r} holds values that are not finite")
        if names.is_variance(name) and (array < 0).any():
            return Refused("not-finite", f"tensor {name!r} holds negative variances")
    for role, norm in norms.items():
        if role == names.DELTA and not norm <= settings.max_update_norm:
            return Refused(
                "norm-too-large",
                f"the update's norm is {norm:.3g}, at most {settings.max_update_norm:.3g} is "
                "accepted",
            )
        if not norm <= LARGEST_NORM:
            return Refused(
                "norm-too-large",
                f"the norm of the role {role} is {norm:.3g}, at most {LARGEST_NORM:.3g} is "
                "accepted",
            )
    return None
