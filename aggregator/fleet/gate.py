"""Judges a step of a rollout: what its devices report of the release, against what they report of
the model before it.

Each device evaluates both models on the same windows of its own. The median over devices of the
fall of accuracy has an interval, from what differs between devices and from how few windows there
are. While the interval lies on both sides of `max_drop`, the step waits; after `patience_s`, or
when every device has answered, the median itself decides. So fewer than half of a step's devices,
of three or more, cannot make a release pass that is worse on each of the others, nor have one
withdrawn that is on none; nor does one fail by a single device. A device that never reports delays
a step by `patience_s` at most.

Devices are counted by marks as they report (`answer_marks`), so that a step is judged in a time
that does not depend on their number. Accuracies are counted to a thousandth.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from aggregator.core.steps import Gate
from aggregator.fleet.records import Device
from wire.codec import LARGEST_SUM
from wire.messages import Metrics

Outcome = Literal["wait", "pass", "fail"]
Answer = Literal["confirmed", "failed", "waiting", "away", "silent"]
Z = 1.645
"""Number of standard errors on either side: one in twenty lies outside on one side."""
OF_MEDIAN, OF_DEVIATION = math.sqrt(math.pi / 2), 1.4826
"""For normal values: the standard error of the median by that of the mean, and the standard
deviation by the median absolute one."""
FINE = 1000
"""Accuracies are counted in parts of so many."""
RATIOS = 10
"""Ratios of times are counted in tenths; variances in powers of two, in tenths."""


def answer_of(device: Device) -> tuple[Answer, str]:
    """Return what a device has reported of the release that it was offered last, and the reason if
    it failed. `silent`: it has never reported any."""
    report, serial = device.in_use, device.given.serial
    is_told = report is not None and report.offered == serial and report.number <= serial
    if report is None or not is_told or (report.number < serial and not report.problem):
        if not device.online:
            return "away", ""
        return ("silent" if report is None else "waiting"), ""
    if report.problem:
        return "failed", report.problem
    if not abs(report.evaluated.loss_sum) <= LARGEST_SUM:
        return "failed", "the loss is not finite"
    if report.failures:
        return "failed", "predictions fail"
    return "confirmed", ""


def answer_marks(device: Device) -> Iterator[str]:
    """Yield the marks under which a device is counted for the release that it was offered last."""
    number, report = device.given.release, device.in_use
    answer, _ = answer_of(device)
    yield f"{answer}/{number}"
    if answer != "confirmed" or report is None:
        return
    if report.latency_ms > 0 and device.usual_ms > 0:
        yield f"ratio/{number}/{min(10_000, round(RATIOS * report.latency_ms / device.usual_ms))}"
    if report.evaluated.num_examples:
        yield f"tested/{number}"
        if report.before.num_examples:
            drop = report.before.accuracy - report.evaluated.accuracy
            variance = _variance(report.before) + _variance(report.evaluated)
            yield f"drop/{number}/{round(FINE * drop)}"
            yield f"variance/{number}/{round(RATIOS * math.log2(variance))}"


class StepAnswers(NamedTuple):
    """Answers of the devices of a step."""

    waiting: int = 0
    confirmed: int = 0
    failed: int = 0
    away: int = 0
    silent: int = 0
    tested: int = 0
    drops: Mapping[float, int] = {}
    """By fall of accuracy, the number of devices."""
    variances: Mapping[float, int] = {}
    ratios: Mapping[float, int] = {}
    """By time of a prediction, in multiples of that with the model before."""


def judge(gate: Gate, tally: StepAnswers, waited_s: float, problem: str) -> tuple[Outcome, str]:
    """Return what follows for the rollout from a step, and why. `problem`: the last one that a
    device reported."""
    number = tally.waiting + tally.confirmed + tally.failed + tally.away + tally.silent
    if not number:
        return (
            "wait",
            "no device is in this step: `shoal devices tag` puts one in, `shoal models rollout "
            "--promote` goes on",
        )
    is_late = waited_s >= gate.patience_s
    unanswered = tally.waiting + tally.silent
    there = number - tally.away - (unanswered if is_late else 0)
    if not there:
        is_silent = "none of its devices reports which model it uses"
        return "wait", is_silent if unanswered else "none of its devices is online"
    most = gate.max_failures * there
    if tally.failed > (max(most, 1) if there >= 3 else most):
        return "fail", f"it failed on {tally.failed} of {there} devices: {problem}"[:1000]
    drop, margin = drop_of(tally)
    fell = (
        f"accuracy fell by {drop:.3f} on {tally.confirmed} devices, at most {gate.max_drop:g} are "
        "allowed"
    )
    if drop - margin > gate.max_drop:
        return "fail", fell
    confirmed = f"{tally.confirmed} of {there} devices have confirmed"
    if tally.confirmed < gate.quorum * there:
        return "wait", confirmed
    if tally.ratios and (slower := _median(tally.ratios)) > gate.max_slower:
        return (
            "fail",
            f"a prediction takes {slower:.1f} times as long as before, at most "
            f"{gate.max_slower:g} are allowed",
        )
    is_complete = not (unanswered or tally.away)
    if drop + margin > gate.max_drop and not is_late and not is_complete:
        return "wait", f"too few windows: accuracy fell by {drop:.3f}, give or take {margin:.3f}"
    if drop > gate.max_drop:
        return "fail", fell
    if math.isfinite(margin):
        return "pass", confirmed
    compared = "; none had a model before it, so it was held against none"
    untested = "; none has test windows, so nobody has measured how right it is"
    return "pass", confirmed + (compared if tally.tested else untested)


def drop_of(tally: StepAnswers) -> tuple[float, float]:
    """Return the median fall of accuracy over devices, and its margin; infinite where none has
    evaluated both models."""
    if not tally.drops:
        return 0.0, math.inf
    usual = _median(tally.drops)
    distances: dict[float, int] = {}
    for drop, count in tally.drops.items():
        distances[abs(drop - usual)] = distances.get(abs(drop - usual), 0) + count
    between, within = OF_DEVIATION * _median(distances), _median(tally.variances)
    number = sum(tally.drops.values())
    return usual, Z * OF_MEDIAN * math.sqrt(max(between**2, within) / number)


def _median(counts: Mapping[float, int]) -> float:
    """Return the median of values that are counted: of an even number, the mean of the two."""
    number, below, low = sum(counts.values()), 0, None
    for value, count in sorted(counts.items()):
        below += count
        if low is None and 2 * below >= number:
            low = value
        if 2 * below > number:
            return (value + (value if low is None else low)) / 2
    raise ValueError("no values")


def _variance(metrics: Metrics) -> float:
    """Return the variance of an accuracy, as if one window more had been right and one more wrong:
    all of a few windows right is no certainty."""
    share = (metrics.num_correct + 1) / (metrics.num_examples + 2)
    return share * (1 - share) / metrics.num_examples
