"""Check of a plan against the policy of the device's owner (SPEC.md, 'Policy'); pure."""

from collections.abc import Collection

import numpy as np
from msgspec.structs import replace

from wire.arrays.tensors import Array
from wire.held import held_out, num_held_out
from wire.messages import (
    MOST_CLASSES,
    Apply,
    CheckIn,
    Choose,
    Evaluate,
    Mask,
    Plan,
    Policy,
    Protect,
    Respond,
    SurveySum,
    TellGroup,
    Train,
    Verb,
)

GOLDEN = 0.6180339887498949
ENOUGH_WINDOWS = 32
"""Number of training windows that a device reports if it does not report how many it has."""
IN_TURN = 3
"""Number of windows with labels that are taken before each window without a label."""


def ranks(num_labelled: int, num_unlabelled: int) -> Array:
    """Return the rank (n,) int64 of each window; windows with labels come first in the array.

    The ranks go in turn to `IN_TURN` windows with labels and one without, while there are both.
    Each kind is taken in the order of multiples of the golden ratio modulo 1, so the first ranks
    are spread evenly over all windows of their kind and follow no period of the data.
    """
    labelled, unlabelled = np.arange(num_labelled), np.arange(num_unlabelled)
    turn = np.concatenate(
        [
            labelled // IN_TURN * (IN_TURN + 1) + labelled % IN_TURN,
            unlabelled * (IN_TURN + 1) + IN_TURN,
        ]
    )
    labelled_order, unlabelled_order = (
        np.argsort((np.arange(1, count + 1) * GOLDEN) % 1.0, kind="stable")
        for count in (num_labelled, num_unlabelled)
    )
    order = np.concatenate([labelled_order, num_labelled + unlabelled_order])
    window_ranks = np.empty(len(order), np.int64)
    window_ranks[order[np.argsort(turn, kind="stable")]] = np.arange(len(order))
    return window_ranks


def broken_rule(
    policy: Policy, plan: Plan, bundle: str, measuring: Collection[str], y: Array, num_test: int
) -> str | None:
    r"""Return the rule that the plan breaks, a colon and what the plan demands, or None.

    The rules on seconds and bytes are enforced while the plan is carried out.

    Args:
        policy: what the owner permits.
        plan: the plan to check.
        bundle: name of the plan's bundle.
        measuring: graphs of the bundle that have responses.
        y: labels (n, \*label) of the training windows.
        num_test: number of test windows.
    """
    num_train = len(y)
    for verb in plan.verbs:
        name, graph = str(verb.__struct_config__.tag), getattr(verb, "graph", None)
        if policy.verbs is not None and name not in policy.verbs:
            return f"verbs: {name} is not permitted"
        if policy.graphs is not None and graph is not None and graph not in policy.graphs:
            return f"graphs: {graph} is not permitted"
        reports = getattr(verb, "report", isinstance(verb, Respond | Choose))
        if policy.unreported is not None and graph in policy.unreported and reports:
            return f"unreported: {name} reports what graph {graph} gives"
    if policy.bundles is not None and bundle not in policy.bundles:
        return f"bundles: {bundle} is not permitted"
    masked, surveys = mask_of(plan) is not None, surveying(plan) is not None
    if policy.min_sum is not None and not masked and not surveys:
        return "min_sum: the plan does not end with mask"
    if surveys and (malformed := _no_survey(plan.verbs)):
        return malformed
    if masked and not surveys and (forbidden := _unmaskable(plan.verbs[:-1])):
        return forbidden
    epochs = 0.0
    for verb in plan.verbs:
        if isinstance(verb, Train) and _trained_on(verb, num_train) >= verb.least:
            epochs += (
                verb.epochs
                if verb.steps is None
                else verb.steps * verb.batch_size / max(1, num_train)
            )
    if epochs > policy.max_epochs:
        return f"max_epochs: {epochs:g} are asked for, {policy.max_epochs:g} are permitted"
    verbs = plan.verbs
    if masked or surveys:  # of all that the plan reports, only this is sent
        sent = Train | Protect | SurveySum | TellGroup
        verbs = tuple(verb for verb in verbs if isinstance(verb, sent))
    return (
        _unprotected(policy, verbs, measuring)
        or _too_few_windows(policy, verbs, measuring, y, num_test)
        or _telling(policy, verbs, measuring)
    )


def reported_classes(policy: Policy, y: Array) -> tuple[int, ...] | None:
    """Return the number of windows per class for a check-in, from the classes (n,) int64.

    None if the policy does not permit it, if labels are not classes, or if a class number is not
    below `MOST_CLASSES`.
    """
    if (
        not policy.tell_classes
        or y.ndim != 1
        or (y.size and not 0 <= int(y.min()) <= int(y.max()) < MOST_CLASSES)
    ):
        return None
    return tuple(np.bincount(y).tolist()) if y.size else ()


def mask_of(plan: Plan) -> Mask | None:
    """Return the verb that masks the plan's result, or None if it is reported as it is."""
    return last if plan.verbs and isinstance(last := plan.verbs[-1], Mask) else None


def surveying(plan: Plan) -> SurveySum | TellGroup | None:
    """Return the verb by which a plan finds groups from sums, or None."""
    return next((verb for verb in plan.verbs if isinstance(verb, SurveySum | TellGroup)), None)


def permitted_facts(policy: Policy, message: CheckIn) -> CheckIn:
    """Return a check-in without the facts of the data that the policy does not permit."""
    if policy.min_sum is None:
        return message
    enough = ENOUGH_WINDOWS if message.num_train >= ENOUGH_WINDOWS else 0
    nothing = {"num_test": 0, "num_unlabelled": 0, "classes": None, "moved": False}
    return replace(message, num_train=enough, **nothing)


def _no_survey(verbs: tuple[Verb, ...]) -> str | None:
    """Return the rule that a plan with `survey-sum` or `tell-group` breaks, or None.

    Such a plan surveys all training windows with the bundle's initial model, and does nothing else.
    So all that devices tell of their groups is about the same measurements.
    """
    survey = Evaluate("train", "survey", "initial", report=False)
    match verbs:
        case (Evaluate() as first, SurveySum(), Mask()) if first == survey:
            return None
        case (Evaluate() as first, TellGroup()) if first == survey:
            return None
    name = next(v for v in verbs if isinstance(v, SurveySum | TellGroup)).__struct_config__.tag
    return f"{name}: the plan must be a survey by the initial model, {name} and nothing else"


def _unmaskable(verbs: tuple[Verb, ...]) -> str | None:
    """Return the rule `mask` with the first of these verbs that may not come before it, or None.

    A device must contribute whatever its data are, by the same rule as all others. Else the sums of
    two plans over the same devices differ by what one of them has.
    """
    for verb in verbs:
        match verb:
            case Train(steps=None, holdout=0.0, least=0, report=True):
                continue
            case Evaluate(holdout=0.0, most=0) | Protect():
                continue
        return f"mask: this form of {verb.__struct_config__.tag} is not permitted before it"
    return None


def _telling(policy: Policy, verbs: tuple[Verb, ...], measuring: Collection[str]) -> str | None:
    """Return the rule `tell_classes` with the graph whose measurements would tell classes, or None.

    A measurement of windows with their labels may be a gradient, which tells the classes.
    """
    if policy.tell_classes:
        return None
    for verb in verbs:
        if not isinstance(verb, Evaluate) or verb.split in ("inputs", "unlabelled"):
            continue
        if verb.report and verb.graph in measuring:
            return f"tell_classes: evaluate reports what graph {verb.graph} measures with labels"
    return None


def _trained_on(verb: Train, num_train: int) -> int:
    """Return the number of windows that a training uses."""
    return num_train - num_held_out(num_train, verb.holdout)


def _unprotected(policy: Policy, verbs: tuple[Verb, ...], measuring: Collection[str]) -> str | None:
    """Return the rule on clipping and noise that the plan breaks, or None.

    Neither clipping nor noise covers what a graph measures, and a graph may measure a gradient. So
    no such measurement may leave the device, before training or after it.
    """
    if not policy.needs_cover:
        return None
    rule = "max_clip_norm" if policy.max_clip_norm is not None else "min_noise_multiplier"
    for verb in verbs:
        reports = isinstance(verb, Respond | SurveySum | TellGroup)
        reports |= isinstance(verb, Apply) and verb.report
        if reports or (isinstance(verb, Evaluate) and verb.report and verb.graph in measuring):
            return (
                f"{rule}: {verb.__struct_config__.tag} reports what neither clipping nor noise "
                "covers"
            )
    if not any(isinstance(verb, Train) and verb.report for verb in verbs):
        return None
    last = verbs[-1]
    if not isinstance(last, Protect):
        return f"{rule}: the plan does not end with protect"
    if policy.max_clip_norm is not None and last.clip_norm > policy.max_clip_norm:
        return (
            f"max_clip_norm: {last.clip_norm:g} is asked for, {policy.max_clip_norm:g} is permitted"
        )
    least = (policy.min_noise_multiplier or 0.0) * last.clip_norm
    if last.noise_std < least:
        return (
            f"min_noise_multiplier: noise of {last.noise_std:g} is asked for, {least:g} is the "
            "least"
        )
    return None


def _too_few_windows(
    policy: Policy, verbs: tuple[Verb, ...], measuring: Collection[str], y: Array, num_test: int
) -> str | None:
    """Return the rule `min_windows` with the verb that reports on too few windows, or None.

    An unreported verb affects what later verbs report, so its windows count for them too.
    Only the accuracy of a model's answers is exempt.
    """
    behind = len(y)
    for verb in verbs:
        count = _windows_of(verb, y, num_test)
        if count is None or (
            count == 0 and policy.min_windows <= 1 and not isinstance(verb, Train)
        ):
            continue
        match verb:
            case Train(report=False) | Evaluate(report=False):
                behind = min(behind, count)
                continue
            case Apply() | Train() | Respond() | SurveySum() | TellGroup():
                count = min(count, behind)
            case Evaluate() if verb.graph in measuring:
                count = min(count, behind)
        if count < policy.min_windows:
            over = str(count) if policy.min_sum is None else "too few windows"
            return (
                f"min_windows: {verb.__struct_config__.tag} is over {over}, {policy.min_windows} "
                "are the least"
            )
    return None


def _windows_of(verb: Verb, y: Array, num_test: int) -> int | None:
    """Return the number of windows with labels that a verb uses.

    A verb that reports results from tensors alone counts as if it used all windows. None if the
    verb uses no window and measures nothing: a training that is skipped, or an empty split.
    """
    num_train = len(y)
    match verb:
        case Train():
            count = _trained_on(verb, num_train)
            return None if count < verb.least else count
        case Evaluate(split="test"):
            return num_test or None
        case Evaluate(split="holdout"):
            return num_held_out(num_train, verb.holdout) or None
        case Evaluate(split="windows" | "unlabelled" | "inputs") if verb.most and verb.report:
            return 0  # two reports that differ by one window would reveal that window
        case Evaluate(split="windows"):
            counted = held_out(y, verb.holdout) if verb.holdout else np.ones(num_train, bool)
            return (
                int((counted & (ranks(num_train, num_train)[:num_train] < verb.most)).sum())
                if verb.most
                else int(counted.sum())
            )
        case Evaluate(split="unlabelled"):
            return 0 if verb.report else verb.most or None
        case Evaluate(split="inputs"):
            return min(num_train, verb.most or num_train)
        case Evaluate(split="train"):
            return num_train or None
        case Evaluate() | Choose() | Respond() | SurveySum() | TellGroup() | Apply(report=True):
            return num_train
    return None
