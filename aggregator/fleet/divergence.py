"""Devices that stand out over rounds, and the cause of a divergence. Pure.

A campaign *diverges* if the mean loss of its models rises, or if a round gives its models up. The
causes are tried in the order of `Cause`, and the first one with evidence is the campaign's.
"""

import math
from collections.abc import Iterable, Mapping, Set
from statistics import fmean, median_low

from immutables import Map
from msgspec.structs import replace

from aggregator.fleet.records import AdmittedUpdate, Campaign, Divergence, Member

DECAY = 0.7
"""Weight of the earlier rounds in a device's score; the last round has the rest."""
NAMED = 0.55
"""Score from which a device is named: three rounds of full evidence."""
SUSPECTED = 0.5
"""Score from which a device may be the cause of a divergence: two rounds of full evidence."""
MOST_SUSPECTS = 20
"""Maximum number of devices of a campaign that are watched."""
TRENDS = 6
"""Number of last rounds of which a campaign knows the trend."""
RISE = 1.5
"""Rise of the mean loss within these rounds with which a campaign diverges."""
GROWTH = 2.0
"""Growth of the median norm of updates that is evidence of a too high learning rate."""
FAR_OFF = 3.0
"""Loss, in multiples of the median over devices, that is evidence of wrong labels."""
FEW = 4
"""Number of updates below which a mean is that of too few devices."""
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


def divergence(
    campaign: Campaign,
    counted: Mapping[str, AdmittedUpdate],
    moved: Set[str],
    is_void: bool,
) -> Divergence | None:
    """Return the cause of a campaign's divergence after a round; None if it does not diverge.

    `campaign`: its record after the round. `counted`: the updates of the round. `moved`: devices of
    the round whose windows have changed. `is_void`: True if the round gave models up.
    """
    losses, trends = losses_of(counted), campaign.trends
    if not (text := _rise(campaign, losses, is_void)):
        return None
    suspect = next((d for d in campaign.suspects if d in counted), "")
    if suspect and campaign.members[suspect].score >= SUSPECTED:
        member = campaign.members[suspect]
        changed = "; its windows have changed" if suspect in moved else ""
        why = f"its updates stand out since round {member.suspect_since}, score {member.score:.2f}"
        return Divergence("device", f"{text}; {why}{changed}", (suspect,))
    if moved:
        why = f"the windows of {len(moved)} of {len(counted)} devices have changed"
        return Divergence("windows", f"{text}; {why}", tuple(sorted(moved)[:MOST_SUSPECTS]))
    small, now = min(trends, key=lambda t: t.norm), trends[-1]
    if small.norm and now.norm > GROWTH * small.norm:
        why = f"the median norm of the updates grew from {small.norm:.3g} in round {small.round}"
        return Divergence("rate", f"{text}; {why} to {now.norm:.3g}")
    usual = median_low(losses.values()) if losses else math.inf
    far = [d for d, loss in losses.items() if loss > FAR_OFF * usual]
    if far and len(far) <= len(losses) // 3:
        why = f"its median over all devices is {usual:.3g}, and here it is at least"
        why += f" {min(losses[d] for d in far):.3g}"
        return Divergence("labels", f"{text}; {why}", tuple(far[:MOST_SUSPECTS]))
    if now.devices < FEW:
        return Divergence("few", f"{text}; the last round had {now.devices} updates")
    return Divergence("unknown", text)


def _rise(campaign: Campaign, losses: Mapping[str, float], is_void: bool) -> str:
    """Return the rise of the mean loss in words; empty if the campaign does not diverge.

    Models are compared on the devices that have evaluated both. The last two models have to be
    worse than an earlier one, so that a single bad round is no divergence.
    """
    *earlier, before = campaign.history[:-1] or (campaign.version,)
    for version in (campaign.version,) if is_void else earlier:
        then = {d: metrics.mean_loss for d, metrics in version.evaluated.items()}
        pairs = [then, losses]
        if not is_void:
            pairs.append({d: metrics.mean_loss for d, metrics in before.evaluated.items()})
        shared = [d for d in losses if all(d in each for each in pairs)]
        means = [fmean(each[d] for d in shared) for each in pairs] if len(shared) > 1 else []
        if means and (is_void or min(means[1:]) > RISE * means[0]):
            what = f"the mean loss of the models of round {version.round} is {means[0]:.3g}"
            return f"{what}, and that of the last ones {means[1]:.3g}, on {len(shared)} devices"
    return "the last models were given up" if is_void else ""
