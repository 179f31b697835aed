"""Whether a plan asks for no more than the device's owner permits (SPEC.md, 'Policy'); pure."""

from collections.abc import Collection

import numpy as np

from edge_client.core.held import num_held_out
from wire.messages import MOST_CLASSES, Apply, Choose, Evaluate, Plan, Policy, Protect, Respond, Train, Verb
from wire.tensors import Array


def broken_rule(policy: Policy, plan: Plan, bundle: str, measuring: Collection[str], num_train: int, num_test: int) -> str | None:
    """What in the plan is against the policy: the rule's name, a colon, and what was asked; None if nothing is.

    `bundle`: the bundle's name. `measuring`: its graphs that have responses. The rules on seconds and bytes are kept while the plan is
    carried out.
    """
    for verb in plan.verbs:
        name, graph = str(verb.__struct_config__.tag), getattr(verb, "graph", None)
        if policy.verbs is not None and name not in policy.verbs:
            return f"verbs: {name} is not permitted"
        if policy.graphs is not None and graph is not None and graph not in policy.graphs:
            return f"graphs: {graph} is not permitted"
    if policy.bundles is not None and bundle not in policy.bundles:
        return f"bundles: {bundle} is not permitted"
    epochs = sum(_epochs(verb, num_train) for verb in plan.verbs)
    if epochs > policy.max_epochs:
        return f"max_epochs: {epochs:g} are asked for, {policy.max_epochs:g} are permitted"
    return _unprotected(policy, plan.verbs, measuring) or _too_few_windows(policy, plan.verbs, num_train, num_test)


def told_classes(policy: Policy, y: Array) -> tuple[int, ...] | None:
    """How many windows of each class a check-in says there are, from the classes (n,) int64 of the windows. None where the policy does not
    permit to tell it, where labels are no classes, or where a class number is not one of the first `MOST_CLASSES`."""
    if not policy.tell_classes or y.ndim != 1 or (y.size and not 0 <= int(y.min()) <= int(y.max()) < MOST_CLASSES):
        return None
    return tuple(np.bincount(y).tolist()) if y.size else ()


def _epochs(verb: Verb, num_train: int) -> float:
    if not isinstance(verb, Train) or _trained_on(verb, num_train) < verb.least:
        return 0.0
    return verb.steps * verb.batch_size / max(1, num_train) if verb.steps is not None else float(verb.epochs)


def _trained_on(verb: Train, num_train: int) -> int:
    """The windows that a training is over."""
    return num_train - num_held_out(num_train, verb.holdout)


def _unprotected(policy: Policy, verbs: tuple[Verb, ...], measuring: Collection[str]) -> str | None:
    """What leaves the device without the clipping and noise that the policy asks for. No mechanism covers what a graph measures, and a
    graph may measure a gradient: nothing of that leaves, before training or after it."""
    if not policy.needs_cover:
        return None
    rule = "max_clip_norm" if policy.max_clip_norm is not None else "min_noise_multiplier"
    for verb in verbs:
        reports = isinstance(verb, Respond) or (isinstance(verb, Apply) and verb.report)
        if reports or (isinstance(verb, Evaluate) and verb.report and verb.graph in measuring):
            return f"{rule}: {verb.__struct_config__.tag} reports what neither clipping nor noise covers"
    if not any(isinstance(verb, Train) and verb.report for verb in verbs):
        return None
    last = verbs[-1]
    if not isinstance(last, Protect):
        return f"{rule}: the plan does not end with protect"
    if policy.max_clip_norm is not None and last.clip_norm > policy.max_clip_norm:
        return f"max_clip_norm: {last.clip_norm:g} is asked for, {policy.max_clip_norm:g} is permitted"
    least = (policy.min_noise_multiplier or 0.0) * last.clip_norm
    if last.noise_std < least:
        return f"min_noise_multiplier: noise of {last.noise_std:g} is asked for, {least:g} is the least"
    return None


def _too_few_windows(policy: Policy, verbs: tuple[Verb, ...], num_train: int, num_test: int) -> str | None:
    for verb in verbs:
        match verb:
            case Train():
                count = _trained_on(verb, num_train)
                if count < verb.least:
                    continue
            case Evaluate(report=True, split="holdout"):
                count = num_held_out(num_train, verb.holdout)
            case Evaluate(report=True, split="test"):
                count = num_test
            case Evaluate(report=True) | Choose() | Respond():
                count = num_train
            case _:
                continue
        nothing = isinstance(verb, Evaluate) and count == 0 and (verb.split != "windows" or policy.min_windows <= 1)
        if count < policy.min_windows and not nothing:
            return f"min_windows: {verb.__struct_config__.tag} is over {count}, {policy.min_windows} are the least"
    return None
