"""Small networks of two convolutions from the papers.

`cnn2`: B. Liu et al., DistFL, IMWUT 2021, section 5.1. `cnn4`: J. Zhang et al., DBE, NeurIPS 2023,
section 5, after McMahan et al., AISTATS 2017; the sizes are those of the authors' library PFLlib.
`autocfl`: AutoCFL, section 5.1.
"""

from torch import Tensor

from algorithms.models.blocks import (
    Cut,
    Norm,
    assemble,
    conv_stack,
    count_features,
    dimensions,
    split_linear,
)
from algorithms.models.classifier import Classifier, Scale
from wire.bundle import Window


def cnn2(window: Window, num_classes: int, size: Tensor, kind: Norm = "batch") -> Classifier:
    """Return two convolutions of 5 with 32 and 64 channels, and one linear layer.

    A normalisation, ReLU and max-pooling by 2 follow each convolution.
    """
    extractor = conv_stack(
        dimensions(window), (len(window.channels), 32, 64), 5, padding=2, kind=kind
    )
    return assemble("cnn2", window, num_classes, size, extractor)


def cnn4(
    window: Window,
    num_classes: int,
    size: Tensor,
    cut: Cut = "last",
    kernel: int = 5,
    widths: tuple[int, ...] = (512,),
    name: str = "cnn4",
) -> Classifier:
    """Return two convolutions without padding, and linear layers of `widths` and of the classes.

    The convolutions have 32 and 64 channels; ReLU and max-pooling by 2 follow each.

    With a `kernel` of 9 and `widths` of 1024 and 512 it is DBE's network for HAR (appendix D.6,
    which cites M. Zeng et al., MobiCASE 2014, for it). The authors' library splits it before all
    linear layers (``cut=convolutions``): its representation then has 64 * 26 = 1,664 values for
    windows of 128 samples.
    """
    extractor = conv_stack(dimensions(window), (len(window.channels), 32, 64), kernel)
    features = count_features(name, window, extractor)
    layers, head = split_linear(features, widths, num_classes, cut)
    return Classifier(Scale(size, dimensions(window)), extractor.extend(layers), head)


def autocfl(
    window: Window, num_classes: int, size: Tensor, widths: tuple[int, int] = (20, 50)
) -> Classifier:
    """Return two convolutions of 5 without padding (ReLU, max-pool 2), and one linear layer.

    The paper's `widths` are 20 and 50 for MNIST, 16 and 32 for Fashion-MNIST, 6 and 16 for
    CIFAR-10.
    """
    extractor = conv_stack(dimensions(window), (len(window.channels), *widths), 5)
    return assemble("autocfl", window, num_classes, size, extractor)
