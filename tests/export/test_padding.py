"""Convolutions with paddings of every mode are exported, with the gradients of torch."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from export.capture import trace
from export.lowering.onnx_graph import to_onnx
from export.lowering.shared import replication_pad_backward
from wire.arrays import names
from wire.errors import ConfigError


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 3, 5, padding=2, padding_mode="circular"),
        nn.Conv1d(4, 3, 5, padding=2, padding_mode="replicate"),
        nn.Conv1d(4, 3, 5, padding=2, padding_mode="reflect"),
        nn.Conv2d(4, 3, 3, padding=(1, 0), padding_mode="circular"),
        nn.Conv2d(4, 3, 3, padding=(1, 2), padding_mode="replicate"),
        nn.Conv3d(2, 3, 3, padding=1, padding_mode="circular"),
        nn.Conv3d(2, 3, 3, padding=(0, 1, 2), padding_mode="replicate"),
        nn.Conv3d(2, 3, 3, padding=1, padding_mode="reflect", groups=1, dilation=(1, 2, 1)),
        nn.Sequential(nn.ReplicationPad1d((3, 0)), nn.Conv1d(4, 3, 4)),
    ],
)
def test_the_gradients_of_a_padded_convolution_are_those_of_torch(layer: nn.Module) -> None:
    kind = layer._get_name()
    x = torch.randn({"Conv2d": (5, 4, 7, 6), "Conv3d": (5, 2, 4, 5, 6)}.get(kind, (5, 4, 9)))

    def power(x: Tensor) -> Tensor:
        total: Tensor = layer(x).square().sum()
        return total

    def slopes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {names.metric("slope"): torch.func.grad(power)(tensors[names.X])}

    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    graph = to_onnx(trace(slopes, {names.X: x}))
    session = onnxruntime.InferenceSession(graph.onnx, providers=["CPUExecutionProvider"])
    (slope,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = torch.func.grad(power)(x).numpy()
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-5)


def test_a_negative_padding_is_refused() -> None:
    with pytest.raises(ConfigError, match="use sizes of 0 or more"):
        replication_pad_backward(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5), [-1, 0])
