"""Whether a step of a rollout is passed: what its devices say of the release, held against what
they say of the model before it. Pure.

Each device evaluates both models on the same windows of its own. The median over devices of how
much the accuracy fell has an interval, from what differs between devices and from how few windows
there are. While the interval lies on both sides of `max_drop`, the step waits; after `patience_s`,
or when every device has answered, the median itself decides. So fewer than half of a step's
devices, of three or more, cannot make a release pass that is worse on each of the others, nor have
one go back that is on none. A device that never says what it uses holds a step up for no
longer than that.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from aggregator.core.release.state import Gate, Holder
from wire.codec import LARGEST_SUM
from wire.messages import Metrics

Outcome = Literal["wait", "pass", "fail"]
Answer = Literal["confirmed", "failed", "waiting", "away"]
Z = 1.645
"""Standard errors on either side: one in twenty is outside on one side."""
OF_MEDIAN, OF_DEVIATION = math.sqrt(math.pi / 2), 1.4826
"""For normal values: the standard error of the median by that of the mean, and the standard
deviation by the median absolute one."""


def answer_of(holder: Holder, number: int) -> tuple[Answer, str]:
    """What a device that was given a release has said of it, and the reason where that has
    failed."""
    said = holder.said
    told = (
        said is not None and number <= said.offered <= holder.given and said.number <= holder.given
    )
    if (
        said is None or not told or (said.number < number and not said.problem)
    ):  # it is still trying it
        return ("waiting" if holder.online else "away"), ""
    if said.problem:
        return "failed", said.problem
    if not abs(said.evaluated.loss_sum) <= LARGEST_SUM:
        return "failed", "the loss is not finite"
    if said.failures:
        return "failed", "predictions fail"
    return "confirmed", ""


def judge(
    gate: Gate, devices: Sequence[tuple[Holder, int]], waited_s: float
) -> tuple[Outcome, str]:
    """Return what follows for the rollout from a step, and why. `devices`: whom it has reached so
    far, and the release that each was given."""
    if not devices:
        return (
            "wait",
            "no device is in this step: `shoal devices tag` puts one in, `shoal models rollout "
            "--promote` goes on",
        )
    answers = [answer_of(holder, number) for holder, number in devices]
    counts = {
        name: sum(answer == name for answer, _ in answers)
        for name in ("confirmed", "failed", "waiting", "away")
    }
    silent = sum(
        h.said is None and answer == "waiting"
        for (h, _), (answer, _) in zip(devices, answers, strict=True)
    )
    there = len(devices) - counts["away"] - (silent if waited_s >= gate.patience_s else 0)
    if not there:
        return (
            "wait",
            "none of its devices says what it uses" if silent else "none of its devices is online",
        )
    if counts["failed"] > gate.max_failures * there:
        why = next(reason for answer, reason in answers if answer == "failed")
        return ("fail", f"it failed on {counts['failed']} of {there} devices: {why}"[:1000])
    confirmed = [
        holder
        for (holder, _), (answer, _) in zip(devices, answers, strict=True)
        if answer == "confirmed"
    ]
    drop, margin = drop_of(confirmed)
    if drop - margin > gate.max_drop:
        return ("fail", _fell(drop, confirmed, gate))
    if counts["confirmed"] < gate.quorum * there:
        return ("wait", f"{counts['confirmed']} of {there} devices have confirmed")
    slower = [
        h.said.latency_ms / h.usual_ms
        for h in confirmed
        if h.said is not None and h.said.latency_ms > 0 and h.usual_ms > 0
    ]
    if slower and median(slower) > gate.max_slower:
        return (
            "fail",
            f"a prediction takes {median(slower):.1f} times as long as before, at most "
            f"{gate.max_slower:g} are allowed",
        )
    complete = not counts["waiting"] and not counts["away"]
    if drop + margin > gate.max_drop and waited_s < gate.patience_s and not complete:
        return ("wait", f"too few windows: accuracy fell by {drop:.3f}, give or take {margin:.3f}")
    if drop > gate.max_drop:
        return ("fail", _fell(drop, confirmed, gate))
    unmeasured = ""
    if math.isinf(margin):
        is_tested = any(h.said is not None and h.said.evaluated.num_examples for h in confirmed)
        unmeasured = (
            "; none had a model before it, so it was held against none"
            if is_tested
            else "; none has test windows, so nobody has measured how right it is"
        )
    return ("pass", f"{counts['confirmed']} of {there} devices have confirmed{unmeasured}")


def drop_of(confirmed: Sequence[Holder]) -> tuple[float, float]:
    """By how much the accuracy of devices fell, the median, and how far off that may be; infinitely
    far where none has evaluated both."""
    drops, variances = [], []
    for holder in confirmed:
        said = holder.said
        if said is not None and said.evaluated.num_examples and said.before.num_examples:
            drops.append(said.before.accuracy - said.evaluated.accuracy)
            variances.append(_variance(said.before) + _variance(said.evaluated))
    if not drops:
        return 0.0, math.inf
    usual = median(drops)
    between = OF_DEVIATION * median(abs(drop - usual) for drop in drops)
    return usual, Z * OF_MEDIAN * math.sqrt(max(between**2, median(variances)) / len(drops))


def _variance(metrics: Metrics) -> float:
    """Of an accuracy, as if one window more had been right and one more wrong: all of a few windows
    right is no certainty."""
    share = (metrics.num_correct + 1) / (metrics.num_examples + 2)
    return share * (1 - share) / metrics.num_examples


def _fell(drop: float, confirmed: Sequence[Holder], gate: Gate) -> str:
    return (
        f"accuracy fell by {drop:.3f} on {len(confirmed)} devices, at most {gate.max_drop:g} are "
        "allowed"
    )
