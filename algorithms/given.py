"""Algorithms made of classes that Python code has at hand, beside names as users write them.

::

    algorithm_of("fedavg", BySize)
    algorithm_of(choice(Shrinking, decay=0.1), "distfl")
"""

from dataclasses import replace

from algorithms import outside
from algorithms.kinds import KINDS
from algorithms.objectives.halves import TwoHalves
from algorithms.options import options_of
from algorithms.registry import LOOKUP, AlgorithmSpec, compose
from algorithms.spec import Choice, Value, read, read_joined

Part = str | type | TwoHalves | Choice
"""What an algorithm can be composed of: names joined by ``+``, a class, an objective's two halves,
or what `choice` returns."""
Given = Part | AlgorithmSpec
"""An algorithm as Python code names it: one such part, or what `algorithm_of` makes of several."""


def choice(made: type | TwoHalves, **options: Value) -> Choice:
    """A class, or an objective's two halves, with these options.

    Raises:
        ConfigError: it is no choice, or has no such option or not with this value.
    """
    name = next(
        (
            n
            for table in LOOKUP.tables.values()
            for n, m in table.items()
            if made in (m, getattr(m, "device", None))
        ),
        "",
    )
    name, source = (name, "") if name else outside.give(made)
    known = {name: options_of(LOOKUP.find(name, source).made)}
    return replace(
        read(str(Choice(name, tuple(options.items()))), known, "algorithm"), source=source
    )


def algorithm_of(*parts: Part) -> AlgorithmSpec:
    """The algorithm that is composed of these parts, at most one of each choice, in any order.

    Raises:
        ConfigError: as `algorithms.registry.read_algorithm`, or for an object that is no choice.
    """
    named: list[Choice] = []
    for part in parts:
        if isinstance(part, str):
            named += read_joined(part, LOOKUP.known(*KINDS), "algorithm")
        else:
            named.append(part if isinstance(part, Choice) else choice(part))
    return compose(tuple(named), "+".join(map(str, named)))


def spec_of(given: Given) -> AlgorithmSpec:
    """The algorithm that is named.

    Raises:
        ConfigError: as `algorithm_of`.
    """
    return given if isinstance(given, AlgorithmSpec) else algorithm_of(given)
