"""A fleet of tiny devices that plays rounds without messages, in place of a runner and agents."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from aggregator.fleet.plan import program_for
from algorithms.algorithm import Algorithm, Contribution, State, decode_memory, encode_memory
from algorithms.composition import (
    AlgorithmSpec,
    algorithm_of,
    make_algorithm,
    make_objective,
)
from algorithms.core.contract import Work
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe
from algorithms.models.classifier import Classifier
from algorithms.models.gated import OnFrozen
from algorithms.models.har_cnn import HarCnn
from algorithms.models.tcn import tcn
from algorithms.objectives.cgau import Cgau
from edge_client.core.ports import Graphs, Windows
from edge_client.work.executor import Executor
from export.describe import describe_bundle
from simulation.engine.graphs.eager import EagerGraphs
from wire.arrays.tensors import Tensors
from wire.bundle import Bundle, Window
from wire.messages import Plan
from wire.tasks import SEQUENCE, Label

CHANNELS, LENGTH, CLASSES, STEPS = 2, 16, 3, 4
WORK = Work(8, 1)
WINDOW = Window(tuple(f"c{i}" for i in range(CHANNELS)), LENGTH, LENGTH)
NAMES = tuple("abc")
CLASS = Label("int64", ())


def window_of(name: str | AlgorithmSpec) -> Window:
    """Return the window format of the tiny data set for an algorithm's task."""
    return (
        msgspec.structs.replace(WINDOW, steps=STEPS)
        if algorithm_of(name).parts.task.of == SEQUENCE
        else WINDOW
    )


def tiny_model(name: str | AlgorithmSpec, seed: int = 0) -> Classifier:
    """Return a tiny model that the algorithm can train."""
    torch.manual_seed(seed)
    if (window := window_of(name)).steps:
        sequence_model = tcn(window, CLASSES, torch.tensor([2.0, 1.0]))
        sequence_model.shape, sequence_model.steps = window.shape, window.steps
        return sequence_model
    outputs = algorithm_of(name).parts.task.outputs((CHANNELS, LENGTH), CLASSES)
    model = HarCnn(CHANNELS, LENGTH, outputs, torch.tensor([2.0, 1.0]))
    model.shape = (CHANNELS, LENGTH)
    if issubclass(algorithm_of(name).parts.objective, Cgau):
        gated = OnFrozen(model, CLASSES, units=8)
        gated.shape = model.shape
        return gated
    return model


def tiny_windows(number: int, seed: int = 0, label: Label = CLASS) -> Windows:
    """Return the windows of one device; odd devices have an offset in all channels.

    A label with one number per class is 1 for the window's class and 0 for the others. A label with
    one number per step repeats the class.
    """
    rng = np.random.default_rng([seed, number])
    y = np.arange(24 + number) % CLASSES
    phase = np.linspace(0, 2 * np.pi, LENGTH)
    x = np.stack([np.sin((k + 1) * phase) for k in y])[:, None] * np.array([2.0, 1.0])[:, None]
    x = (x + rng.normal(0, 0.3, x.shape) + 1.5 * (number % 2)).astype(np.float32)
    cut = len(y) - 6
    labels = (
        np.eye(CLASSES)[y]
        if label.shape == (CLASSES,)
        else np.stack([y] * STEPS, 1)
        if label.shape
        else y
    ).astype(label.dtype)
    return Windows(x[:cut], labels[:cut], x[cut:], labels[cut:])


@dataclass
class Field:
    """An algorithm, its bundle and its devices."""

    algorithm: Algorithm
    bundle: Bundle
    executors: dict[str, Executor]
    state: State
    model: Classifier
    private_tensors: dict[str, Tensors]

    def play(
        self, rounds: int, *, reverse: bool = False, through_bytes: bool = False, late: str = ""
    ) -> State:
        """Play the preparations and `rounds` rounds of training, and return the state.

        Args:
            rounds: number of rounds of training.
            reverse: apply the contributions in reverse order.
            through_bytes: encode and decode the server's memory after every round, as a restart
            does.
            late: id of a device that joins after the first round of training; empty: none.
        """
        trained, number = 0, 0
        while trained < rounds:
            number += 1
            preparing = self.algorithm.coordinator.preparing(self.state.context)
            there = [d for d in self.executors if d != late or trained]
            contributions = self.contributions(there, number)
            contributions = contributions[::-1] if reverse else contributions
            if preparing:
                self.state = self.algorithm.prepare(self.state, contributions)
            else:
                probe = make_probe(self.model, (CHANNELS, LENGTH))
                self.state, _ = self.algorithm.apply(self.state, contributions, probe, number, WORK)
                trained += 1
            if through_bytes:
                self.state = decode_memory(encode_memory(self.state), self.state.models)
        return self.state

    def contributions(self, there: list[str], number: int) -> list[Contribution]:
        blobs = {key: self.algorithm.given(self.state, key) for key in self.state.models}
        digests = {key: f"{i:064x}" for i, key in enumerate(sorted(blobs))}
        by_digest = {digest: key for key, digest in digests.items()}
        programs = self.algorithm.programs(self.state, WORK, digests)
        updates = []
        for device_id in there:
            key = (
                NEWCOMER
                if self.algorithm.coordinator.preparing(self.state.context)
                else self.algorithm.grouping.start(self.state.memory, device_id)
            )
            verbs = program_for(programs, device_id, key)
            plan = Plan(
                "r", 1, number, 0, device_id, "0" * 64, digests[key], verbs, 7 * number, 0.0
            )
            blob: Callable[[str], Tensors] = lambda digest: blobs[by_digest[digest]]  # noqa: E731
            result = self.executors[device_id].execute(
                plan, blobs[key], self.private_tensors.get(device_id, {}), blob
            )
            self.private_tensors[device_id] = result.private
            count = int(device_id[1:]) + 18
            updates.append(
                Contribution(
                    device_id,
                    count,
                    result.num_steps,
                    by_digest[result.model],
                    result.tensors,
                    result.trained.mean_loss,
                )
            )
        return updates


def make_field(
    name: str | AlgorithmSpec, num_devices: int = 8, seed: int = 0, graphs: Graphs | None = None
) -> Field:
    """Return a fleet of `num_devices` tiny devices that train with an algorithm.

    `graphs` take the place of the objective's own functions.
    """
    spec, window = algorithm_of(name), window_of(name)
    algorithm, model = make_algorithm(spec), tiny_model(spec, seed)
    objective = make_objective(spec, model)
    bundle = describe_bundle(objective, name="tiny", classes=NAMES, window=window)
    graphs = graphs or EagerGraphs(objective)

    def secret(plan: Plan) -> np.random.Generator:
        return np.random.default_rng([plan.seed, int(plan.device_id[1:])])

    executors = {
        f"d{i}": Executor(bundle, graphs, tiny_windows(i, seed, bundle.manifest.label), secret)
        for i in range(num_devices)
    }
    state = algorithm.begin(bundle.initial, make_probe(model, window.shape), seed)
    return Field(algorithm, bundle, executors, state, model, {})


def difference(one: State, two: State) -> str:
    """Return a description of the first difference of two states; empty if they are equal."""
    if one.models.keys() != two.models.keys():
        return f"the groups are {sorted(one.models)} and {sorted(two.models)}"
    for key, model in one.models.items():
        for name, value in model.items():
            if not np.array_equal(value, two.models[key][name]):
                return (
                    f"{name} of model {key} differs by "
                    f"{float(np.abs(value - two.models[key][name]).max()):.3g}"
                )
    return "" if encode_memory(one) == encode_memory(two) else "what the server remembers differs"


def finite(models: Mapping[str, Tensors]) -> bool:
    """Return True if every value of every model is finite."""
    return all(np.isfinite(v).all() for model in models.values() for v in model.values())
