"""An algorithm is four choices: objective, grouping, mean, privacy. This is how they make one round's new models."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from algorithms.contract import (
    NEWCOMER,
    Context,
    Coordinator,
    Grouped,
    Grouping,
    LocalModel,
    Mean,
    Memory,
    Privacy,
    Probe,
    Programs,
    Slice,
    Work,
)
from algorithms.means.weighted import WeightedMean
from wire.messages import Choose, Evaluate, Train
from wire.tensors import OWN_FILES, Array, Tensors, decode_tensors, encode_tensors

SURVEY = Evaluate("train", "survey", "initial")
SMALLEST_VARIANCE = 1e-6
"""A running variance that noise has made smaller is set to this."""


@dataclass(frozen=True)
class Contribution:
    """An admitted update, as the algorithm reads it: ``delta/NAME``, ``statistic/NAME`` and ``response/NAME``, and where it started."""

    device_id: str
    num_examples: int
    num_steps: int
    start: str
    tensors: Tensors = field(repr=False)
    loss: float = math.nan


@dataclass(frozen=True)
class State:
    """The server's half of an algorithm between rounds: the model of each group (roles shared and statistic), and what grouping, objective
    and privacy remember."""

    models: dict[str, Tensors] = field(repr=False)
    memory: Memory = field(default_factory=Memory)
    context: Context = field(default_factory=Context)
    epsilon: float | None = None
    rounds: int = 0
    """Rounds of training so far."""
    extra_epochs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Algorithm:
    """Four choices under one name. `objective` is the name of the objective its bundle was exported with, `coordinator` its server half."""

    name: str
    objective: str
    coordinator: Coordinator
    grouping: Grouping
    mean: Mean
    privacy: Privacy
    secret: bytes = b""
    """What nobody else knows, for the noise of the privacy mechanism; an empty one is good for simulations only."""

    def begin(self, initial: Mapping[str, Array], probe: Probe, seed: int) -> State:
        """The state before the first round, from a bundle's initial tensors.

        Raises:
            ConfigError: the grouping needs something that the objective keeps on the device.
        """
        model = {k: v for k, v in initial.items() if k.startswith(("shared/", "statistic/"))}
        self.grouping.check(model, _usable(probe, model))
        return State({NEWCOMER: model, **self.grouping.begin(model, seed)}, context=self.coordinator.begin(dict(initial)))

    def start(self, memory: Memory, device_id: str) -> str:
        """Key of the model that a device trains from in the next round."""
        return self.grouping.start(memory, device_id)

    def preparing(self, state: State) -> bool:
        """Whether the next round is a preparation."""
        return self.coordinator.preparing(state.context)

    def received(self, state: State) -> dict[str, Tensors]:
        """The tensors of role received that go with each model."""
        return {key: self.coordinator.received(state.context, state.models, key) for key in state.models}

    def programs(self, state: State, work: Work, digests: Mapping[str, str]) -> Programs:
        """What devices do in the next round, and under ``closing`` after the last. `digests` names each model's blob."""
        programs = self.coordinator.programs(state.context, work)
        closing = self.coordinator.closing(state.context, work)
        if self.preparing(state):
            return {key: (*verbs, *self.privacy.verbs()) for key, verbs in programs.items()} | {"closing": closing}
        choose = (Choose(tuple(digests[k] for k in sorted(digests) if k != NEWCOMER)),) if self.grouping.chooses else ()
        made: Programs = {}
        if self.grouping.surveys:
            programs = {f"start:{NEWCOMER}": programs[""], **programs}
        for device_id, extra in state.extra_epochs.items():
            verbs = programs.get(f"device:{device_id}", programs[""])
            programs[f"device:{device_id}"] = tuple(
                msgspec.structs.replace(v, epochs=v.epochs + extra) if isinstance(v, Train) and v.report else v for v in verbs
            )
        due = self.grouping.resurvey > 0 and state.rounds % self.grouping.resurvey == 0
        for key, verbs in programs.items():
            kind, _, name = key.partition(":")
            new = key == f"start:{NEWCOMER}" or (kind == "device" and name not in state.memory.membership)
            survey = (SURVEY,) if self.grouping.surveys and (new or due) else ()
            made[key] = (*choose, *survey, *verbs, *self.privacy.verbs())
        return made | {"closing": (*choose, *closing)}

    def prepare(self, state: State, contributions: Sequence[Contribution]) -> State:
        """Take in a preparation: what devices trained is averaged by examples into the model that newcomers start from."""
        models = self._locals(state, contributions)
        model = self._average(WeightedMean(), models, state.rounds, NEWCOMER)
        nobody = dict.fromkeys((m.device_id for m in models), NEWCOMER)
        context = self.coordinator.absorb(state.context, models, nobody, {NEWCOMER: model})
        return replace(state, models={**state.models, NEWCOMER: model}, context=context)

    def apply(self, state: State, contributions: Sequence[Contribution], probe: Probe, seed: int, work: Work) -> tuple[State, Grouped]:
        """Group the devices of a round and average inside each group.

        The order of `contributions` does not matter: they are sorted by device id, because a float sum depends on its order.
        A model counts in its group's mean unless its device started as a newcomer while the group has a model of its own; such a
        device's first model only places it.
        """
        models = self._locals(state, contributions)
        grouped = self.grouping.group(state.memory, models, _usable(probe, state.models[NEWCOMER]), seed)
        membership = grouped.memory.membership
        following = dict(state.models)
        for group in sorted({membership[m.device_id] for m in models}):
            members = [m for m in models if membership[m.device_id] == group]
            trained = [m for m in members if m.start != NEWCOMER]
            if trained or group not in state.models:
                following[group] = self._average(self.mean, trained or members, seed, group)
        for device_id, group in membership.items():  # a new group whose devices were all away takes the model they had
            if group not in following:
                following[group] = state.models[state.memory.membership.get(device_id, NEWCOMER)]
        alive = {NEWCOMER, *membership.values(), *(state.models if self.grouping.chooses else ())}
        following = {k: v for k, v in following.items() if k in alive}
        context = self.coordinator.absorb(state.context, models, membership, following)
        rounds = state.rounds + 1
        spent = self.privacy.epsilon(rounds, models, work)
        epsilon = spent if spent is not None and math.isfinite(spent) else None  # without noise nothing is guaranteed
        return State(following, grouped.memory, context, epsilon, rounds, grouped.extra_epochs), grouped

    def place(self, state: State, contributions: Sequence[Contribution], probe: Probe, seed: int) -> dict[str, str]:
        """Where devices belong that are not averaged with anybody: the group of every device, theirs included."""
        models = self._locals(state, contributions)
        return self.grouping.group(state.memory, models, _usable(probe, state.models[NEWCOMER]), seed).memory.membership

    def _locals(self, state: State, contributions: Sequence[Contribution]) -> list[LocalModel]:
        if not contributions:
            raise ValueError("a round cannot be applied without a single contribution")
        return [self._local(state, c) for c in sorted(contributions, key=lambda c: c.device_id)]

    def _local(self, state: State, c: Contribution) -> LocalModel:
        """A device's model: what it received plus what it changed, clipped by the privacy mechanism. What the update does not
        carry was not trained."""
        received = state.models[c.start]
        changes = []
        for key, base in received.items():
            role, name = key.split("/", 1)
            if role == "shared":
                changes.append(c.tensors.get(f"delta/{name}", np.zeros_like(base)).ravel())
            else:
                changes.append((c.tensors.get(key, base) - base).ravel())
        flat = self.privacy.clip(_concatenate(changes))
        tensors: Tensors = {}
        for part in layout_of(received):
            tensors[part.key] = received[part.key] + flat[part.start : part.stop].reshape(part.shape)
        update = _concatenate([change for key, change in zip(received, changes, strict=True) if key.startswith("shared/")])
        responses = {k: v for k, v in c.tensors.items() if k.startswith("response/")}
        return LocalModel(c.device_id, c.num_examples, c.num_steps, c.start, tensors, responses, update, c.loss)

    def _average(self, mean: Mean, members: Sequence[LocalModel], seed: int, group: str) -> Tensors:
        layout = layout_of(members[0].tensors)
        stack = np.stack([_concatenate([v.ravel() for v in m.tensors.values()]) for m in members])
        if not stack.size:
            return {}
        flat = mean.combine(stack, np.array([m.num_examples for m in members], dtype=np.int64), layout, seed).flat
        drawn = hashlib.sha256(self.secret + f"/{seed}/{group}".encode()).digest()
        flat = self.privacy.noise(flat, len(members), int.from_bytes(drawn))
        average = {part.key: flat[part.start : part.stop].reshape(part.shape) for part in layout}
        return {k: np.maximum(v, np.float32(SMALLEST_VARIANCE)) if k.endswith("running_var") else v for k, v in average.items()}


def layout_of(tensors: Mapping[str, Array]) -> tuple[Slice, ...]:
    """Where each tensor lies when they are all made one vector, in their order."""
    parts, at = [], 0
    for key, value in tensors.items():
        parts.append(Slice(key, at, at + value.size, value.shape))
        at += value.size
    return tuple(parts)


def _concatenate(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _usable(probe: Probe, model: Mapping[str, Array]) -> Probe | None:
    return probe if all(name in model for name in probe.needs) else None


def encode_memory(state: State) -> bytes:
    """What is remembered besides the models as one tensor file, to be kept between rounds and over restarts."""
    arrays = {f"grouping/{k}": v for k, v in state.memory.arrays.items()} | {f"objective/{k}": v for k, v in state.context.arrays.items()}
    text: dict[str, Any] = {
        "membership": state.memory.membership,
        "grouping": state.memory.info,
        "objective": state.context.info,
        "epsilon": state.epsilon,
        "rounds": state.rounds,
        "extra_epochs": state.extra_epochs,
    }
    return encode_tensors(arrays, msgspec.json.encode(text))


def decode_memory(payload: bytes, models: dict[str, Tensors]) -> State:
    """Read what `encode_memory` wrote, into the state that it and the models are."""
    arrays, text = decode_tensors(payload, OWN_FILES)
    told = msgspec.json.decode(text)
    memory = Memory(told["membership"], _part(arrays, "grouping/"), told["grouping"])
    return State(
        models, memory, Context(_part(arrays, "objective/"), told["objective"]), told["epsilon"], told["rounds"], told["extra_epochs"]
    )


def _part(arrays: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
