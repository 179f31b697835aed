"""Makes the record of a closed round, for the runner and for simulations that leave the messages
out. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aggregator.core.round.asking import all_placed, groups_of
from aggregator.core.round.machine import step
from aggregator.core.state import (
    Command,
    DeviceBarred,
    DeviceCheckedIn,
    DeviceForgotten,
    Event,
    KeptChanged,
    OpenPhase,
    Placed,
    Report,
    RolledBack,
    RoundAggregated,
    RunState,
    Told,
    UpdateAdmitted,
)
from algorithms.personalisation.kept import Kept
from wire.messages import LARGEST_COUNT, MaybeDigest, Metrics, Reply


class RoundRecord(msgspec.Struct, frozen=True):
    """What the aggregator remembers of a closed round, for people to read."""

    round: int
    phase: OpenPhase
    """What devices were asked for in it."""
    opened_at_s: float
    closed_at_s: float
    evaluated: dict[str, Metrics]
    """By device, the metrics of the model that it received in this round, that is of the models as
    the round before left them."""
    trained: Metrics
    """The sum over devices of the metrics of their training steps."""
    groups: dict[str, str]
    """By device, for all that have been in a group or were placed so far, the key of the model that
    it starts from after this round."""
    bytes_up: int
    bytes_down: int
    notes: dict[str, Any] = {}
    """What the algorithm says about the round: tests between groups, epsilon."""
    views: MaybeDigest = ""
    """The blob with the round's distance matrices (`aggregator.aggregation.apply.encode_views`);
    empty when none were computed."""
    kept: dict[str, Kept] = {}
    """By device, what it keeps when the run is over; devices that do not tell are left out."""
    placed: dict[str, Placed] = {}
    """By device without labels, where it belongs after this round, and how sure that is."""


def make_record(
    *,
    number: int,
    phase: OpenPhase,
    opened_at_s: float,
    closed_at_s: float,
    reports: Mapping[str, Report],
    groups: Mapping[str, str],
    notes: Mapping[str, Any],
    views: MaybeDigest,
    placed: Mapping[str, Placed] | None = None,
    told: Sequence[Told] = (),
) -> RoundRecord:
    """The record of a round in which these devices reported, and others have `told` of their
    inputs. Losses are added in the order of `reports`."""
    moved: list[Report | Told] = [*reports.values(), *told]
    trained = [report.trained for report in reports.values()]
    return RoundRecord(
        round=number,
        phase=phase,
        opened_at_s=opened_at_s,
        closed_at_s=closed_at_s,
        evaluated={device_id: report.evaluated for device_id, report in reports.items()},
        trained=Metrics(
            num_examples=min(LARGEST_COUNT, sum(m.num_examples for m in trained)),
            loss_sum=sum(m.loss_sum for m in trained),
            num_correct=min(LARGEST_COUNT, sum(m.num_correct for m in trained)),
        ),
        groups=dict(groups),
        bytes_up=sum(said.bytes_up for said in moved),
        bytes_down=sum(said.bytes_down for said in moved),
        notes=dict(notes),
        views=views,
        kept={
            device_id: report.kept
            for device_id, report in reports.items()
            if report.kept is not None
        },
        placed=dict(placed or {}),
    )


def record_of(before: RunState | None, event: Event, after: RunState) -> RoundRecord | None:
    """The record of the round that `event` closed between two states of a run; None when it closed
    none.

    A round of training is closed when the algorithm has been applied to it, the evaluation when it
    is over. That one's record is made once more where a device has chosen late what it keeps, has
    lost that or may not tell of it now, or all are to choose anew.
    """
    if before is None or before.round == 0:
        return None
    last = {event.device_id: event.update} if isinstance(event, UpdateAdmitted) else {}
    gone = event.device_id if isinstance(event, DeviceBarred | DeviceForgotten) else ""
    notes, views = (event.notes, event.views) if isinstance(event, RoundAggregated) else ({}, "")
    known, reports, closed_at_s = after, {**before.received, **last}, event.at_s
    phase: OpenPhase = "evaluating"
    if before.phase == "finished":
        chosen = isinstance(event, UpdateAdmitted | DeviceCheckedIn | KeptChanged | RolledBack)
        if not chosen or before.ended == "order" or after.received is before.received:
            return None
        reports = after.received
        closed_at_s = event.at_s if after.ended_at_s is None else after.ended_at_s
    elif before.phase != "evaluating" or not (
        after.phase == "finished" or after.round > before.round
    ):
        if after.round == before.round:
            return None
        phase = "preparing" if before.preparing else "training"
        # who came too late is known when all is over
        known = msgspec.structs.replace(after, phase=before.phase)
    placed = all_placed(known)
    return make_record(
        number=before.round,
        phase=phase,
        opened_at_s=before.opened_at_s,
        closed_at_s=closed_at_s,
        reports={d: report for d, report in reports.items() if d != gone},
        groups=groups_of(after, placed),
        notes=notes,
        views=views,
        placed=placed,
        told=[said for said in after.inputs.values() if said.round == before.round],
    )


@dataclass
class Group:
    """Events between two writes, and the run's state after them."""

    state: RunState
    steps: list[tuple[Event, RunState]] = field(default_factory=list)
    """The events, and the state after each."""
    records: list[RoundRecord] = field(default_factory=list)
    """Records of the rounds that were closed."""
    commands: list[Command | Reply] = field(default_factory=list)
    """Commands that follow, in order: a reply to a later message must not overtake a plan."""
    whole: bool = False
    """True if the state is to be saved as a whole, so that the log of events before it is
    deleted."""
    updates: list[tuple[str, bytes]] = field(default_factory=list)
    """The device and the bytes of each update among the events."""

    def add(self, event: Event) -> None:
        """Take in one event."""
        state, commands = step(self.state, event)
        record = record_of(self.state, event, state)
        self.state = state
        self.steps.append((event, state))
        if record is not None:
            self.records = [
                *(other for other in self.records if other.round != record.round),
                record,
            ]
        self.commands += commands
