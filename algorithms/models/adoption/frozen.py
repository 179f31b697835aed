"""What of a model is frozen (``requires_grad=False``): it is never trained and never exchanged.

A frozen tensor is a slot of the bundle: devices get it once, with the graphs, and every round
begins with it. A BatchNorm layer whose weights are frozen stays in evaluation, and its running
statistics are frozen too; so does one without weights in a part that is frozen.
"""

from torch import Tensor, nn

from wire.arrays import names

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fixed_norms(model: nn.Module) -> dict[str, nn.Module]:
    """The BatchNorm layers whose weights are frozen, by name; one without weights is as the part of
    the model that it stands in is."""
    norms = {name: layer for name, layer in model.named_modules() if isinstance(layer, NORMS)}
    return {
        name: layer
        for name, layer in norms.items()
        if not any(p.requires_grad for p in _around(model, name))
    }


def _around(model: nn.Module, name: str) -> list[nn.Parameter]:
    """The parameters of a layer, or of the smallest part of the model around it that has any."""
    while not (found := list(model.get_submodule(name).parameters())) and name:
        name = name.rpartition(".")[0]
    return found


def frozen_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Frozen parameters, and the running statistics of frozen BatchNorm layers, by their names in
    the model."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    norms = fixed_norms(model)
    statistics = [
        (n, b)
        for n, b in model.named_buffers()
        if names.is_running_statistic(n) and n.rpartition(".")[0] in norms
    ]
    return parameters | dict(statistics)


def frozen_slot(name: str) -> str:
    """The slot that holds a frozen tensor: ``slot/frozen.NAME``."""
    return names.slot(f"frozen.{name}")
