"""An objective's graphs by the native engine if they are plain SGD on a model that it knows.

Torch runs the others.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from algorithms.core.contract import PlainSgd
from algorithms.models.reading.network import Unsupported, network_of
from algorithms.objectives.supervised import Supervised
from algorithms.optimizers.base import slot_of
from host.native.trainer import NativeTrainer
from simulation.engine.graphs.eager import EagerGraphs
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.messages import Metrics


class NativeGraphs(EagerGraphs):
    """Graphs that train, evaluate and predict without the interpreter's lock."""

    def __init__(
        self, objective: Supervised, window: tuple[int, ...], trained: Iterable[str]
    ) -> None:
        """Build the native trainer of the objective's model.

        `trained` are the graphs with which plans train.

        Raises:
            Unsupported: a training graph is more than plain SGD, the task's loss is more than the
                cross-entropy, or the native engine does not know a layer of its model.
            CannotCompile: the native engine cannot be built here.
        """
        super().__init__(objective)
        if not objective.task.plain:
            raise Unsupported(f"the loss of {objective.task.name} is more than the cross-entropy")
        self._sgd: dict[str, PlainSgd] = dict(objective.sgd())
        if more := sorted(set(trained) - self._sgd.keys()):
            raise Unsupported(
                f"graph {more[0]!r} of {objective.name} is more than plain SGD on the cross-entropy"
            )
        self._trainer = NativeTrainer(network_of(objective.model, window))
        tensors = objective.initial()
        keys = {
            names.name_of(key): key
            for key in names.of_role(tensors, *names.EXCHANGED, names.PRIVATE)
        }
        self._parts: list[tuple[str, slice, tuple[int, ...]]] = []
        for name in self._trainer.names:
            at = self._parts[-1][1].stop if self._parts else 0
            value = tensors[keys[name]]
            self._parts.append((keys[name], slice(at, at + value.numel()), tuple(value.shape)))
        self._evaluates = objective.model_answers
        self._predicts = objective.model_answers and not objective.has_memory

    def trains(self, graph: str) -> bool:
        """Return True if the graph is plain SGD without dropout.

        The random numbers of dropout come with each batch.
        """
        return graph in self._sgd and not self._trainer.network.dropouts

    def train(
        self,
        graph: str,
        tensors: Tensors,
        x: Array,
        y: Array,
        batches: Sequence[Array],
        hyper: Tensors,
    ) -> Tensors:
        return self._train(graph, tensors, x, y, batches, hyper, ())

    def _train(
        self,
        graph: str,
        tensors: Tensors,
        x: Array,
        y: Array,
        batches: Sequence[Array],
        hyper: Tensors,
        drawn: Sequence[Array],
    ) -> Tensors:
        """Train with the random numbers of dropout in `drawn` (see `NativeTrainer.train`)."""
        sgd, flat = self._sgd[graph], self._flat(tensors)
        momentum = np.zeros_like(flat)
        moved = [
            (key, part, shape)
            for key, part, shape in self._parts
            if not names.is_running_statistic(key) and names.role_of(key) in sgd.roles
        ]
        for key, part, _ in moved:
            momentum[part] = tensors[slot_of(key)].ravel()
        statistics = [
            (key, part, shape)
            for key, part, shape in self._parts
            if names.is_running_statistic(key)
        ]
        scale = None
        if len(moved) + len(statistics) < len(self._parts):
            scale = np.zeros_like(flat)
            for _, part, _ in moved:
                scale[part] = 1.0
        outcome = self._trainer.train(
            flat,
            momentum,
            np.ascontiguousarray(x, np.float32),
            np.ascontiguousarray(y, np.int64),
            np.concatenate(batches),
            np.cumsum([0, *map(len, batches)]),
            float(hyper[names.hyper("lr")]),
            float(hyper[names.hyper("momentum")]),
            scale=scale,
            move_statistics=sgd.moves_statistics,
            drawn=drawn,
        )
        following: Tensors = _metrics(outcome)
        following |= {
            names.following(slot_of(key)): momentum[part].reshape(shape)
            for key, part, shape in moved
        }
        changed = [*moved, *(statistics if sgd.moves_statistics else ())]
        return following | {
            names.following(key): flat[part].reshape(shape) for key, part, shape in changed
        }

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        if graph in self._sgd:
            x, y = inputs[names.X], inputs[names.Y]
            drawn = [
                np.ascontiguousarray(inputs[names.batch(names.uniform(name))])
                for name in self._trainer.network.dropouts
            ]
            return self._train(graph, inputs, x, y, [np.arange(len(y))], inputs, drawn)
        if graph == "evaluate" and self._evaluates:
            y = np.ascontiguousarray(inputs[names.Y], np.int64)
            outcome = self._trainer.evaluate(
                self._flat(inputs), np.ascontiguousarray(inputs[names.X]), y
            )
            return _metrics(outcome)
        if graph == "predict" and self._predicts:
            return {
                names.PROBABILITIES: self._trainer.predict(
                    self._flat(inputs), np.ascontiguousarray(inputs[names.X])
                )
            }
        return super().run(graph, inputs)

    def _flat(self, tensors: Tensors) -> Array:
        return np.concatenate([tensors[key].ravel() for key, _, _ in self._parts], dtype=np.float32)


def _metrics(outcome: Metrics) -> Tensors:
    return {
        names.LOSS_SUM: np.asarray(outcome.loss_sum),
        names.NUM_CORRECT: np.asarray(outcome.num_correct),
    }
