"""A user's own model from a Python file: ``FILE.py:FUNCTION``. The one place in this package that reads a file: it runs it."""

import runpy
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.models.classifier import Classifier, Scale
from wire.bundle import Window
from wire.errors import ConfigError

EXPECTED = "expected torch.nn.Sequential(..., torch.nn.Linear), or an algorithms.models.classifier.Classifier"


def is_file(name: str) -> bool:
    """Whether a model's name says where a user's own one is: ``FILE.py:FUNCTION``."""
    file, colon, _ = name.rpartition(":")
    return bool(colon) and file.endswith(".py")


def model_from_file(name: str, window: Window, num_classes: int, size: Tensor) -> Classifier:
    """A fresh model by a user's own function; torch's global generator decides its weights.

    FUNCTION(shape, num_classes) gets the shape of one example, (channels, time) or (channels, height, width), and returns layers up to the
    logits; inputs are divided by `size` (channels,) float32 before the first.

    Raises:
        ConfigError: no such file or function, it fails, or what it returns is no classifier of these examples.
    """
    file, _, function = name.rpartition(":")
    return as_classifier(name, _called(Path(file), function, window.shape, num_classes), window, num_classes, size)


def as_classifier(name: str, made: object, window: Window, num_classes: int, size: Tensor) -> Classifier:
    """A user's own model of this name as a classifier; inputs are divided by `size` (channels,) float32 before the first layer of what is
    none yet.

    Raises:
        ConfigError: it is no classifier of these examples.
    """
    model = made if isinstance(made, Classifier) else _scaled(name, made, Scale(size, len(window.shape) - 1))
    model.shape = window.shape
    _check(name, model, num_classes)
    return model


def _called(file: Path, function: str, *arguments: Any) -> object:
    if not file.is_file():
        raise ConfigError(f"model file {file}: there is none")
    try:
        found = runpy.run_path(str(file))
        if not callable(found.get(function)):
            raise ConfigError(f"model file {file}: it has no function {function!r}")
        return found[function](*arguments)
    except ConfigError:
        raise
    except Exception as error:  # the user's code may raise anything
        line = next((f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == str(file)), None)
        place = f", line {line}" if line else ""
        raise ConfigError(f"model file {file}{place}: {type(error).__name__}: {error}") from error


def _scaled(name: str, made: object, scale: Scale) -> Classifier:
    if not isinstance(made, nn.Sequential) or len(made) < 2 or not isinstance(made[-1], nn.Linear):
        raise ConfigError(f"model {name} returned {type(made).__name__}: {EXPECTED}")
    return Classifier(scale, made[:-1], made[-1])


def _check(name: str, model: Classifier, num_classes: int) -> None:
    x = torch.zeros(2, *model.shape)
    try:
        with torch.no_grad():
            found = tuple(model.eval()(x).shape)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ConfigError(f"model {name} cannot take examples of {list(model.shape)}: {str(error).splitlines()[0]}") from error
    if found != (2, num_classes):
        raise ConfigError(f"model {name} gives {list(found)} for two examples: expected [2, {num_classes}], one logit per class")
