"""Classifiers that train two small layers on a frozen, pre-trained extractor.

The layers are gated units with a conditioning per device, or ReLU.

L. Rieger, R. M. Th. Høegh, L. K. Hansen. Client Adaptation improves Federated Learning with
Simulated Non-IID Clients. FL-ICML workshop 2020, Eq. 1. Legend: Wf, Wg the weights of filter and
gate, vf, vg the device's columns of Vf and Vg (``filter_shift``, ``gate_shift``).
"""

import copy
from collections import OrderedDict

import torch
from torch import Tensor, nn

from algorithms.models.adoption.dropout import DROPOUTS, Dropped
from algorithms.models.classifier import Classifier
from wire.arrays import names
from wire.errors import ConfigError

MODULATION, EXPRESSION = "filter_shift", "gate_shift"
"""Last part of the names of the conditionings, which shift a feature's value and its gate."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class GatedUnits(nn.Module):
    """z = tanh(Wf^T x + vf) * sigmoid(Wg^T x + vg), each sum with a shared bias as well.

    Without conditioning vf and vg are left out.
    """

    def __init__(self, num_features: int, num_units: int, conditioned: bool = True) -> None:
        super().__init__()
        self.filter, self.gate = glorot(num_features, num_units), glorot(num_features, num_units)
        for name in (MODULATION, EXPRESSION):
            self.register_parameter(
                name, nn.Parameter(torch.zeros(num_units)) if conditioned else None
            )

    def forward(self, x: Tensor) -> Tensor:
        filtered, gated = self.filter(x), self.gate(x)
        if self.filter_shift is not None:
            filtered, gated = filtered + self.filter_shift, gated + self.gate_shift
        return torch.tanh(filtered) * torch.sigmoid(gated)


class OnFrozen(Classifier):
    """A classifier of two (or more) trained layers on the frozen extractor of another classifier.

    `extractor` maps x to the units of the last layer. Its first part is frozen: the weights are
    buffers, so that they are neither trained nor exchanged. Then come ``units1``, ``units2`` ...,
    each of `units` units.
    """

    head: nn.Linear

    def __init__(
        self,
        pretrained: Classifier,
        num_classes: int,
        units: int = 64,
        layers: int = 2,
        gated: bool = True,
        conditioned: bool = True,
    ) -> None:
        """`gated`: conditional gated activation units (CGAU), else ReLU, the paper's baseline.

        `conditioned=False` leaves out the device's own vectors.
        """
        extractor = nn.Sequential()
        extractor.add_module("frozen", freeze(pretrained.extractor))
        extractor.add_module("flatten", nn.Identity() if pretrained.steps else nn.Flatten())
        self.units = {f"units{i}": units for i in range(1, layers + 1)}
        width = pretrained.num_features
        for name in self.units:
            if gated:
                extractor.add_module(name, GatedUnits(width, units, conditioned))
            else:
                plain = OrderedDict[str, nn.Module](linear=glorot(width, units), relu=nn.ReLU())
                extractor.add_module(name, nn.Sequential(plain))
            width = units
        super().__init__(freeze(pretrained.scale), extractor, glorot(units, num_classes))
        self.shape, self.vocabulary, self.steps = (
            pretrained.shape,
            pretrained.vocabulary,
            pretrained.steps,
        )


def glorot(num_features: int, num_units: int) -> nn.Linear:
    """Return a linear layer with the initial weights of the authors' framework.

    These are Glorot and Bengio's (AISTATS 2010). Torch's own are smaller, and two layers of gated
    units barely start to learn from them.
    """
    layer = nn.Linear(num_features, num_units)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class FixedNorm(nn.Module):
    """BatchNorm outside of training: x * factor + shift per channel."""

    factor: Tensor
    shift: Tensor

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        assert isinstance(norm, _NORMS)
        if norm.running_mean is None or norm.running_var is None:
            raise ConfigError(
                "The extractor cannot be frozen: one of its BatchNorm layers has no running "
                "statistics"
            )
        weight = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight.detach()
        bias = torch.zeros_like(norm.running_mean) if norm.bias is None else norm.bias.detach()
        factor = weight / (norm.running_var + norm.eps).sqrt()
        self.register_buffer("factor", factor)
        self.register_buffer("shift", bias - norm.running_mean * factor)

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, *[1] * (x.dim() - 2))
        return x * self.factor.reshape(shape) + self.shift.reshape(shape)


def freeze(module: nn.Module) -> nn.Module:
    """Return a copy that always behaves as `module` does outside of training.

    Its parameters are buffers, BatchNorm uses its current running statistics, and dropout is off.

    Raises:
        ConfigError: running statistics of a layer that is not BatchNorm.
    """
    frozen = _without_training(copy.deepcopy(module))
    for part in frozen.modules():
        for name, value in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, value.detach().clone())
    if moving := [name for name, _ in frozen.named_buffers() if names.is_running_statistic(name)]:
        raise ConfigError(
            f"The extractor cannot be frozen: {moving[0]} belongs to a layer that is not BatchNorm"
        )
    return frozen


def _without_training(module: nn.Module) -> nn.Module:
    if isinstance(module, _NORMS):
        return FixedNorm(module)
    if isinstance(module, (*DROPOUTS, Dropped)):
        return nn.Identity()
    if isinstance(module, nn.RNNBase):
        module.dropout = 0.0
    for name, child in module.named_children():
        setattr(module, name, _without_training(child))
    return module
