"""Makes the plan of a device for a round, for the round core and for simulations that leave the
messages out. Pure."""

from collections.abc import Mapping

from msgspec.structs import replace

from aggregator.core.settings import RunSettings
from aggregator.core.state import Device, Flight, RunState
from algorithms.core.keys import NEWCOMER
from wire.held import num_held_out
from wire.messages import Apply, Choose, Digest, Encoding, Evaluate, Plan, Train, Verb

SEED_STRIDE = 1_000_003
"""A prime larger than any number of rounds: runs of neighbouring seeds share no round's seed."""

NEW = f"start:{NEWCOMER}"
"""Under this key is the program of newcomers, where they do something of their own."""

LEAST_HELD = 8
"""Windows held out, at least, by which a device is to choose what it keeps. Fewer that fail alike
look certain, and are worth more as windows to train on."""

NEVER_S = 1e12
"""The deadline of a plan that has none."""


def round_seed(settings: RunSettings, number: int) -> int:
    """The seed of the round of this number, from which devices and the algorithm draw."""
    return settings.seed * SEED_STRIDE + number


def program_for(
    programs: Mapping[str, tuple[Verb, ...]], device_id: str, start: str
) -> tuple[Verb, ...]:
    """The program of a device that starts from the model of the key `start`: the device's own
    program if there is one, else that of the devices that start from this model, else the program
    of all devices."""
    return programs.get(f"device:{device_id}") or programs.get(f"start:{start}") or programs[""]


def can_train(state: RunState, device: Device) -> bool:
    """Whether a device has enough labelled windows to train."""
    return device.num_train >= state.settings.min_batch


def flight_of(state: RunState, device_id: str) -> Flight | None:
    """The plan that a device works on, where it outlives its round."""
    return state.flights.get(device_id) or asked_alone(state, device_id)


def asked_alone(state: RunState, device_id: str) -> Flight | None:
    """The plan that a device works on without being of a round's cohort: what its inputs are like,
    or what it keeps."""
    return state.placing.get(device_id) or state.closings.get(device_id)


def verbs_for(state: RunState, device_id: str) -> tuple[Verb, ...]:
    """What a device does by its plan."""
    if (flight := flight_of(state, device_id)) is not None:
        return flight.verbs
    if state.phase == "evaluating":
        return closing_verbs(state, state.devices[device_id])
    start, usual = state.cohort[device_id], state.starts.get(device_id, NEWCOMER)
    surveyed_anew = state.programs.get(NEW) if start == NEWCOMER != usual else None
    return surveyed_anew or program_for(state.programs, device_id, start)


def closing_verbs(state: RunState, device: Device) -> tuple[Verb, ...]:
    """Return what a device does after the last round. Of one that is `withholds` nothing is
    reported but how well a model answers; of one that is `untested` not even that."""
    verbs = list[Verb]()
    for verb in by_labels(state.programs["closing"], device.num_train, can_train(state, device)):
        if isinstance(verb, Apply | Evaluate) and verb.report:
            measures = device.withholds and bool(state.settings.responses.get(verb.graph))
            tests = device.untested and isinstance(verb, Evaluate) and verb.split == "test"
            verb = replace(verb, report=not (measures or tests))
        verbs.append(verb)
    return tuple(verbs)


def by_labels(closing: tuple[Verb, ...], num_train: int, trains: bool) -> tuple[Verb, ...]:
    """What a device with so many labelled windows, enough to train or not, does of these verbs
    after the last round: where fewer than `LEAST_HELD` would be held out, none is."""
    verbs = tuple(
        replace(verb, holdout=0.0)
        if (isinstance(verb, Train) or (isinstance(verb, Evaluate) and verb.split == "windows"))
        and num_held_out(num_train, verb.holdout) < LEAST_HELD
        else verb
        for verb in closing
    )
    return verbs if trains else without_labels(verbs)


def without_labels(verbs: tuple[Verb, ...]) -> tuple[Verb, ...]:
    """What a device that cannot train does of these verbs after the last round: it neither chooses
    by a loss nor trains, but for a training that is left out where there are too few windows."""
    return tuple(
        v for v in verbs if not isinstance(v, Choose) and not (isinstance(v, Train) and not v.least)
    )


def make_plan(
    settings: RunSettings,
    number: int,
    device_id: str,
    model: Digest,
    verbs: tuple[Verb, ...],
    deadline_at_s: float = NEVER_S,
    epoch: int = 1,
    attempt: int = 0,
    encoding: Encoding = "float32",
) -> Plan:
    """A device's plan in the round of this number: to carry out `verbs` from the model of this
    name."""
    return Plan(
        run_id=settings.run_id,
        epoch=epoch,
        round=number,
        attempt=attempt,
        device_id=device_id,
        bundle=settings.bundle,
        model=model,
        verbs=verbs,
        seed=round_seed(settings, number),
        deadline_at_s=deadline_at_s,
        encoding=encoding,
    )


def plan_for(state: RunState, device_id: str) -> Plan:
    """The plan of a member of the cohort, or of a device that is asked what its inputs are like.
    Built again, it is the same."""
    verbs, wanted = verbs_for(state, device_id), state.settings.update_encoding
    encoding = wanted if wanted in state.devices[device_id].encodings else "float32"
    if (flight := flight_of(state, device_id)) is not None:
        asked = (flight.deadline_at_s, state.epoch, flight.attempt, encoding)
        return make_plan(state.settings, flight.round, device_id, flight.model, verbs, *asked)
    model, asked = (
        state.models[state.cohort[device_id]],
        (state.deadline_at_s, state.epoch, state.attempt, encoding),
    )
    return make_plan(state.settings, state.round, device_id, model, verbs, *asked)


def place_of_plan(state: RunState, device_id: str) -> tuple[int, int]:
    """Round and attempt of the plan that a device works on, or would be given in the open round."""
    held = flight_of(state, device_id) or state
    return held.round, held.attempt
