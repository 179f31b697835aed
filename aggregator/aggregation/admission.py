"""Admission of updates, with the reason of a refusal.

Pure: the verdict follows from the fleet, the update and its topic. An update answers the assignment
of its device: the one of the same campaign and round whose serial number is the update's `attempt`.
An update is admitted even after the assignment's deadline. `aggregator.fleet.step` decides if it
counts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from aggregator.core.settings import RunSettings
from aggregator.fleet.desired import NOBODY, windows_of
from aggregator.fleet.records import OPEN, AdmittedUpdate, Assignment, Campaign, Device, Fleet
from algorithms.personalisation.kept import kept_of
from wire.arrays import names
from wire.arrays.quantised import decoded
from wire.arrays.tensors import Tensors, check_layout
from wire.bundle import Layout
from wire.codec import digest, encode
from wire.errors import WireError, WrongLayout
from wire.messages import (
    Apply,
    Choose,
    Evaluate,
    Mask,
    Metrics,
    Reason,
    TellGroup,
    Train,
    Update,
    Verb,
)
from wire.secret.payloads import masked_values
from wire.secret.question import SumQuestion
from wire.secret.survey import ancestors_of

LARGEST_NORM = 1e12
"""Maximum Euclidean norm of statistics and responses, so that sums over devices stay finite."""


@dataclass(frozen=True)
class Refusal:
    """Refusal of an update: a reason from the protocol's list, and a text for people."""

    reason: Reason
    detail: str


class Duplicate:
    """Verdict on the same bytes as the device's last accepted update.

    They are acknowledged again and count once.
    """


def admit(
    fleet: Fleet,
    topic_device: str,
    update: Update,
    tensors: Tensors,
    blob: str,
    num_bytes: int,
    statistics: Callable[[str], Tensors | None],
) -> AdmittedUpdate | Duplicate | Refusal:
    """Return the verdict on an update.

    Checks run from cheap to costly, and the first failure is the reason. `topic_device`: the id in
    the update's topic. `blob`, `num_bytes`: digest and size of its bytes. `statistics`: returns the
    tensors ``statistic/NAME`` of the model with this digest, or None if the model is no longer on
    offer to devices.
    """
    device = fleet.devices.get(topic_device)
    if update.device_id != topic_device and not (device is not None and device.accepted == blob):
        return Refusal(
            "wrong-device",
            f"update of device {update.device_id} on the topic of device {topic_device}",
        )
    problem = expect(fleet, topic_device, update.run_id, update.round, update.attempt, blob)
    if problem is not None:
        return problem
    assert device is not None
    work = device.assignment
    assert work is not None
    campaign, verbs = fleet.campaigns[work.campaign], work.verbs
    choices = {model for verb in verbs if isinstance(verb, Choose) for model in verb.models}
    if update.model not in {work.model, *choices}:
        return Refusal(
            "wrong-layout",
            f"update of model {update.model[:12]}, but the plan is for model {work.model[:12]}",
        )
    if update.node and not isinstance(verbs[-1], TellGroup):
        return Refusal("wrong-layout", "update with a node, but the plan asks for none")
    if isinstance(verbs[-1], Mask):
        return _masked(update, tensors, blob, num_bytes, work.start, verbs[-1].question)
    if isinstance(verbs[-1], TellGroup):
        node = campaign.members.get(topic_device, NOBODY).node
        return _admit_node(update, tensors, blob, num_bytes, work.start, verbs[-1], node or "")
    settings = campaign.settings
    quantised: tuple[str, ...] = ()
    if names.of_role(tensors, names.INT8):
        reporting = [verb.graph for verb in verbs if isinstance(verb, Train) and verb.report]
        quantised = tuple(dict.fromkeys(reporting))
        try:
            tensors = with_change(settings, quantised, tensors)
        except WrongLayout as error:
            return Refusal("wrong-layout", str(error))
    before = statistics(update.model)
    if before is None:
        detail = f"model {update.model[:12]} is not on offer any more: its assignment expired"
        return Refusal("wrong-round", detail)
    norms = norms_of(tensors, before)
    refused = check_tensors(settings, verbs, tensors, norms)
    if refused is not None:
        return refused
    num_train = windows_of(campaign, device)[0]
    return AdmittedUpdate(
        blob=blob,
        start=_start_of(campaign, work, update.model),
        num_train=min(update.num_train, num_train),
        num_steps=min(update.num_steps, _most_steps(verbs, num_train)),
        norms=norms,
        quantised=quantised,
        evaluated=update.evaluated,
        trained=update.trained,
        bytes_up=num_bytes,
        bytes_down=update.bytes_received,
        personal_model=kept_of(settings.candidates, tensors, num_train),
    )


def _masked(
    update: Update,
    tensors: Tensors,
    blob: str,
    num_bytes: int,
    start: str,
    question: SumQuestion,
) -> AdmittedUpdate | Refusal:
    """Return the verdict on an update that answers a question of a secret sum.

    What it says of its data beside the masked integers is left out.
    """
    if update.share is None:
        return Refusal("wrong-layout", "update without a share, but the plan asks for a secret sum")
    share = update.share.share
    if share.device_id != update.device_id:
        detail = f"share of device {share.device_id} in an update of device {update.device_id}"
        return Refusal("wrong-layout", detail)
    try:
        masked_values(update.share, tensors, question)
    except WireError as error:
        return Refusal("wrong-layout", str(error))
    return _without_data(update, blob, num_bytes, start, digest(encode(share)))


def _admit_node(
    update: Update,
    tensors: Tensors,
    blob: str,
    num_bytes: int,
    start: str,
    tell: TellGroup,
    before: str,
) -> AdmittedUpdate | Refusal:
    """Return the verdict on an update with a device's node of a secret survey.

    `before`: the node that the device has told earlier, which it must not leave.
    """
    split, node = {plane.node for plane in tell.planes}, update.node
    is_leaf = node not in split and split.issuperset(ancestors_of(node))
    if tensors or update.share is not None or not is_leaf or not node.startswith(before):
        detail = f"update with node {node!r}, which the plan does not lead to"
        return Refusal("wrong-layout", f"{detail} from node {before!r}" if before else detail)
    return _without_data(update, blob, num_bytes, start)


def _without_data(
    update: Update, blob: str, num_bytes: int, start: str, share: str = ""
) -> AdmittedUpdate:
    """Return an update without what it says of the device's data."""
    return AdmittedUpdate(
        blob=blob,
        start=start,
        num_train=0,
        num_steps=0,
        evaluated=Metrics(),
        trained=Metrics(),
        bytes_up=num_bytes,
        bytes_down=update.bytes_received,
        share=share,
    )


def expect(
    fleet: Fleet, device_id: str, run_id: str, number: int, attempt: int | None, blob: str
) -> Duplicate | Refusal | None:
    """Return the reason to refuse an update before its tensors are read, or None.

    `run_id`, `number`: run and round of the update. `attempt`: None if the message does not have
    it. `blob`: the digest of the update's bytes.
    """
    device = fleet.devices.get(device_id)
    if device is not None and device.accepted == blob:
        return Duplicate()
    campaign = campaign_of_run(fleet, run_id)
    if campaign is None:
        run_ids = ", ".join(c.settings.run_id for c in fleet.campaigns.values()) or "none"
        return Refusal("unknown-run", f"no run {run_id}; the runs are {run_ids}")
    work = assignment_in(campaign, device)
    is_other = work is not None and (number != work.round or attempt not in (None, work.serial))
    if work is not None and is_other:
        detail = f"update of round {number}"
        detail += f", attempt {attempt}" if attempt is not None else ""
        return Refusal(
            "wrong-round", f"{detail}; the plan is for round {work.round}, attempt {work.serial}"
        )
    if work is not None:
        return None
    if number != campaign.round or campaign.phase not in OPEN:
        detail = f"update of round {number}, but round {campaign.round} is {campaign.phase}"
        return Refusal("wrong-round", detail)
    if device_id in campaign.updates:
        return Refusal("duplicate", f"another update of round {number} was accepted before")
    return Refusal("not-in-cohort", f"device {device_id} has no plan in round {campaign.round}")


def campaign_of_run(fleet: Fleet, run_id: str) -> Campaign | None:
    """Return the campaign of a run; None if the run is unknown."""
    runs = (c for c in fleet.campaigns.values() if c.settings.run_id == run_id)
    return next(runs, None)


def assignment_in(campaign: Campaign, device: Device | None) -> Assignment | None:
    """Return the assignment of a device in this campaign, or None."""
    work = device.assignment if device is not None else None
    return work if work is not None and work.campaign == campaign.name else None


def _start_of(campaign: Campaign, work: Assignment, model: str) -> str:
    """Return the key of the model that a device has chosen to start from."""
    if model == work.model:
        return work.start
    versions = (campaign.version, *reversed(campaign.history))
    keys = (key for v in versions for key, digest in v.models.items() if digest == model)
    return next(keys, work.start)


def _most_steps(verbs: tuple[Verb, ...], num_train: int) -> int:
    """Return the maximum number of training steps of these verbs on this number of windows.

    A device that reports more steps would distort the privacy computation or the weights.
    """
    return sum(
        verb.epochs * verb.most_passes * -(-num_train // verb.batch_size)
        if verb.steps is None
        else verb.steps
        for verb in verbs
        if isinstance(verb, Train)
    )


def with_change(settings: RunSettings, graphs: tuple[str, ...], tensors: Tensors) -> Tensors:
    """Return the tensors of an update with its int8 changes decoded.

    `graphs`: graphs whose training made the change.

    Raises:
        WrongLayout: the tensors hold another change.
    """
    return decoded(tensors, [entry for graph in graphs for entry in settings.reported[graph]])


def norms_of(tensors: Tensors, before: Tensors | None = None) -> dict[str, float]:
    """Return the Euclidean norm of the numeric tensors of each role, computed in float64.

    It is finite only if every value is. A tensor that is in `before` as well counts by its change:
    an update holds statistics as absolute values, and ten times the usual ones would ruin a model.
    """
    squares: dict[str, float] = {}
    for name, array in tensors.items():
        if array.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                flat = (array - before[name] if before and name in before else array).ravel()
                square = float(np.dot(flat, flat))
                if not math.isfinite(square):  # the sum in float32 may have overflowed
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
) -> Refusal | None:
    """Return the reason to refuse an update's tensors; None if these verbs could have made them.

    Names, dtypes, shapes, values and size are checked. `norms`: the result of `norms_of`.
    """
    if not tensors and all(
        isinstance(verb, Evaluate) and verb.split in ("windows", "unlabelled", "inputs")
        for verb in verbs
    ):
        return None  # a device without any window reports no tensors
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
        return Refusal("wrong-layout", str(error))
    for name, array in tensors.items():
        if (
            array.dtype.kind == "f"
            and not math.isfinite(norms[names.role_of(name)])
            and not np.isfinite(array).all()
        ):
            return Refusal("not-finite", f"tensor {name!r} holds values that are not finite")
        if names.is_variance(name) and (array < 0).any():
            return Refusal("not-finite", f"tensor {name!r} holds negative variances")
    for role, norm in norms.items():
        if role == names.DELTA and not norm <= settings.max_update_norm:
            return Refusal(
                "norm-too-large",
                f"the update's norm is {norm:.3g}; at most {settings.max_update_norm:.3g} is "
                "accepted (max_update_norm)",
            )
        if not norm <= LARGEST_NORM:
            return Refusal(
                "norm-too-large",
                f"the norm of the role {role} is {norm:.3g}; at most {LARGEST_NORM:.3g} is "
                "accepted",
            )
    return None
