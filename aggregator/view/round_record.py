"""Records of closed rounds, for people. Pure.

The service uses them, and simulations without messages.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from aggregator.fleet.desired import placed_of, takes
from aggregator.fleet.events import (
    Aggregated,
    Banned,
    Directed,
    Event,
    Forgotten,
    RolledBack,
    Updated,
)
from aggregator.fleet.records import AdmittedUpdate, Campaign, Fleet, Placed, Report, Survey
from aggregator.fleet.rounds import counted_updates
from algorithms.personalisation.kept import PersonalChoice
from wire.messages import LARGEST_COUNT, MaybeDigest, Metrics

SUMMED = "summed"
"""Note of a round in secret mode: the number of its devices, and the mean accuracy and loss.

``groups`` has those of each group.
"""
SURVEYED = "survey"
"""Note of a preparation in secret mode: the nodes that were tested, by path."""
OpenPhase = Literal["preparing", "training", "evaluating"]
"""Kind of a round."""


class RoundRecord(msgspec.Struct, frozen=True):
    """Record of a closed round."""

    round: int
    phase: OpenPhase
    opened_at_s: float
    closed_at_s: float
    evaluated: dict[str, Metrics]
    """Metrics by device, of the model that it received in this round.

    These are the models after the round before.
    """
    trained: Metrics
    """Sum over devices of the metrics of their training steps."""
    groups: dict[str, str]
    """Key of the model from which a device starts after this round, by device.

    It has the devices that have been in a group or were placed so far.
    """
    bytes_up: int
    bytes_down: int
    notes: dict[str, Any] = {}
    """Notes of the algorithm on the round: tests between groups, epsilon."""
    views: MaybeDigest = ""
    """Digest of the distance matrices between devices; empty if there are none."""
    personal_models: dict[str, PersonalChoice] = {}
    """Personal model that a device has chosen, by device; devices that do not report it are left
    out.
    """
    placed: dict[str, Placed] = {}
    """Group after this round, and its certainty, by device without labels."""


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
    surveys: Iterable[Survey] = (),
) -> RoundRecord:
    """Return the record of a round with these reports and surveys.

    Losses are added in the order of `reports`.
    """
    moved: list[Report | Survey] = [*reports.values(), *surveys]
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
        bytes_up=sum(sent.bytes_up for sent in moved),
        bytes_down=sum(sent.bytes_down for sent in moved),
        notes=dict(notes),
        views=views,
        personal_models={
            d: report.personal_model
            for d, report in reports.items()
            if report.personal_model is not None
        },
        placed=dict(placed or {}),
    )


def without_kept(record: RoundRecord, device_ids: Set[str]) -> RoundRecord:
    """Return the record without the personal models of these devices."""
    others = {d: model for d, model in record.personal_models.items() if d not in device_ids}
    return replace(record, personal_models=others)


class _Closed(NamedTuple):
    """Round that an event has closed."""

    phase: OpenPhase
    was: Campaign
    event: Event
    after: Fleet
    reports: dict[str, AdmittedUpdate]


def records_of(
    before: Fleet, steps: Iterable[tuple[Event, Fleet]]
) -> list[tuple[str, RoundRecord]]:
    """Return the records of the rounds that events have closed, with names of their campaigns.

    `steps`: the events, and the fleet after each. A record replaces an earlier one of the same
    round.

    A round of training is closed when the algorithm was applied to it, the evaluation when it is
    over. The record of the evaluation is made again when its reports change later: a personal model
    arrives late or is lost, its owner withholds it, or all devices choose anew.
    """
    closed = dict[tuple[str, int], _Closed]()
    for event, after in steps:
        for name, campaign in after.campaigns.items():
            was = before.campaigns.get(name)
            if was is None or was is campaign:
                continue
            is_over = campaign.phase == "finished" or campaign.round > was.round
            is_changed = was.updates is not campaign.updates and was.ended != "order"
            if was.phase == "aggregating" and isinstance(event, Aggregated) and is_over:
                phase: OpenPhase = "preparing" if was.preparing else "training"
                reports = counted_updates(was)
                closed[name, was.round] = _Closed(phase, was, event, after, reports)
            elif was.phase == "evaluating" and is_over and not isinstance(event, RolledBack):
                reports = _tested(before, was, event, campaign)
                closed[name, was.round] = _Closed("evaluating", was, event, after, reports)
            elif was.phase == campaign.phase == "finished" and is_changed:
                reports = dict(sorted(campaign.updates.items()))
                closed[name, campaign.round] = _Closed("evaluating", was, event, after, reports)
        before = after
    return [(name, _record(name, number, end)) for (name, number), end in closed.items()]


def _tested(
    before: Fleet, was: Campaign, event: Event, campaign: Campaign
) -> dict[str, AdmittedUpdate]:
    """Return the reports of an evaluation that an event has ended, by device."""
    if campaign.phase == "finished" and not isinstance(event, Directed):
        return dict(sorted(campaign.updates.items()))
    reports = dict(was.updates)  # an abort or another round of training deletes them
    if isinstance(event, Updated):
        device = before.devices.get(event.device_id)
        work = None if device is None else device.assignment
        if work is not None and (work.campaign, work.serial) == (campaign.name, event.serial):
            reports[event.device_id] = event.update
    elif isinstance(event, Banned | Forgotten):
        reports.pop(event.device_id, None)
    return dict(sorted(reports.items()))


def _record(name: str, number: int, closed: _Closed) -> RoundRecord:
    phase, was, event, after, reports = closed
    campaign = after.campaigns[name]
    ended_s = campaign.ended_s if was.phase == "finished" else 0.0
    # A device that came too late for training is placed when training is over.
    then = campaign if phase == "evaluating" else replace(campaign, phase=was.phase)
    placed = all_placed(after, then)
    notes = dict(event.notes) if isinstance(event, Aggregated) else {}
    if isinstance(event, Aggregated) and campaign.divergence is not None:
        notes["diverges"] = msgspec.to_builtins(campaign.divergence)
    surveys = [m.survey for _, m in sorted(campaign.members.items()) if m.survey is not None]
    return make_record(
        number=number,
        phase=phase,
        opened_at_s=was.opened_s,
        closed_at_s=ended_s or after.at_s,
        reports=reports,
        groups=groups_of(campaign, placed),
        notes=notes,
        views=event.views if isinstance(event, Aggregated) else "",
        placed=placed,
        surveys=[survey for survey in surveys if survey.round == number],
    )


def all_placed(fleet: Fleet, campaign: Campaign) -> dict[str, Placed]:
    """Return the groups of a campaign's devices that are in none by their training, by device."""
    if campaign.default is None and not any(m.placed for m in campaign.members.values()):
        return {}
    placements = {
        device_id: placed_of(campaign, device_id, device)
        for device_id, device in sorted(fleet.devices.items())
        if device.facts is not None and takes(fleet, campaign, device_id, device)
    }
    return {device_id: placed for device_id, placed in placements.items() if placed is not None}


def groups_of(campaign: Campaign, placed: Mapping[str, Placed]) -> dict[str, str]:
    """Return the group of every device that was grouped by its training or `placed`, by device."""
    grouped = {d: member.group for d, member in sorted(campaign.members.items()) if member.group}
    return grouped | {device_id: place.group for device_id, place in placed.items()}
