"""Carries out a plan: runs the bundle's graphs over local windows. Knows verbs, no algorithm."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import itemgetter

import numpy as np

from edge_client.core.batches import batch_slices, evaluation_slices, training_batches
from edge_client.core.held import held_out
from edge_client.core.own import own_tensors, usable
from edge_client.core.ports import Graphs, WholeTraining, Windows
from edge_client.core.ranks import ranks
from edge_client.core.verbs import check_verbs
from edge_client.labels import no_labels
from edge_client.layout import PARTS, fit_windows, fitting, likely_meant, windows_for
from wire import names
from wire.bundle import Bundle
from wire.errors import BundleError, DataError, Malformed
from wire.messages import Annotate, Apply, Choose, Evaluate, Metrics, Plan, Protect, Respond, Train
from wire.privacy import add_noise, clip
from wire.tensors import Array, Tensors, TensorSpec, check_layout

Fetch = Callable[[str], Tensors]
"""The tensors of a blob that the plan names."""
Secret = Callable[[Plan], np.random.Generator]
"""Where a device's private noise comes from. The aggregator must not be able to repeat it."""


Between = Callable[[], None]
"""Called before each batch; what it raises ends the work."""
MOST_EXAMPLES = 4096
"""Examples in a batch, at most."""
MOST_RANDOM = 2**24
"""Random numbers for one example, at most: a manifest may ask for any shape."""


def _nothing() -> None:
    """Between batches of a simulation, nothing happens."""


def from_entropy(_plan: Plan) -> np.random.Generator:
    """Noise from the operating system's entropy."""
    return np.random.default_rng()


@dataclass
class Result:
    """The result of a plan: the digest of the model that the device started from, metrics, and the tensors of the update.

    `private` stays on the device: ``private/NAME`` and ``column/COLUMN``, from which its next plan goes on, and ``kept/ROLE/NAME``, what
    it made of that model for itself alone, which is of use with that model only."""

    model: str
    evaluated: Metrics = field(default_factory=Metrics)
    trained: Metrics = field(default_factory=Metrics)
    num_steps: int = 0
    tensors: Tensors = field(default_factory=dict)
    private: Tensors = field(default_factory=dict)


class Executor:
    """Carries out plans with one bundle's graphs over one device's windows."""

    def __init__(self, bundle: Bundle, graphs: Graphs, windows: Windows, secret: Secret = from_entropy) -> None:
        """
        Raises:
            DataError: the windows do not fit the bundle.
            BundleError: it asks for larger batches, or more random numbers, than anybody needs.
        """
        self._bundle, self._graphs, self._secret = bundle, graphs, secret
        self._windows = windows_for(bundle.manifest, fit_windows(windows, bundle.manifest.window, PARTS))
        self._initial = bundle.initial
        self._check_windows()
        if bundle.manifest.min_batch > MOST_EXAMPLES:
            raise BundleError(
                f"bundle {bundle.manifest.name}: batches of at least {bundle.manifest.min_batch}, at most {MOST_EXAMPLES} can be"
            )
        for name, shape in bundle.manifest.random.items():
            if min(shape, default=0) < 0 or prod(shape) > MOST_RANDOM:
                raise BundleError(f"bundle {bundle.manifest.name}: random input {name!r} of shape {shape}, at most {MOST_RANDOM} numbers")

    def execute(self, plan: Plan, model: Tensors, private: Tensors, fetch: Fetch, between: Between = _nothing) -> Result:
        """Carry out every verb in order. The first one starts from the tensors in `model` (shared, statistic, received) and in `private`;
        private tensors of another layout, and columns that were made for another number of windows, are as if they were not there.

        Raises:
            WrongLayout: the model's tensors are not the manifest's.
            DataError: training is asked of a device with fewer than `min_batch` windows.
            BundleError: a verb names a graph that the bundle does not have or that cannot do what the verb asks; or training is asked with
                larger batches than the bundle's programs take.
        """
        check_verbs(self._bundle.manifest, plan.verbs)
        job = _Job(self._bundle, self._graphs, self._windows, plan, fetch, self._secret, between)
        job.tensors = {**self._initial, **usable(self._bundle.manifest.of_role(names.PRIVATE), private, self._windows.num_train)}
        job.receive(plan.model, model)
        for verb in plan.verbs:
            match verb:
                case Train():
                    job.train(verb)
                case Evaluate():
                    job.evaluate(verb, self._initial)
                case Choose():
                    job.choose(verb)
                case Annotate():
                    job.annotate(verb)
                case Apply():
                    job.apply(verb)
                case Respond():
                    job.respond(verb)
                case Protect():
                    job.protect(verb)
        return job.finish()

    def predict(self, model: Tensors, private: Tensors, x: Array) -> Array:
        """What the bundle's task answers (n, answers) float32, class probabilities or others in their place, of examples x (n, \\*window),
        whole numbers where the bundle asks for ids, with the device's own model: what it was given, and what it has kept."""
        held = own_tensors(self._bundle, model, private)
        least = self._bundle.manifest.min_batch
        x = fitting(x, self._bundle.manifest.window, "windows to predict")
        padded = np.concatenate([x, x[:1].repeat(least, 0)]) if len(x) < least else x
        slices = evaluation_slices(len(padded), least, self._graphs.max_batch)
        rows = [self._graphs.run("predict", {**held, names.X: padded[rows]})[names.PROBABILITIES] for rows in slices]
        return np.concatenate(rows)[: len(x)]

    def evaluate(self, model: Tensors, private: Tensors, x: Array, y: Array, between: Between = lambda: None) -> Metrics:
        """The metrics of the device's own model, with what it has kept, over examples x (n, \\*window) with the labels y (n, \\*label) of
        the task; of fewer than the bundle's least batch there are none. `between` is called before each batch."""
        manifest, held = self._bundle.manifest, own_tensors(self._bundle, model, private)
        least, graph = manifest.min_batch, manifest.measuring
        if len(x) < least:
            return Metrics()
        sums = np.zeros(2)
        for rows in evaluation_slices(len(x), least, self._graphs.max_batch):
            between()
            batch = {names.X: np.ascontiguousarray(x[rows]), names.Y: np.ascontiguousarray(y[rows])}
            outputs = self._graphs.run(graph, {**held, **batch})
            sums += float(outputs[names.LOSS_SUM]), float(outputs[names.NUM_CORRECT])
        return Metrics(len(x), float(sums[0]), round(sums[1]))

    def _check_windows(self) -> None:
        manifest, windows = self._bundle.manifest, self._windows
        shape = manifest.window.shape
        for split, x in (("train", windows.train_x), ("test", windows.test_x)):
            if x.shape[1:] != shape:
                told = f"{split} windows have shape {x.shape[1:]}, bundle {manifest.name} expects {shape}"
                raise DataError(told + likely_meant(x.shape[1:], shape))


class _Job:
    """One plan being carried out. `tensors` are all that graphs may read, by name; `model` is what the device started from."""

    def __init__(
        self, bundle: Bundle, graphs: Graphs, windows: Windows, plan: Plan, fetch: Fetch, secret: Secret, between: Between
    ) -> None:
        self._manifest, self._graphs, self._windows, self._plan = bundle.manifest, graphs, windows, plan
        self._fetch, self._make_secret, self._between = fetch, secret, between
        self._rng = np.random.default_rng([plan.seed, zlib.crc32(plan.device_id.encode())])
        self.tensors: Tensors = {}
        self.model: Tensors = {}
        self.result = Result(plan.model)
        self._changed: set[str] = set()
        self._tuned: set[str] = set()
        self._protected: Tensors = {}
        trains = [verb for verb in plan.verbs if isinstance(verb, Train)]
        self._asked = {name: value for verb in trains for name, value in verb.hyper.items()}

    @cached_property
    def _secret(self) -> np.random.Generator:
        return self._make_secret(self._plan)

    def receive(self, digest: str, model: Tensors) -> None:
        """Start from this model."""
        expected = [(s.key, s.dtype, s.shape) for s in self._manifest.received()]
        check_layout(model, expected, f"model {digest[:12]} of round {self._plan.round}")
        self.model, self.result.model = model, digest
        starts = [s.key for s in self._manifest.of_role(names.RECEIVED) if names.is_start(s.key)]
        self.tensors |= model | {key: model[names.started_from(key)] for key in starts}

    def train(self, verb: Train) -> None:
        windows, min_batch = self._windows, self._manifest.min_batch
        examples = np.flatnonzero(~held_out(windows.num_train, verb.holdout))
        if len(examples) < verb.least:
            return
        if len(examples) < min_batch:
            raise DataError(f"{len(examples)} training windows: at least {min_batch} are needed")
        self._check_batches(verb.batch_size, len(examples))
        scalars = self._hyper()
        num_examples, loss_sum, num_correct = 0, 0.0, 0.0
        batches: Iterable[Array] = training_batches(verb, examples, windows.num_unlabelled, min_batch, self._rng)
        if isinstance(self._graphs, WholeTraining) and self._graphs.trains(verb.graph):
            made = list(batches)
            self._between()
            outputs = self._graphs.train(verb.graph, self.tensors, windows.train_x, windows.train_y, made, scalars)
            self._advance(outputs, verb.report)
            self.result.num_steps += len(made)
            num_examples, batches = sum(map(len, made)), ()
            loss_sum, num_correct = float(outputs[names.LOSS_SUM]), float(outputs[names.NUM_CORRECT])
        for chosen in batches:
            batch = self._batch(windows.train_x, windows.train_y, chosen) | self._draw(len(chosen))
            outputs = self._run(verb.graph, {**self.tensors, **batch, **scalars})
            self._advance(outputs, verb.report)
            self.result.num_steps += 1
            num_examples += len(chosen)
            loss_sum += float(outputs[names.LOSS_SUM])
            num_correct += float(outputs[names.NUM_CORRECT])
        self._check_moved(verb.graph)
        if verb.report or not self.result.trained.num_examples:
            self.result.trained = Metrics(num_examples, loss_sum, round(num_correct))

    def evaluate(self, verb: Evaluate, initial: Tensors) -> None:
        """Sum a graph's metrics over a split. ``loss_sum`` and ``num_correct`` become the metrics of the model as it is now; other sums
        become responses, which over no windows are zero for later graphs and are not reported."""
        held = {**self.tensors, **initial} if verb.model == "initial" else self.tensors
        sums, count = self._sums(verb.graph, held, verb.split, verb.holdout)
        if "num_correct" in sums:
            self.result.evaluated = Metrics(count, float(sums.pop("loss_sum")), round(float(sums.pop("num_correct"))))
        responses = {names.response(verb.graph, k): np.asarray(v / max(1, count), np.float32) for k, v in sums.items()}
        nothing = () if count else self._manifest.responses(verb.graph)
        self.tensors |= responses | {key: np.zeros(shape, dtype) for key, dtype, shape in nothing}
        self.result.tensors |= responses if verb.report else {}

    def choose(self, verb: Choose) -> None:
        _, digest, model = min(self._weighed(verb), key=itemgetter(0))
        self.receive(digest, model)

    def annotate(self, verb: Annotate) -> None:
        windows, rows, scalars = self._windows, [], self._hyper()
        every = np.arange(windows.num_train)
        for chosen in evaluation_slices(windows.num_train, self._manifest.min_batch, self._graphs.max_batch):
            inputs = {**self.tensors, **self._batch(windows.train_x, windows.train_y, every[chosen]), **scalars}
            rows.append(self._one_output(verb.graph, inputs))
        column = np.concatenate(rows) if rows else np.zeros(0, np.float32)
        if len(column) != windows.num_train:
            raise BundleError(f"graph {verb.graph!r} gives {len(column)} rows for {windows.num_train} windows")
        self.tensors[names.column(verb.column)] = column

    def apply(self, verb: Apply) -> None:
        outputs = self._run(verb.graph, {**self.tensors, **self._hyper()})
        self._advance(outputs, report=False)
        self._check_moved(verb.graph)
        metrics = {names.response(verb.graph, name): value for name, value in names.part(outputs, names.METRIC).items()}
        self.tensors |= metrics
        self.result.tensors |= metrics if verb.report else {}

    def respond(self, verb: Respond) -> None:
        sent = self._fetch(verb.inputs)
        if "x" not in sent or sent["x"].shape[1:] != self._windows.train_x.shape[1:] or not len(sent["x"]):
            shape = sent["x"].shape if "x" in sent else None
            raise Malformed(f"inputs of verb respond: tensor x has shape {shape}, expected (n, {self._windows.train_x.shape[1:]})")
        slices = evaluation_slices(len(sent["x"]), self._manifest.min_batch, self._graphs.max_batch)
        rows = [self._one_output(verb.graph, {**self.tensors, names.X: sent["x"][chosen]}) for chosen in slices]
        self.result.tensors[names.response(verb.graph)] = np.concatenate(rows)

    def protect(self, verb: Protect) -> None:
        """Clip and noise what training changed, as one vector in the manifest's order."""
        keys = [s.key for s in self._manifest.of_role(*names.EXCHANGED) if s.key in self._changed]
        if not keys:
            return
        flat = np.concatenate([(self.tensors[k] - self.model[k]).ravel() for k in keys])
        if not np.isfinite(flat).all():  # clipped, these values would tell where they are
            raise DataError("training changed the model to values that are not finite")
        flat = add_noise(clip(flat, verb.clip_norm), verb.noise_std, self._secret)
        at = 0
        for key in keys:
            base = self.model[key]
            self._protected[key] = flat[at : at + base.size].reshape(base.shape)
            value = base + self._protected[key]
            self.tensors[key] = np.maximum(value, np.float32(0.0)) if names.is_variance(key) else value
            at += base.size

    def finish(self) -> Result:
        """The result, with the changes of the model, and what the device keeps."""
        for key in self._changed:
            if names.role_of(key) == names.STATISTIC:
                self.result.tensors[key] = self.tensors[key]
            else:  # a protected change as it is: added to the model and taken off again, it would be rounded
                change = self._protected.get(key)
                self.result.tensors[names.delta(names.name_of(key))] = self.tensors[key] - self.model[key] if change is None else change
        self.result.private = names.of_role(self.tensors, names.PRIVATE, names.COLUMN)
        self.result.private |= {names.kept(k): self.tensors[k] for k in self._tuned}
        return self.result

    def _advance(self, outputs: Tensors, report: bool) -> None:
        moved = names.part(outputs, names.NEXT)
        self.tensors.update(moved)
        of_model = {k for k in moved if names.is_exchanged(k)}
        self._tuned |= names.of_role(moved, names.MEMORY).keys()
        if report:
            self._changed |= of_model
        else:
            self._tuned |= of_model

    def _run(self, graph: str, inputs: Tensors) -> Tensors:
        self._between()
        return self._graphs.run(graph, inputs)

    def _check_moved(self, graph: str) -> None:
        """What a graph has changed must still be what the manifest says: it is stored, sent, and read by other graphs."""
        for key in map(names.name_of, names.of_role(dict.fromkeys(self._manifest.graphs[graph].outputs), names.NEXT)):
            spec, value = self._specs[key], self.tensors[key]
            if value.shape != spec.shape or value.dtype != spec.dtype:
                made = f"{value.dtype}{list(value.shape)}"
                raise BundleError(f"graph {graph!r} makes {key!r} {made}, its manifest says {spec.dtype}{list(spec.shape)}")

    @cached_property
    def _specs(self) -> dict[str, TensorSpec]:
        return {spec.key: spec for spec in self._manifest.tensors}

    def _check_batches(self, batch_size: int, num_examples: int) -> None:
        if self._graphs.max_batch is None:
            return
        most = max(part.stop - part.start for part in batch_slices(num_examples, batch_size, self._manifest.min_batch))
        if most > self._graphs.max_batch:
            raise BundleError(f"the plan makes batches of {most} windows: this device's programs take at most {self._graphs.max_batch}")

    def _batch(self, x: Array, y: Array, chosen: Array, training: bool = True) -> Tensors:
        columns = {}
        if training:
            columns = {names.batch(name): values[chosen] for name, values in names.part(self.tensors, names.COLUMN).items()}
        return {names.X: x[chosen], names.Y: y[chosen], **columns}

    def _draw(self, size: int) -> Tensors:
        """A batch's random inputs."""
        drawn: Tensors = {}
        for name, shape in self._manifest.random.items():
            if names.role_of(name) == names.UNIFORM:
                drawn[names.batch(name)] = self._rng.random((size, *shape), np.float32)
            else:
                drawn[names.batch(name)] = self._secret.standard_normal(shape, np.float32)
        return drawn

    def _hyper(self) -> Tensors:
        """The bundle's hyper-parameters, and in their place those that the plan's training asks for: the same in every verb."""
        return {names.hyper(k): np.asarray(v, np.float32) for k, v in {**self._manifest.hyper, **self._asked}.items()}

    def _weighed(self, verb: Choose) -> Iterator[tuple[float, str, Tensors]]:
        """The loss of each candidate over the training windows (a NaN counts as infinite), its digest and its tensors."""
        for digest in verb.models:
            candidate = self._fetch(digest)
            sums, _ = self._sums(verb.graph, {**self.tensors, **candidate}, "train")
            yield float(np.nan_to_num(sums.get("loss_sum", 0.0), nan=np.inf)), digest, candidate

    def _sums(self, graph: str, held: Tensors, split: str, holdout: float = 0.0) -> tuple[Tensors, int]:
        """The sums of a graph's metrics over a split, and how many examples it has."""
        windows = self._windows
        x, y = (windows.test_x, windows.test_y) if split == "test" else (windows.train_x, windows.train_y)
        places: Tensors = {}
        if split == "windows":
            x, y, places = self._every_window(holdout)
        order = np.random.default_rng(0).permutation(len(y))  # recordings are sorted by class; a batch should not be
        if split == "holdout":
            order = order[held_out(len(y), holdout)[order]]
        sums: Tensors = {}
        scalars = self._hyper()
        slices = evaluation_slices(len(order), self._manifest.min_batch, self._graphs.max_batch) if len(order) else []
        for chosen in slices:
            rows = order[chosen]
            batch = self._batch(x, y, rows, split in ("train", "holdout")) | {name: values[rows] for name, values in places.items()}
            outputs = self._run(graph, {**held, **batch, **scalars})
            for name, value in names.part(outputs, names.METRIC).items():
                sums[name] = sums[name] + value if name in sums else np.asarray(value, np.float64)
        return sums, len(order)

    def _every_window(self, holdout: float) -> tuple[Array, Array, Tensors]:
        r"""The training windows and after them those without labels, x (n, \*window) and y (n, \*label), `no_labels`; and for each
        its ``rank`` among them, how many there are (``count``), and whether it is ``held`` out, all float32 (n,)."""
        windows = self._windows
        more = windows.num_unlabelled
        x = np.concatenate([windows.train_x, windows.unlabelled_x]) if more else windows.train_x
        y = np.concatenate([windows.train_y, no_labels(more, self._manifest.label)])
        held = np.concatenate([held_out(windows.num_train, holdout), np.zeros(more, bool)])
        places = zip(names.PLACES, (ranks(windows.num_train, more), np.full(len(y), len(y)), held), strict=True)
        return x, y, {names.batch(name): values.astype(np.float32) for name, values in places}

    def _one_output(self, graph: str, inputs: Tensors) -> Array:
        outputs = list(names.part(self._run(graph, inputs), names.OUTPUT).values())
        if len(outputs) != 1:
            raise Malformed(f"graph {graph!r} has {len(outputs)} per-example outputs, expected one")
        return outputs[0]
