"""Questions for labels: one label names a long stretch of windows that look alike.

A stretch is an activity of the filter over the stream: windows in a row whose filtered answers have
the same class. It is long if it has at least as many windows as activities have on average, and
lasts a minute, so that a person remembers it. Windows in no order have no long stretches.

Questions are spread over the day. When one is due, the long stretches since the last question take
part in a draw, each with a chance in proportion to its windows: as if a window of them was drawn at
random. The draw is a hash of the stretch, so it has the same result however often it is repeated.
"""

import hashlib
import math
from collections.abc import Sequence

import msgspec

from edge_client.core.stream import Activity, StreamSums

DAY_S, LEAST_S = 24 * 3600.0, 60.0
MOST_QUESTIONS = 100
"""Maximum number of stretches that are stored for a draw, the newest."""


class Question(msgspec.Struct, frozen=True):
    """A stretch of time (Unix time, s) to be labelled, and the class that it probably has."""

    begin_s: float
    end_s: float
    windows: int
    label: str


def question_of(
    activity: Activity, sums: StreamSums, classes: Sequence[str], length_s: float
) -> Question | None:
    """Return the question about an activity, or None if it is not long.

    Args:
        activity: activity that is over.
        sums: sums of the stream that it belongs to.
        classes: names of the classes.
        length_s: duration of a window.
    """
    end_s = activity.last_s + length_s
    has_order = sums.stay(len(classes)) > 1 / len(classes)
    is_long = activity.windows >= sums.activity(len(classes))
    if not (has_order and is_long and end_s - activity.begin_s >= LEAST_S):
        return None
    begin_s = max(activity.begin_s, end_s - DAY_S)  # no label covers more than a day
    return Question(begin_s, end_s, activity.windows, classes[activity.number])


def due_question(
    stretches: Sequence[Question], last_s: float | None, most_a_day: int, now_s: float
) -> Question | None:
    """Return the question to ask now, or None.

    Args:
        stretches: long stretches without a label.
        last_s: time of the last question (Unix time), None before the first.
        most_a_day: maximum number of questions a day.
        now_s: present time.
    """
    if most_a_day < 1:
        return None
    since_s = now_s - DAY_S
    if last_s is not None:
        if abs(now_s - last_s) < DAY_S / most_a_day:
            return None
        if last_s < now_s:  # otherwise the clock was set back
            since_s = max(since_s, last_s)
    candidates = [each for each in stretches if since_s < each.end_s <= now_s]
    return max(candidates, key=_draw, default=None)


def _draw(question: Question) -> float:
    """Return the logarithm of a number from 0 to 1 to the power of one divided by the windows.

    The largest of such numbers belongs to each stretch with a chance in proportion to its windows
    (Efraimidis and Spirakis, Information Processing Letters 97, 2006).
    """
    begin_ms = math.floor(1000 * question.begin_s + 0.5)
    drawn = hashlib.sha256(f"{begin_ms}:{question.windows}".encode()).digest()[:8]
    uniform = ((int.from_bytes(drawn, "big") >> 11) + 0.5) / 2**53
    return math.log(uniform) / question.windows
