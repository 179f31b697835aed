"""Judgement of a rollout's step, by the devices' reports on the release and on the model before it.

Each device evaluates both models on the same windows of its own. The judgement uses the median over
devices of the fall of accuracy. The median's interval reflects the differences between devices and
the small numbers of windows. While the interval contains `max_drop`, the step waits. After
`patience_s`, or when every device has answered, the median alone decides.

So a minority of a step's devices, of three or more, can neither make a release pass that is worse
on all others, nor fail a release that is worse on none. One device decides only if it is the whole
step: a failure, a fall of accuracy or a slow prediction counts from two devices on, and so does a
confirmation in a step of three or more. If one device contradicts the only other one that reports,
nobody can know which of them is wrong, and the step waits for the operator. A device that never
reports delays a step by at most `patience_s`.

Devices are counted by marks as they report (`answer_marks`), so that the time to judge a step does
not depend on their number. Accuracies are counted to a thousandth.
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
CONFIRMED = "confirmed"
"""Statement of a device that has nothing against a release."""
Z = 1.645
"""Number of standard errors on either side of the median: 5 % lie outside on each side."""
DECIDE = "`shoal models rollout --promote` or `shoal models rollback` decides"
OF_MEDIAN, OF_DEVIATION = math.sqrt(math.pi / 2), 1.4826
"""Factors for normal values.

The first is the standard error of the median as a multiple of that of the mean. The second is the
standard deviation as a multiple of the median absolute deviation.
"""
FINE = 1000
"""Number of steps of an accuracy from 0 to 1, in which falls of accuracy are counted."""
RATIOS = 10
"""Number of steps of a ratio of 1, and of a factor of two in variances."""


def answer_of(device: Device) -> tuple[Answer, str]:
    """Return a device's answer to its last offer of a release, and the reason of a failure.

    `silent`: the device has never reported a model in use.
    """
    report, serial = device.in_use, device.last_offer.serial
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
    """Yield the marks under which a device is counted for the last release that it was offered."""
    number, report = device.last_offer.release, device.in_use
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
    """Number of devices with each fall of accuracy (fraction)."""
    variances: Mapping[float, int] = {}
    ratios: Mapping[float, int] = {}
    """Number of devices with each time of a prediction (multiple of that before the release)."""


def judge(gate: Gate, tally: StepAnswers, waited_s: float) -> tuple[Outcome, str]:
    """Return the outcome of a rollout's step, and the reason."""
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
    witnesses = number - (tally.silent if is_late else 0)
    least = 1 if witnesses == 1 else 2  # a single device decides nothing about others
    if tally.failed >= least and tally.failed > gate.max_failures * there:
        return "fail", f"it failed on {tally.failed} of {there} devices"
    drop, margin = drop_of(tally)
    fell, compared = _above(tally.drops, gate.max_drop)
    fall = (
        f"accuracy fell by {drop:.3f} on {tally.confirmed} devices; at most {gate.max_drop:g} is "
        "allowed"
    )
    if drop - margin > gate.max_drop and fell >= least:
        return "fail", fall
    confirmed = f"{tally.confirmed} of {there} devices have confirmed"
    confirmed += f", and it failed on {tally.failed}" if tally.failed else ""
    # devices on which it failed were judged above
    if tally.confirmed < gate.quorum * (there - tally.failed):
        return "wait", confirmed
    if tally.confirmed < least and (witnesses > 2 or tally.failed):
        return "wait", f"{confirmed}: one device proves nothing; {DECIDE}"
    slow, timed = _above(tally.ratios, gate.max_slower)
    slower = _median(tally.ratios) if timed else 0.0
    if slower > gate.max_slower and slow >= least:
        return (
            "fail",
            f"a prediction takes {slower:.1f} times as long as before; at most "
            f"{gate.max_slower:g} times is allowed",
        )
    for what, above, total in (("accuracy fell", fell, compared), ("it is slower", slow, timed)):
        if 0 < above < least and total < 3:
            return "wait", f"{what} too much on 1 of the {total} devices that measure it; {DECIDE}"
    is_complete = not (unanswered or tally.away)
    if drop + margin > gate.max_drop and not is_late and not is_complete:
        return "wait", f"too few windows: accuracy fell by {drop:.3f}, give or take {margin:.3f}"
    if drop > gate.max_drop:
        return "fail", fall
    if math.isfinite(margin):
        return "pass", confirmed
    no_model = "; none had a model before, so accuracy was not compared"
    untested = "; none has test windows, so accuracy was not measured"
    return "pass", confirmed + (no_model if tally.tested else untested)


def statement_of(device: Device, gate: Gate) -> str:
    """Return the report of a device about the release that it was offered last.

    It is `CONFIRMED` if the device has nothing against it, and empty if it has not answered.
    """
    answer, problem = answer_of(device)
    report = device.in_use
    if report is None or answer not in ("confirmed", "failed"):
        return ""
    if answer == "failed":
        return f"failed: {problem}"
    drop = report.before.accuracy - report.evaluated.accuracy
    if report.before.num_examples and report.evaluated.num_examples and drop > gate.max_drop:
        return f"accuracy fell by {drop:.3f}"
    if 0 < gate.max_slower * device.usual_ms < report.latency_ms:
        return f"{report.latency_ms / device.usual_ms:.1f} times as slow"
    return CONFIRMED


def drop_of(tally: StepAnswers) -> tuple[float, float]:
    """Return the median fall of accuracy over devices, and its margin.

    The margin is infinite if no device has evaluated both models.
    """
    if not tally.drops:
        return 0.0, math.inf
    usual = _median(tally.drops)
    distances: dict[float, int] = {}
    for drop, count in tally.drops.items():
        distances[abs(drop - usual)] = distances.get(abs(drop - usual), 0) + count
    between, within = OF_DEVIATION * _median(distances), _median(tally.variances)
    number = sum(tally.drops.values())
    return usual, Z * OF_MEDIAN * math.sqrt(max(between**2, within) / number)


def _above(counts: Mapping[float, int], most: float) -> tuple[int, int]:
    """Return the number of counted values above a limit, and of all counted values."""
    return sum(n for value, n in counts.items() if value > most), sum(counts.values())


def _median(counts: Mapping[float, int]) -> float:
    """Return the median of counted values; for an even number, the mean of the middle two."""
    number, below, low = sum(counts.values()), 0, None
    for value, count in sorted(counts.items()):
        below += count
        if low is None and 2 * below >= number:
            low = value
        if 2 * below > number:
            return (value + (value if low is None else low)) / 2
    raise ValueError("no values")


def _variance(metrics: Metrics) -> float:
    """Return the variance of an accuracy, with one more right and one more wrong window.

    The two windows are added because a few windows that are all right prove nothing.
    """
    share = (metrics.num_correct + 1) / (metrics.num_examples + 2)
    return share * (1 - share) / metrics.num_examples
