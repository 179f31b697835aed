"""A network laid out for one instruction set, and the workspaces of its calls.

Calls may run at the same time in any number of threads: they share only the network, and ctypes
releases the interpreter lock while C++ runs. The same arguments give the same bits, whatever else
runs.
"""

import ctypes
import os
import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from algorithms.models.reading.layers import Layer, Network
from host.native.library import TARGETS, load_library
from wire.arrays.names import RUNNING_MEAN, RUNNING_VAR
from wire.arrays.tensors import Array
from wire.errors import ConfigError, DataError

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

_KINDS = (
    *(
        "conv",
        "linear",
        "norm",
        "relu",
        "max_pool",
        "avg_pool",
        "flatten",
        "sum",
        "pick",
        "gru",
        "attention",
        "layer_norm",
        "gelu",
    ),
    *("table", "dropout"),
)


class _Layer(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_int64) for n in ("kind", "outputs", "input", "other", "parts", "row")),
        *((n, ctypes.c_int64 * 2) for n in ("kernel", "stride", "before", "after", "dilation")),
        *((n, ctypes.c_int64) for n in ("weight", "bias", RUNNING_MEAN, RUNNING_VAR)),
        *((n, ctypes.c_double) for n in ("eps", "momentum")),
        ("rows", ctypes.c_int64),
        *((n, ctypes.c_void_p) for n in ("places", "values")),
        ("drawn", ctypes.c_int64),
        ("share", ctypes.c_double),
    )


INSTRUCTIONS = "SHOAL_INSTRUCTIONS"
"""Environment variable with an instruction set to use in place of the machine's best.

It serves to compare instruction sets.
"""


def available_targets() -> tuple[str, ...]:
    """Return the instruction sets that this machine can run, slowest first.

    Raises:
        CannotCompile: the engine cannot be built.
    """
    library = load_library()
    return tuple(name for number, name in enumerate(TARGETS) if library.shoal_supports(number))


class CompiledNetwork:
    """A network, compiled for models that are one float32 vector (`num_values`,) each.

    The vector holds the tensors `names`, in this order, each in torch's layout (C order).
    """

    def __init__(
        self, network: Network, names: Sequence[str] | None = None, target: str | None = None
    ) -> None:
        """Lay out a network.

        Args:
            names: all tensors of the network, in the vector's order; None for the network's order.
            target: an instruction set; None for that in `INSTRUCTIONS`, or the machine's best.

        Raises:
            CannotCompile: the engine cannot be built here.
            ConfigError: other names than the network's, or an instruction set that this machine
                does not have.
        """
        names = list(network.shapes) if names is None else list(names)
        if sorted(names) != sorted(network.shapes):
            odd = sorted(set(names) ^ set(network.shapes)) or sorted(
                {n for n in names if names.count(n) > 1}
            )
            raise ConfigError(
                "The names must be those of the model's tensors, each once. Missing, unknown or "
                f"repeated: {', '.join(odd)}"
            )
        available = available_targets()
        self.target = target or os.environ.get(INSTRUCTIONS) or available[-1]
        if self.target not in available:
            raise ConfigError(
                f"instruction set must be one of this machine's, {', '.join(available)}, got "
                f"{self.target!r}"
            )
        self.network, self.names = network, tuple(names)
        self.library = load_library()
        sizes = [prod(network.shapes[n]) for n in names]
        self.num_values = sum(sizes)
        begins = dict(zip(names, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        tables = [
            (np.array(layer.places, np.int64), np.array(layer.values, np.float32))
            for layer in network.layers
        ]
        layer_structs = (
            _layer(layer, begins, *table)
            for layer, table in zip(network.layers, tables, strict=True)
        )
        layers = (_Layer * len(network.layers))(*layer_structs)
        factors = (
            None
            if network.size is None or set(network.size) == {1.0}
            else 1 / np.asarray(network.size, np.float32)
        )
        self.handle = self.library.shoal_plan_new(
            TARGETS.index(self.target),
            ctypes.addressof(layers),
            len(network.layers),
            *(
                network.window[0],
                1 if len(network.window) == 2 else network.window[1],
                network.window[-1],
                network.classes,
            ),
            None if factors is None else factors.ctypes.data,
            self.num_values,
        )
        if not self.handle:
            raise ConfigError(
                f"A model of {len(network.layers)} layers and {self.num_values} values is too "
                "large for the native engine"
            )
        weakref.finalize(self, self.library.shoal_plan_free, self.handle)
        self._idle: dict[int, list[Floats]] = {}

    def refuse(self, status: int) -> None:
        """Raise the error of a call's status; return if the status is 0.

        Raises:
            DataError: the status is not 0.
        """
        if status:
            raise DataError(
                {
                    1: f"A label is not between 0 and {self.network.classes - 1}",
                    2: "An index of an example is out of range",
                    3: "BatchNorm cannot train on a batch of one value per channel",
                }.get(status, f"The native engine refuses a call: status {status}")
            )

    def acquire(self, capacity: int) -> Floats:
        """Return a workspace that no other call uses until `release`.

        Its zeros between rows are written once, so that its capacity is fixed.
        """
        try:
            return self._idle.setdefault(capacity, []).pop()
        except IndexError:
            return np.zeros(
                self.library.shoal_workspace_size(self.handle, capacity) + 16, np.float32
            )

    def release(self, capacity: int, workspace: Floats) -> None:
        """Return a workspace to the plan."""
        self._idle[capacity].append(workspace)


def _layer(layer: Layer, begins: dict[str, int], places: Integers, values: Floats) -> _Layer:
    """Return a layer for the engine, which reads `places` and `values` without a copy."""
    tensors = [
        begins[layer.tensors[p]] if p in layer.tensors else -1
        for p in ("weight", "bias", RUNNING_MEAN, RUNNING_VAR)
    ]
    pairs = [
        (ctypes.c_int64 * 2)(*pair)
        for pair in (layer.kernel, layer.stride, layer.before, layer.after, layer.dilation)
    ]
    first, second = (*layer.inputs, -1)[:2]
    numbers = _KINDS.index(layer.kind), layer.outputs, first, second, layer.parts, layer.row
    table = (
        layer.rows,
        pointer(places) if len(places) else None,
        pointer(values) if len(values) else None,
    )
    return _Layer(
        *numbers,
        *pairs,
        *tensors,
        layer.eps,
        layer.momentum,
        *table,
        prod(layer.drawn) if layer.drops else 0,
        layer.share,
    )


def check_array(
    name: str, array: Array, dtype: type, shape: tuple[int, ...], writeable: bool = False
) -> None:
    """Check the dtype and shape of an array in C order.

    Raises:
        ConfigError: the array has another dtype, layout or shape, or is read-only in spite of
            `writeable`.
    """
    if (
        not isinstance(array, np.ndarray)
        or array.dtype != dtype
        or array.shape != shape
        or not array.flags.c_contiguous
    ):
        actual = (
            f"{array.dtype} {array.shape}"
            if isinstance(array, np.ndarray)
            else type(array).__name__
        )
        raise ConfigError(
            f"{name} must be a C-ordered {np.dtype(dtype)} array of shape {shape}, got {actual}"
        )
    if writeable and not array.flags.writeable:
        raise ConfigError(f"{name} must be a writeable array, got a read-only one")


def pointer(array: Array | None) -> int | None:
    """Return the address of an array's first value, or None without an array."""
    return None if array is None else array.ctypes.data


def aligned(workspace: Floats) -> int:
    """Return the first address in a workspace at the start of a cache line."""
    address: int = workspace.ctypes.data
    return -(-address // 64) * 64


def capacity_for(most: int) -> int:
    """Return the next power of two, at least `most`.

    Devices with a few examples less then share their workspaces with the others.
    """
    return 1 << (most - 1).bit_length()
