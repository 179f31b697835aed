"""What devices keep when a run is over, and why, in words for the report."""

from collections.abc import Mapping, Sequence

from algorithms.personalisation.keeping import Recipe
from algorithms.personalisation.kept import Kept
from wire.held import FEWEST


def kept_text(kept: Kept | None) -> str:
    """What a device keeps, in a few words."""
    return kept.candidate if kept else "not told"


def rule_text(recipe: Recipe | None) -> str:
    """The rule by which a device chooses (`algorithms.personalisation.keeping.first_good`); without a recipe the choice is not made by this
    rule."""
    if recipe is None:
        return "Each device chooses among these candidates by windows that it held out."
    judged = "A device judges its candidates by their mean loss on windows that it held out, in the order of this table."
    few = f"with fewer than {FEWEST} such windows, {recipe.candidates[recipe.unjudged]}, or the next that it can use"
    if not recipe.errors:
        return f"{judged} It keeps the one with the least loss; {few}."
    return (
        f"{judged} It keeps the first whose mean loss is above the least by no more than {recipe.errors:g} standard errors; {few}. A "
        "standard error is that of the difference between the two losses, window by window. So an earlier candidate is preferred, unless "
        "the best is clearly better. The margin is how far a mean loss is above the least."
    )


def margin_text(kept: Kept | None, candidates: Sequence[str]) -> str:
    """How far the loss of what a device keeps is above the least, and the losses of those before it, which the device passed over.

    Each with its standard error where the device told that; empty where it has told nothing. `candidates`: in the order in which devices
    consider them."""
    if kept is None:
        return ""
    if kept.loss is None:
        return "no windows to judge by"
    losses = {**kept.others, kept.candidate: kept.loss}
    best = min(losses, key=losses.__getitem__)
    text = f"loss {kept.loss:.3f} on {kept.windows} window{'' if kept.windows == 1 else 's'}"
    if kept.windows < FEWEST:
        return f"{text}, too few to judge by"
    if kept.loss <= losses[best]:
        text += ", the least"
    else:
        text += f", {_margin(kept, losses, kept.candidate)} to the least ({best})"
    passed = [name for name in candidates[: candidates.index(kept.candidate)] if name in losses]
    margins = ", ".join(f"{name} ({_margin(kept, losses, name)})" for name in passed)
    return f"{text}; passed over: {margins}" if margins else text


def _margin(kept: Kept, losses: Mapping[str, float], name: str) -> str:
    error = kept.errors.get(name)
    return f"margin {losses[name] - min(losses.values()):.3f}" + ("" if error is None else f", standard error {error:.3f}")
