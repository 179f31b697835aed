"""Plans, the messages that carry assignments, also for simulations without messages. Pure."""

from collections.abc import Collection, Mapping

from aggregator.core.settings import RunSettings
from aggregator.fleet.records import Assignment
from wire.messages import Digest, Encoding, Plan, Verb

SEED_STRIDE = 1_000_003
"""Prime above any number of rounds, so that campaigns with adjacent seeds share no round's seed."""
NEVER_S = 1e12
"""Deadline of a plan without a deadline, in Unix seconds."""


def round_seed(seed: int, number: int) -> int:
    """Return the seed of a round, from which devices and the algorithm draw."""
    return seed * SEED_STRIDE + number


def program_for(
    programs: Mapping[str, tuple[Verb, ...]], device_id: str, start: str
) -> tuple[Verb, ...]:
    """Return the verbs of a device that trains from the model of the key `start`.

    The device's own verbs come first, then those of the devices that start from this model, then
    those of all devices.
    """
    return programs.get(f"device:{device_id}") or programs.get(f"start:{start}") or programs[""]


def plan_of(
    settings: RunSettings,
    assignment: Assignment,
    device_id: str,
    epoch: int,
    encodings: Collection[str],
) -> Plan:
    """Return the plan of a device's assignment. The result is the same within an epoch.

    `encodings`: encodings of updates that the device can send (`CheckIn.encodings`).
    """
    wanted = settings.update_encoding
    return make_plan(
        settings,
        assignment.round,
        device_id,
        assignment.model,
        assignment.verbs,
        assignment.deadline_s,
        epoch,
        assignment.serial,
        wanted if wanted in encodings else "float32",
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
    """Return a device's plan for a round: to carry out `verbs` from the model of this digest."""
    return Plan(
        run_id=settings.run_id,
        epoch=epoch,
        round=number,
        attempt=attempt,
        device_id=device_id,
        bundle=settings.bundle,
        model=model,
        verbs=verbs,
        seed=round_seed(settings.seed, number),
        deadline_at_s=deadline_at_s,
        encoding=encoding,
    )
