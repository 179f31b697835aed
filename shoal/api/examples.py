"""The examples of one device, as Python programs have them."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from wire.errors import DataError

Examples: TypeAlias = "tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike] | Dataset[Any]"
"""(x, y), (x, y, test_x, test_y), or a map-style data set of pairs of an example and its label: a class number, or a row of 0
and 1 for several labels."""


def arrays_of(device_id: str, examples: Examples) -> dict[str, NDArray[Any]]:
    """``X``, ``y`` and ``split`` as a ``.npz`` has them; all is ``train`` where nothing says what is for testing.

    Raises:
        DataError: they are no examples; the text names the device.
    """
    where = f"data, device {device_id!r}"
    parts = _of_dataset(where, examples) if isinstance(examples, Dataset) else examples
    if not isinstance(parts, tuple) or len(parts) not in (2, 4):
        said = f"a tuple of {len(parts)}" if isinstance(parts, tuple) else type(parts).__name__
        raise DataError(f"{where}: {said}, expected (x, y), (x, y, test_x, test_y), or a torch Dataset")
    arrays = [_array(part) for part in parts]
    for x, y in zip(arrays[::2], arrays[1::2], strict=True):
        if not x.ndim or not y.ndim or len(y) != len(x) or not len(x):
            raise DataError(f"{where}: x is {x.dtype}{list(x.shape)} and y {y.dtype}{list(y.shape)}, expected a label for each example")
    if arrays[0].shape[1:] != arrays[-2].shape[1:]:
        raise DataError(f"{where}: training examples have shape {arrays[0].shape[1:]}, test examples {arrays[-2].shape[1:]}")
    if arrays[1].shape[1:] != arrays[-1].shape[1:]:
        raise DataError(f"{where}: training labels have shape {arrays[1].shape[1:]}, test labels {arrays[-1].shape[1:]}")
    split = np.repeat(["train", "test"][: len(arrays) // 2], [len(y) for y in arrays[1::2]])
    return {"X": np.concatenate(arrays[::2]), "y": np.concatenate(arrays[1::2]), "split": split}


def _array(value: Any) -> NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _of_dataset(where: str, data: "Dataset[Any]") -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return _array(data.tensors[0]), _array(data.tensors[1])
    if not hasattr(data, "__len__"):
        raise DataError(f"{where}: {type(data).__name__} has no length, expected a map-style Dataset")
    pairs = [data[i] for i in range(len(data))]
    if not pairs or any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        raise DataError(f"{where}: {type(data).__name__} of {len(pairs)} items, expected pairs of an example and its label")
    try:
        return np.stack([_array(x) for x, _ in pairs]), np.stack([_array(y) for _, y in pairs])
    except ValueError:
        shapes = sorted({tuple(_array(x).shape) for x, _ in pairs})[:3]
        raise DataError(f"{where}: examples of shapes {', '.join(map(str, shapes))}, expected one shape") from None
