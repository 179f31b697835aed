"""What a device says it keeps when a run is over, and why: read from what the graph ``choose``
reported. Without torch, for the round core too."""

import math
from collections.abc import Sequence

import msgspec

from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.messages import LARGEST_COUNT

CHOOSE = "choose"
"""The graph that chooses."""
KEPT, LOSS, ERROR, USABLE, WINDOWS = "kept", "loss", "error", "usable", "windows"
"""What it reports: 1 for the candidate that is kept, the mean loss of each over the windows held
out, the standard error of how far that is above the least of those that can be used, 1 for each
that can be used, and how many windows these are. Graphs of older bundles report neither standard
errors nor what can be used."""
NOT_TOLD = "not told"
"""What people read where a device has not said what it keeps."""
LEAST = 1e-3
"""The probability below which a candidate's answer counts as this one."""
WORST = -math.log(LEAST)
"""The largest loss of a candidate."""
ROUNDING = 1e-3
"""Runtimes of devices round: a number so near to 0 or 1 is that, and a loss so little below 0 is
0."""


class Kept(msgspec.Struct, frozen=True):
    """What a device keeps, and why."""

    candidate: str
    """The name of the candidate that it keeps."""
    windows: int
    """Windows held out that candidates were judged on; with too few of them, the way of keeping
    says which candidate is kept."""
    loss: float | None = None
    """The candidate's mean loss over these windows; None without any."""
    others: dict[str, float] = {}
    """The mean losses of the other candidates, by name; empty without windows."""
    errors: dict[str, float] = {}
    """The standard error of how far each candidate's mean loss is above the least, by name; empty
    where it is not told."""
    unusable: tuple[str, ...] = ()
    """The candidates that could not be used, whatever their loss: of a training that was not made,
    did not end well, or was on labels of a part of the classes."""


def kept_text(kept: Kept | None) -> str:
    """What a device keeps, in a few words."""
    return kept.candidate if kept else NOT_TOLD


def kept_of(candidates: Sequence[str], tensors: Tensors, most: int = LARGEST_COUNT) -> Kept | None:
    """What an update's tensors ``response/choose.kept`` (candidates,), ``response/choose.loss``
    (candidates,), perhaps ``response/choose.error`` (candidates,) and ``response/choose.usable``
    (candidates,), and ``response/choose.windows`` () say of these candidates.

    None where it is not told, and where what is told cannot be: not exactly one candidate is kept,
    one is kept that cannot be used, a loss or an error is not between 0 and `WORST`, or the windows
    are not a number of windows up to `most`."""
    every, one = (len(candidates),), ()
    layout = {KEPT: every, LOSS: every, ERROR: every, USABLE: every, WINDOWS: one}
    said = {
        name: tensors[key] for name in layout if (key := names.response(CHOOSE, name)) in tensors
    }
    layout = {
        name: shape for name, shape in layout.items() if name not in (ERROR, USABLE) or name in said
    }
    if (
        not candidates
        or {name: value.shape for name, value in said.items() if value.dtype.kind == "f"} != layout
    ):
        return None
    told = {name: value.ravel().tolist() for name, value in said.items()}
    flags, usable = (
        [_whole(value, 1) for value in told.get(name, [1.0] * len(candidates))]
        for name in (KEPT, USABLE)
    )
    count = _whole(told[WINDOWS][0], most)
    if (
        count is None
        or None in (*flags, *usable)
        or flags.count(1) != 1
        or not usable[flags.index(1)]
    ):
        return None
    if not all(
        -ROUNDING <= value <= WORST + ROUNDING
        for name in (LOSS, ERROR)
        for value in told.get(name, ())
    ):
        return None
    chosen = candidates[flags.index(1)]
    losses, errors = (
        _by_name(candidates, told.get(name, ())) if count else {} for name in (LOSS, ERROR)
    )
    unusable = tuple(name for name, can in zip(candidates, usable, strict=True) if not can)
    return Kept(chosen, count, losses.pop(chosen, None), losses, errors, unusable)


def _by_name(candidates: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    return {
        name: round(max(0.0, value), 6) for name, value in zip(candidates, values, strict=False)
    }


def _whole(value: float, most: int) -> int | None:
    """The whole number from 0 to `most` that a value stands for; None if it stands for none."""
    if (
        not math.isfinite(value)
        or abs(value - round(value)) > ROUNDING
        or not 0 <= round(value) <= most
    ):
        return None
    return round(value)
