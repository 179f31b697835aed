"""Division of windows into batches; pure."""

from collections.abc import Iterator

import numpy as np

from wire.arrays.tensors import Array
from wire.messages import Train

EVALUATION_BATCH = 256
"""Largest batch of a graph that does not train, where the runtime takes as many."""


def batch_slices(num_examples: int, batch_size: int, min_batch: int) -> list[slice]:
    """Return `num_examples` cut into batches, without a last batch that is very small.

    A remainder of less than half a batch shares evenly with the batch before it: a step by the
    statistics of a few examples undoes what the steps before it have learned. Both become one batch
    if a half would have fewer than `min_batch` examples.
    """
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
    """Return the batches for a graph that does not train.

    No batch is larger than `max_batch`, even if it includes the remainder. None means no limit.
    """
    return batch_slices(
        num_examples,
        min(EVALUATION_BATCH, max_batch - min_batch + 1) if max_batch else EVALUATION_BATCH,
        min_batch,
    )


def training_batches(
    train: Train, examples: Array, num_unlabelled: int, min_batch: int, rng: "np.random.Generator"
) -> Iterator[Array]:
    """Yield the indexes of the examples of each batch, in a new order for every pass.

    Args:
        train: its `epochs` or `steps` say when training ends.
        examples: indexes (n,) of the examples to train on.
        num_unlabelled: number of windows without labels that the device has besides.
        min_batch: smallest batch that the graph accepts.
        rng: source of the orders.
    """
    parts = batch_slices(len(examples), train.batch_size, min_batch)
    num_left = num_training_batches(train, len(examples), num_unlabelled, min_batch)
    while num_left > 0:
        order = examples[rng.permutation(len(examples))]
        for part in parts[:num_left]:
            yield order[part]
        num_left -= len(parts)


def num_training_batches(
    train: Train, num_examples: int, num_unlabelled: int, min_batch: int
) -> int:
    """Return the number of batches of a training.

    An epoch is as long as a pass over all windows, labelled or not. It makes no more than
    `most_passes` passes over the labelled ones.
    """
    if train.steps is not None:
        return train.steps
    whole = len(batch_slices(num_examples + num_unlabelled, train.batch_size, min_batch))
    return train.epochs * min(
        whole, train.most_passes * len(batch_slices(num_examples, train.batch_size, min_batch))
    )
