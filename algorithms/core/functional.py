"""Calls a torch model with the tensors that an algorithm holds in place of the model's own."""

import torch
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from algorithms.models.frozen import fixed_norms, frozen_slot, frozen_tensors
from wire import names


def functional(model: nn.Module, tensors: TorchTensors, x: Tensor, training: bool) -> tuple[Tensor, TorchTensors]:
    """Call `model` with the parameters and running statistics given, of role shared, statistic or private, without touching the
    model itself. Returns what the model returns, and the running statistics after the call by ``ROLE/NAME``.

    What is frozen is taken from its slot where there is one, else from the model.
    """
    roles = {names.name_of(k): k for k in names.of_role(tensors, *names.EXCHANGED, names.PRIVATE)}
    own = dict(model.named_parameters())
    has_frozen = not all(parameter.requires_grad for parameter in own.values())
    fixed = frozen_tensors(model) if has_frozen else {}
    frozen = {name: tensors.get(frozen_slot(name), value) for name, value in fixed.items()}
    parameters = {name: tensors[roles[name]] for name in own if name not in fixed}
    counters = {k: torch.zeros((), dtype=torch.int64) for k, _ in model.named_buffers() if k.endswith("num_batches_tracked")}
    moving = [k for k, _ in model.named_buffers() if names.is_running_statistic(k) and k not in fixed]
    buffers = {k: tensors[roles[k]].clone() for k in moving}
    model.train(training)
    for layer in fixed_norms(model).values() if has_frozen else ():
        layer.eval()
    result = torch.func.functional_call(model, {**frozen, **parameters, **buffers, **counters}, (x,))
    return result, {roles[k]: v for k, v in buffers.items()}
