"""Budgets that end the training of a campaign: rounds, days and early stopping.

The budgets are independent, and the first one that is spent ends training. An open round is
completed first and then its models are evaluated. Early stopping watches the *mean accuracy* of the
models on the devices' own test windows, with equal weight per device. A round without a reported
accuracy changes nothing.
"""

import math
from collections.abc import Iterable
from statistics import fmean

from msgspec.structs import replace

from aggregator.core.settings import Ended
from aggregator.fleet.records import AdmittedUpdate, Campaign
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


def measured(
    campaign: Campaign, updates: Iterable[AdmittedUpdate], accuracy: float | None
) -> Campaign:
    """Return a campaign after a round of training in which its devices reported accuracies.

    `accuracy`: their mean, if it is known by a secret sum.
    """
    if accuracy is None:
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
    """Return the best mean accuracy and the number of rounds since, after one more round.

    `min_delta`: minimum improvement that counts (fraction).
    """
    return (accuracy, 0) if best is None or accuracy > best + min_delta else (best, unimproved + 1)


def improvement_of(
    accuracies: Iterable[float | None], min_delta: float
) -> tuple[float | None, int]:
    """Return the best mean accuracy and the number of rounds since, after all these rounds.

    `accuracies`: mean accuracy of each round, in order; None for a round without one.
    """
    best, unimproved = None, 0
    for accuracy in accuracies:
        if accuracy is not None:
            best, unimproved = improvement(best, unimproved, accuracy, min_delta)
    return best, unimproved


def mean_accuracy(evaluated: Iterable[Metrics]) -> float | None:
    """Return the mean accuracy over devices; None if no device has tested a model."""
    accuracies = [m.accuracy for m in evaluated if m.num_examples and math.isfinite(m.accuracy)]
    return fmean(accuracies) if accuracies else None


def why_ended(campaign: Campaign) -> str:
    """Return why a campaign has stopped training, for people; empty if there is nothing to say.

    For a campaign that still trains, the text says why a budget cannot end it.
    """
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
