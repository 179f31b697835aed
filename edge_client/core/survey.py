"""A device's half of groups from secret sums: its coordinates, its numbers and its side. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import Malformed
from wire.secret.coordinates import bins_of, node_of, projected
from wire.secret.survey import BINS, CLIP, SurveyScale, SurveySum

PREFIX = names.response(names.SURVEY) + "."
GRADIENT = "gradient"


@dataclass(frozen=True)
class DeviceSurvey:
    """Survey of a device: means and variances of inputs (D,), sketch of the gradient (WIDTH,)."""

    means: Array
    variances: Array
    sketch: Array


def measured_in(responses: Tensors) -> DeviceSurvey:
    """Return the survey in the responses of a device, in the order of the layers' names.

    Raises:
        Malformed: the gradient is missing.
    """
    survey = {
        key.removeprefix(PREFIX): np.asarray(responses[key], np.float64).ravel()
        for key in sorted(responses)
        if key.startswith(PREFIX)
    }
    if GRADIENT not in survey:
        raise Malformed(f"survey: {PREFIX}{GRADIENT} is missing")
    kinds = (names.MEAN_OF, names.VARIANCE_OF)
    means, variances = (
        np.concatenate([np.zeros(0), *(v for k, v in survey.items() if k.startswith(kind))])
        for kind in kinds
    )
    if len(means) != len(variances):
        raise Malformed(f"survey: {len(means)} means and {len(variances)} variances")
    finite = (np.where(np.isfinite(v), v, 0.0) for v in (means, variances, survey[GRADIENT]))
    means, variances, gradient = finite
    unit = gradient / max(float(np.linalg.norm(gradient)), 1e-12)
    return DeviceSurvey(means, variances, projected(unit, "labels"))


def coordinates(measured: DeviceSurvey, scale: SurveyScale) -> Array:
    """Return the coordinates (width,) of a device, limited to CLIP.

    Raises:
        Malformed: the scale is that of another model.
    """
    if len(scale.mean) != len(measured.means):
        raise Malformed(
            f"scale: {len(scale.mean)} means of inputs, and the model has {len(measured.means)}"
        )
    views = [measured.sketch - np.array(scale.origin)]
    if len(measured.means):
        inputs = (measured.means - np.array(scale.mean)) / np.array(scale.deviation)
        views.insert(0, projected(inputs, "inputs"))
    parts = (view / spread for view, spread in zip(views, scale.spreads, strict=True))
    return np.asarray(np.clip(np.concatenate([*parts]), -CLIP, CLIP))


def numbers_of(verb: SurveySum, measured: DeviceSurvey) -> Tensors:
    """Return a device's numbers float32 (n,) in an exchange, by part.

    Raises:
        Malformed: the device is in another node, or the scale is that of another model.
    """
    return {name: np.asarray(values, np.float32) for name, values in _exact(verb, measured).items()}


def _exact(verb: SurveySum, measured: DeviceSurvey) -> Mapping[str, Array]:
    if verb.scale is None:
        means = measured.means
        inputs = {"means": means, "squares": means**2, "variances": measured.variances}
        length = np.array([float(measured.sketch @ measured.sketch)])
        labels = {"sketch": measured.sketch, "length": length}
        return (inputs if len(means) else {}) | labels
    position = coordinates(measured, verb.scale)
    if (node := node_of(position, verb.planes)) != verb.node:
        raise Malformed(f"survey-sum: the device is in node {node!r}, asked for {verb.node!r}")
    if verb.kind == "moments":
        products = np.outer(position, position)[np.triu_indices(len(position))]
        return {"coordinates": position, "products": products}
    bins = np.zeros((len(verb.axes), BINS))
    for row, axis in zip(bins, verb.axes, strict=True):
        row[bins_of(np.dot(np.array(axis.axis), position) - axis.mean, axis.deviation)] = 1
    return {"bins": bins.ravel()}
