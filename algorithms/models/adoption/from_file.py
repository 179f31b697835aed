"""A user's model from a Python file: ``FILE.py:FUNCTION``.

This is the only module of `algorithms.models` that reads a file; it runs it.
"""

import runpy
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from algorithms.models.adoption.adopt import adopt, call_model
from algorithms.models.classifier import Classifier, Scale
from algorithms.outside import failure, model_files
from wire.bundle import Window
from wire.errors import ConfigError


def is_file(name: str) -> bool:
    """Return True if a model's name is that of a user's file: ``FILE.py:FUNCTION``."""
    file, colon, _ = name.rpartition(":")
    return bool(colon) and file.endswith(".py")


def model_from_file(name: str, window: Window, num_classes: int, size: Tensor) -> Classifier:
    """Return a fresh model from a user's function; torch's global generator determines its weights.

    FUNCTION(shape, num_classes) gets the shape of one example, (channels, time) or (channels,
    height, width), and returns a module up to the logits (`algorithms.models.adoption.adopt`).
    Inputs are divided by `size` (channels,) float32 before the first layer.

    Raises:
        ConfigError: no such file or function, the function fails, or its result is not a classifier
            of these examples.
    """
    check_file(name)
    file, _, function = name.rpartition(":")
    return as_classifier(
        name, _called(Path(file), function, window.shape, num_classes), window, num_classes, size
    )


def as_classifier(
    name: str, model: object, window: Window, num_classes: int, size: Tensor
) -> Classifier:
    """Return a user's model as a classifier; `name` is for errors.

    Inputs are divided by `size` (channels,) float32 before the first layer, unless the model is a
    `Classifier` already.

    Raises:
        ConfigError: it is not a classifier of these examples.
    """
    scale = nn.Identity() if window.vocabulary else Scale(size, len(window.shape) - 1)
    return adopt(name, model, window.shape, num_classes, scale, window.vocabulary, window.steps)


def check_file(name: str) -> None:
    """Check that the file of a model's name exists.

    Its function is looked up when the model is constructed.

    Raises:
        ConfigError: there is no such file.
    """
    file = Path(name.rpartition(":")[0])
    if not file.is_file():
        raise ConfigError(f"model file {file}: there is no such file")


def _called(file: Path, function: str, *arguments: Any) -> object:
    model_files.add(str(file))
    try:
        namespace = runpy.run_path(str(file))
        if not callable(namespace.get(function)):
            raise ConfigError(f"model file {file} has no function {function!r}")
        return call_model(function, namespace[function], *arguments)
    except ConfigError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise failure("model file", file, error) from error
