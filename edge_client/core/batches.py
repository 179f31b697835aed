"""How windows are cut into batches; pure."""

from collections.abc import Iterator

import numpy as np

from wire.arrays.tensors import Array
from wire.messages import Train

EVALUATION_BATCH = 256
"""Examples in a batch of any graph that does not train, where the runtime takes as many."""


def batch_slices(num_examples: int, batch_size: int, min_batch: int) -> list[slice]:
    """Cut `num_examples` into batches. A rest of less than half a batch shares evenly with the
    batch before it: a step by the statistics of a few examples undoes what those before it have
    learned. Both are one batch where that would leave one with less than `min_batch`."""
    starts = list(range(0, num_examples, batch_size))
    rest = num_examples - starts[-1] if starts else 0
    if len(starts) > 1 and rest < max((batch_size + 1) // 2, min_batch):
        starts.pop()
        both = batch_size + rest
        if both >= 2 * min_batch:
            starts.append(starts[-1] + (both + 1) // 2)
    return (
        [slice(a, b) for a, b in zip(starts, [*starts[1:], num_examples], strict=True)]
        if num_examples
        else []
    )


def evaluation_slices(num_examples: int, min_batch: int, max_batch: int | None) -> list[slice]:
    """Cut examples into batches for a graph that does not train: none is above `max_batch`, also
    with the rest that joins it."""
    return batch_slices(
        num_examples,
        min(EVALUATION_BATCH, max_batch - min_batch + 1) if max_batch else EVALUATION_BATCH,
        min_batch,
    )


def training_batches(
    train: Train, examples: Array, num_unlabelled: int, min_batch: int, rng: "np.random.Generator"
) -> Iterator[Array]:
    """The examples (n,) of each batch, by index: every pass in a new order, until `epochs` or
    `steps` are done. `num_unlabelled`: how many windows the device has besides, without labels."""
    parts = batch_slices(len(examples), train.batch_size, min_batch)
    left = num_training_batches(train, len(examples), num_unlabelled, min_batch)
    while left > 0:
        order = examples[rng.permutation(len(examples))]
        for part in parts[:left]:
            yield order[part]
        left -= len(parts)


def num_training_batches(
    train: Train, num_examples: int, num_unlabelled: int, min_batch: int
) -> int:
    """How many batches a training over so many examples takes."""
    if train.steps is not None:
        return train.steps
    whole = len(batch_slices(num_examples + num_unlabelled, train.batch_size, min_batch))
    return train.epochs * min(
        whole, train.most_passes * len(batch_slices(num_examples, train.batch_size, min_batch))
    )
