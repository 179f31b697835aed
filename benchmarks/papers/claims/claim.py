"""A claim of a paper, and a paper with its claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.papers import evidence as ev


@dataclass(frozen=True)
class Claim:
    """One claim. `cause` maps a verdict to the text that is printed beside it."""

    statement: str
    number: str
    """Number that the paper gives; empty for a question of ours, which counts apart."""
    terms: ev.Find | None
    """None where the paper's terms cannot tell: the verdict is then that of sound terms."""
    sound: ev.Find | None = None
    cause: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Paper:
    """One paper: where it appeared, what holds for several of its claims (the sizes of our runs and
    of its own, causes), and the claims."""

    name: str
    citation: str
    reserves: str
    claims: Sequence[Claim]


def above(paper: float, other: float) -> str:
    """Return the paper's two numbers of an order, as text."""
    return f"{paper:g} against {other:g}"


def otherwise(text: str) -> dict[str, str]:
    """Return the causes of a claim that has this one where it is not reproduced."""
    return dict.fromkeys((ev.NOT_SHOWN, ev.NOT), text)
