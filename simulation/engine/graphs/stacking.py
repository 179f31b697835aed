"""Arrays of many devices as one tensor on an accelerator, and the order of their batches."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from wire.arrays.tensors import Array, Tensors

EXAMPLES_BYTES = 2 << 30
"""Maximum size of examples that stay on the accelerator between trainings, in bytes.

The least recently used ones leave it.
"""


def turns(trainings: Sequence[Sequence[Array]]) -> Iterator[tuple[Array, list[Array]]]:
    """Yield the batches of several devices, each a sequence of indices (size,), in turns.

    A turn is the devices (k,) that take a step, and their next batches, all of one size. Devices
    advance independently, so that few turns are needed. While a batch of the largest size is next
    on some device, the turn is for those batches; then come the smaller ones that are next, each
    size once.
    """
    next_of = [0] * len(trainings)
    largest = max((len(batch) for batches in trainings for batch in batches), default=0)
    while True:
        ready: dict[int, list[int]] = {}
        for row, (batches, i) in enumerate(zip(trainings, next_of, strict=True)):
            if i < len(batches):
                ready.setdefault(len(batches[i]), []).append(row)
        if not ready:
            return
        for size in [largest] if largest in ready else sorted(ready, reverse=True):
            rows = ready[size]
            yield np.array(rows), [trainings[row][next_of[row]] for row in rows]
            for row in rows:
                next_of[row] += 1


def stack(arrays: Sequence[Array], device: torch.device) -> Tensor:
    """Return a tensor (devices, \\*shape) of an array of each device.

    If several devices have the very same object, such as the model they received, it is copied to
    the accelerator once.
    """
    distinct = list({id(array): array for array in arrays}.values())
    rows = torch.from_numpy(np.stack(distinct)).to(device)
    if len(distinct) == len(arrays):
        return rows
    place = {id(array): i for i, array in enumerate(distinct)}
    return rows[torch.tensor([place[id(array)] for array in arrays], device=device)]


def stack_padded(arrays: Sequence[Array], device: torch.device) -> Tensor:
    """Return a tensor (devices, longest, \\*shape) of arrays (n, \\*shape) of different lengths.

    Zeros follow the end of each.
    """
    rows = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(rows).to(device)


def unstack(tensors: Mapping[str, Tensor], count: int) -> list[Tensors]:
    """Return the arrays of each of `count` devices from (devices, \\*shape).

    Real numbers are float32. Each tensor leaves the accelerator once.
    """
    arrays = {
        name: (value.float() if value.is_floating_point() else value).cpu().numpy()
        for name, value in tensors.items()
    }
    return [{name: np.asarray(value[i]) for name, value in arrays.items()} for i in range(count)]


class Examples:
    """Devices' examples on the accelerator.

    Arrays with the same memory are the same examples.
    """

    def __init__(self, device: torch.device, capacity: int = EXAMPLES_BYTES) -> None:
        """Hold examples of at most `capacity` bytes, and the latest array of any size."""
        self._device, self._capacity = device, capacity
        self._held: OrderedDict[object, tuple[Array, Tensor]] = OrderedDict()
        self._bytes = 0

    def get(self, array: Array) -> Tensor:
        """Return a copy on the accelerator."""
        key = array.__array_interface__["data"][0], array.shape, array.strides, array.dtype
        if key not in self._held:
            self._held[key] = (
                array,
                torch.tensor(array, device=self._device),
            )  # with the array, so that nothing else gets its memory
            self._bytes += array.nbytes
            while self._bytes > self._capacity and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][0].nbytes
        self._held.move_to_end(key)
        return self._held[key][1]
