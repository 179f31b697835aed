"""Reports of devices about their personal models, read from the outputs of the graph ``choose``.

Nothing here imports torch, so that the round core can use it.
"""

import math
from collections.abc import Sequence

import msgspec

from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.messages import LARGEST_COUNT

CHOOSE = "choose"
"""Name of the graph that chooses the personal model."""
CHOICE, LOSS, ERROR, USABLE, WINDOWS = "choice", "loss", "error", "usable", "windows"
"""Names of the graph's outputs.

They are 1 for the candidate that is chosen, the mean loss of each candidate over the windows held
out, the standard error of its difference from the least usable loss, 1 for each candidate that is
usable, and the number of windows held out. Graphs of older bundles report neither standard errors
nor usable candidates.
"""
NOT_TOLD = "not reported"
"""Text for a device that has not reported its choice."""
LEAST = 1e-3
"""Minimum probability in a candidate's answer: a smaller one counts as this one."""
WORST = -math.log(LEAST)
"""Maximum loss of a candidate."""
ROUNDING = 1e-3
"""Tolerance for the rounding of devices' runtimes, in flags, counts and losses."""


class PersonalChoice(msgspec.Struct, frozen=True):
    """A device's choice of its personal model, and the losses behind it."""

    candidate: str
    """Name of the chosen candidate."""
    windows: int
    """Number of held-out windows on which candidates were judged.

    With too few of them, the personalisation names the candidate.
    """
    loss: float | None = None
    """Mean loss of the chosen candidate over these windows; None if there are no windows."""
    others: dict[str, float] = {}
    """Mean losses of the other candidates, by name; empty if there are no windows."""
    errors: dict[str, float] = {}
    """Standard errors of the candidates' differences from the least mean loss, by name.

    Empty if the device does not report them.
    """
    unusable: tuple[str, ...] = ()
    """Candidates that could not be used, whatever their loss.

    Their training did not take place, failed, or had labels of only a part of the classes.
    """


def kept_text(choice: PersonalChoice | None) -> str:
    """Return the name of a device's chosen candidate, or `NOT_TOLD`."""
    return choice.candidate if choice else NOT_TOLD


def kept_of(
    candidates: Sequence[str], tensors: Tensors, most: int = LARGEST_COUNT
) -> PersonalChoice | None:
    """Return a device's choice from the tensors of its update, or None if it is missing or invalid.

    The tensors are ``response/choose.choice``, ``response/choose.loss`` and optionally
    ``response/choose.error`` and ``response/choose.usable``, each (candidates,), and
    ``response/choose.windows`` (). They are invalid if not exactly one candidate is chosen, if the
    chosen one is not usable, if a loss or an error is not between 0 and `WORST`, or if the number
    of windows is not a whole number up to `most`.
    """
    vector, scalar = (len(candidates),), ()
    layout = {CHOICE: vector, LOSS: vector, ERROR: vector, USABLE: vector, WINDOWS: scalar}
    arrays = {
        name: tensors[key] for name in layout if (key := names.response(CHOOSE, name)) in tensors
    }
    layout = {
        name: shape
        for name, shape in layout.items()
        if name not in (ERROR, USABLE) or name in arrays
    }
    if (
        not candidates
        or {name: value.shape for name, value in arrays.items() if value.dtype.kind == "f"}
        != layout
    ):
        return None
    values = {name: value.ravel().tolist() for name, value in arrays.items()}
    flags, usable = (
        [_whole(value, 1) for value in values.get(name, [1.0] * len(candidates))]
        for name in (CHOICE, USABLE)
    )
    count = _whole(values[WINDOWS][0], most)
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
        for value in values.get(name, ())
    ):
        return None
    chosen = candidates[flags.index(1)]
    losses, errors = (
        _by_name(candidates, values.get(name, ())) if count else {} for name in (LOSS, ERROR)
    )
    unusable = tuple(name for name, can in zip(candidates, usable, strict=True) if not can)
    return PersonalChoice(chosen, count, losses.pop(chosen, None), losses, errors, unusable)


def _by_name(candidates: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    return {
        name: round(max(0.0, value), 6) for name, value in zip(candidates, values, strict=False)
    }


def _whole(value: float, most: int) -> int | None:
    """Return the whole number from 0 to `most` within `ROUNDING` of a value, or None."""
    if (
        not math.isfinite(value)
        or abs(value - round(value)) > ROUNDING
        or not 0 <= round(value) <= most
    ):
        return None
    return round(value)
