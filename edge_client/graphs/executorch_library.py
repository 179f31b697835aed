"""Binding by ctypes of the native library over ExecuTorch's runtime, with numpy arrays.

It needs neither torch nor ExecuTorch's Python package.
"""

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
"""Data types by ExecuTorch's numbers."""
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


class TensorView(ctypes.Structure):
    """The struct `shoal_tensor` of program.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.c_int32 * MAX_RANK),
    )


@cache
def load_library(path: Path | None = None) -> ctypes.CDLL:
    """Return the library. Without a path it is built at the first use.

    Raises:
        ConfigError: it cannot be built or loaded, or has another interface version.
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
        raise ConfigError(f"library for ExecuTorch {path} cannot be loaded: {error}") from None
    if library.shoal_program_interface() != INTERFACE:
        raise ConfigError(
            f"library for ExecuTorch {path} must have interface {INTERFACE}, got "
            f"{library.shoal_program_interface()}"
        )
    return library


class LoadedProgram:
    """A program that is ready to run, by one thread at a time."""

    def __init__(self, library: ctypes.CDLL, data: bytes) -> None:
        """Load a program. `data` stays in memory, as the runtime reads constants from it.

        Raises:
            BundleError: `data` is not a program, or needs an operator or a backend that this
                runtime does not have.
        """
        self._library, self._data = library, data
        self._error = ctypes.create_string_buffer(ERROR_SIZE)
        self._handle = library.shoal_program_load(data, len(data), self._error, ERROR_SIZE)
        if not self._handle:
            raise BundleError(self._error.value.decode(errors="replace"))
        self._inputs = (TensorView * library.shoal_program_num_inputs(self._handle))()
        self._outputs = (TensorView * library.shoal_program_num_outputs(self._handle))()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the program on arrays by position and return copies of its outputs.

        Raises:
            BundleError: the inputs do not suit the program, or it fails. The text is the runtime's.
        """
        if len(inputs) != len(self._inputs):
            raise BundleError(f"the program takes {len(self._inputs)} inputs, got {len(inputs)}")
        arrays = [np.ascontiguousarray(value) for value in inputs]  # must live until the run ends
        for view, value, source in zip(self._inputs, arrays, inputs, strict=True):
            if value.dtype not in _NUMBERS or source.ndim > MAX_RANK:
                raise BundleError(
                    f"an input must be numbers with at most {MAX_RANK} dimensions, got "
                    f"{value.dtype} with {source.ndim}"
                )
            view.data, view.dtype, view.rank = (
                value.ctypes.data,
                _NUMBERS[value.dtype],
                source.ndim,
            )
            view.sizes[: source.ndim] = source.shape
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
        outputs = []  # copies, as the next run writes to the same memory
        for view in self._outputs:
            array: Array = np.empty(tuple(view.sizes[: view.rank]), DTYPES[view.dtype])
            ctypes.memmove(array.ctypes.data, view.data, array.nbytes)
            outputs.append(array)
        return outputs

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.shoal_program_free(self._handle)
