"""A model in one file: two halves of protobuf that make a whole, held against the ONNX library."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.edge_client.hostile import with_graph
from tests.support.bundles import Exported
from wire.arrays.onnx_model import fragment, whole_model
from wire.bundle import unpack
from wire.errors import BundleError

TENSORS = {
    "shared/weight": np.arange(300 * 3, dtype=np.float32).reshape(300, 3) - 7.5,
    "private/é": np.array(-3, np.int64),
    "slot/mask": np.array([True, False]),
    "statistic/empty": np.zeros((0, 2), np.float32),
    "received/bytes": np.arange(200, dtype=np.uint8),
    "received/turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}


def test_the_onnx_library_reads_what_was_written() -> None:
    model = onnx.ModelProto.FromString(fragment(TENSORS, {"classes": "é", "empty": ""}))
    read = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert list(read) == list(TENSORS)
    for name, array in TENSORS.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read[name], array)
    assert {entry.key: entry.value for entry in model.metadata_props} == {
        "classes": "é",
        "empty": "",
    }


def test_the_whole_is_a_valid_model_with_one_input(exported: Exported) -> None:
    model = onnx.load_model_from_string(
        whole_model(exported.bundle, exported.bundle.initial, {"a": "b"})
    )
    onnx.checker.check_model(model, full_check=True)
    assert (
        [value.name for value in model.graph.input],
        [value.name for value in model.graph.output],
    ) == (["x"], ["probabilities"])


def test_a_bundle_without_a_template_gives_none(exported: Exported) -> None:
    assert (
        whole_model(
            unpack(with_graph(exported.bundle, "predict", template="")), exported.bundle.initial, {}
        )
        == b""
    )


def test_a_tensor_that_is_missing_is_named(exported: Exported) -> None:
    tensors = {
        key: value
        for key, value in exported.bundle.initial.items()
        if not key.startswith("statistic/")
    }
    with pytest.raises(BundleError, match="reads 'statistic/"):
        whole_model(exported.bundle, tensors, {})
