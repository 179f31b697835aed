"""The models of a run as torch modules."""

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from algorithms.core.probe import whole_model
from algorithms.models.classifier import Classifier
from algorithms.objectives.supervised import Supervised
from algorithms.personalisation.memory import SHARE
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import ConfigError
from wire.tasks import CLASSIFICATION

AT_ONCE = 1024
"""Examples that a model answers at once, at most."""
LEAST = 1e-30
"""The probability below which an answer's logarithm is that of this one."""


class OwnModel(nn.Module):
    """A device's answer where that is more than its network's: x (n, \\*window) float32 -> logits
    (n, classes) float32; in a task that is not about classes, the answers themselves (n, answers).

    The softmax of the logits is what the device answers, with all that it keeps: neighbours among
    the windows that it remembers, a model of its own beside the group's. `network` is the network
    alone, `kept` the names of the tensors beside it (``ROLE/NAME``), which are buffers here.
    """

    def __init__(self, objective: Supervised, network: Classifier, tensors: TorchTensors) -> None:
        super().__init__()
        self._graph, self._has_classes = (
            objective.graphs()["predict"],
            objective.task.of == CLASSIFICATION,
        )
        self.network = network
        own = {
            names.name_of(key): key
            for key in names.of_role(tensors, *names.EXCHANGED, names.PRIVATE)
        }
        self._of_network = {own[n]: n for n in map(names.name_of, whole_model(network))}
        self.kept = tuple(
            key
            for key in tensors
            if key not in self._of_network and names.role_of(key) != names.SLOT
        )
        for number, key in enumerate(self.kept):
            self.register_buffer(f"kept_{number}", tensors[key])

    def forward(self, x: Tensor) -> Tensor:
        answers = self.answer(x)
        return answers.clamp(min=LEAST).log() if self._has_classes else answers

    def answer(self, x: Tensor) -> Tensor:
        """What the device answers (n, answers)."""
        held = dict(self.network.named_parameters()) | dict(self.network.named_buffers())
        tensors = {key: held[name] for key, name in self._of_network.items()}
        tensors |= {key: self.get_buffer(f"kept_{number}") for number, key in enumerate(self.kept)}
        return self._graph(tensors, {"x": x}, {})[names.PROBABILITIES]


def torch_tensors(tensors: Tensors) -> TorchTensors:
    """Copies of numpy arrays as torch tensors."""
    return {key: torch.from_numpy(np.array(value)) for key, value in tensors.items()}


def network_with(objective: Supervised, tensors: TorchTensors, whose: str) -> Classifier:
    """A copy of the objective's network with these parameters and running statistics (of role
    shared, statistic or private), in evaluation; what is frozen is the network's own. Dropout
    layers stand for nothing in it: Shoal's step does what they do.

    Raises:
        ConfigError: some of its parameters are not among them, since devices keep them to
        themselves; `whose` model it is begins the text.
    """
    network = deepcopy(objective.model)
    own = {
        names.name_of(key): value
        for key, value in names.of_role(tensors, *names.EXCHANGED, names.PRIVATE).items()
    }
    needed = [names.name_of(key) for key in whole_model(network)]
    if missing := [name for name in needed if name not in own]:
        raise ConfigError(
            f"{whose}: {objective.name} leaves {', '.join(missing)} on each device, so there is "
            "no whole model; ask for that of a device"
        )
    network.load_state_dict({name: own[name] for name in needed}, strict=False)
    return network.eval()


def device_model(objective: Supervised, tensors: TorchTensors, whose: str) -> Classifier | OwnModel:
    """What a device answers with, from all tensors that it has: the network where that alone
    answers, else an `OwnModel`."""
    network = network_with(objective, tensors, whose)
    alone = objective.model_answers and not (objective.has_memory and float(tensors[SHARE]) > 0)
    return network if alone else OwnModel(objective, network, tensors).eval()


def answers_of(model: nn.Module, objective: Supervised, examples: Array) -> Array:
    """What a model that `device_model` or `network_with` made answers to examples, at least one, as
    the task has it."""
    made = []
    with torch.no_grad():
        for x in torch.from_numpy(np.ascontiguousarray(examples, np.float32)).split(AT_ONCE):
            answer = (
                model.answer(x)
                if isinstance(model, OwnModel)
                else objective.task.answer(model(x), objective.model.scale(x))
            )
            made.append(answer.numpy())
    return np.concatenate(made)
