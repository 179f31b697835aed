"""The place where a simulated device's plan is carried out.

It has the edge client's own executor, the device's windows and its private tensors.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from zlib import crc32

import numpy as np
import torch

from aggregator.aggregation.admission import check_tensors, norms_of
from aggregator.core.settings import RunSettings
from algorithms.algorithm import Algorithm
from algorithms.means.streaming import Branch
from algorithms.outside import blaming
from edge_client.core.kept import own_tensors
from edge_client.core.ports import Graphs, Windows
from edge_client.work.executor import Executor
from simulation.engine.workers.attacks import Attack
from simulation.engine.workers.private_store import PrivateStore
from wire.arrays import names
from wire.arrays.quantised import decoded, encoded
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle, Layout
from wire.errors import ShoalError
from wire.messages import Metrics, Plan, Policy

Models = Mapping[str, Tensors]
"""Models from which devices may start in a round (roles shared, statistic, received), by key.

The plans of a simulation name keys, not digests.
"""


PERMISSIONS = Policy(tell_classes=True)
"""Policy of simulated devices, whose data are on this machine anyway."""


@dataclass(frozen=True)
class DeviceResult:
    """Result of a plan: the update, or the problem for which there is none."""

    device_id: str
    model: str = ""
    """Key of the model from which the device started."""
    num_train: int = 0
    num_steps: int = 0
    evaluated: Metrics = field(default_factory=Metrics)
    trained: Metrics = field(default_factory=Metrics)
    train_s: float = 0.0
    tensors: Tensors = field(default_factory=dict, repr=False)
    carried: Layout = ()
    """Layout of the update if `tensors` do not have it.

    This is so if they have been added to a sum, or came in int8.
    """
    sums: Mapping[str, Branch] = field(default_factory=dict, repr=False)
    """Sums of all models of a branch of the tree, by the key of the model that they started from.

        Only the result of one device of the branch has them.
    """
    numbers: Mapping[str, Array] | None = field(default=None, repr=False)
    """Numbers of an exchange of a survey, by part (`edge_client.core.survey`)."""
    node: str = ""
    """Node that the device has told."""
    problem: str = ""
    """Reason that the device cannot carry out the plan, or that admission refuses the update."""
    too_large: bool = False
    """True if admission refuses the update as too large or not finite."""

    @property
    def layout(self) -> Layout:
        """Name, dtype and shape of each tensor of the update."""
        return self.carried or layout_of(self.tensors)


def layout_of(tensors: Tensors) -> Layout:
    """Return name, dtype and shape of each tensor."""
    return tuple((name, str(value.dtype), value.shape) for name, value in tensors.items())


def repeatable_secret(plan: Plan) -> np.random.Generator:
    """Return a generator of a device's private noise, the same in every simulation of a seed.

    It is not secret, and for simulations only.
    """
    return np.random.default_rng([plan.seed, crc32(plan.device_id.encode()), 0x5EC])


def in_one_thread() -> None:
    """Make this process a worker of one thread.

    Its graphs do not write into their inputs, so torch's warning about read-only arrays is
    silenced.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")


Workers = Callable[[Sequence[Plan], Models, bool], Iterator[DeviceResult]]
"""A function that carries out plans in any order, and yields each result at once.

A result's tensors are valid until the next call. If its last argument is True, no single update is
needed, and workers may yield sums instead.
"""


@dataclass(frozen=True)
class DeviceHostSpec:
    """Everything of a host but the private tensors of devices.

    It can be sent to another machine, which makes the graphs.
    """

    settings: RunSettings
    bundle: Bundle
    algorithm: Algorithm
    make_graphs: Callable[[], Graphs]
    devices: Mapping[str, Windows]
    attack: Attack | None


@dataclass(frozen=True)
class DeviceHost:
    """A worker's share of the machine.

    Everything but `store` is read-only. Different devices may be worked on at the same time.
    """

    spec: DeviceHostSpec
    graphs: Graphs
    """Graphs that the spec makes."""
    store: PrivateStore

    def carry_out(self, plan: Plan, models: Models) -> DeviceResult:
        """Carry out a plan as the device would, and check the update as admission would.

        A plan is declined if an objective or a model of the user's own raises an error.
        """
        device_id, started_s = plan.device_id, perf_counter()
        windows, attack = self._windows(device_id), self.spec.attack
        try:
            executor = Executor(self.spec.bundle, self.graphs, windows, repeatable_secret)
            with blaming():
                result = executor.execute(
                    plan,
                    models[plan.model],
                    self.store.get(device_id, plan.round),
                    models.__getitem__,
                )
        except ShoalError as error:
            return DeviceResult(device_id, problem=str(error))
        tensors = result.tensors
        if attack is not None and device_id in attack.attackers:
            tensors = attack.tamper(tensors, device_id, plan.round)
        self.store.put(device_id, plan.round, result.private)
        sent = encoded(tensors, plan.encoding, plan.seed, device_id)
        if names.of_role(sent, names.INT8):
            tensors = decoded(sent, layout_of(tensors))
        refused = check_tensors(self.spec.settings, plan.verbs, tensors, norms_of(tensors))
        if refused is not None:
            too_large = refused.reason in ("not-finite", "norm-too-large")
            return DeviceResult(device_id, problem=refused.detail, too_large=too_large)
        took_s = perf_counter() - started_s
        carried = layout_of(sent) if names.of_role(sent, names.INT8) else ()
        outcome = (result.num_steps, result.evaluated, result.trained, took_s, tensors, carried)
        return DeviceResult(
            device_id,
            result.model,
            windows.num_train,
            *outcome,
            numbers=result.numbers,
            node=result.node,
        )

    def predict(self, device_id: str, model: Tensors, number: int, x: Array) -> Array:
        """Return class probabilities (n, classes) float32 of a device before round `number`."""
        return Executor(self.spec.bundle, self.graphs, self._windows(device_id)).predict(
            model, self.store.get(device_id, number), x
        )

    def own_tensors(self, device_id: str, model: Tensors, number: int) -> Tensors:
        """Return every tensor with which a device answers before round `number`.

        Its private tensors are included.
        """
        return own_tensors(self.spec.bundle, model, self.store.get(device_id, number))

    def _windows(self, device_id: str) -> Windows:
        windows, attack = self.spec.devices[device_id], self.spec.attack
        return (
            attack.poison(windows)
            if attack is not None and device_id in attack.attackers
            else windows
        )
