"""Start of a campaign from trained models in place of the bundle's initial weights."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from algorithms.algorithm import Algorithm
from algorithms.core.contract import exchanged
from algorithms.core.keys import RELEASED
from wire.arrays.tensors import Array, Tensors

log = logging.getLogger("shoal.aggregator")


@dataclass(frozen=True)
class TrainedModels:
    """Models of groups, and the devices of each."""

    name: str
    """Origin of the models, for people."""
    models: Mapping[str, Tensors] = field(repr=False)
    """Models by group, at least one, with the roles of a model's blob."""
    groups: Mapping[str, str]
    """Group of each device.

    Devices without a group, and those of groups without a model, begin as newcomers.
    """

    def mean(self) -> Tensors:
        """Return the mean of the models, weighted by the number of devices of each.

        Integer tensors are those of the largest group.
        """
        sizes = Counter(self.groups.values())
        weights = {group: max(1, sizes[group]) for group in self.models}
        largest = max(sorted(self.models), key=lambda group: weights[group])
        means = dict(self.models[largest])
        for name, array in means.items():
            having = [
                g
                for g in sorted(self.models)
                if name in self.models[g] and self.models[g][name].shape == array.shape
            ]
            if array.dtype.kind == "f" and having:
                total = sum(weights[g] * self.models[g][name].astype(np.float64) for g in having)
                means[name] = np.asarray(total / sum(weights[g] for g in having), array.dtype)
        return means


def fitting(initial: Mapping[str, Array], model: Mapping[str, Array]) -> tuple[Tensors, list[str]]:
    """Return a bundle's exchanged tensors with another model's values, and names that lack one.

    A value is taken if the other model has a tensor of the same name, dtype and shape.
    """
    tensors, missing = {}, []
    for name, array in exchanged(dict(initial)).items():
        other = model.get(name)
        if other is not None and other.shape == array.shape and other.dtype == array.dtype:
            tensors[name] = other
        else:
            tensors[name] = array
            missing.append(name)
    return tensors, missing


def begin_from(
    source: TrainedModels, initial: Tensors, algorithm: Algorithm
) -> tuple[Tensors, dict[str, Tensors], dict[str, str]]:
    """Return the initial tensors of a campaign, further models by key, and the devices' start keys.

    The initial tensors replace the bundle's. Every device starts from its group's model if the
    grouping supports that. Otherwise all start from the mean of the groups; a grouping that begins
    with several models has the groups' models in their place.
    """
    mean, missing = fitting(initial, source.mean())
    if missing:
        log.warning(
            "Devices start from the models of %s, but from the bundle's weights where these do "
            "not fit: tensors=%d/%d: %s",
            source.name,
            len(missing),
            len(mean),
            ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else ""),
        )
    else:
        log.info("Devices start from the models of %s", source.name)
    tensors = {**initial, **mean}
    grouping_models = algorithm.grouping.begin(exchanged(initial), 0)
    models = {group: fitting(initial, model)[0] for group, model in sorted(source.models.items())}
    if grouping_models:
        sizes = Counter(source.groups.values())
        largest = sorted(models, key=lambda group: (-sizes[group], group))
        return (
            tensors,
            {
                key: models[group]
                for key, group in zip(sorted(grouping_models, key=int), largest, strict=False)
            },
            {},
        )
    if not algorithm.grouping.reads_models:
        return tensors, {}, {}
    starts = {
        device_id: RELEASED + group
        for device_id, group in sorted(source.groups.items())
        if group in models
    }
    return (
        tensors,
        {
            RELEASED + group: models[group]
            for group in sorted(set(source.groups.values()) & models.keys())
        },
        starts,
    )
