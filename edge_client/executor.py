"""Carries out a plan: runs the bundle's graphs over local windows. Knows verbs, no algorithm."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from edge_client.ports import Graphs, Windows
from wire.bundle import Bundle
from wire.errors import DataError, Malformed
from wire.messages import Annotate, Evaluate, Metrics, Plan, Respond, Train
from wire.tensors import Array, Tensors, check_layout, decode_tensors

EVALUATION_BATCH = 256


@dataclass
class Result:
    """What carrying out a plan gave: metrics, the tensors of the update, and the private tensors afterwards."""

    evaluated: Metrics = field(default_factory=Metrics)
    trained: Metrics = field(default_factory=Metrics)
    num_steps: int = 0
    tensors: Tensors = field(default_factory=dict)
    private: Tensors = field(default_factory=dict)


def batch_slices(num_examples: int, batch_size: int, min_batch: int) -> list[slice]:
    """Cut `num_examples` into batches; a rest smaller than `min_batch` joins the batch before it."""
    starts = list(range(0, num_examples, batch_size))
    if len(starts) > 1 and num_examples - starts[-1] < min_batch:
        starts.pop()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], num_examples], strict=True)]


def training_batches(train: Train, num_examples: int, min_batch: int, rng: np.random.Generator) -> Iterator[Array]:
    """Indices of each batch: every epoch in a new order, for `epochs` passes or exactly `steps` batches."""
    done = 0
    epoch = 0
    while train.steps is not None or epoch < train.epochs:
        order = rng.permutation(num_examples)
        for part in batch_slices(num_examples, train.batch_size, min_batch):
            if train.steps is not None and done >= train.steps:
                return
            done += 1
            yield order[part]
        epoch += 1


class Executor:
    """Carries out plans with one bundle's graphs over one device's windows."""

    def __init__(self, bundle: Bundle, graphs: Graphs, windows: Windows) -> None:
        """
        Raises:
            DataError: the windows do not fit the bundle.
        """
        self._bundle, self._graphs, self._windows = bundle, graphs, windows
        self._initial = bundle.initial
        self._columns: Tensors = {}
        self._check_windows()

    def execute(self, plan: Plan, model: Tensors, private: Tensors, blob: Callable[[str], bytes]) -> Result:
        """Carry out every verb in order, starting from the tensors in `model` (shared, statistic, received).

        Raises:
            WrongLayout: the model's tensors are not the manifest's.
            DataError: training is asked of a device with fewer than `min_batch` windows.
        """
        manifest = self._bundle.manifest
        expected = [(s.key, s.dtype, s.shape) for s in manifest.of_role("shared", "statistic", "received")]
        check_layout(model, expected, f"model {plan.model[:12]} of round {plan.round}")
        tensors = {**self._initial, **private, **model}
        result = Result()
        for verb in plan.verbs:
            match verb:
                case Train():
                    self._train(verb, plan, tensors, model, result)
                case Evaluate():
                    self._evaluate(verb, tensors, result)
                case Annotate():
                    self._annotate(verb, tensors)
                case Respond():
                    self._respond(verb, tensors, blob(verb.inputs), result)
        result.private = {k: v for k, v in tensors.items() if k.startswith("private/")}
        return result

    def _train(self, verb: Train, plan: Plan, tensors: Tensors, model: Tensors, result: Result) -> None:
        windows, min_batch = self._windows, self._bundle.manifest.min_batch
        if windows.num_train < min_batch:
            raise DataError(f"{windows.num_train} training windows: at least {min_batch} are needed")
        hyper = {**self._bundle.manifest.hyper, **verb.hyper}
        scalars = {f"hyper/{k}": np.asarray(v, np.float32) for k, v in hyper.items()}
        rng = np.random.default_rng([plan.seed, zlib.crc32(plan.device_id.encode())])
        num_examples, loss_sum, num_correct = 0, 0.0, 0.0
        for chosen in training_batches(verb, windows.num_train, min_batch, rng):
            columns = {f"batch/{k}": v[chosen] for k, v in self._columns.items()}
            batch = {"batch/x": windows.train_x[chosen], "batch/y": windows.train_y[chosen], **columns}
            outputs = self._graphs.run(verb.graph, {**tensors, **batch, **scalars})
            tensors.update({k.removeprefix("next/"): v for k, v in outputs.items() if k.startswith("next/")})
            result.num_steps += 1
            num_examples += len(chosen)
            loss_sum += float(outputs["metric/loss_sum"])
            num_correct += float(outputs["metric/num_correct"])
        result.trained = Metrics(num_examples, loss_sum, round(num_correct))
        for key in model:
            role, name = key.split("/", 1)
            if role == "shared":
                result.tensors[f"delta/{name}"] = tensors[key] - model[key]
            elif role == "statistic":
                result.tensors[key] = tensors[key]

    def _evaluate(self, verb: Evaluate, tensors: Tensors, result: Result) -> None:
        """Sum a graph's metrics over a split. Scalars ``loss_sum`` and ``num_correct`` become the metrics of the received model;
        other outputs go back as ``response/GRAPH.NAME``."""
        held = {**tensors, **self._initial} if verb.model == "initial" else tensors
        x, y = (self._windows.train_x, self._windows.train_y) if verb.split == "train" else (self._windows.test_x, self._windows.test_y)
        order = np.random.default_rng(0).permutation(len(y))  # recordings are sorted by class; a batch should not be
        sums: Tensors = {}
        for part in batch_slices(len(y), EVALUATION_BATCH, self._bundle.manifest.min_batch) if len(y) else []:
            outputs = self._graphs.run(verb.graph, {**held, "batch/x": x[order[part]], "batch/y": y[order[part]]})
            for key, value in outputs.items():
                name = key.removeprefix("metric/")
                sums[name] = sums[name] + value if name in sums else np.asarray(value, np.float64)
        if "num_correct" in sums:
            result.evaluated = Metrics(len(y), float(sums.pop("loss_sum")), round(float(sums.pop("num_correct"))))
        result.tensors |= {f"response/{verb.graph}.{k}": np.asarray(v / len(y), np.float32) for k, v in sums.items()}

    def _annotate(self, verb: Annotate, tensors: Tensors) -> None:
        windows, rows = self._windows, []
        for part in batch_slices(windows.num_train, EVALUATION_BATCH, self._bundle.manifest.min_batch):
            inputs = {**tensors, "batch/x": windows.train_x[part], "batch/y": windows.train_y[part]}
            rows.append(self._one_output(verb.graph, inputs))
        self._columns[verb.column] = np.concatenate(rows)

    def _respond(self, verb: Respond, tensors: Tensors, inputs: bytes, result: Result) -> None:
        sent, _ = decode_tensors(inputs)
        if "x" not in sent or sent["x"].shape[1:] != self._windows.train_x.shape[1:]:
            shape = sent["x"].shape if "x" in sent else None
            raise Malformed(f"inputs of verb respond: tensor x has shape {shape}, expected (n, {self._windows.train_x.shape[1:]})")
        result.tensors[f"response/{verb.graph}"] = self._one_output(verb.graph, {**tensors, "batch/x": sent["x"]})

    def _one_output(self, graph: str, inputs: Tensors) -> Array:
        outputs = [v for k, v in self._graphs.run(graph, inputs).items() if k.startswith("output/")]
        if len(outputs) != 1:
            raise Malformed(f"graph {graph!r} has {len(outputs)} per-example outputs, expected one")
        return outputs[0]

    def _check_windows(self) -> None:
        manifest, windows = self._bundle.manifest, self._windows
        shape = (len(manifest.window.channels), manifest.window.length)
        for split, x, y in (("train", windows.train_x, windows.train_y), ("test", windows.test_x, windows.test_y)):
            if x.shape[1:] != shape:
                raise DataError(f"{split} windows have shape {x.shape[1:]}, bundle {manifest.name} expects {shape} (channels, samples)")
            if len(y) and not (int(y.min()) >= 0 and int(y.max()) < len(manifest.classes)):
                known = f"bundle {manifest.name} has classes 0..{len(manifest.classes) - 1}"
                raise DataError(f"{split} labels reach {int(y.min())}..{int(y.max())}, {known}")
