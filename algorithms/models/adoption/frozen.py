"""Frozen parts of a model (``requires_grad=False``), which are never trained and never exchanged.

A frozen tensor is a slot of the bundle: devices receive it once, with the graphs, and every round
begins with it. A BatchNorm layer with frozen weights stays in evaluation mode, and its running
statistics are frozen too. The same applies to a BatchNorm layer without weights in a frozen part.
"""

from torch import Tensor, nn

from wire.arrays import names

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fixed_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return the BatchNorm layers whose weights are frozen, by name.

    A layer without weights is frozen if the part of the model around it is.
    """
    norms = {name: layer for name, layer in model.named_modules() if isinstance(layer, NORMS)}
    return {
        name: layer
        for name, layer in norms.items()
        if not any(p.requires_grad for p in _around(model, name))
    }


def _around(model: nn.Module, name: str) -> list[nn.Parameter]:
    """Return a layer's parameters, or those of the smallest part around it that has some."""
    while not (parameters := list(model.get_submodule(name).parameters())) and name:
        name = name.rpartition(".")[0]
    return parameters


def frozen_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return frozen parameters and running statistics of frozen BatchNorm layers, by name."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    norms = fixed_norms(model)
    statistics = [
        (n, b)
        for n, b in model.named_buffers()
        if names.is_running_statistic(n) and n.rpartition(".")[0] in norms
    ]
    return parameters | dict(statistics)


def frozen_slot(name: str) -> str:
    """Return the key of the slot of a frozen tensor: ``slot/frozen.NAME``."""
    return names.slot(f"frozen.{name}")
