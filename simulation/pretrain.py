"""Pre-training of the extractor that CGAU freezes, on examples from outside the fleet.

Rieger et al., FL-ICML 2020, section 3.1: 'trained centrally using any available but task-relevant
data'. Their networks, trained on AudioSet and ImageNet, are not available here.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from algorithms.build import build_model
from algorithms.models.classifier import Classifier
from edge_client.data.labels import has_classes
from simulation.datasets.catalog import load
from simulation.datasets.pool import Pool, pool_of
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError

MOST_EXAMPLES = 20_000
"""Maximum number of examples that an extractor is trained on."""


def pretrained_extractor(name: str, window: Window, data: str, seed: int) -> nn.Module:
    """Return the extractor of a named model, trained on other data.

    `data` is a name or path. At most `MOST_EXAMPLES` of its examples are used.

    Raises:
        DataError: the data cannot be read, or their examples have another shape than `window`.
    """
    pool = examples_for(window, data)
    torch.manual_seed(seed)
    size = np.sqrt(
        np.square(pool.train_x, dtype=np.float64).mean((0, *range(2, pool.train_x.ndim)))
    )
    model = build_model(
        name,
        window,
        len(pool.classes),
        torch.from_numpy(np.where(size > 0, size, 1.0).astype(np.float32)),
    )
    chosen = np.random.default_rng(seed).permutation(len(pool.train_y))[:MOST_EXAMPLES]
    pretrain(model, pool.train_x[chosen], pool.train_y[chosen], seed=seed)
    return model.extractor


def examples_for(window: Window, data: str) -> Pool:
    """Return the examples of `data`, a name or path, as a pool.

    Raises:
        DataError: the data cannot be read, their labels are not classes, or their examples have
        another shape or vocabulary than `window`.
    """
    loaded = load(data)
    pool = loaded if isinstance(loaded, Pool) else pool_of(loaded)
    if pool.window.vocabulary != window.vocabulary:
        raise DataError(
            f"--pretrain {data}: the vocabulary must be the fleet's, of {window.vocabulary} ids "
            f"(0: none), got {pool.window.vocabulary}"
        )
    if not has_classes(pool.train_y):
        raise DataError(
            f"--pretrain {data}: an extractor is trained with classes, and the labels are not "
            "classes"
        )
    if pool.window.shape != window.shape:
        raise DataError(
            f"--pretrain {data}: examples must have the fleet's shape {window.shape}, got "
            f"{pool.window.shape}"
        )
    return pool


def pretrain(
    model: Classifier,
    x: Array,
    y: Array,
    *,
    epochs: int = 5,
    batch_size: int = 64,
    lr: float = 0.01,
    momentum: float = 0.9,
    seed: int = 0,
) -> float:
    """Train a classifier in place by SGD, and return its accuracy on the same examples.

    These are x (n, \\*window) and y (n,). `model` has as many classes as y; `OnFrozen` takes its
    extractor afterwards.
    """
    order = torch.Generator().manual_seed(seed)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    model.train()
    for _ in range(epochs):
        for part in torch.randperm(len(labels), generator=order).split(batch_size):
            if len(part) > 1:  # BatchNorm cannot train on a single example
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[part]), labels[part]).backward()
                optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(a).argmax(1) == b).sum())
            for a, b in zip(inputs.split(1024), labels.split(1024), strict=True)
        )
    return right / len(labels)
