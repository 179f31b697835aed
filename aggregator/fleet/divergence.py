"""Devices that stand out over rounds, and the cause of a divergence. Pure.

A campaign *diverges* if the usual loss of its models rises, if most updates are refused as too
large, if most devices of a group stand out, or if a round gives its models up. The causes are tried
in the order of `Cause`, and the first one with evidence is the campaign's. Losses are claims of
devices, so a few of them decide nothing about the others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from statistics import fmean, median_low
from typing import Any

from immutables import Map
from msgspec.structs import replace

from aggregator.core.settings import RunSettings
from aggregator.fleet.desired import trained_group
from aggregator.fleet.records import (
    AdmittedUpdate,
    Campaign,
    Divergence,
    Member,
    Standstill,
    Trend,
    Version,
)

DECAY = 0.7
"""Weight of the earlier rounds in a device's score; the last round has the rest."""
NAMED = 0.55
"""Score from which a device is named: three rounds of full evidence."""
SUSPECTED = 0.5
"""Score from which a device may be the cause of a divergence: two rounds of full evidence."""
CROWDED = 0.4
"""Score of half of a group's devices from which none of them is named."""
MOST_SUSPECTS = 20
"""Maximum number of devices of a campaign that are watched."""
TRENDS = 6
"""Number of last rounds of which a campaign knows the trend."""
RISE = 1.5
"""Rise of the usual loss within the stored rounds with which a campaign diverges."""
TRIMMED = 4
"""Divisor: a quarter of the losses is left out at either end, and at least one of three."""
GROWTH = 2.0
"""Growth of the median norm of updates that is evidence of a too high learning rate."""
FAR_OFF = 3.0
"""Loss, in multiples of the median over devices, that is evidence of wrong labels."""
FEW = 4
"""Number of updates below which a mean is that of too few devices, and no half is a majority."""
STILL = 3
"""Number of rounds in a row with the same model from which the campaign stands still."""
MENDS = (
    "algorithm",
    "hyper",
    "lr_schedule",
    "local_epochs",
    "batch_size",
    "max_update_norm",
    "norm_cap",
)
"""Settings whose change may mend a divergence."""
NOBODY = Member()


def scored(member: Member, evidence: float, number: int) -> Member:
    """Return the member after a round in which its update stood out to this extent."""
    score = round(DECAY * member.score + (1 - DECAY) * evidence, 2)
    score = score if score >= 0.05 else 0.0
    since = (member.suspect_since or number) if score else 0
    return replace(member, score=score, suspect_since=since)


def stands_out(member: Member) -> bool:
    """Return True if a device has stood out over several rounds."""
    return member.score >= NAMED and not member.excluded


def is_named(campaign: Campaign, device_id: str) -> bool:
    """Return True if a device stands out and the cause is not the campaign's."""
    is_unnamed = trained_group(campaign, device_id) in campaign.unnamed
    return stands_out(campaign.members.get(device_id, NOBODY)) and not is_unnamed


def is_mended(before: RunSettings, after: RunSettings) -> bool:
    """Return True if settings have changed that may have been the cause of a divergence."""
    return any(getattr(before, name) != getattr(after, name) for name in MENDS)


def watched_anew(campaign: Campaign, trends: tuple[Trend, ...] = ()) -> Campaign:
    """Return a campaign without the evidence from before a mend, apart from these trends.

    Devices that stand out and are named keep their scores, and wrong labels of few devices stay:
    neither is the campaign's cause.
    """
    members = campaign.members.mutate()
    for device_id, member in campaign.members.items():
        fresh: dict[str, Any] = {"refused": 0} if member.refused == campaign.round else {}
        if member.score and trained_group(campaign, device_id) in campaign.unnamed:
            fresh |= {"score": 0.0, "suspect_since": 0}
        members[device_id] = replace(member, **fresh) if fresh else member
    now, cause = members.finish(), campaign.divergence
    return replace(
        campaign,
        members=now,
        suspects=suspects_of(now, campaign.suspects),
        trends=tuple(replace(trend, refused=0) for trend in trends),
        divergence=cause if cause is not None and cause.cause == "labels" else None,
        refused=0,
        unnamed=(),
    )


def suspects_of(members: Map[str, Member], device_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the devices that have stood out lately, the highest scores first."""
    scores = {
        d: member.score
        for d in device_ids
        if (member := members.get(d, NOBODY)).score and not member.excluded
    }
    return tuple(sorted(scores, key=lambda d: (-scores[d], d))[:MOST_SUSPECTS])


def losses_of(counted: Mapping[str, AdmittedUpdate]) -> dict[str, float]:
    """Return the loss of the received model on each device that has evaluated it."""
    return {
        d: update.evaluated.mean_loss
        for d, update in counted.items()
        if update.evaluated.num_examples and not update.staleness
    }


def standstills_of(
    standstills: Mapping[str, Standstill],
    unchanged: Mapping[str, Standstill],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> dict[str, Standstill]:
    """Return the standstills of models, by key, after a round.

    `unchanged`: reason that a model is the same although devices trained it. `before`, `after`:
    digest of each model. A model that no device trained stands still as before.
    """
    same = {key: each for key, each in standstills.items() if before.get(key) == after.get(key)}
    return same | {
        key: replace(each, rounds=each.rounds + same[key].rounds) if key in same else each
        for key, each in unchanged.items()
    }


def crowds(campaign: Campaign, device_ids: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return, by key of their model, how many of these devices stand out, and of how many.

    Models with fewer than `FEW` devices are left out.
    """
    scores: dict[str, list[float]] = {}
    for device_id in device_ids:
        score = campaign.members.get(device_id, NOBODY).score
        scores.setdefault(trained_group(campaign, device_id), []).append(score)
    return {
        key: (sum(score >= CROWDED for score in each), len(each))
        for key, each in scores.items()
        if len(each) >= FEW
    }


def unnamed_models(campaign: Campaign, device_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of the models of whose devices none is named after a round of these devices.

    Half or more of them stand out, or the rounds of more than two devices change nothing.
    """
    numbers = crowds(campaign, device_ids)
    keys = {key for key in campaign.unnamed if key in campaign.models and key not in numbers}
    for key, (odd, number) in numbers.items():
        still = campaign.standstills.get(key)
        if 2 * odd >= number or (still is not None and still.rounds >= STILL):
            keys.add(key)
    return tuple(sorted(keys))


def refusals(trend: Trend) -> str:
    """Return the refusal of most updates of a round in words; empty if most were admitted."""
    number = trend.refused + trend.devices
    if trend.refused < 2 or 2 * trend.refused <= number:
        return ""
    what = f"{trend.refused} of the {number} devices of round {trend.round}"
    return f"the updates of {what} were refused as too large or not finite"


def refused_divergence(campaign: Campaign) -> Divergence | None:
    """Return the divergence that the refused updates of the open round show; None if none."""
    devices = max(campaign.width - campaign.refused, campaign.received)
    text = refusals(Trend(campaign.round, 0.0, devices, refused=campaign.refused))
    return Divergence("rate", text) if text else None


def divergence(
    campaign: Campaign,
    counted: Mapping[str, AdmittedUpdate],
    moved: Set[str],
    is_void: bool,
) -> Divergence | None:
    """Return the cause of a campaign's divergence after a round; None if it does not diverge.

    `campaign`: its record after the round, with the divergence of the round before. `counted`: the
    updates of the round. `moved`: devices of the round whose windows have changed. `is_void`: True
    if the round gave models up.
    """
    losses, trends = losses_of(counted), campaign.trends
    refused, crowd = _refused(trends), _crowd(campaign, counted)
    # in the first round after a mend, devices evaluate the model of before
    models = len(trends) - 1
    rise = _rise(campaign, losses, is_void) if models >= (1 if is_void else 2) else ""
    text = "; ".join(filter(None, (rise, refused, crowd)))
    if refused:
        return Divergence("rate", text)
    if not text:
        return _far_off(campaign, losses)
    suspect = next((d for d in campaign.suspects if d in counted), "")
    is_unnamed = trained_group(campaign, suspect) in campaign.unnamed
    if suspect and campaign.members[suspect].score >= SUSPECTED and not is_unnamed:
        member = campaign.members[suspect]
        changed = "; its windows have changed" if suspect in moved else ""
        since = f"round {member.suspect_since}, score {member.score:.2f}"
        why = f"its updates have stood out since {since}"
        return Divergence("device", f"{text}; {why}{changed}", (suspect,))
    if moved:
        why = f"the windows of {len(moved)} of {len(counted)} devices have changed"
        return Divergence("windows", f"{text}; {why}", tuple(sorted(moved)[:MOST_SUSPECTS]))
    small, now = min(trends, key=lambda t: t.norm), trends[-1]
    if still := next((s for s in campaign.standstills.values() if s.cause == "bounds"), None):
        why = f"round {now.round} changed nothing: {still.reason}"
        return Divergence("rate", f"{text}; {why}")
    if small.norm and now.norm > GROWTH * small.norm:
        why = f"the median norm of the updates grew from {small.norm:.3g} in round {small.round}"
        return Divergence("rate", f"{text}; {why} to {now.norm:.3g}")
    if now.devices < FEW:
        number = f"{now.devices} update{'' if now.devices == 1 else 's'}"
        return Divergence("few", f"{text}; the last round had {number}")
    return Divergence("settings" if crowd else "unknown", text)


def _refused(trends: Sequence[Trend]) -> str:
    """Return the refusals of most updates in the last rounds in words.

    Empty if there were none, or if most of the devices have come back since.
    """
    most = 0
    for trend in reversed(trends[-STILL:]):
        if text := refusals(trend):
            return text if 2 * most <= trend.refused + trend.devices else ""
        most = max(most, trend.devices)
    return ""


def _crowd(campaign: Campaign, device_ids: Iterable[str]) -> str:
    """Return the model of whose devices most stand out in words; empty if there is none."""
    numbers = crowds(campaign, device_ids)
    odd = {key: numbers[key] for key in numbers if 2 * numbers[key][0] >= numbers[key][1]}
    if not odd:
        return ""
    some, number = max(odd.values())
    return f"the updates of {some} of {number} devices of a group stand out, so none is named"


def _middle(losses: Iterable[float]) -> float:
    """Return the mean of losses without the highest and the lowest ones; of two, the lower one."""
    ordered = sorted(losses)
    if len(ordered) < 3:
        return ordered[0]
    ends = max(1, len(ordered) // TRIMMED)
    return fmean(ordered[ends:-ends])


def _far_off(campaign: Campaign, losses: Mapping[str, float]) -> Divergence | None:
    """Return the few devices on which alone the losses of the last two models are far off.

    They rose there against an earlier model, and lift the mean loss over all devices. None if there
    are no such devices.
    """
    *earlier, before = map(_losses_at, campaign.history[:-1] or (campaign.version,))
    last = campaign.divergence
    risen = {*last.devices} if last is not None and last.cause == "labels" else set[str]()
    usual = median_low(losses.values()) if losses else 0.0
    far = dict[str, float]()
    for device_id, loss in losses.items():
        lower = min(loss, before.get(device_id, 0.0))
        if any(lower > RISE * then.get(device_id, lower) for then in earlier):
            risen.add(device_id)
        if lower > FAR_OFF * usual and device_id in risen:
            far[device_id] = loss
    others = [losses[d] for d in losses if d not in far]
    is_few = 0 < len(far) <= len(losses) // 3
    if not is_few or fmean(losses.values()) <= RISE * fmean(others):
        return None
    text = (
        "the loss of the last models rose on few devices, not on the others: its median over all "
        f"devices is {usual:.3g}, and here it is at least {min(far.values()):.3g}"
    )
    return Divergence("labels", text, tuple(far)[:MOST_SUSPECTS])


def _losses_at(version: Version) -> dict[str, float]:
    """Return the loss of a version's models on each device that has evaluated them."""
    return {d: metrics.mean_loss for d, metrics in version.evaluated.items()}


def _rise(campaign: Campaign, losses: Mapping[str, float], is_void: bool) -> str:
    """Return the rise of the usual loss in words; empty if the campaign does not diverge.

    Models are compared on the devices that have evaluated both. The last two models have to be
    worse than an earlier one, so that a single bad round is no divergence.
    """
    *earlier, before = campaign.history[:-1] or (campaign.version,)
    for version in (campaign.version,) if is_void else earlier:
        compared = [_losses_at(version), losses]
        compared += [] if is_void else [_losses_at(before)]
        shared = [d for d in losses if all(d in each for each in compared)]
        for devices in _parts(campaign, shared):
            then, now, *others = [_middle(each[d] for d in devices) for each in compared]
            if is_void or min(now, *others) > RISE * then:
                what = f"the usual loss of the models of round {version.round} is {then:.3g}"
                return f"{what}, and that of the last ones {now:.3g}, on {len(devices)} devices"
    return "the last models were given up" if is_void else ""


def _parts(campaign: Campaign, device_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the devices whose losses are compared: all of them, and then those of each group."""
    if len(device_ids) > 1:
        yield device_ids
    groups: dict[str, list[str]] = {}
    for device_id in device_ids:
        groups.setdefault(trained_group(campaign, device_id), []).append(device_id)
    yield from (group for group in groups.values() if 3 <= len(group) < len(device_ids))
