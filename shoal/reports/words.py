"""A finished run in words and numbers for people."""

from statistics import fmean

import msgspec

from aggregator.core.summary import Summary, TimeSummary
from aggregator.http.pages.words import number, percent
from simulation.newcomers import EPOCHS


def time_text(time: TimeSummary) -> str:
    """What a run cost on the virtual clock, in a line."""
    devices = ", ".join(
        f"{count:,} {what}" for what, count in msgspec.structs.asdict(time.devices).items()
    )
    reached = ", ".join(
        f"{percent(float(a))} after {s / 3600:.2f} h"
        for a, s in time.time_to_accuracy_s.items()
        if s is not None
    )
    return f"virtual time: {time.virtual_s / 3600:.2f} h; {devices}" + (
        f"; {reached}" if reached else ""
    )


def verdict(summary: Summary) -> str:
    """What came out, in one or two sentences."""
    groups, accuracy = summary.groups.count, summary.accuracy
    devices = len(summary.devices)
    found = (
        f"{groups} groups among {devices} devices"
        if groups > 1
        else f"{devices} devices in one group"
    )
    worst = f"worst tenth {percent(accuracy.worst_tenth)}, worst device {percent(accuracy.worst)}"
    text = f"{summary.algorithm}: {found}, mean accuracy {percent(accuracy.mean)}, {worst}."
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
        apart = "apart from" if attack.told_apart else "among"
        text += (
            f" {len(attack.attackers)} attackers ({attack.attack}) ended {apart} the honest "
            "devices, whose accuracy is"
        )
        text += f" {percent(attack.honest_accuracy.mean)}"
        text += (
            "."
            if attack.success_rate is None
            else f"; the attack succeeds in {percent(attack.success_rate)}."
        )
    if placed := [device.placed for device in summary.devices.values() if device.placed]:
        told = sum(held.neighbours > 0 for held in placed)
        text += (
            f" Devices with fewer labels than training takes: {len(placed)}, of which {told} were "
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
            if summary.kept is None and summary.labels != "none"
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
    """What devices had of the data, where that is not all of it as it is; empty where it is."""
    labels = {"": "", "all": "", "none": "newcomers without labels"}.get(
        summary.labels, f"at most {summary.labels} labelled windows of each class on a device"
    )
    split = (
        f"training and test parts by {summary.split}" if summary.split not in ("", "own") else ""
    )
    return "; ".join(filter(None, (labels, split)))
