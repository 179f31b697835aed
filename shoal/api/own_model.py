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
"""Maximum number of examples in one forward pass."""
LEAST = 1e-30
"""Lower bound of a probability before its logarithm is taken."""


class OwnModel(nn.Module):
    """A device's personal model, if it is more than its network.

    It maps x (n, \\*window) float32 to logits (n, classes) float32; in a task without classes, to
    the answers themselves (n, answers). The softmax of the logits is the device's answer, with its
    whole personal model: neighbours among the windows in its memory, or a model of its own besides
    the group's. `network` is the network alone. `kept` are the names of the other tensors
    (``ROLE/NAME``), which are buffers here.
    """

    def __init__(self, objective: Supervised, network: Classifier, tensors: TorchTensors) -> None:
        super().__init__()
        self._graph, self._has_classes = (
            objective.graphs()["predict"],
            objective.task.of == CLASSIFICATION,
        )
        self.network = network
        key_by_name = {
            names.name_of(key): key
            for key in names.of_role(tensors, *names.EXCHANGED, names.PRIVATE)
        }
        self._of_network = {key_by_name[n]: n for n in map(names.name_of, whole_model(network))}
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
        """Return the device's answers (n, answers)."""
        network_tensors = dict(self.network.named_parameters()) | dict(self.network.named_buffers())
        tensors = {key: network_tensors[name] for key, name in self._of_network.items()}
        tensors |= {key: self.get_buffer(f"kept_{number}") for number, key in enumerate(self.kept)}
        return self._graph(tensors, {"x": x}, {})[names.PROBABILITIES]


def torch_tensors(tensors: Tensors) -> TorchTensors:
    """Return copies of numpy arrays as torch tensors."""
    return {key: torch.from_numpy(np.array(value)) for key, value in tensors.items()}


def network_with(objective: Supervised, tensors: TorchTensors, whose: str) -> Classifier:
    """Return a copy of the objective's network with these tensors, in evaluation mode.

    The tensors are parameters and running statistics (of role shared, statistic or private); frozen
    ones are the network's own. Dropout layers have no effect in it, because Shoal's step carries
    out dropout itself.

    Raises:
        ConfigError: parameters are missing, because devices keep them to themselves; `whose` model
            it is begins the text.
    """
    network = deepcopy(objective.model)
    tensor_by_name = {
        names.name_of(key): value
        for key, value in names.of_role(tensors, *names.EXCHANGED, names.PRIVATE).items()
    }
    needed = [names.name_of(key) for key in whole_model(network)]
    if missing := [name for name in needed if name not in tensor_by_name]:
        raise ConfigError(
            f"{whose}: {objective.name} leaves {', '.join(missing)} on each device, so this model "
            "is not whole; ask for the model of a device"
        )
    network.load_state_dict({name: tensor_by_name[name] for name in needed}, strict=False)
    return network.eval()


def device_model(objective: Supervised, tensors: TorchTensors, whose: str) -> Classifier | OwnModel:
    """Return a device's model from all of its tensors.

    It is the network if the network alone answers, else an `OwnModel`.
    """
    network = network_with(objective, tensors, whose)
    alone = objective.model_answers and not (objective.has_memory and float(tensors[SHARE]) > 0)
    return network if alone else OwnModel(objective, network, tensors).eval()


def answers_of(model: nn.Module, objective: Supervised, examples: Array) -> Array:
    """Return a model's answers to examples, at least one, in the form of the task.

    The model is one of `device_model` or `network_with`.
    """
    answers = []
    with torch.no_grad():
        for x in torch.from_numpy(np.ascontiguousarray(examples, np.float32)).split(AT_ONCE):
            answer = (
                model.answer(x)
                if isinstance(model, OwnModel)
                else objective.task.answer(model(x), objective.model.scale(x))
            )
            answers.append(answer.numpy())
    return np.concatenate(answers)
