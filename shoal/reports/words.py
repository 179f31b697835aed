"""A finished run, and the personal models that devices chose, in words for people."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from aggregator.http.pages.words import number, percent
from aggregator.view.summary import Summary, TimeSummary
from algorithms.personalisation.keeping import BEYOND, GENERAL, TUNED, Recipe
from algorithms.personalisation.kept import PersonalChoice
from simulation.newcomers import EPOCHS
from wire.held import FEWEST

UNUSABLE = "no training, one that did not end well, or labels of a part of the classes"
"""Reasons why a device may not use a candidate."""


def time_text(time: TimeSummary) -> str:
    """Return a run's virtual time, counts of jobs and time to each accuracy, in a line."""
    jobs = ", ".join(
        f"{count:,} {what}" for what, count in msgspec.structs.asdict(time.devices).items()
    )
    reached = ", ".join(
        f"accuracy {percent(float(a))} after {s / 3600:.2f} h"
        for a, s in time.time_to_accuracy_s.items()
        if s is not None
    )
    return f"virtual time {time.virtual_s / 3600:.2f} h; jobs of devices: {jobs}" + (
        f"; {reached}" if reached else ""
    )


def backend_text(summary: Summary) -> str:
    """Return the backend that trained a run, and the reason for it."""
    speed = f"backend {summary.backend}, {summary.updates_per_s:.3g} updates a second"
    if not summary.backend_reason:
        return speed
    return f"{speed}. {summary.backend_reason}. Backends differ by rounding only."


def verdict(summary: Summary) -> str:
    """Return the outcome of a run in one paragraph."""
    groups, accuracy = summary.groups.count, summary.accuracy
    devices = len(summary.devices)
    group_text = (
        f"{groups} groups among {devices} devices"
        if groups > 1
        else f"{devices} devices in one group"
    )
    worst = f"worst tenth {percent(accuracy.worst_tenth)}, worst device {percent(accuracy.worst)}"
    text = f"{summary.algorithm}: {group_text}, mean accuracy {percent(accuracy.mean)}, {worst}."
    if summary.accuracy_is:
        losses = [device.loss for device in summary.devices.values() if device.loss is not None]
        text += (
            f" Accuracy is the share of {summary.accuracy_is}. Mean loss "
            f"{number(fmean(losses) if losses else None)}."
        )
    if summary.macro_f1:
        text += (
            f" Mean macro F1 {percent(summary.macro_f1.mean)}, worst tenth "
            f"{percent(summary.macro_f1.worst_tenth)}."
        )
    if summary.auc:
        text += (
            f" Mean AUC {percent(summary.auc.mean)}, worst tenth "
            f"{percent(summary.auc.worst_tenth)}."
        )
    for name, error in (summary.mae or {}).items():
        text += (
            f" Mean absolute error of {name} {number(error.mean)}, worst tenth "
            f"{number(error.worst_tenth)}."
        )
    if summary.epsilon is not None:
        text += f" Epsilon {summary.epsilon:.2f}."
    if attack := summary.attack:
        attackers = len(attack.attackers)
        who = "1 attacker" if attackers == 1 else f"{attackers} attackers"
        apart = "apart from" if attack.told_apart else "among"
        text += f" {who} ({attack.attack}) ended {apart} the honest devices, whose accuracy is"
        text += f" {percent(attack.honest_accuracy.mean)}"
        text += (
            "."
            if attack.success_rate is None
            else f"; the attack succeeds in {percent(attack.success_rate)}."
        )
    if placed := [device.placed for device in summary.devices.values() if device.placed]:
        num_by_inputs = sum(placement.neighbours > 0 for placement in placed)
        text += (
            f" Devices in no group by training: {len(placed)}, of which {num_by_inputs} were "
            "placed by their inputs."
        )
    if summary.newcomers:
        without, count = (
            " without labels" if summary.labels == "none" else "",
            len(summary.newcomers.devices),
        )
        came = f"1 newcomer{without} reaches" if count == 1 else f"{count} newcomers{without} reach"
        trained = (
            f" after {EPOCHS} epochs of training"
            if summary.personal_models is None and summary.labels != "none"
            else ""
        )
        text += f" {came} {percent(summary.newcomers.mean)}{trained}."
    for name, other in summary.comparison.items():
        if other.mean is not None and accuracy.mean is not None:
            gain = 100 * (accuracy.mean - other.mean)
            text += (
                f" {name} on the same data: {percent(other.mean)}, {abs(gain):.1f} points "
                f"{'less' if gain >= 0 else 'more'}."
            )
    return text


def scenario_text(summary: Summary) -> str:
    """Return the scenario's limits of the devices' data; empty if there are none."""
    labels = {"": "", "all": "", "none": "newcomers without labels"}.get(
        summary.labels, f"at most {summary.labels} labelled windows of each class on a device"
    )
    split = (
        f"training and test parts by {summary.split}" if summary.split not in ("", "own") else ""
    )
    return "; ".join(filter(None, (labels, split)))


def rule_text(recipe: Recipe | None) -> str:
    """Return the rule by which a device chooses its personal model, in words.

    The rule is `algorithms.personalisation.keeping.first_good`; without a recipe devices choose by
    other means.
    """
    if recipe is None:
        return "Each device chooses among these candidates by windows that it held out."
    judged = (
        "A device judges its candidates by their mean loss on windows that it held out, in the "
        "order of this table."
    )
    few = (
        f"with fewer than {FEWEST} such windows, {recipe.candidates[recipe.unjudged]}, or the "
        "next that it can use"
    )
    if not recipe.errors:
        return f"{judged} It keeps the one with the least loss; {few}."
    return (
        f"{judged} It keeps the first whose mean loss is above the least by no more than "
        f"{recipe.errors:g} standard errors and by no more "
        f"than {BEYOND:g}; {few}. A standard error is that of the difference between the two "
        "losses, window by window. So an earlier "
        "candidate is preferred, unless the best is clearly better. The margin is how far a mean "
        "loss is above the least."
    )


def names_text(recipe: Recipe | None) -> str:
    """Return the meanings of the candidates' names; empty without a recipe."""
    if recipe is None:
        return ""
    moved = (
        ", with BatchNorm's statistics moved towards those of the device's windows"
        if recipe.recalibrates
        else ""
    )
    meanings = {GENERAL: f"the group's model{moved}"}
    meanings |= (
        {TUNED: "that model on the way to what the device's own training makes of it"}
        if recipe.tunes
        else {}
    )
    models = "; ".join(f"{name}: {what}" for name, what in meanings.items() if recipe.of(name))
    shares = any(candidate.share for candidate in recipe.candidates)
    return (
        (
            f"{models}; nearest neighbours: the weight in the answer of the device's own windows "
            "that are most alike."
        )
        if shares
        else f"{models}."
    )


def margin_text(choice: PersonalChoice | None, candidates: Sequence[str]) -> str:
    """Return the excess of a device's chosen loss over the least, and rejected losses.

    These are the losses of the candidates that the device considered before its choice. Each margin
    has its standard error if the device reported it. The text is empty if the device has reported
    nothing.

    Args:
        kept: the device's report of its choice, None if there is none.
        candidates: names of the candidates in the order in which devices consider them.
    """
    if choice is None:
        return ""
    passed = candidates[: candidates.index(choice.candidate)]
    left_out = ", ".join(name for name in passed if name in choice.unusable)
    unusable = f"; not to be used ({UNUSABLE}): {left_out}" if left_out else ""
    if choice.loss is None:
        return f"no windows held out to judge by{unusable}"
    losses = {**choice.others, choice.candidate: choice.loss}
    usable = {name: loss for name, loss in losses.items() if name not in choice.unusable}
    best = min(usable, key=usable.__getitem__)
    text = f"loss {choice.loss:.3f} on {choice.windows} window{'' if choice.windows == 1 else 's'}"
    if choice.windows < FEWEST:
        return f"{text}, too few to judge by{unusable}"
    if choice.loss <= usable[best]:
        text += (
            ", the least" if usable.keys() == losses.keys() else ", the least of those to be used"
        )
    else:
        text += f", {_margin(choice, usable, choice.candidate)} to the least ({best})"
    margins = ", ".join(
        f"{name} ({_margin(choice, usable, name)})" for name in passed if name in usable
    )
    return (f"{text}; passed over: {margins}" if margins else text) + unusable


def _margin(choice: PersonalChoice, losses: Mapping[str, float], name: str) -> str:
    error = choice.errors.get(name)
    return f"margin {losses[name] - min(losses.values()):.3f}" + (
        "" if error is None else f", standard error {error:.3f}"
    )
