"""Runs a network in the native engine: a device's whole local training, its evaluation or its predictions in one call each.

Calls may run at the same time in any number of threads: they share nothing but the network, and ctypes gives up the interpreter lock
while C++ runs. The same arguments give the same bits, whatever else runs.
"""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from algorithms.models.network import Layer, Network
from host.native.library import TARGETS, load_library
from wire.errors import ConfigError, DataError
from wire.names import RUNNING_MEAN, RUNNING_VAR
from wire.tensors import Array

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

EVALUATION_BATCH = 32
"""Examples that are evaluated at once: few enough for their activations to stay in the cache."""

_KINDS = ("conv", "linear", "norm", "relu", "max_pool", "avg_pool", "flatten")


class _Layer(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_int64) for n in ("kind", "outputs", "kernel", "stride", "padding")),
        *((n, ctypes.c_int64) for n in ("weight", "bias", RUNNING_MEAN, RUNNING_VAR)),
        *((n, ctypes.c_double) for n in ("eps", "momentum")),
    )


class _TrainCall(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("flat", "momentum", "anchor", "offset", "scale", "x", "y", "order", "bounds")),
        *((n, ctypes.c_int64) for n in ("num_examples", "num_batches", "capacity")),
        *((n, ctypes.c_float) for n in ("lr", "momentum_factor", "mu")),
        ("move_statistics", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("loss_sum", ctypes.c_double),
        ("num_correct", ctypes.c_int64),
    )


class _EvaluateCall(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("flat", "x", "y", "order")),
        *((n, ctypes.c_int64) for n in ("num_examples", "num_chosen", "capacity")),
        *((n, ctypes.c_void_p) for n in ("workspace", "probabilities")),
        ("loss_sum", ctypes.c_double),
        ("num_correct", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Outcome:
    """Sums over the examples seen: cross-entropy, and how many were classified correctly."""

    loss_sum: float
    num_correct: int
    num_examples: int


def available_targets() -> tuple[str, ...]:
    """The instruction sets that this machine can run, slowest first.

    Raises:
        CannotCompile: the engine cannot be built.
    """
    library = load_library()
    return tuple(name for number, name in enumerate(TARGETS) if library.shoal_supports(number))


class Trainer:
    """A network, laid out for one instruction set.

    A model is one float32 vector (`num_values`,): the tensors called `names`, in this order, each in torch's layout (C order).
    """

    def __init__(self, network: Network, names: Sequence[str] | None = None, target: str | None = None) -> None:
        """`names`: all tensors of the network, in the network's own order if None; `target`: the machine's best instruction set if None.

        Raises:
            CannotCompile: the engine cannot be built here.
            ConfigError: other names than the network's, or an instruction set that this machine does not have.
        """
        names = list(network.shapes) if names is None else list(names)
        if sorted(names) != sorted(network.shapes):
            odd = sorted(set(names) ^ set(network.shapes)) or sorted({n for n in names if names.count(n) > 1})
            raise ConfigError(f"tensors of a native model: {', '.join(odd)} not once in both of what was named and what the model has")
        available = available_targets()
        self.target = available[-1] if target is None else target
        if self.target not in available:
            raise ConfigError(f"instruction set {target!r}: this machine has {', '.join(available)}")
        self.network, self.names = network, tuple(names)
        self._library = load_library()
        sizes = [prod(network.shapes[n]) for n in names]
        self.num_values = sum(sizes)
        begins = dict(zip(names, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        layers = (_Layer * len(network.layers))(*(_layer(layer, begins) for layer in network.layers))
        factors = None if network.size is None or set(network.size) == {1.0} else 1 / np.asarray(network.size, np.float32)
        self._handle = self._library.shoal_plan_new(
            TARGETS.index(self.target),
            ctypes.addressof(layers),
            len(network.layers),
            *(network.channels, network.time, network.classes),
            None if factors is None else factors.ctypes.data,
            self.num_values,
        )
        if not self._handle:
            raise ConfigError(f"a model of {len(network.layers)} layers and {self.num_values} values is too large for the native engine")
        weakref.finalize(self, self._library.shoal_plan_free, self._handle)
        self._idle: dict[int, list[Floats]] = {}

    def train(
        self,
        flat: Floats,
        momentum: Floats | None,
        x: Floats,
        y: Integers,
        order: Integers,
        bounds: Integers,
        lr: float,
        momentum_factor: float,
        *,
        anchor: Floats | None = None,
        mu: float = 0.0,
        offset: Floats | None = None,
        scale: Floats | None = None,
        move_statistics: bool = True,
    ) -> Outcome:
        """Steps of SGD over the cross-entropy, one per batch: v <- momentum_factor * v + g; w <- w - lr * v.

        Batch i is the examples ``order[bounds[i]:bounds[i + 1]]``. g is the batch's mean gradient; where given it is replaced by
        scale * (g + mu * (w - anchor) + offset), and values whose scale is 0 stay as they are, with their momentum.

        Args:
            flat: (num_values,) the model; overwritten with the trained one, running statistics included.
            momentum: (num_values,) v, overwritten; zeros, which are not returned, if None. Running statistics have none.
            x: (n, channels, time) float32, raw sensor units.
            y: (n,) int64, class numbers.
            order: (total,) int64, indices of examples.
            bounds: (num_batches + 1,) int64, from 0 to total, increasing.
            anchor, offset, scale: (num_values,) each; `mu` counts only with an anchor.
            move_statistics: whether BatchNorm's running statistics move.

        Returns:
            Loss and correct answers in training mode, each batch before its step.

        Raises:
            ConfigError: an array of another dtype, layout or shape; batches that `bounds` does not describe.
            DataError: a label or an index out of range; a batch of one value per channel, which BatchNorm cannot normalise.
        """
        self._check_model(flat, momentum, anchor, offset, scale)
        self._check_examples(x, y, order)
        _check("bounds", bounds, np.int64, (len(bounds),))
        if len(bounds) < 1 or bounds[0] != 0 or bounds[-1] != len(order) or (len(bounds) > 1 and np.diff(bounds).min() < 1):
            raise ConfigError(f"bounds of batches: expected to increase from 0 to {len(order)}, got {bounds.tolist()[:8]}")
        capacity = _capacity(int(np.diff(bounds).max(initial=1)))
        workspace = self._acquire(capacity)
        call = _TrainCall(
            *(_pointer(a) for a in (flat, momentum, anchor, offset, scale, x, y, order, bounds)),
            *(len(x), len(bounds) - 1, capacity, lr, momentum_factor, mu, move_statistics, _aligned(workspace)),
        )
        status = self._library.shoal_train(self._handle, ctypes.addressof(call))
        self._idle[capacity].append(workspace)
        self._raise(status)
        return Outcome(call.loss_sum, call.num_correct, len(order))

    def evaluate(self, flat: Floats, x: Floats, y: Integers, order: Integers | None = None) -> Outcome:
        """Loss and correct answers with the running statistics, over the examples `order` (all if None). Arguments as `train`."""
        return self._evaluate(flat, x, y, order, None)

    def predict(self, flat: Floats, x: Floats, order: Integers | None = None) -> Floats:
        """Class probabilities (len(order), classes) float32, with the running statistics. Arguments as `train`."""
        probabilities = np.empty((len(x) if order is None else len(order), self.network.classes), np.float32)
        self._evaluate(flat, x, None, order, probabilities)
        return probabilities

    def _evaluate(self, flat: Floats, x: Floats, y: Integers | None, order: Integers | None, probabilities: Floats | None) -> Outcome:
        order = np.arange(len(x)) if order is None else order
        self._check_model(flat)
        self._check_examples(x, y, order)
        workspace = self._acquire(EVALUATION_BATCH)
        call = _EvaluateCall(
            *(_pointer(a) for a in (flat, x, y, order)),
            *(len(x), len(order), EVALUATION_BATCH, _aligned(workspace), _pointer(probabilities)),
        )
        status = self._library.shoal_evaluate(self._handle, ctypes.addressof(call))
        self._idle[EVALUATION_BATCH].append(workspace)
        self._raise(status)
        return Outcome(call.loss_sum, call.num_correct, len(order))

    def _check_model(self, flat: Floats, *others: Floats | None) -> None:
        for name, vector in zip(("flat", "momentum", "anchor", "offset", "scale"), (flat, *others), strict=False):
            if vector is not None:
                _check(name, vector, np.float32, (self.num_values,), writeable=bool(others) and name in ("flat", "momentum"))

    def _check_examples(self, x: Floats, y: Integers | None, order: Integers) -> None:
        _check("x", x, np.float32, (len(x), self.network.channels, self.network.time))
        _check("order", order, np.int64, (len(order),))
        if y is not None:
            _check("y", y, np.int64, (len(x),))

    def _raise(self, status: int) -> None:
        if status:
            raise DataError(
                {
                    1: f"a label is not in 0 .. {self.network.classes - 1}",
                    2: "an index of an example is out of range",
                    3: "BatchNorm cannot train on a batch of one value per channel",
                }.get(status, f"the native engine refuses a call: status {status}")
            )

    def _acquire(self, capacity: int) -> Floats:
        """A workspace that no other thread uses. Its zeros between rows are written once, so that it keeps to one capacity."""
        try:
            return self._idle.setdefault(capacity, []).pop()
        except IndexError:
            return np.zeros(self._library.shoal_workspace_size(self._handle, capacity) + 16, np.float32)


def _layer(layer: Layer, begins: dict[str, int]) -> _Layer:
    tensors = [begins[layer.tensors[p]] if p in layer.tensors else -1 for p in ("weight", "bias", RUNNING_MEAN, RUNNING_VAR)]
    return _Layer(_KINDS.index(layer.kind), layer.outputs, layer.kernel, layer.stride, layer.padding, *tensors, layer.eps, layer.momentum)


def _check(name: str, array: Array, dtype: type, shape: tuple[int, ...], writeable: bool = False) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ConfigError(f"{name}: expected a C-ordered {np.dtype(dtype)} array of shape {shape}, got {found}")
    if writeable and not array.flags.writeable:
        raise ConfigError(f"{name}: expected an array that may be written")


def _pointer(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def _aligned(workspace: Floats) -> int:
    address: int = workspace.ctypes.data
    return -(-address // 64) * 64


def _capacity(most: int) -> int:
    """The next power of two: devices with a few examples less share their workspaces with the others."""
    return 1 << (most - 1).bit_length()
