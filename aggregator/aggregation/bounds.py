"""Bounds of a round: weight and norm of an update, movement of a model, fall of the accuracy.

Pure. A bound relative to the round's other devices needs no knowledge of the model. It is taken
from the median, which a minority of the devices cannot move far. For an even number of devices it
is the lower median, so that the louder of two devices cannot excuse itself.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median_low

from msgspec.structs import replace

from aggregator.aggregation.admission import norms_of
from aggregator.core.settings import RunSettings
from aggregator.fleet.records import AdmittedUpdate, Campaign, Version
from aggregator.fleet.rounds import counted_updates, measures
from algorithms.core.keys import NEWCOMER
from wire.arrays import names
from wire.arrays.tensors import Tensors

FLOOR = 1.0
"""Norm below which nothing is left out, because most devices may have had nothing to learn."""


def bounded(
    settings: RunSettings, received: Mapping[str, AdmittedUpdate], before: Mapping[str, float]
) -> tuple[dict[str, AdmittedUpdate], dict[str, str], dict[str, float]]:
    """Return the updates to aggregate, why the others are left out, and the medians of norms.

    The updates have their final weights. Reasons are by device, median norms by role. `before`: the
    latest medians, which count as one more device.

    If there are other devices too, newcomers are compared with each other only, and their responses
    with `before` as well. They train from another model, which lets them move farther, and their
    training only places them.
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
                role: values + ([usual[role]] if role in usual else [])
                for role, values in norms.items()
            },
        )
        for device_id, update in part.items():
            if role := first_beyond(update.norms, bounds):
                norm = f"the norm of its {role} is {update.norms[role]:.3g}"
                left_out[device_id] = f"{norm}; at most {bounds[role]:.3g} counts in this round"
        medians |= {role: median_low(values) for role, values in norms.items()}
    updates = {
        device_id: update for device_id, update in received.items() if device_id not in left_out
    }
    if settings.weight_cap > 0 and updates:
        most = max(
            1,
            round(
                settings.weight_cap * median_low(update.num_train for update in updates.values())
            ),
        )
        updates = {
            d: replace(update, num_train=most) if update.num_train > most else update
            for d, update in updates.items()
        }
    return updates, left_out, medians


def bounds_of(settings: RunSettings, norms: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the maximum norm of each role, from the usual norms; empty if the cap is off."""
    if settings.norm_cap <= 0:
        return {}
    return {
        role: max(FLOOR, settings.norm_cap * median_low(usual)) for role, usual in norms.items()
    }


def first_beyond(norms: Mapping[str, float], bounds: Mapping[str, float]) -> str:
    """Return the first role whose norm is out of bounds; empty if there is none."""
    return next((role for role, bound in bounds.items() if norms.get(role, 0.0) > bound), "")


def too_far(
    campaign: Campaign,
    models: Mapping[str, Tensors],
    origins: Mapping[str, str | None],
    before: Mapping[str, Tensors],
) -> tuple[dict[str, str], dict[str, float]]:
    """Return the models that moved too far with reasons, and the others' median distances.

    A model has moved too far if its distance from each of the last round's models is out of bounds.
    Reasons are by key. The medians, by role, are distances of each model from the one that it
    continues. `origins`: key of that model; None if there is none. Without distances of earlier
    rounds, no model has moved too far.
    """
    roles = sorted({role for distance in campaign.distances for role in distance})
    usual = {role: [d[role] for d in campaign.distances if role in d] for role in roles}
    bounds = bounds_of(campaign.settings, usual)
    far, near = dict[str, str](), list[dict[str, float]]()
    for key, origin in origins.items():
        model, last = models[key], None if origin is None else before[origin]
        if last is None or model is last or campaign.settings.norm_cap <= 0:
            continue
        distance = _distance(model, last)
        beyond = first_beyond(distance, bounds)
        if beyond and all(
            first_beyond(_distance(model, other), bounds) for other in before.values()
        ):
            far[key] = (
                f"the distance of its {beyond} is {distance[beyond]:.3g}; at most "
                f"{bounds[beyond]:.3g} is accepted in this run"
            )
        else:
            near.append(distance)
    roles = sorted({role for distance in near for role in distance})
    return far, {role: median_low(distance.get(role, 0.0) for distance in near) for role in roles}


def _distance(model: Tensors, other: Tensors) -> dict[str, float]:
    """Return the Euclidean distance of two models for each role."""
    return norms_of(
        {name: array - other[name] for name, array in model.items() if array.dtype.kind == "f"}
    )


def worse_than(campaign: Campaign) -> tuple[Version, float] | None:
    """Return the best earlier version that beats the current models by more than `max_drop`.

    The result has the version and the difference of accuracy (fraction). None if there is no such
    version. Devices evaluate the model that they receive before they train it. Versions are
    compared on the devices that have evaluated both, at least `min_updates`. The device with the
    largest fall does not count if there are others, so that no single device's report can discard a
    round.
    """
    settings = campaign.settings
    if settings.max_drop >= 1 or campaign.preparing:
        return None
    now, worst = measures(counted_updates(campaign)), None
    for version in campaign.history:
        both = now.keys() & version.evaluated.keys()
        if version.round == campaign.version.round or len(both) < max(1, settings.min_updates):
            continue
        drops = sorted(version.evaluated[d].accuracy - now[d].accuracy for d in both)
        drop = fmean(drops[:-1] or drops)
        if drop > settings.max_drop and (worst is None or drop >= worst[1]):
            worst = version, drop
    return worst
