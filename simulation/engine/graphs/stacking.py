"""Arrays of many devices as one tensor on an accelerator, and in which order their batches can be
stacked."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from wire.arrays.tensors import Array, Tensors

EXAMPLES_BYTES = 2 << 30
"""So many bytes of examples stay on the accelerator from one training to the next; those not used
for longest leave it."""


def turns(trainings: Sequence[Sequence[Array]]) -> Iterator[tuple[Array, list[Array]]]:
    """The batches of several devices, each a sequence of indices (size,), in turns: the devices
    (k,) that go a step, and their next batches, all of one size. Devices go on independently, so
    that few turns are needed: as long as a batch of the largest size is next somewhere, the turn is
    for those; then come the smaller ones that are next, each size once."""
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
    """(devices, \\*shape) from an array of each device. Where several have the very same object,
    the model that they were given, it is copied to the accelerator once."""
    distinct = list({id(array): array for array in arrays}.values())
    rows = torch.from_numpy(np.stack(distinct)).to(device)
    if len(distinct) == len(arrays):
        return rows
    place = {id(array): i for i, array in enumerate(distinct)}
    return rows[torch.tensor([place[id(array)] for array in arrays], device=device)]


def stack_padded(arrays: Sequence[Array], device: torch.device) -> Tensor:
    """(devices, longest, \\*shape) from arrays (n, \\*shape) of different lengths, with zeros after
    the end of each."""
    rows = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(rows).to(device)


def unstack(tensors: Mapping[str, Tensor], count: int) -> list[Tensors]:
    """The arrays of each of `count` devices from (devices, \\*shape), real numbers as float32. Each
    tensor leaves the accelerator once."""
    arrays = {
        name: (value.float() if value.is_floating_point() else value).cpu().numpy()
        for name, value in tensors.items()
    }
    return [{name: np.asarray(value[i]) for name, value in arrays.items()} for i in range(count)]


class Examples:
    """Devices' examples on the accelerator. Arrays that are the same memory are the same
    examples."""

    def __init__(self, device: torch.device, capacity: int = EXAMPLES_BYTES) -> None:
        """`capacity` in bytes."""
        self._device, self._capacity = device, capacity
        self._held: OrderedDict[object, tuple[Array, Tensor]] = OrderedDict()
        self._bytes = 0

    def get(self, array: Array) -> Tensor:
        """A copy on the accelerator."""
        key = array.__array_interface__["data"][0], array.shape, array.strides, array.dtype
        if key not in self._held:
            self._held[key] = (
                array,
                torch.tensor(array, device=self._device),
            )  # the array too: its memory must not become another's
            self._bytes += array.nbytes
            while self._bytes > self._capacity and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][0].nbytes
        self._held.move_to_end(key)
        return self._held[key][1]
