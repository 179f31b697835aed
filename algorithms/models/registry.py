"""Every model by name, with its options.

All but the models of ids take both time windows and images. docs/models.md describes their
purposes.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from algorithms.models.blocks import CUTS
from algorithms.models.classifier import Classifier
from algorithms.models.images import resnet18, vgg11
from algorithms.models.plain import autoencoder, mlp
from algorithms.models.small_cnn import autocfl, cnn2, cnn4
from algorithms.models.tcn import tcn
from algorithms.models.text import text_cnn, text_mlp
from algorithms.spec import Choice, Option, Options, read, unknown
from algorithms.tasks.base import Task
from wire.bundle import Window
from wire.errors import ConfigError
from wire.tasks import RECONSTRUCTION, SEQUENCE

Builder = Callable[..., Classifier]
"""Constructor of a fresh model.

Arguments are the window, the number of classes, the size (channels,) float32 that every channel is
divided by, and the options.
"""


MODELS: dict[str, Builder] = {
    "har-cnn": cnn2,
    "har-cnn-gn": partial(cnn2, kind="group"),
    "har-cnn-dbe": partial(cnn4, kernel=9, widths=(1024, 512), name="har-cnn-dbe"),
    "cnn2-bn": cnn2,
    "cnn4": cnn4,
    "autocfl": autocfl,
    "autocfl-16-32": partial(autocfl, widths=(16, 32)),
    "autocfl-6-16": partial(autocfl, widths=(6, 16)),
    "vgg11": vgg11,
    "resnet18": resnet18,
    "mlp": mlp,
    "autoencoder": autoencoder,
    "tcn": tcn,
    "text-mlp": text_mlp,
    "text-cnn": text_cnn,
    "text-tcn": tcn,
}
OF_IDS = ("text-mlp", "text-cnn", "text-tcn")
"""The models of sequences of ids; all others are models of measurements."""
SHORTEST = 4
"""Minimum number of samples of a window for the default model of windows."""
OF_STEPS = ("tcn", "text-tcn")
"""The models that answer each step of a window if it has steps; others answer a whole window."""
_CUT = Option(
    "last",
    "where the head begins: with the last layer, or right after the convolutions",
    choices=CUTS,
)
_UNITS = Option(16, "units of the bottleneck", low=1)
OPTIONS: dict[str, Options] = {
    "har-cnn-dbe": {"cut": _CUT},
    "cnn4": {"cut": _CUT},
    "autoencoder": {"units": _UNITS},
}
"""Options of the models that have any, as in ``har-cnn-dbe:cut=convolutions``."""


def default_model(window: Window, task: Task | None = None) -> str:
    """Return the name of the default model for a window and a task.

    It is DistFL's two-layer CNN; for ids a convolution over embeddings; for step labels a temporal
    convolutional network; for reconstruction an autoencoder. All have BatchNorm statistics, which
    groupings read, but for windows that are too short for convolutions, such as rows of features:
    these have a perceptron.
    """
    if task is not None and task.of == RECONSTRUCTION:
        return "autoencoder"
    if task is not None and task.of == SEQUENCE:
        return "text-tcn" if window.vocabulary else "tcn"
    if window.vocabulary:
        return "text-cnn"
    return "cnn2-bn" if window.height else "mlp" if window.length < SHORTEST else "har-cnn"


def read_model(name: str) -> Choice:
    """Return the choice of a model from its name, with its options.

    Raises:
        ConfigError: no such model or option.
    """
    model_name = name.partition(":")[0].strip()
    if model_name.endswith(".py"):
        raise ConfigError(
            f"model {name!r} names no function. Write FILE.py:FUNCTION, the function that returns "
            "the model."
        )
    if model_name not in MODELS:
        hint = "A model of your own is written FILE.py:FUNCTION."
        raise ConfigError(unknown("model", model_name, MODELS, hint))
    return read(name, {model: OPTIONS.get(model, {}) for model in MODELS}, "model")


def make_model(name: str, window: Window, num_classes: int, size: Tensor) -> Classifier:
    """Return a fresh model by its name and options.

    Torch's global generator determines its weights.

    Raises:
        ConfigError: no such model or option, or the examples are too small for it or of another
            kind.
    """
    choice = read_model(name)
    if (choice.name in OF_IDS) != bool(window.vocabulary):
        takes, have = (
            ("ids", "measurements")
            if choice.name in OF_IDS
            else ("measurements", f"ids of a vocabulary of {window.vocabulary}")
        )
        fitting = (
            " or ".join(OF_IDS)
            if window.vocabulary
            else "another model, or data with a `vocabulary`"
        )
        raise ConfigError(
            f"model {choice.name} takes {takes}, and the windows hold {have}. Use {fitting}."
        )
    if window.steps and choice.name not in OF_STEPS:
        alternative = "text-tcn" if window.vocabulary else "tcn"
        raise ConfigError(
            f"model {choice.name} gives one answer for a whole window, and the task needs one for "
            f"each step. Use {alternative}."
        )
    model: Classifier = MODELS[choice.name](window, num_classes, size, **dict(choice.explicit))
    model.shape, model.vocabulary, model.steps = window.shape, window.vocabulary, window.steps
    return model
