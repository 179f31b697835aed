"""How much one device may move a model: pure rules over a round's admitted updates.

A bound that is relative to the round's other devices needs no knowledge of the model. It is taken
from the median, which less than half of the devices cannot move far; of an even number the lower
one, so that of two devices the louder cannot excuse itself.
"""

from collections.abc import Mapping, Sequence
from statistics import median_low

from msgspec.structs import replace

from aggregator.core.settings import RunSettings
from aggregator.core.state import Received
from algorithms.core.keys import NEWCOMER
from wire.arrays import names

FLOOR = 1.0
"""A norm below this is never left out, however small the others are: most devices may have had
nothing to learn."""


def bounded(
    settings: RunSettings, received: Mapping[str, Received], before: Mapping[str, float]
) -> tuple[dict[str, Received], dict[str, str], dict[str, float]]:
    """The updates that are aggregated, by device, with the weights that they have; of the others,
    why they are left out; by role, the median norm of the updates that have it. `before`: the
    latest medians, which count as one more device.

    Newcomers among others are held against each other, and their responses against `before` as
    well: they train from another model, farther than the others do, and what they train only places
    them.
    """
    newcomers = {d: update for d, update in received.items() if update.start == NEWCOMER}
    others = {d: update for d, update in received.items() if d not in newcomers}
    surveys = {role: norm for role, norm in before.items() if role == names.RESPONSE}
    parts = (
        ((newcomers, surveys), (others, before)) if newcomers and others else ((received, before),)
    )
    left_out: dict[str, str] = {}
    medians = dict(before)
    for part, usual in parts:
        norms = {
            role: [u.norms[role] for u in part.values() if role in u.norms]
            for role in sorted({r for u in part.values() for r in u.norms})
        }
        bounds = bounds_of(
            settings,
            {
                role: found + ([usual[role]] if role in usual else [])
                for role, found in norms.items()
            },
        )
        for device_id, update in part.items():
            if role := first_beyond(update.norms, bounds):
                norm = f"the norm of its {role} is {update.norms[role]:.3g}"
                left_out[device_id] = (
                    f"{norm}: more than {bounds[role]:.3g} is not usual in this round"
                )
        medians |= {role: median_low(found) for role, found in norms.items()}
    kept = {
        device_id: update for device_id, update in received.items() if device_id not in left_out
    }
    if settings.weight_cap > 0 and kept:
        most = max(
            1, round(settings.weight_cap * median_low(update.num_train for update in kept.values()))
        )
        kept = {
            d: replace(update, num_train=most) if update.num_train > most else update
            for d, update in kept.items()
        }
    return kept, left_out, medians


def bounds_of(settings: RunSettings, norms: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By role, the norm beyond which something is set aside, from the norms that are usual; none
    where the cap is off."""
    if settings.norm_cap <= 0:
        return {}
    return {
        role: max(FLOOR, settings.norm_cap * median_low(usual)) for role, usual in norms.items()
    }


def first_beyond(norms: Mapping[str, float], bounds: Mapping[str, float]) -> str:
    """The first role whose norm is out of bounds; empty where none is."""
    return next((role for role, bound in bounds.items() if norms.get(role, 0.0) > bound), "")
