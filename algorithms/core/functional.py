"""Calls a torch model with the tensors that an algorithm holds in place of the model's own."""

import torch
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from wire import names


def functional(model: nn.Module, tensors: TorchTensors, x: Tensor, training: bool) -> tuple[Tensor, TorchTensors]:
    """Call `model` with the parameters and running statistics given, of role shared, statistic or private, without touching the
    model itself. Returns what the model returns, and the running statistics after the call by ``ROLE/NAME``.
    """
    roles = {names.name_of(k): k for k in names.of_role(tensors, *names.EXCHANGED, names.PRIVATE)}
    parameters = {name: tensors[roles[name]] for name, _ in model.named_parameters()}
    counters = {k: torch.zeros((), dtype=torch.int64) for k, _ in model.named_buffers() if k.endswith("num_batches_tracked")}
    buffers = {k: tensors[roles[k]].clone() for k, _ in model.named_buffers() if names.is_running_statistic(k)}
    model.train(training)
    result = torch.func.functional_call(model, {**parameters, **buffers, **counters}, (x,))
    return result, {roles[k]: v for k, v in buffers.items()}
