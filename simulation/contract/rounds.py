"""Checks of a choice in rounds of tiny fleets.

The choice must repeat to the bit, give every device a model, and compose with other choices.
"""

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
"""Choices with options that make them fast on tiny fleets."""
LEAST = 20
"""Minimum number of characters of a refusal's reason."""


class Broken(Exception):
    """A choice breaks the contract; the text explains it."""


def small(name: str) -> str:
    """Return the name of an algorithm with options that make its choices fast."""
    return "+".join(SMALL.get(part, part) for part in name.split("+"))


def repeats(algorithm: str) -> str:
    """Check that three rounds give the same bits in any order of devices, and finite models.

    The bits must also be the same if the server restarts between rounds.

    Raises:
        Broken: bits differ, or a value is not finite.
    """
    plain = make_field(algorithm).play(3)
    if differs := difference(
        plain, make_field(algorithm).play(3, reverse=True, through_bytes=True)
    ):
        if again := difference(plain, make_field(algorithm).play(3)):
            raise Broken(f"a second run with the same seed gives a different result: {again}")
        raise Broken(
            "with updates in another order, and the memory written and read between rounds, "
            f"the result is different: {differs}"
        )
    if not finite(plain.models):
        raise Broken("after three rounds models hold values that are not finite")
    return ""


def places(algorithm: str) -> str:
    """Check that every device has a group with a model, including a device that joins late.

    Groups must be named by decimal numbers, and a forgotten device must leave no trace.

    Raises:
        Broken: one of these does not hold.
    """
    field = make_field(algorithm)
    state = field.play(3, late="d7")
    if missing := sorted(field.executors.keys() - state.memory.membership.keys()):
        raise Broken(f"device {missing[0]} has no group after three rounds (d7 came in the second)")
    if more := sorted(state.memory.membership.keys() - field.executors.keys()):
        raise Broken(f"{more[0]!r} has a group, but is not a device")
    if bad := [key for key in state.models if key != NEWCOMER and not key.isdigit()]:
        raise Broken(f"a group's name must be a decimal number as text, got {bad[0]!r}")
    if lost := sorted(
        {field.algorithm.grouping.start(state.memory, d) for d in field.executors}
        - state.models.keys()
    ):
        raise Broken(f"a device starts from model {lost[0]!r}, which does not exist")
    memory = field.algorithm.grouping.forget(state.memory, "d3")
    if "d3" in memory.membership or any(key.endswith("/d3") for key in memory.arrays):
        raise Broken("a device that is forgotten is still remembered")
    return ""


def made_or_reason(algorithm: str, num_devices: int = 3) -> Field | str:
    """Return a tiny fleet with this algorithm, or the reason why its choices cannot be combined.

    Raises:
        Broken: the reason is too short to explain anything.
    """
    try:
        return make_field(algorithm, num_devices=num_devices)
    except ConfigError as error:
        if len(str(error)) <= LEAST:
            raise Broken(
                f"{algorithm} is refused with {str(error)!r}, which is no reason"
            ) from None
        return str(error)


def compose_with(algorithms: Iterable[str]) -> str:
    """Check that each algorithm plays a round with finite models or is refused with a reason.

    Returns a remark that lists the refused ones.

    Raises:
        Broken: an algorithm does neither.
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
    """Check that each private algorithm reports its privacy spending or is refused with a reason.

    The reason must name privacy or the mechanism. Returns a remark that lists the refused
    algorithms.

    Raises:
        Broken: an algorithm does neither.
    """
    refused = []
    for algorithm in algorithms:
        field = made_or_reason(algorithm)
        if isinstance(field, str):
            if "privacy" not in field and read_algorithm(algorithm).privacy.name not in field:
                raise Broken(
                    f"{algorithm} is refused with {field!r}, which does not mention privacy"
                )
            refused.append(algorithm)
            continue
        state = _played(field, algorithm, 2)
        if not finite(state.models) or not (state.epsilon or 0) > 0:
            raise Broken(
                f"{algorithm}: after two rounds epsilon must be above 0 and models finite, got "
                f"epsilon {state.epsilon}"
            )
    return f"refused with a reason: {', '.join(refused)}" if refused else ""


def keeps_rounds(algorithm: str, personalisations: Iterable[str]) -> str:
    """Check that rounds of training have the same bits with each of these personalisations.

    Devices choose their personal model after the last round, so it must not change rounds.

    Raises:
        Broken: a round has other bits.
    """
    spec = read_algorithm(algorithm)
    grouped = (
        algorithm
        if spec.grouping in spec.named
        else f"{algorithm}+{make_algorithm(spec).grouping.name}"
    )
    plain = make_field(grouped, num_devices=2).play(1)
    for name in personalisations:
        if differs := difference(plain, make_field(f"{grouped}+{name}", num_devices=2).play(1)):
            raise Broken(f"a round of {grouped} is different with {name}: {differs}")
    return ""


def share_a_part(mean: str) -> str:
    """Check that a mean works if devices share only a part of the model.

    Raises:
        Broken: a model is not finite, or contains the part that stays on devices.
    """
    state = make_field(f"fedper+{mean}", num_devices=4).play(2)
    if not finite(state.models) or any("head" in key for key in state.models["0"]):
        raise Broken("with fedper, models are not finite, or hold the head, which stays on devices")
    return ""


def names_of(*kinds: str, but: Iterable[str] = ()) -> list[str]:
    """Return the registered choices of some kinds except `but`, with fast options."""
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
