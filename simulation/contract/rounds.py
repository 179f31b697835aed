"""What every choice must hold to in rounds: it repeats to the bit, finds every device a model, and
composes with every other choice."""

from collections.abc import Iterable

import numpy as np

from algorithms.algorithm import State
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.keys import NEWCOMER
from algorithms.registry import CHOICES
from simulation.contract.fleet import Field, difference, finite, make_field
from wire.errors import ConfigError

SMALL = {
    "distfl": "distfl:num_inputs=10:iterations=3",
    "autocfl": "autocfl:earliest=2",
    "hierarchical": "hierarchical:rounds=2",
    "fedgen": "fedgen:generator_steps=2:bank_size=32",
    "feddisk-ab": "feddisk-ab:ratio_epochs=1",
    "feddisk": "feddisk:preparations=2:local_checks=1:local_epochs=1:ratio_epochs=1:"
    "density_units=4",
}
"""Choices with options that make them quick on tiny fleets."""
LEAST = 20
"""Characters of a reason, at least."""


class Broken(Exception):
    """A choice does not keep the contract; the text says how."""


def small(name: str) -> str:
    """Return the name with options that make its choices quick."""
    return "+".join(SMALL.get(part, part) for part in name.split("+"))


def repeats(algorithm: str) -> str:
    """Three rounds give the same bits whatever the order of devices, also when the server is
    restarted between rounds, and finite models.

    Raises:
        Broken: they do not.
    """
    plain = make_field(algorithm).play(3)
    if differs := difference(
        plain, make_field(algorithm).play(3, reverse=True, through_bytes=True)
    ):
        if again := difference(plain, make_field(algorithm).play(3)):
            raise Broken(f"a second run with the same seed gives other bits: {again}")
        raise Broken(
            "with updates in another order, and the memory written and read between rounds, "
            f"there are other bits: {differs}"
        )
    if not finite(plain.models):
        raise Broken("after three rounds models hold values that are not finite")
    return ""


def places(algorithm: str) -> str:
    """Every device has a group with a model, also one that comes late; groups are decimal numbers.

    Raises:
        Broken: one has none, or a group is called otherwise.
    """
    field = make_field(algorithm)
    state = field.play(3, late="d7")
    if missing := sorted(field.executors.keys() - state.memory.membership.keys()):
        raise Broken(f"device {missing[0]} has no group after three rounds (d7 came in the second)")
    if more := sorted(state.memory.membership.keys() - field.executors.keys()):
        raise Broken(f"{more[0]!r} has a group, and is no device")
    if bad := [key for key in state.models if key != NEWCOMER and not key.isdigit()]:
        raise Broken(f"a group is called {bad[0]!r}: expected a decimal number, as text")
    if lost := sorted(
        {field.algorithm.grouping.start(state.memory, d) for d in field.executors}
        - state.models.keys()
    ):
        raise Broken(f"a device starts from model {lost[0]!r}, which there is not")
    left = field.algorithm.grouping.forget(state.memory, "d3")
    if "d3" in left.membership or any(key.endswith("/d3") for key in left.arrays):
        raise Broken("a device that is forgotten is still remembered")
    return ""


def made_or_reason(algorithm: str, num_devices: int = 3) -> Field | str:
    """A tiny fleet with this algorithm, or why its choices do not go together.

    Raises:
        Broken: the reason says next to nothing.
    """
    try:
        return make_field(algorithm, num_devices=num_devices)
    except ConfigError as error:
        if len(str(error)) <= LEAST:
            raise Broken(f"{algorithm} is refused with {str(error)!r}: expected a reason") from None
        return str(error)


def compose_with(algorithms: Iterable[str]) -> str:
    """Each of these algorithms plays a round with finite models, or is refused with a reason.

    Raises:
        Broken: one does neither.
    """
    refused = []
    for algorithm in algorithms:
        field = made_or_reason(algorithm)
        if isinstance(field, str):
            refused.append(algorithm)
        elif not finite(_played(field, algorithm, 1).models):
            raise Broken(f"{algorithm}: after one round models hold values that are not finite")
    return f"refused with a reason: {', '.join(refused)}" if refused else ""


def compose_with_privacy(algorithms: Iterable[str]) -> str:
    """Each of these algorithms, which have a privacy mechanism, says what it has spent, or is
    refused with a reason that names privacy.

    Raises:
        Broken: one does neither.
    """
    refused = []
    for algorithm in algorithms:
        field = made_or_reason(algorithm)
        if isinstance(field, str):
            if "privacy" not in field and read_algorithm(algorithm).privacy.name not in field:
                raise Broken(
                    f"{algorithm} is refused for {field!r}: expected a reason that speaks of "
                    "privacy"
                )
            refused.append(algorithm)
            continue
        state = _played(field, algorithm, 2)
        if not finite(state.models) or not (state.epsilon or 0) > 0:
            raise Broken(
                f"{algorithm}: after two rounds epsilon is {state.epsilon}: expected a number "
                "above 0, and finite models"
            )
    return f"refused with a reason: {', '.join(refused)}" if refused else ""


def keeps_rounds(algorithm: str, kept: Iterable[str]) -> str:
    """What a device keeps is decided after the last round: rounds of training have the same bits
    whatever it is.

    Raises:
        Broken: they have not.
    """
    spec = read_algorithm(algorithm)
    grouped = (
        algorithm
        if spec.grouping in spec.named
        else f"{algorithm}+{make_algorithm(spec).grouping.name}"
    )
    plain = make_field(grouped, num_devices=2).play(1)
    for name in kept:
        if differs := difference(plain, make_field(f"{grouped}+{name}", num_devices=2).play(1)):
            raise Broken(f"a round of {grouped} with {name} is not that without: {differs}")
    return ""


def share_a_part(mean: str) -> str:
    """The mean works where devices keep a part of the model.

    Raises:
        Broken: models are not finite, or hold the part that devices keep.
    """
    state = make_field(f"fedper+{mean}", num_devices=4).play(2)
    if not finite(state.models) or any("head" in key for key in state.models["0"]):
        raise Broken("with fedper, models are not finite or hold the head, which devices keep")
    return ""


def names_of(*kinds: str, but: Iterable[str] = ()) -> list[str]:
    """The registered choices of these kinds, quick ones."""
    return [
        small(name)
        for kind, table in CHOICES.items()
        if kind in kinds
        for name in table
        if name not in but
    ]


def _played(field: Field, algorithm: str, rounds: int) -> State:
    try:
        with np.errstate(all="ignore"):
            return field.play(rounds)
    except Exception as error:
        error.add_note(f"in {algorithm}")
        raise
