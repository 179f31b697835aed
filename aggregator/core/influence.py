"""How much one device may move a model: pure rules over a round's admitted updates.

A bound that is relative to the round's other devices needs no knowledge of the model. It is taken from the median, which less than half of
the devices cannot move far; of an even number the lower one, so that of two devices the louder cannot excuse itself.
"""

from collections.abc import Mapping
from statistics import median_low

from msgspec.structs import replace

from aggregator.core.settings import RunSettings
from aggregator.core.state import Received

FLOOR = 1.0
"""A norm below this is never left out, however small the others are: most devices may have had nothing to learn."""


def bounded(
    settings: RunSettings, received: Mapping[str, Received], before: Mapping[str, float]
) -> tuple[dict[str, Received], dict[str, str], dict[str, float]]:
    """The updates that are aggregated, by device, with the weights that they have; of the others, why they are left out; by role, the
    median norm. `before`: the medians of the round before, which count as one more device."""
    roles = sorted({role for update in received.values() for role in update.norms})
    norms = {role: [update.norms.get(role, 0.0) for update in received.values()] for role in roles}
    usual = {role: median_low(norms[role] + ([before[role]] if role in before else [])) for role in roles}
    bounds = {role: max(FLOOR, settings.norm_cap * usual[role]) for role in roles} if settings.norm_cap > 0 else {}
    left_out = {device_id: why for device_id, update in received.items() if (why := _too_far(update, bounds))}
    kept = {device_id: update for device_id, update in received.items() if device_id not in left_out}
    if settings.weight_cap > 0 and kept:
        most = max(1, round(settings.weight_cap * median_low(update.num_train for update in kept.values())))
        kept = {d: replace(update, num_train=most) if update.num_train > most else update for d, update in kept.items()}
    return kept, left_out, {role: median_low(norms[role]) for role in roles}


def _too_far(update: Received, bounds: Mapping[str, float]) -> str:
    """Which norm of an update is out of bounds, in words; empty where none is."""
    for role, bound in bounds.items():
        if update.norms.get(role, 0.0) > bound:
            return f"the norm of its {role} is {update.norms[role]:.3g}: more than {bound:.3g} is not usual in this round"
    return ""
