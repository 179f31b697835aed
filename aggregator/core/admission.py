"""Which updates are accepted, and why others are not. Pure: a state, a message, its tensors, the topic's device -> a verdict."""

from dataclasses import dataclass

import numpy as np

from aggregator.core.round import INITIAL
from aggregator.core.state import Received, RunState
from wire.errors import WrongLayout
from wire.messages import Reason, Update
from wire.tensors import Tensors, check_layout


@dataclass(frozen=True)
class Refused:
    """Not accepted: a reason from the protocol's list, and a text for people."""

    reason: Reason
    detail: str


class Duplicate:
    """The same device's update of this round is already safe; it is acknowledged again and counts once."""


def admit(
    state: RunState, topic_device: str, update: Update, tensors: Tensors, blob: str, num_bytes: int
) -> Received | Duplicate | Refused:
    """Decide about one update. Checks run from cheap to dear; the first that fails is the reason."""
    settings = state.settings
    if update.device_id != topic_device:
        return Refused("wrong-device", f"update of device {update.device_id} on the topic of device {topic_device}")
    if update.run_id != settings.run_id:
        return Refused("unknown-run", f"update of run {update.run_id}, the run is {settings.run_id}")
    if update.round != state.round or state.phase not in ("training", "evaluating", "aggregating"):
        return Refused("wrong-round", f"update of round {update.round}, round {state.round} is {state.phase}")
    if update.device_id not in state.cohort:
        return Refused("not-in-cohort", f"device {update.device_id} has no plan in round {state.round}")
    known = state.received.get(update.device_id)
    if known is not None:
        return Duplicate() if known.blob == blob else Refused("duplicate", f"another update of round {update.round} was accepted before")
    if state.phase == "aggregating":
        return Refused("wrong-round", f"round {update.round} is closed")
    start = state.cohort[update.device_id]
    if update.model != state.models[start]:
        return Refused("wrong-layout", f"update of model {update.model[:12]}, the plan said {state.models[start][:12]}")
    problem = _check_tensors(state, start, tensors)
    if problem is not None:
        return problem
    return Received(blob, start, update.num_train, update.num_steps, update.evaluated, update.trained, num_bytes, update.bytes_received)


def _check_tensors(state: RunState, start: str, tensors: Tensors) -> Refused | None:
    settings = state.settings
    expected = settings.update_layout + (settings.survey_layout if start == INITIAL else ())
    try:
        check_layout(tensors, expected if state.phase == "training" else (), "update")
    except WrongLayout as error:
        return Refused("wrong-layout", str(error))
    for name, array in tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return Refused("not-finite", f"tensor {name!r} holds values that are not finite")
        if ("running_var" in name or "variance" in name) and (array < 0).any():
            return Refused("not-finite", f"tensor {name!r} holds negative variances")
    deltas = [np.dot(v.ravel(), v.ravel()) for k, v in tensors.items() if k.startswith("delta/")]
    norm = float(np.sqrt(sum(float(square) for square in deltas)))
    if not norm <= state.settings.max_update_norm:
        return Refused("norm-too-large", f"the update's norm is {norm:.3g}, at most {state.settings.max_update_norm:.3g} is accepted")
    return None
