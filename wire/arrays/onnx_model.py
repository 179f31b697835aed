"""A model in one ONNX file: a graph whose weights are names without a value, and after it the
values.

Two protobuf messages of one type, one after the other, are one message: lists are joined and inner
messages merged (Protocol Buffers, "Encoding", "Last One Wins"). So a device that has no ONNX
library appends a message that holds nothing but ``graph.initializer`` and ``metadata_props``, and
has a model that every ONNX runtime reads.
"""

from collections.abc import Mapping

import numpy as np

from wire.arrays.names import X
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle
from wire.errors import BundleError

INPUT, OUTPUT = "x", "probabilities"
"""The input, examples (n, \\*window) float32, and the output, (n, classes) float32, of a model in
one file."""
PREDICT = "predict"

# Numbers of fields in onnx.proto3.
_MODEL_GRAPH, _MODEL_METADATA = 7, 14
_GRAPH_INITIALIZER = 5
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_TYPES = {"float32": 1, "uint8": 2, "int32": 6, "int64": 7, "bool": 9}
_BYTES = 2
"""The wire type of what has a length."""


def apart(one: Array, other: Array) -> float:
    """The largest difference between two answers of the same shape, relative to the second one's
    size where that is above 1: probabilities are compared as they are, and quantities in large
    units by their digits. NaN where either is no number."""
    return float((np.abs(one.astype(np.float64) - other) / np.maximum(1.0, np.abs(other))).max())


def whole_model(bundle: Bundle, tensors: Tensors, about: Mapping[str, str]) -> bytes:
    """A bundle's graph for predictions with these tensors, by ``ROLE/NAME``, inside; `about`
    becomes its metadata. Empty if the bundle has nothing to make it from.

    Raises:
        BundleError: the graph reads what is no tensor.
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
    """A ``ModelProto`` with these initializers and this metadata and nothing else."""
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
