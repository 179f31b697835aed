"""Numbers as text for people, on pages and in terminals. Pure."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from aggregator.view.round_record import SURVEYED


def percent(share: float | None, unknown: str = "-") -> str:
    """Return a fraction as per cent, with one decimal."""
    return unknown if share is None else f"{100 * share:.1f} %"


def number(value: float | None, unknown: str = "-") -> str:
    """Return a loss or an error with three digits."""
    return unknown if value is None else f"{value:.3g}"


def amount(count: float) -> str:
    """Return a number of bytes in powers of 1,024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def bytes_text(count: float) -> str:
    """Return a number of bytes in powers of a thousand, for the marks of an axis."""
    power = min(4, int(math.log10(max(1.0, count * 1.001)) / 3))
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def seconds(span_s: float) -> str:
    """Return a duration in seconds, minutes, hours or days."""
    if span_s < 120:
        return f"{span_s:.0f} s"
    if span_s < 7200:
        return f"{span_s / 60:.0f} min"
    return f"{span_s / 3600:.1f} h" if span_s < 172_800 else f"{span_s / 86_400:.1f} days"


def splits(notes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each node of a secret survey that was tested.

    `notes`: the notes of each round, in order.
    """
    last: dict[str, dict[str, Any]] = {}
    for note in notes:
        last = note.get(SURVEYED, last)
    return [
        f"{f'Side {path}' if path else 'The fleet'}, {tested['devices']} devices: "
        f"{'split' if tested['split'] else 'not split'}. Of the variance along the best axis, "
        f"{percent(tested['share'])} is between the sides (p = {tested['p']:g})."
        for path, tested in last.items()
    ]


def untested(notes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each view in which the last search for groups made no test.

    `notes`: the notes of rounds, by round.
    """
    last: list[dict[str, Any]] = []
    for note in notes:
        last = note.get("untested", last)
    return [
        f"Groups are not looked for by {entry['view']}: {entry['devices']} "
        f"device{'s' if entry['devices'] != 1 else ''} told, {entry['needed']} are needed."
        for entry in last
    ]
