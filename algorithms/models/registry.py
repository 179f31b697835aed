"""Every model by name. All take time windows and images alike; what they were made for is said beside them."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from algorithms.models.classifier import Classifier
from algorithms.models.har_cnn import har_cnn_dbe
from algorithms.models.mlp import mlp
from algorithms.models.resnet import resnet18
from algorithms.models.small_cnn import autocfl, cnn2, cnn4
from algorithms.models.vgg import vgg11
from wire.bundle import Window
from wire.errors import ConfigError

Builder = Callable[[Window, int, Tensor], Classifier]
"""(window, number of classes, size (channels,) float32 that every channel is divided by) -> a fresh model."""


MODELS: dict[str, Builder] = {
    "har-cnn": cnn2,
    "har-cnn-gn": partial(cnn2, kind="group"),
    "har-cnn-dbe": har_cnn_dbe,
    "cnn2-bn": cnn2,
    "cnn4": cnn4,
    "autocfl": autocfl,
    "autocfl-16-32": partial(autocfl, widths=(16, 32)),
    "autocfl-6-16": partial(autocfl, widths=(6, 16)),
    "vgg11": vgg11,
    "resnet18": resnet18,
    "mlp": mlp,
}

ABOUT = {
    "har-cnn": "two convolutions of 5 with BatchNorm (DistFL, windows)",
    "har-cnn-gn": "the same with GroupNorm: nothing about a batch is exchanged",
    "har-cnn-dbe": "two convolutions of 9, linear layers of 1024 and 512 (DBE's HAR-CNN, windows)",
    "cnn2-bn": "two convolutions of 5 with BatchNorm (DistFL, images)",
    "cnn4": "two convolutions of 5, a linear layer of 512 (DBE's 4-layer CNN, images)",
    "autocfl": "two convolutions of 5 with 20 and 50 channels (AutoCFL, MNIST)",
    "autocfl-16-32": "the same with 16 and 32 channels (AutoCFL, Fashion-MNIST)",
    "autocfl-6-16": "the same with 6 and 16 channels (AutoCFL, CIFAR-10)",
    "vgg11": "VGG-11 with BatchNorm and global average pooling (DistFL, CIFAR-10)",
    "resnet18": "ResNet-18 for small images (DistFL, DBE)",
    "mlp": "one hidden layer of 200 units",
}
"""A line on each model."""


def default_model(window: Window) -> str:
    """The model that data get when nobody names one: DistFL's two-layer CNN, which has the BatchNorm statistics that groupings read."""
    return "cnn2-bn" if window.height else "har-cnn"


def make_model(name: str, window: Window, num_classes: int, size: Tensor) -> Classifier:
    """A fresh model; torch's global generator decides its weights.

    Raises:
        ConfigError: no such model, or examples that are too small for it.
    """
    if name not in MODELS:
        raise ConfigError(f"model {name!r}: expected one of {', '.join(MODELS)}, or FILE.py:FUNCTION")
    model = MODELS[name](window, num_classes, size)
    model.shape = window.shape
    return model
