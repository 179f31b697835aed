"""What a model makes of given inputs, as the server sees it: class probabilities, and the statistics each BatchNorm layer meets."""

import torch
from torch import Tensor, nn

from algorithms.contract import Probe, TorchTensors, functional

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def make_probe(model: nn.Module, input_shape: tuple[int, ...]) -> Probe:
    """The probe of a model whose tensors are named as `initial_tensors` names them. Its BatchNorm layers use running statistics."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, _NORMS)]

    def run(tensors: TorchTensors, x: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        met: list[tuple[Tensor, Tensor]] = []

        def look(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            (features,) = inputs
            dims = [d for d in range(features.dim()) if d != 1]
            met.append((features.mean(dims), features.var(dims, correction=0)))

        hooks = [module.register_forward_pre_hook(look) for _, module in layers]
        try:
            logits, _ = functional(model, tensors, x, training=False)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.softmax(logits, dim=1), met

    return Probe(run, input_shape, tuple(name for name, _ in layers))
