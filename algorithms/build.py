"""Construction of models and objectives from names, for examples of a given window."""

from collections.abc import Callable

from torch import Tensor, nn

from algorithms.composition import AlgorithmSpec, make_objective
from algorithms.core.contract import Probe
from algorithms.core.functional import seeded
from algorithms.core.keys import Units
from algorithms.core.probe import make_probe
from algorithms.models.adoption.from_file import check_file, is_file, model_from_file
from algorithms.models.classifier import Classifier
from algorithms.models.registry import default_model, make_model, read_model
from algorithms.objectives.supervised import Supervised
from wire.bundle import Window
from wire.errors import ConfigError
from wire.tasks import RECONSTRUCTION


def check_model(name: str) -> None:
    """Check a model's name as far as possible without data; empty for the default model.

    Raises:
        ConfigError: no such model, option or file.
    """
    if is_file(name):
        check_file(name)
    elif name:
        read_model(name)


def build_model(name: str, window: Window, num_classes: int, channel_size: Tensor) -> Classifier:
    """Return a fresh model by its name, or from a file (``FILE.py:FUNCTION``).

    Torch's global generator determines its weights. Inputs are divided by `channel_size`
    (channels,) float32 before the first layer.

    Raises:
        ConfigError: no such model or file, or it is not a classifier of these examples.
    """
    if is_file(name):
        return model_from_file(name, window, num_classes, channel_size)
    return make_model(name, window, num_classes, channel_size)


def outputs_of(algorithm: AlgorithmSpec, window: Window, num_classes: int) -> int:
    """Return the number of outputs of a model for an example, by the algorithm's task.

    Raises:
        ConfigError: the task cannot be learned from ids.
    """
    task = algorithm.parts.task
    if window.vocabulary and task.of == RECONSTRUCTION:
        raise ConfigError(
            f"algorithm {str(algorithm)!r}: {task.name} needs measurements, and these windows "
            "hold ids"
        )
    return task.outputs(window.shape, num_classes)


def build_objective(
    algorithm: AlgorithmSpec,
    window: Window,
    num_classes: int,
    channel_size: Tensor,
    *,
    seed: int,
    model: str = "",
    pretrained: Callable[[str], nn.Module] | None = None,
    units: Units | None = None,
) -> Supervised:
    """Return the objective of an algorithm on a fresh model.

    Args:
        num_classes: number of classes of the data.
        seed: determines the initial weights.
        model: name of the model; empty for the default of the task and the window.
        pretrained: returns a trained extractor for a model's name, in place of a fresh one.
        units: units of the labels, if they are quantities.

    Raises:
        ConfigError: an unknown algorithm or model, or one that does not fit the examples.
    """
    name, outputs = (
        model or default_model(window, algorithm.parts.task),
        outputs_of(algorithm, window, num_classes),
    )

    def make() -> Supervised:
        classifier = build_model(name, window, outputs, channel_size)
        if pretrained is not None:
            classifier.extractor = pretrained(name)
        return make_objective(algorithm, classifier, units)

    return seeded(make, seed)


def probe_of(objective: Supervised, input_shape: tuple[int, ...]) -> Probe:
    """Return the probe of an objective's model, which answers like its task."""
    model, task = objective.model, objective.task
    return make_probe(model, input_shape, lambda logits, x: task.answer(logits, model.scale(x)))
