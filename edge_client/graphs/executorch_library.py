"""The library over ExecuTorch's runtime by ctypes: programs that take and give numpy arrays. No
torch, no ExecuTorch in Python."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from host.executorch.build import build
from wire.arrays.tensors import Array
from wire.errors import BundleError, ConfigError

INTERFACE, MAX_RANK, ERROR_SIZE = 1, 8, 1024
DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.uint8),
    3: np.dtype(np.int32),
    4: np.dtype(np.int64),
    6: np.dtype(np.float32),
    11: np.dtype(np.bool_),
}
"""ExecuTorch's numbers for data types."""
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


class TensorView(ctypes.Structure):
    """`shoal_tensor` of program.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.c_int32 * MAX_RANK),
    )


@cache
def load_library(path: Path | None = None) -> ctypes.CDLL:
    """The library, built on first use where no path is given.

    Raises:
        ConfigError: it cannot be built or loaded, or is not of this version.
    """
    path = path or build()
    try:
        library = ctypes.CDLL(str(path))
        pointer, integer, text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
        for name, result, arguments in (
            ("shoal_program_interface", integer, []),
            ("shoal_executorch_version", text, []),
            ("shoal_set_threads", None, [integer]),
            ("shoal_program_load", pointer, [text, ctypes.c_size_t, text, ctypes.c_size_t]),
            ("shoal_program_free", None, [pointer]),
            ("shoal_program_num_inputs", integer, [pointer]),
            ("shoal_program_num_outputs", integer, [pointer]),
            (
                "shoal_program_run",
                integer,
                [pointer, pointer, integer, pointer, integer, text, ctypes.c_size_t],
            ),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ConfigError(f"the library for ExecuTorch, {path}: {error}") from None
    if library.shoal_program_interface() != INTERFACE:
        raise ConfigError(
            f"the library for ExecuTorch, {path}: interface {library.shoal_program_interface()}, "
            f"expected {INTERFACE}"
        )
    return library


class LoadedProgram:
    """One program, ready to run. Not for two threads at a time."""

    def __init__(self, library: ctypes.CDLL, data: bytes) -> None:
        """`data` is kept: the runtime reads constants from it.

        Raises:
            BundleError: not a program, or one that needs an operator or a backend that this runtime
            does not have.
        """
        self._library, self._data = library, data
        self._error = ctypes.create_string_buffer(ERROR_SIZE)
        self._handle = library.shoal_program_load(data, len(data), self._error, ERROR_SIZE)
        if not self._handle:
            raise BundleError(self._error.value.decode(errors="replace"))
        self._inputs = (TensorView * library.shoal_program_num_inputs(self._handle))()
        self._outputs = (TensorView * library.shoal_program_num_outputs(self._handle))()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run it on arrays, by position; its outputs as arrays of their own.

        Raises:
            BundleError: the inputs are not what the program takes, or it fails; the text is the
            runtime's.
        """
        if len(inputs) != len(self._inputs):
            raise BundleError(f"{len(inputs)} inputs, expected {len(self._inputs)}")
        held = [np.ascontiguousarray(value) for value in inputs]  # alive until the run is over
        for view, value, given in zip(self._inputs, held, inputs, strict=True):
            if value.dtype not in _NUMBERS or given.ndim > MAX_RANK:
                raise BundleError(
                    f"an input of {value.dtype} with {given.ndim} dimensions: expected a type and "
                    "size that tensors have"
                )
            view.data, view.dtype, view.rank = value.ctypes.data, _NUMBERS[value.dtype], given.ndim
            view.sizes[: given.ndim] = given.shape
        code = self._library.shoal_program_run(
            self._handle,
            self._inputs,
            len(self._inputs),
            self._outputs,
            len(self._outputs),
            self._error,
            ERROR_SIZE,
        )
        if code:
            raise BundleError(self._error.value.decode(errors="replace"))
        outputs = []  # copies: the runtime writes to the same memory in the next run
        for view in self._outputs:
            array: Array = np.empty(tuple(view.sizes[: view.rank]), DTYPES[view.dtype])
            ctypes.memmove(array.ctypes.data, view.data, array.nbytes)
            outputs.append(array)
        return outputs

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.shoal_program_free(self._handle)
