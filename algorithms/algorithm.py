"""An algorithm is four choices: objective, grouping, mean, privacy. This is how they make one round's new models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from algorithms.contract import NEWCOMER, Grouped, Grouping, LocalModel, Mean, Memory, Privacy, Probe
from wire.tensors import OWN_FILES, Array, Tensors, decode_tensors, encode_tensors


@dataclass(frozen=True)
class Contribution:
    """An admitted update, as the algorithm reads it: ``delta/NAME`` and ``statistic/NAME``, and where it started."""

    device_id: str
    num_examples: int
    num_steps: int
    start: str
    tensors: Tensors = field(repr=False)


@dataclass(frozen=True)
class State:
    """The server's half of an algorithm between rounds: the model of each group (roles shared and statistic), and the memory."""

    models: dict[str, Tensors] = field(repr=False)
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True)
class Algorithm:
    """Four choices under one name. `objective` is the name of the objective its bundle was exported with."""

    name: str
    objective: str
    grouping: Grouping
    mean: Mean
    privacy: Privacy

    def begin(self, initial: Mapping[str, Array]) -> State:
        """The state before the first round, from a bundle's initial tensors."""
        return State({NEWCOMER: {k: v for k, v in initial.items() if k.startswith(("shared/", "statistic/"))}})

    def start(self, memory: Memory, device_id: str) -> str:
        """Key of the model that a device trains from in the next round."""
        return self.grouping.start(memory, device_id)

    def apply(self, state: State, contributions: Sequence[Contribution], probe: Probe, seed: int) -> tuple[State, Grouped]:
        """Group the devices of a round and average inside each group.

        The order of `contributions` does not matter: they are sorted by device id, because a float sum depends on its order.
        A model counts in its group's mean unless its device started as a newcomer while the group has a model of its own; such a
        device's first model only places it.
        """
        if not contributions:
            raise ValueError("a round cannot be applied without a single contribution")
        models = [self._local(state, c, seed) for c in sorted(contributions, key=lambda c: c.device_id)]
        grouped = self.grouping.group(state.memory, models, probe, seed)
        membership = grouped.memory.membership
        following = dict(state.models)
        for group in sorted({membership[m.device_id] for m in models}):
            members = [m for m in models if membership[m.device_id] == group]
            trained = [m for m in members if m.start != NEWCOMER]
            following[group] = self._average(trained or members) if trained or group not in state.models else state.models[group]
        for device_id, group in membership.items():  # a new group whose devices were all away takes the model they had
            if group not in following:
                following[group] = state.models[state.memory.membership.get(device_id, NEWCOMER)]
        alive = {NEWCOMER, *membership.values()}
        return State({k: v for k, v in following.items() if k in alive}, grouped.memory), grouped

    def _local(self, state: State, contribution: Contribution, seed: int) -> LocalModel:
        received = state.models[contribution.start]
        names = [k.split("/", 1)[1] for k in received if k.startswith("shared/")]
        flat = np.concatenate([contribution.tensors[f"delta/{n}"].ravel() for n in names])
        flat = self.privacy.protect(flat, seed)
        tensors: Tensors = {k: v for k, v in contribution.tensors.items() if k.startswith("statistic/")}
        at = 0
        for name in names:
            base = received[f"shared/{name}"]
            tensors[f"shared/{name}"] = base + flat[at : at + base.size].reshape(base.shape)
            at += base.size
        c = contribution
        responses = {k: v for k, v in c.tensors.items() if k.startswith("response/")}
        return LocalModel(c.device_id, c.num_examples, c.num_steps, c.start, {k: tensors[k] for k in received}, responses)

    def _average(self, members: Sequence[LocalModel]) -> Tensors:
        stack = np.stack([np.concatenate([m.tensors[k].ravel() for k in members[0].tensors]) for m in members])
        flat = self.mean.combine(stack, np.array([m.num_examples for m in members], dtype=np.int64))
        average: Tensors = {}
        at = 0
        for key, like in members[0].tensors.items():
            average[key] = flat[at : at + like.size].reshape(like.shape)
            at += like.size
        return average


def encode_memory(memory: Memory) -> bytes:
    """A memory as one tensor file, to be kept between rounds and over restarts."""
    return encode_tensors(memory.arrays, msgspec.json.encode({"membership": memory.membership, "info": memory.info}))


def decode_memory(payload: bytes) -> Memory:
    """Read what `encode_memory` wrote."""
    arrays, text = decode_tensors(payload, OWN_FILES)
    return replace(Memory(**msgspec.json.decode(text)), arrays=arrays)
