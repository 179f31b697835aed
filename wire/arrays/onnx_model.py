"""Model in one ONNX file: a graph whose weights have names without values, followed by the values.

Two protobuf messages of one type, one after the other, are one message: lists are joined and inner
messages merged (Protocol Buffers, "Encoding", "Last One Wins"). So a device without an ONNX library
appends a message with only ``graph.initializer`` and ``metadata_props``, and gets a model that
every ONNX runtime reads.
"""

from collections.abc import Mapping

import numpy as np

from wire.arrays.names import X
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle
from wire.errors import BundleError

INPUT, OUTPUT = "x", "probabilities"
"""Input and output of a model in one file.

The input has examples (n, \\*window) float32; the output has probabilities (n, classes) float32.
"""
PREDICT = "predict"

# Field numbers in onnx.proto3.
_MODEL_GRAPH, _MODEL_METADATA = 7, 14
_GRAPH_INITIALIZER = 5
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_TYPES = {"float32": 1, "uint8": 2, "int32": 6, "int64": 7, "bool": 9}
_BYTES = 2
"""Wire type of fields with a length."""


def apart(one: Array, other: Array) -> float:
    """Return the largest difference between two answers of the same shape; NaN for a NaN.

    Differences are relative to the size of `other` where that is above 1: probabilities are
    compared as they are, and quantities in large units by their digits.
    """
    return float((np.abs(one.astype(np.float64) - other) / np.maximum(1.0, np.abs(other))).max())


def whole_model(bundle: Bundle, tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """Return a bundle's graph for predictions with these tensors, by ``ROLE/NAME``, inside.

    `about` becomes its metadata. The result is empty if the bundle has no template of the graph.

    Raises:
        BundleError: the graph reads an input that is not a tensor of the model.
    """
    graph = bundle.manifest.graphs.get(PREDICT)
    if graph is None or not graph.template:
        return b""
    read = [name for name in graph.inputs if name != X]
    if missing := [name for name in read if name not in tensors]:
        raise BundleError(
            f"bundle {bundle.manifest.name}: graph {PREDICT!r} reads {missing[0]!r}, which is no "
            "tensor of the model"
        )
    return bundle.files[graph.template] + fragment({name: tensors[name] for name in read}, about)


def fragment(tensors: Mapping[str, Array], about: Mapping[str, str]) -> bytes:
    """Return a ``ModelProto`` with these initializers and this metadata and nothing else."""
    initializers = []
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        tensor = (
            _field(_TENSOR_DIMS, b"".join(map(_varint, array.shape)))
            + _varint(_TENSOR_TYPE << 3)
            + _varint(_TYPES[str(array.dtype)])
            + _field(_TENSOR_NAME, name.encode())
            + _field(_TENSOR_RAW, raw)
        )
        initializers.append(_field(_GRAPH_INITIALIZER, tensor))
    entries = [
        _field(_ENTRY_KEY, key.encode()) + _field(_ENTRY_VALUE, value.encode())
        for key, value in about.items()
    ]
    return _field(_MODEL_GRAPH, b"".join(initializers)) + b"".join(
        _field(_MODEL_METADATA, entry) for entry in entries
    )


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
