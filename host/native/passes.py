"""Forward and backward passes of single batches in the native engine, for autograd."""

import ctypes
import weakref
from dataclasses import dataclass, field

import numpy as np

from host.native.plan import CompiledNetwork, Floats, aligned, capacity_for, check_array, pointer


class _ForwardCall(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("flat", "x")),
        *((n, ctypes.c_int64) for n in ("batch", "capacity")),
        ("training", ctypes.c_int32),
        *((n, ctypes.c_void_p) for n in ("workspace", "y")),
    )


class _BackwardCall(ctypes.Structure):
    _fields_ = (
        ("d_y", ctypes.c_void_p),
        *((n, ctypes.c_int64) for n in ("batch", "capacity")),
        *((n, ctypes.c_void_p) for n in ("workspace", "gradient")),
    )


@dataclass(eq=False)
class ForwardPass:
    """A forward pass of a batch: its result y (batch, outputs), and its workspace.

    The workspace goes back to the plan when this object is no longer referenced.
    """

    y: Floats
    workspace: Floats = field(repr=False)


class Passes(CompiledNetwork):
    """A network whose last layer may be of any kind.

    Its `classes` are the number of values in an example's result.
    """

    def forward(self, flat: Floats, x: Floats, training: bool) -> ForwardPass:
        """Return the network's result for a batch.

        Args:
            flat: (num_values,) the model; in training its running statistics are overwritten with
                those after the batch.
            x: (batch, \\*window) float32, at least one example.
            training: True if BatchNorm normalises by the batch.

        Raises:
            ConfigError: an array of another dtype, layout or shape.
            DataError: a batch of one value per channel, which BatchNorm cannot normalise.
        """
        check_array("flat", flat, np.float32, (self.num_values,), writeable=True)
        check_array("x", x, np.float32, (max(1, len(x)), *self.network.window))
        capacity = capacity_for(len(x))
        workspace = self.acquire(capacity)
        y = np.empty((len(x), self.network.classes), np.float32)
        forward_pass = ForwardPass(y, workspace)
        weakref.finalize(forward_pass, self.release, capacity, workspace)
        call = _ForwardCall(
            pointer(flat), pointer(x), len(x), capacity, training, aligned(workspace), pointer(y)
        )
        self.refuse(self.library.shoal_forward(self.handle, ctypes.addressof(call)))
        return forward_pass

    def backward(self, forward: ForwardPass, d_y: Floats) -> Floats:
        """Return the gradient by the model (num_values,) from the gradient by a pass's result.

        The pass is one in training; `d_y` is (batch, outputs). Values at the positions of running
        statistics have no meaning.

        Raises:
            ConfigError: `d_y` has another dtype, layout or shape.
        """
        check_array("d_y", d_y, np.float32, forward.y.shape)
        gradient = np.empty(self.num_values, np.float32)
        call = _BackwardCall(
            pointer(d_y),
            len(d_y),
            capacity_for(len(d_y)),
            aligned(forward.workspace),
            pointer(gradient),
        )
        self.refuse(self.library.shoal_backward(self.handle, ctypes.addressof(call)))
        return gradient
