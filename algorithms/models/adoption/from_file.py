"""A user's own model from a Python file: ``FILE.py:FUNCTION``. The one place in this package that
reads a file: it runs it."""

import runpy
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from algorithms.models.adoption.adopt import adopt
from algorithms.models.classifier import Classifier, Scale
from algorithms.outside import failure, model_files
from wire.bundle import Window
from wire.errors import ConfigError


def is_file(name: str) -> bool:
    """Whether a model's name says where a user's own one is: ``FILE.py:FUNCTION``."""
    file, colon, _ = name.rpartition(":")
    return bool(colon) and file.endswith(".py")


def model_from_file(name: str, window: Window, num_classes: int, size: Tensor) -> Classifier:
    """A fresh model by a user's own function; torch's global generator decides its weights.

    FUNCTION(shape, num_classes) gets the shape of one example, (channels, time) or (channels,
    height, width), and returns a module up to the logits (`algorithms.models.adoption.adopt`);
    inputs are divided by `size` (channels,) float32 before the first.

    Raises:
        ConfigError: no such file or function, it fails, or what it returns is no classifier of
        these examples.
    """
    check_file(name)
    file, _, function = name.rpartition(":")
    return as_classifier(
        name, _called(Path(file), function, window.shape, num_classes), window, num_classes, size
    )


def as_classifier(
    name: str, made: object, window: Window, num_classes: int, size: Tensor
) -> Classifier:
    """A user's own model of this name as a classifier; inputs are divided by `size` (channels,)
    float32 before the first layer of what is none yet.

    Raises:
        ConfigError: it is no classifier of these examples.
    """
    scale = nn.Identity() if window.vocabulary else Scale(size, len(window.shape) - 1)
    return adopt(name, made, window.shape, num_classes, scale, window.vocabulary, window.steps)


def check_file(name: str) -> None:
    """Check that there is the file that a model's name says; its function is looked for when the
    model is made.

    Raises:
        ConfigError: there is none.
    """
    file = Path(name.rpartition(":")[0])
    if not file.is_file():
        raise ConfigError(f"model file {file}: there is none")


def _called(file: Path, function: str, *arguments: Any) -> object:
    model_files.add(str(file))
    try:
        found = runpy.run_path(str(file))
        if not callable(found.get(function)):
            raise ConfigError(f"model file {file}: it has no function {function!r}")
        return found[function](*arguments)
    except ConfigError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise failure("model file", file, error) from error
