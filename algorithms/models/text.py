"""Small networks for sequences of ids: words, characters, events.

``text-mlp``: the mean of the embeddings, as in fastText (A. Joulin et al., Bag of Tricks for
Efficient Text Classification, EACL 2017), and one hidden layer in addition. ``text-cnn``: a
convolution of 5 positions over the embeddings, BatchNorm, ReLU and the mean over time; after Y.
Kim, Convolutional Neural Networks for Sentence Classification, EMNLP 2014, which takes the maximum,
of several widths.
"""

from torch import Tensor, nn

from algorithms.models.blocks import average, conv, norm
from algorithms.models.classifier import Classifier
from wire.bundle import Window

WIDTH, HIDDEN, KERNEL = 32, 64, 5
"""Number of values of an embedding, units of a hidden layer, and positions of a convolution."""


class Embedded(nn.Module):
    """x (batch, channels, time) int64 -> embeddings of its ids, (batch, channels * width, time).

    All channels share one vocabulary.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)

    def forward(self, x: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(x)
        # contiguous in time: pooling of a transposed view would take another path
        return embedded.transpose(2, 3).contiguous().flatten(1, 2)


def text_mlp(window: Window, num_classes: int, size: Tensor) -> Classifier:
    """Return a network: embeddings, their mean over time, a hidden layer with ReLU, the classes."""
    width = WIDTH * len(window.channels)
    extractor = nn.Sequential(
        Embedded(window.vocabulary, WIDTH), average(1), nn.Linear(width, HIDDEN), nn.ReLU()
    )
    return Classifier(nn.Identity(), extractor, nn.Linear(HIDDEN, num_classes))


def text_cnn(window: Window, num_classes: int, size: Tensor) -> Classifier:
    """Return a network: embeddings, a convolution with BatchNorm, ReLU, mean over time, classes."""
    inputs = WIDTH * len(window.channels)
    layers = (
        conv(1, inputs, HIDDEN, KERNEL, padding=KERNEL // 2),
        norm(1, HIDDEN),
        nn.ReLU(),
        average(1),
    )
    return Classifier(
        nn.Identity(),
        nn.Sequential(Embedded(window.vocabulary, WIDTH), *layers),
        nn.Linear(HIDDEN, num_classes),
    )
