"""A device's half of groups from secret sums: its coordinates, its numbers and its side. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.codec import digest
from wire.errors import Malformed
from wire.secret.coordinates import bins_of, node_of, projected
from wire.secret.masks import mask
from wire.secret.question import SumQuestion
from wire.secret.survey import (
    BINS,
    CLIP,
    SURVEY_BITS,
    SURVEY_MOST,
    SurveyScale,
    SurveySum,
    TellGroup,
    parts_of,
)

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


def check_survey(question: SumQuestion, verb: SurveySum, numbers: Tensors) -> None:
    """Check that a question is the one about an exchange, for any number of devices.

    Raises:
        Malformed: it has other parts, or integers that are rounded in another way.
    """
    if (question.bits, question.most, question.noise) != (SURVEY_BITS, SURVEY_MOST, None):
        raise Malformed(
            f"question: a survey has bits {SURVEY_BITS}, most {SURVEY_MOST} and no noise, got "
            f"{question.bits}, {question.most} and {question.noise}"
        )
    num_inputs = len(verb.scale.mean) if verb.scale else len(numbers.get("means", ()))
    if question.parts != parts_of(verb, num_inputs):
        raise Malformed(f"question: its parts are not those of the exchange {verb.kind}")


def bindings_of(verb: SurveySum | TellGroup) -> dict[str, str]:
    """Return the facts that a device takes from a verb once for ever, by name, as digests.

    They are the scale of coordinates, the plane of each node, and the exchanges of each node.
    """
    facts: dict[str, msgspec.Struct] = {}
    if verb.scale is not None:
        facts["scale"] = verb.scale
    facts |= {f"plane {plane.node}": plane for plane in verb.planes}
    if isinstance(verb, SurveySum):
        facts[f"{verb.kind} {verb.node}"] = verb
    return {name: digest(msgspec.json.encode(fact)) for name, fact in facts.items()}


def rounding_of(seed: bytes, bundle: str, verb: SurveySum) -> Callable[[int], bytes]:
    """Return the source of the random bytes that round the numbers of an exchange.

    They are the same whenever the exchange is asked for. Sums of the same numbers that are rounded
    anew each time would tell them more exactly.

    Args:
        seed: 32 random bytes that never leave the device.
        bundle: digest of the bundle.
        verb: the exchange.
    """
    name, calls = digest(bundle.encode() + msgspec.json.encode(verb)), iter(range(1 << 16))

    def draw(count: int) -> bytes:
        return mask(seed, f"rounding {name} {next(calls)}", count, np.dtype(np.uint8)).tobytes()

    return draw
