"""What devices keep when a run is over, and why, in words for the report."""

from collections.abc import Mapping, Sequence

from algorithms.personalisation.keeping import BEYOND, GENERAL, TUNED, Recipe
from algorithms.personalisation.kept import Kept
from wire.held import FEWEST

UNUSABLE = "no training, one that did not end well, or labels of a part of the classes"
"""Why a candidate is not to be used."""


def rule_text(recipe: Recipe | None) -> str:
    """The rule by which a device chooses (`algorithms.personalisation.keeping.first_good`); without
    a recipe the choice is not made by this rule."""
    if recipe is None:
        return "Each device chooses among these candidates by windows that it held out."
    judged = (
        "A device judges its candidates by their mean loss on windows that it held out, in the "
        "order of this table."
    )
    few = (
        f"with fewer than {FEWEST} such windows, {recipe.candidates[recipe.unjudged]}, or the "
        "next that it can use"
    )
    if not recipe.errors:
        return f"{judged} It keeps the one with the least loss; {few}."
    return (
        f"{judged} It keeps the first whose mean loss is above the least by no more than "
        f"{recipe.errors:g} standard errors and by no more "
        f"than {BEYOND:g}; {few}. A standard error is that of the difference between the two "
        "losses, window by window. So an earlier "
        "candidate is preferred, unless the best is clearly better. The margin is how far a mean "
        "loss is above the least."
    )


def names_text(recipe: Recipe | None) -> str:
    """What the names of candidates stand for."""
    if recipe is None:
        return ""
    moved = (
        ", with BatchNorm's statistics moved towards those of the device's windows"
        if recipe.recalibrates
        else ""
    )
    told = {GENERAL: f"the group's model{moved}"}
    told |= (
        {TUNED: "that model on the way to what the device's own training makes of it"}
        if recipe.tunes
        else {}
    )
    models = "; ".join(f"{name}: {what}" for name, what in told.items() if recipe.of(name))
    shares = any(candidate.share for candidate in recipe.candidates)
    return (
        (
            f"{models}; neighbours: the share of the answer that comes from the device's own "
            "windows that are most alike."
        )
        if shares
        else f"{models}."
    )


def margin_text(kept: Kept | None, candidates: Sequence[str]) -> str:
    """How far the loss of what a device keeps is above the least, and the losses of those before
    it, which the device passed over.

    Each with its standard error where the device told that; empty where it has told nothing.
    `candidates`: in the order in which devices consider them."""
    if kept is None:
        return ""
    passed = candidates[: candidates.index(kept.candidate)]
    left_out = ", ".join(name for name in passed if name in kept.unusable)
    unusable = f"; not to be used ({UNUSABLE}): {left_out}" if left_out else ""
    if kept.loss is None:
        return f"no windows held out to judge by{unusable}"
    losses = {**kept.others, kept.candidate: kept.loss}
    usable = {name: loss for name, loss in losses.items() if name not in kept.unusable}
    best = min(usable, key=usable.__getitem__)
    text = f"loss {kept.loss:.3f} on {kept.windows} window{'' if kept.windows == 1 else 's'}"
    if kept.windows < FEWEST:
        return f"{text}, too few to judge by{unusable}"
    if kept.loss <= usable[best]:
        text += (
            ", the least" if usable.keys() == losses.keys() else ", the least of those to be used"
        )
    else:
        text += f", {_margin(kept, usable, kept.candidate)} to the least ({best})"
    margins = ", ".join(
        f"{name} ({_margin(kept, usable, name)})" for name in passed if name in usable
    )
    return (f"{text}; passed over: {margins}" if margins else text) + unusable


def _margin(kept: Kept, losses: Mapping[str, float], name: str) -> str:
    error = kept.errors.get(name)
    return f"margin {losses[name] - min(losses.values()):.3f}" + (
        "" if error is None else f", standard error {error:.3f}"
    )
