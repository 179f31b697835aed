"""Training, evaluation and predictions of a network in the native engine, in one call each."""

import ctypes
from collections.abc import Sequence

import numpy as np

from host.native.plan import (
    CompiledNetwork,
    Floats,
    Integers,
    aligned,
    capacity_for,
    check_array,
    pointer,
)
from wire.errors import ConfigError
from wire.messages import Metrics

EVALUATION_BATCH = 32
"""Number of examples that are evaluated at once; their activations still fit into the cache."""


class _TrainCall(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("flat", "momentum", "scale", "x", "y", "order", "bounds")),
        *((n, ctypes.c_int64) for n in ("num_examples", "num_batches", "capacity")),
        *((n, ctypes.c_float) for n in ("lr", "momentum_factor")),
        ("move_statistics", ctypes.c_int32),
        *((n, ctypes.c_void_p) for n in ("workspace", "drawn")),
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


class NativeTrainer(CompiledNetwork):
    """Steps of SGD on the mean cross-entropy, evaluation, and predictions."""

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
        scale: Floats | None = None,
        move_statistics: bool = True,
        drawn: Sequence[Floats] = (),
    ) -> Metrics:
        """Take a step of SGD on the cross-entropy for each batch.

        A step is v <- momentum_factor * v + g; w <- w - lr * v. Batch i is the examples
        ``order[bounds[i]:bounds[i + 1]]``. g is the batch's mean gradient, times `scale` if there
        is one. Values whose scale is 0 do not change, nor does their momentum.

        Args:
            flat: (num_values,) the model; overwritten with the trained one, running statistics
                included.
            momentum: (num_values,) v, overwritten; zeros, which are not returned, if None. Running
                statistics have none.
            x: (n, \\*window) float32, raw sensor units.
            y: (n,) int64, class numbers.
            order: (total,) int64, indices of examples.
            bounds: (num_batches + 1,) int64, from 0 to total, increasing.
            scale: (num_values,).
            move_statistics: True if BatchNorm's running statistics move.
            drawn: for each of the network's `dropouts`, numbers in [0, 1) (total, \\*shape)
                float32, in the order of `order`.

        Returns:
            Loss and correct answers in training mode, each batch before its step.

        Raises:
            ConfigError: an array of another dtype, layout or shape; batches that `bounds` does not
                describe.
            DataError: a label or an index out of range; a batch of one value per channel, which
                BatchNorm cannot normalise.
        """
        self._check_model(flat, momentum, scale)
        self._check_examples(x, y, order)
        check_array("bounds", bounds, np.int64, (len(bounds),))
        if (
            len(bounds) < 1
            or bounds[0] != 0
            or bounds[-1] != len(order)
            or (len(bounds) > 1 and np.diff(bounds).min() < 1)
        ):
            raise ConfigError(
                f"bounds of batches must increase from 0 to {len(order)}, got {bounds.tolist()[:8]}"
            )
        dropouts = self.network.dropouts
        if len(drawn) != len(dropouts):
            raise ConfigError(
                f"random numbers must be for the dropout layers {', '.join(dropouts) or 'none'}, "
                f"got those of {len(drawn)} layers"
            )
        for numbers, (name, shape) in zip(drawn, dropouts.items(), strict=True):
            check_array(f"random numbers of {name}", numbers, np.float32, (len(order), *shape))
        pointers = (ctypes.c_void_p * len(drawn))(*map(pointer, drawn))
        capacity = capacity_for(int(np.diff(bounds).max(initial=1)))
        workspace = self.acquire(capacity)
        call = _TrainCall(
            *(pointer(a) for a in (flat, momentum, scale, x, y, order, bounds)),
            *(
                len(x),
                len(bounds) - 1,
                capacity,
                lr,
                momentum_factor,
                move_statistics,
                aligned(workspace),
            ),
            ctypes.addressof(pointers) if drawn else None,
        )
        status = self.library.shoal_train(self.handle, ctypes.addressof(call))
        self.release(capacity, workspace)
        self.refuse(status)
        return Metrics(len(order), call.loss_sum, call.num_correct)

    def evaluate(
        self, flat: Floats, x: Floats, y: Integers, order: Integers | None = None
    ) -> Metrics:
        """Return loss and correct answers with the running statistics.

        They are over the examples `order`, all if None. Arguments are as in `train`.
        """
        return self._evaluate(flat, x, y, order, None)

    def predict(self, flat: Floats, x: Floats, order: Integers | None = None) -> Floats:
        """Return class probabilities (len(order), classes) float32, with the running statistics.

        Arguments are as in `train`.
        """
        probabilities = np.empty(
            (len(x) if order is None else len(order), self.network.classes), np.float32
        )
        self._evaluate(flat, x, None, order, probabilities)
        return probabilities

    def _evaluate(
        self,
        flat: Floats,
        x: Floats,
        y: Integers | None,
        order: Integers | None,
        probabilities: Floats | None,
    ) -> Metrics:
        order = np.arange(len(x)) if order is None else order
        self._check_model(flat)
        self._check_examples(x, y, order)
        workspace = self.acquire(EVALUATION_BATCH)
        call = _EvaluateCall(
            *(pointer(a) for a in (flat, x, y, order)),
            *(len(x), len(order), EVALUATION_BATCH, aligned(workspace), pointer(probabilities)),
        )
        status = self.library.shoal_evaluate(self.handle, ctypes.addressof(call))
        self.release(EVALUATION_BATCH, workspace)
        self.refuse(status)
        return Metrics(len(order), call.loss_sum, call.num_correct)

    def _check_model(self, flat: Floats, *others: Floats | None) -> None:
        for name, vector in zip(("flat", "momentum", "scale"), (flat, *others), strict=False):
            if vector is not None:
                check_array(
                    name,
                    vector,
                    np.float32,
                    (self.num_values,),
                    writeable=bool(others) and name in ("flat", "momentum"),
                )

    def _check_examples(self, x: Floats, y: Integers | None, order: Integers) -> None:
        check_array("x", x, np.float32, (len(x), *self.network.window))
        check_array("order", order, np.int64, (len(order),))
        if y is not None:
            check_array("y", y, np.int64, (len(x),))
