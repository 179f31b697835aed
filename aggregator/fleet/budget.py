"""Budgets that end the training of a campaign: rounds, days, or models that no longer get better.

Each budget stands for itself, and the first that is spent ends training. A round that is open goes
on; then comes the evaluation. What no longer gets better is the *mean accuracy* of the models that
devices were given, on their own test windows, every device counting the same. A round in which no
device reports one counts neither way.
"""

import math
from collections.abc import Iterable
from statistics import fmean

from msgspec.structs import replace

from aggregator.core.settings import Ended
from aggregator.fleet.records import Campaign, Received
from wire.messages import Metrics

DAY_S = 86_400.0


def spent(campaign: Campaign, now_s: float) -> Ended:
    """Return the budget that is spent; empty while a round of training may open."""
    settings = campaign.next_settings
    if campaign.ended == "order":
        return "order"
    if campaign.trained >= settings.rounds:
        return "rounds"
    if settings.days and now_s >= campaign.started_s + settings.days * DAY_S:
        return "days"
    return "patience" if settings.patience and campaign.unimproved >= settings.patience else ""


def measured(campaign: Campaign, updates: Iterable[Received]) -> Campaign:
    """Return a campaign after a round of training, by the accuracies that its devices reported."""
    accuracy = mean_accuracy(update.evaluated for update in updates)
    if accuracy is None:
        return replace(campaign, unmeasured=True)
    best, unimproved = improvement(
        campaign.best, campaign.unimproved, accuracy, campaign.settings.min_delta
    )
    return replace(campaign, best=best, unimproved=unimproved, unmeasured=False)


def improvement(
    best: float | None, unimproved: int, accuracy: float, min_delta: float
) -> tuple[float, int]:
    """Return the best mean accuracy, and the number of rounds since it improved by more than
    `min_delta`, after a round with this one."""
    return (accuracy, 0) if best is None or accuracy > best + min_delta else (best, unimproved + 1)


def improvement_of(
    accuracies: Iterable[float | None], min_delta: float
) -> tuple[float | None, int]:
    """Return the same after rounds with these mean accuracies, in their order."""
    best, unimproved = None, 0
    for accuracy in accuracies:
        if accuracy is not None:
            best, unimproved = improvement(best, unimproved, accuracy, min_delta)
    return best, unimproved


def mean_accuracy(evaluated: Iterable[Metrics]) -> float | None:
    """Return the mean over devices; None where none has tested a model."""
    known = [m.accuracy for m in evaluated if m.num_examples and math.isfinite(m.accuracy)]
    return fmean(known) if known else None


def why_ended(campaign: Campaign) -> str:
    """Return why a campaign trains no further, for people; or why a budget cannot end it. Empty
    where there is nothing to say."""
    settings = campaign.next_settings
    match campaign.ended:
        case "rounds":
            return f"its {campaign.trained} round{' is' if campaign.trained == 1 else 's are'} over"
        case "days":
            return f"its {settings.days:g} days are over"
        case "patience":
            best = f"{campaign.best:.4f}" if campaign.best is not None else "none"
            return (
                f"the mean accuracy has not improved by more than {settings.min_delta:g} for "
                f"{campaign.unimproved} rounds (best: {best})"
            )
        case "order":
            return "it was aborted"
    if settings.patience and campaign.unmeasured:
        return "its devices report no accuracy: --patience cannot end it"
    return ""
