"""Devices without labels, in the tests of the service."""

from typing import Any

import msgspec

from aggregator.core import state as s
from aggregator.core.state import Placed
from algorithms.algorithm import SURVEY_INPUTS
from algorithms.core.contract import Programs
from tests.aggregator.round_cases import MEMORY, MODEL, RECEIVED, Run
from wire.codec import digest
from wire.messages import Choose, Evaluate, Metrics, Train

TRAINS = (Evaluate(), Train(32))
PROGRAMS: Programs = {
    "": TRAINS,
    "closing": (Choose(("1" * 64,)), Train(32), Train(32, least=2), Evaluate()),
    "unlabelled": (SURVEY_INPUTS,),
}
FOUR_OF_FIVE, LARGEST = Placed("1", 0.8, 5), Placed("0", 0.75)
NOTHING = Metrics()


def started(**settings: Any) -> Run:
    """A run that two devices open, a and b; each needs two labelled windows to train."""
    run = Run(
        programs=settings.pop("programs", PROGRAMS),
        **{"min_devices": 2, "min_updates": 2, "min_batch": 2, "rounds": 9} | settings,
    )
    run.check_in("a")
    run.check_in("b")
    return run


def with_unlabelled(**settings: Any) -> tuple[Run, list[s.Command]]:
    """The same, with a device u that has no labels and joins in round 1; and what follows from
    that."""
    run = started(**settings)
    return run, come(run)


def come(
    run: Run, device: str = "u", num_train: int = 0, at_s: float = 1.5, **others: Any
) -> list[s.Command]:
    return run.feed(s.DeviceCheckedIn(at_s, device, num_train, 4, **others))


def tell(
    run: Run,
    device: str = "u",
    at_s: float = 2.0,
    number: int = 1,
    norms: dict[str, float] | None = None,
) -> list[s.Command]:
    """The device tells of its inputs; without `norms` that it has some."""
    blob = digest(f"{device} {number} inputs".encode())
    nothing = {"num_train": 0, "num_steps": 0, "evaluated": NOTHING, "trained": NOTHING}
    update = msgspec.structs.replace(
        RECEIVED, blob=blob, norms={"response": 1.0} if norms is None else norms, **nothing
    )
    return run.feed(s.UpdateAdmitted(at_s, device, number, update))


def aggregate(run: Run, at_s: float = 3.0, **others: Any) -> list[s.Command]:
    placed = dict.fromkeys(run.state.inputs, FOUR_OF_FIVE) | {"": LARGEST}
    models = {"initial": MODEL, "0": "3" * 64, "1": "4" * 64}
    values: dict[str, Any] = {
        "programs": run.state.programs,
        "starts": {"a": "0", "b": "1", "": "initial"},
        "placed": placed,
    } | others
    return run.feed(s.RoundAggregated(at_s, run.state.round, models, MEMORY, **values))
