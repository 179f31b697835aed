"""Graphs of many devices run together on one accelerator, by `torch.func.vmap` over the devices.

A training keeps the tensors of its devices on the accelerator from its first step to its last, as
(devices, \\*shape), and copies the changed ones back once. Devices may have different numbers of
examples (`simulation.engine.graphs.stacking.turns`).

It runs on any torch device, on the processor as a test: vmap is slower there than one device after
the other.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from algorithms.core.contract import GraphFunction, TorchTensors
from algorithms.objectives.supervised import Supervised
from export.describe import example_inputs, parts_of, responses_of
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.graphs.operators import OverDevices
from simulation.engine.graphs.rendezvous import Rendezvous
from simulation.engine.graphs.stacking import Examples, stack, stack_padded, turns, unstack
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import ConfigError
from wire.tasks import CLASSIFICATION


@dataclass(frozen=True, eq=False)
class Request:
    """A run of a graph that one device requests.

    It is on the batch, or a training over `batches` of the examples in `batch`, by index.
    """

    graph: str
    tensors: Tensors
    batch: Tensors
    hyper: Tensors
    batches: Sequence[Array] | None = None

    def kind(self, any_size: bool) -> Any:
        """Return the kind of the request; requests of one kind can be answered together.

        `any_size`: True if the number of examples does not matter.
        """
        layout = sorted((name, value.shape) for name, value in self.tensors.items())
        sizes = sorted(
            (name, value.shape[1:] if any_size else value.shape)
            for name, value in self.batch.items()
        )
        hyper = sorted((name, float(value)) for name, value in self.hyper.items())
        return self.graph, self.batches is None, tuple(layout), tuple(sizes), tuple(hyper)


class BatchedGraphs(EagerGraphs):
    """An objective's functions, run over many devices at once.

    Devices that request the same graph at the same time (`rendezvous`) are run together.
    """

    def __init__(
        self,
        objective: Supervised,
        window: tuple[int, ...],
        device: torch.device,
        bf16: bool = False,
    ) -> None:
        """Move the objective to the device, and learn how each graph can be run.

        `bf16`: True for matrix products and convolutions in bfloat16 by torch's autocast; weights
        stay float32.

        Raises:
            ConfigError: batches hold more than examples and labels, or vmap cannot run a graph that
                trains.
        """
        if more := [*objective.random, *objective.columns]:
            raise ConfigError(
                f"{objective.name} needs {', '.join(more)} with every batch, which this backend "
                "does not support"
            )
        moved = deepcopy(objective)
        for name, value in vars(moved).items():
            if isinstance(value, nn.Module | Tensor):
                setattr(moved, name, value.to(device))
        super().__init__(moved, device)
        self.rendezvous: Rendezvous[Request, Tensors] = Rendezvous()
        self._functions, self._bf16, self._held = dict(moved.graphs()), bf16, Examples(device)
        self._training, self._additive, self._alone = set[str](), set[str](), set[str]()
        inputs = example_inputs(objective, window)  # drawn on the processor, as in every backend
        with torch.no_grad(), self._context():
            self._learn(moved, {name: value.to(device) for name, value in inputs.items()})

    def trains(self, graph: str) -> bool:
        return graph in self._training

    def train(
        self,
        graph: str,
        tensors: Tensors,
        x: Array,
        y: Array,
        batches: Sequence[Array],
        hyper: Tensors,
    ) -> Tensors:
        request = Request(graph, tensors, {"x": x, "y": y}, names.part(hyper, names.HYPER), batches)
        return (
            self.rendezvous.ask(request) if self.rendezvous.joined else self.together([request])[0]
        )

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        if not self.rendezvous.joined or graph not in self._functions or graph in self._alone:
            return super().run(graph, inputs)
        return self.rendezvous.ask(Request(graph, *parts_of(inputs)))

    def together(self, requests: Sequence[Request]) -> list[Tensors]:
        """Return the answers to requests of different devices, in their order.

        Raises:
            ConfigError: the device's memory is too small for them.
        """
        kinds: dict[Any, list[int]] = {}
        for i, request in enumerate(requests):
            kinds.setdefault(
                request.kind(request.batches is not None or request.graph in self._additive), []
            ).append(i)
        answers: list[Tensors] = [{}] * len(requests)
        with self._lock, torch.no_grad(), self._context():
            for members in kinds.values():
                same = [requests[i] for i in members]
                try:
                    batch_answers = (
                        self._run(same) if same[0].batches is None else self._train(same)
                    )
                except torch.OutOfMemoryError:
                    raise ConfigError(
                        f"{self.device} has too little memory for {len(same)} devices at a time. "
                        "Set fewer workers."
                    ) from None
                for i, tensors in zip(members, batch_answers, strict=True):
                    answers[i] = tensors
        return answers

    def call(self, graph: str, tensors: TorchTensors) -> TorchTensors:
        with self._context():
            return super().call(graph, tensors)

    def _train(self, same: Sequence[Request]) -> list[Tensors]:
        step, hyper = _over_devices(self._functions[same[0].graph]), self._scalars(same[0])
        state = {
            name: stack([request.tensors[name] for request in same], self.device)
            for name in same[0].tensors
        }
        examples = {
            name: torch.cat([self._held.get(request.batch[name]) for request in same])
            for name in ("x", "y")
        }
        first = np.cumsum([0, *(len(request.batch["y"]) for request in same)])
        rows_and_orders = [
            (rows, np.stack(batches) + first[rows, None])
            for rows, batches in turns([request.batches or () for request in same])
        ]
        orders = (
            torch.from_numpy(np.concatenate([order.ravel() for _, order in rows_and_orders]))
            .to(self.device)
            .split([o.size for _, o in rows_and_orders])
        )
        sums: TorchTensors = {}
        changed: set[str] = set()
        for (rows, _), order in zip(rows_and_orders, orders, strict=True):
            at = None if len(rows) == len(same) else torch.from_numpy(rows).to(self.device)
            row_state = state if at is None else {name: value[at] for name, value in state.items()}
            outputs = step(
                row_state,
                {name: value[order.reshape(len(rows), -1)] for name, value in examples.items()},
                hyper,
            )
            for name, value in outputs.items():
                role, key = names.role_of(name), names.name_of(name)
                if role == names.NEXT:
                    value = value.to(state[key].dtype)
                    state[key] = value if at is None else state[key].index_copy(0, at, value)
                    changed.add(key)
                elif role == names.METRIC:
                    total = sums.get(
                        name, torch.zeros(len(same), *value.shape[1:], dtype=torch.float64)
                    )
                    sums[name] = (
                        total + value if at is None else total.index_add(0, at, value.double())
                    )
        return unstack(
            {names.following(key): state[key] for key in sorted(changed)} | sums, len(same)
        )

    def _run(self, same: Sequence[Request]) -> list[Tensors]:
        graph, hyper = same[0].graph, self._scalars(same[0])
        tensors = {
            name: stack([request.tensors[name] for request in same], self.device)
            for name in same[0].tensors
        }
        if graph not in self._additive:
            batch = {
                name: stack([request.batch[name] for request in same], self.device)
                for name in same[0].batch
            }
            return unstack(_over_devices(self._functions[graph])(tensors, batch, hyper), len(same))
        batch = {
            name: stack_padded([request.batch[name] for request in same], self.device)
            for name in same[0].batch
        }
        sizes = torch.tensor([len(request.batch["x"]) for request in same])
        padding = torch.arange(batch["x"].shape[1]) >= sizes[:, None]
        outputs = _over_devices(_over_examples(self._functions[graph]))(tensors, batch, hyper)
        sums = {}
        for name, value in outputs.items():
            beyond = padding.reshape(*padding.shape, *[1] * (value.dim() - 2))
            sums[name] = value.double().masked_fill(beyond, 0.0).sum(1)
        return unstack(sums, len(same))

    def _context(self) -> ExitStack:
        """Return a context in which functions make constants on the device.

        Rounding is no coarser than the options allow.
        """
        context = ExitStack()
        context.enter_context(self.device)
        if self.device.type == "cuda":
            context.enter_context(
                torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=self._bf16)
            )
        if self._bf16:
            context.enter_context(
                torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)
            )
        return context

    def _scalars(self, request: Request) -> TorchTensors:
        return {name: torch.tensor(float(value)) for name, value in request.hyper.items()}

    def _learn(self, objective: Supervised, inputs: TorchTensors) -> None:
        """Run every graph once over two devices, to learn how it can be run."""
        if objective.task.of == CLASSIFICATION:
            inputs[names.Y] = torch.arange(len(inputs[names.Y])) % objective.model.num_classes
        for graph, function in self._functions.items():
            tensors, batch, hyper = parts_of(inputs)
            try:
                outputs = function(tensors, batch, hyper)
            except RuntimeError as error:
                raise ConfigError(
                    f"{objective.name}: graph {graph!r} does not run here: {error}"
                ) from None
            trains = names.LOSS_SUM in outputs and any(
                names.role_of(name) == names.NEXT for name in outputs
            )
            self._training |= {graph} if trains else set()
            try:
                _over_devices(function)(_twice(tensors), _twice(batch), hyper)
            except RuntimeError as error:
                if trains:
                    raise ConfigError(
                        f"{objective.name}: graph {graph!r} does not run over several devices: "
                        f"{error}"
                    ) from None
                self._alone.add(graph)
            else:
                self._additive |= (
                    {graph} if _adds_up(function, tensors, batch, hyper, outputs) else set()
                )
            inputs |= {
                names.response(graph, name): torch.zeros(shape)
                for name, shape in responses_of(outputs)
            }


def _over_devices(function: GraphFunction) -> GraphFunction:
    """Return the function over many devices.

    Its tensors are (devices, \\*shape), its batches (devices, batch, \\*shape). Hyper-parameters
    are the same for all devices.
    """

    def plain(tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        with OverDevices():
            return function(tensors, batch, hyper)

    return vmap(plain, (0, 0, None), randomness="error")


def _over_examples(function: GraphFunction) -> GraphFunction:
    """Return the function of each example as a batch of one, with outputs (batch, \\*shape)."""

    def of_one(tensors: TorchTensors, example: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        return function(
            tensors, {name: value.unsqueeze(0) for name, value in example.items()}, hyper
        )

    return vmap(of_one, (None, 0, None), randomness="error")


def _adds_up(
    function: GraphFunction,
    tensors: TorchTensors,
    batch: TorchTensors,
    hyper: TorchTensors,
    outputs: TorchTensors,
) -> bool:
    """Return True if a graph's outputs for a batch are sums over its single examples."""
    if not all(names.role_of(name) == names.METRIC for name in outputs):
        return False
    try:
        function(tensors, {}, hyper)
        return False  # it is over the tensors alone
    except KeyError:
        pass
    try:
        single = _over_examples(function)(tensors, batch, hyper)
    except (RuntimeError, ValueError):  # it needs statistics of a batch, and one example has none
        return False
    return all(
        torch.allclose(single[name].sum(0), value, rtol=1e-3, atol=1e-4)
        for name, value in outputs.items()
    )


def _twice(tensors: TorchTensors) -> TorchTensors:
    return {name: torch.stack([value, value]) for name, value in tensors.items()}
