"""State of a plan in work: one method per verb, and the position between two runs of a graph."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from edge_client.core.batches import (
    batch_slices,
    evaluation_slices,
    num_training_batches,
    training_batches,
)
from edge_client.core.checkpoint import Checkpoint, Place, Random, Within
from edge_client.core.ports import Graphs, WholeTraining, Windows
from edge_client.core.survey import coordinates, measured_in, numbers_of
from edge_client.data.layout import fitting
from edge_client.work.split import split_of
from wire.arrays import names
from wire.arrays.privacy import add_noise, clip
from wire.arrays.tensors import Array, Tensors, check_layout
from wire.bundle import Bundle
from wire.errors import BundleError, DataError, Malformed
from wire.held import held_out
from wire.messages import (
    Annotate,
    Apply,
    Choose,
    Evaluate,
    Mask,
    Metrics,
    Plan,
    Protect,
    Respond,
    SurveySum,
    TellGroup,
    Train,
)
from wire.secret.coordinates import node_of

Fetch = Callable[[str], Tensors]
"""Function that returns the tensors of a blob that the plan names."""
Secret = Callable[[Plan], "np.random.Generator"]
"""Source of a device's private noise. The aggregator must not be able to reproduce it."""
Between = Callable[[], None]
"""Function called before each batch. An exception from it ends the work."""


class Unfit(Malformed):
    """A checkpoint that cannot be of this plan. The plan starts from the beginning."""


@dataclass
class PlanResult:
    """Result of a plan: the digest of the starting model, metrics, and the update's tensors.

    The tensors in `private` stay on the device. The next plan starts from ``private/NAME`` and
    ``column/COLUMN``. The tensors ``personal/ROLE/NAME`` are the personal model, which is of use
    with that starting model only.
    """

    model: str
    evaluated: Metrics = field(default_factory=Metrics)
    trained: Metrics = field(default_factory=Metrics)
    num_steps: int = 0
    tensors: Tensors = field(default_factory=dict)
    private: Tensors = field(default_factory=dict)
    numbers: Tensors | None = None
    """Numbers of an exchange of a survey, by part; None for a plan without one."""
    node: str = ""
    """Node that the device is in, if the plan asks for it."""


class PlanExecution:
    """A plan in work.

    `tensors` holds every tensor that graphs may read, by name. `model` holds the tensors of the
    model that the device started from.
    """

    def __init__(
        self,
        bundle: Bundle,
        graphs: Graphs,
        windows: Windows,
        plan: Plan,
        fetch: Fetch,
        secret: Secret,
        between: Between,
    ) -> None:
        self._manifest, self._graphs, self._windows, self._plan = (
            bundle.manifest,
            graphs,
            windows,
            plan,
        )
        self._fetch, self._make_secret, self._between = fetch, secret, between
        self._rng = np.random.default_rng([plan.seed, zlib.crc32(plan.device_id.encode())])
        self._initial = bundle.initial
        self._given = dict(bundle.initial)
        """Tensors of the bundle and the model. A checkpoint leaves them out."""
        self.tensors: Tensors = dict(bundle.initial)
        self.model: Tensors = {}
        self.result = PlanResult(plan.model)
        self._verb, self._runs, self._within, self._resumed = 0, 0, Within(), False
        self._changed: set[str] = set()
        self._tuned: set[str] = set()
        self._protected: Tensors = {}
        trains = [verb for verb in plan.verbs if isinstance(verb, Train)]
        overrides = {name: value for verb in trains for name, value in verb.hyper.items()}
        self._hyper: Tensors = {
            names.hyper(name): np.asarray(value, np.float32)
            for name, value in {**self._manifest.hyper, **overrides}.items()
        }
        """Hyper-parameters of the bundle, overridden by the plan's training verbs.

        Every verb of the plan uses the same values.
        """
        self._specs = {spec.key: spec for spec in self._manifest.tensors}

    def carry_out(self) -> PlanResult:
        """Carry out the remaining verbs in order and return the result.

        Raises:
            Unfit: the checkpoint that the work resumed from cannot be of this plan.
        """
        for verb in self._plan.verbs[self._verb :]:
            match verb:
                case Train():
                    self.train(verb)
                case Evaluate():
                    self.evaluate(verb)
                case Choose():
                    self.choose(verb)
                case Annotate():
                    self.annotate(verb)
                case Apply():
                    self.apply(verb)
                case Respond():
                    self.respond(verb)
                case Protect():
                    self.protect(verb)
                case SurveySum():
                    self.result.numbers = numbers_of(verb, measured_in(self.tensors))
                case TellGroup():
                    position = coordinates(measured_in(self.tensors), verb.scale)
                    self.result.node = node_of(position, verb.planes)
                case Mask():
                    pass  # the agent masks the result
            self._verb, self._within = self._verb + 1, Within()
        return self.finish()

    def checkpoint(self, seconds: float) -> Checkpoint:
        """Return a checkpoint of the work so far. Later work does not change it.

        Call it from `between` only. `seconds` is the time spent on the plan so far.
        """
        place = Place(
            self._verb,
            self._within.batches,
            self._runs,
            self.result.num_steps,
            self.result.model,
            Random.of(self._rng),
            seconds,
            tuple(sorted(self._changed)),
            tuple(sorted(self._tuned)),
        )
        tensors = {
            key: value for key, value in self.tensors.items() if self._given.get(key) is not value
        }
        sent, protected = dict(self.result.tensors), dict(self._protected)
        return Checkpoint(
            place,
            tensors,
            sent,
            protected,
            self.result.evaluated,
            self.result.trained,
            self._within.copy(),
        )

    def go_on(self, checkpoint: Checkpoint, model: Tensors) -> None:
        """Resume from a checkpoint. `model` holds the tensors of the plan's model.

        Raises:
            Unfit: the checkpoint cannot be of this plan.
        """
        place, order = checkpoint.place, checkpoint.within.order
        candidates = {
            digest
            for verb in self._plan.verbs
            if isinstance(verb, Choose)
            for digest in verb.models
        }
        if place.verb >= len(self._plan.verbs) or place.model not in candidates | {
            self._plan.model
        }:
            raise Unfit(
                f"it is at verb {place.verb} with model {place.model[:12]}, and the plan has "
                f"{len(self._plan.verbs)} verbs and other models"
            )
        if (
            order is not None
            and len(order)
            and not 0 <= order.min() <= order.max() < self._windows.num_train
        ):
            raise Unfit(f"its order of windows is not one of {self._windows.num_train} windows")
        tensors = {**checkpoint.tensors, **checkpoint.protected}
        for key in {*tensors, *place.changed, *place.tuned}:
            spec, value = self._specs.get(key), tensors.get(key)
            fits = (
                spec is None
                or value is None
                or (value.dtype, value.shape) == (np.dtype(spec.dtype), spec.shape)
            )
            if not fits or (
                spec is None and names.role_of(key) not in (names.COLUMN, names.RESPONSE)
            ):
                raise Unfit(f"its tensor {key[:80]!r} is not one of this plan")
            if (
                spec is None
                and value is not None
                and names.role_of(key) == names.COLUMN
                and value.shape[:1] != (self._windows.num_train,)
            ):
                raise Unfit(
                    f"its column {key[:80]!r} has shape {list(value.shape)} for "
                    f"{self._windows.num_train} windows"
                )
        self.receive(
            place.model, model if place.model == self._plan.model else self._fetch(place.model)
        )
        self.tensors |= checkpoint.tensors
        self._changed, self._tuned, self._protected = (
            set(place.changed),
            set(place.tuned),
            dict(checkpoint.protected),
        )
        self.result.tensors, self.result.num_steps = dict(checkpoint.sent), place.num_steps
        self.result.evaluated, self.result.trained = checkpoint.evaluated, checkpoint.trained
        self._verb, self._runs, self._within, self._resumed = (
            place.verb,
            place.runs,
            checkpoint.within.copy(),
            True,
        )
        place.random.put(self._rng)

    @cached_property
    def _secret(self) -> "np.random.Generator":
        return self._make_secret(self._plan)

    def receive(self, digest: str, model: Tensors) -> None:
        """Start from this model.

        Raises:
            WrongLayout: its tensors are not the manifest's.
        """
        expected = [(s.key, s.dtype, s.shape) for s in self._manifest.received()]
        check_layout(model, expected, f"model {digest[:12]} of round {self._plan.round}")
        self.model, self.result.model = model, digest
        starts = [s.key for s in self._manifest.of_role(names.RECEIVED) if names.is_start(s.key)]
        received = model | {key: model[names.started_from(key)] for key in starts}
        self.tensors |= received
        self._given |= received

    def train(self, verb: Train) -> None:
        windows, min_batch = self._windows, self._manifest.min_batch
        examples = np.flatnonzero(~held_out(windows.train_y, verb.holdout))
        if len(examples) < verb.least:
            return
        if len(examples) < min_batch:
            raise DataError(f"Training needs at least {min_batch} windows, got {len(examples)}")
        if self._graphs.max_batch is not None:
            parts = batch_slices(len(examples), verb.batch_size, min_batch)
            most = max(part.stop - part.start for part in parts)
            if most > self._graphs.max_batch:
                raise BundleError(
                    f"The plan has batches of {most} windows, and this device's programs take at "
                    f"most {self._graphs.max_batch}"
                )
        scalars = self._hyper
        within = self._within
        if isinstance(self._graphs, WholeTraining) and self._graphs.trains(verb.graph):
            self._between()
            batches = list(
                training_batches(verb, examples, windows.num_unlabelled, min_batch, self._rng)
            )
            outputs = self._graphs.train(
                verb.graph, self.tensors, windows.train_x, windows.train_y, batches, scalars
            )
            self._advance(outputs, verb.report)
            self._count(outputs, sum(map(len, batches)), len(batches))
        else:
            self._train_by_batches(verb, examples, scalars)
        self._check_moved(verb.graph)
        if verb.report:
            self.result.trained = Metrics(
                within.num_examples, within.loss_sum, round(within.num_correct)
            )

    def _train_by_batches(self, verb: Train, examples: Array, scalars: Tensors) -> None:
        windows, within = self._windows, self._within
        parts = batch_slices(len(examples), verb.batch_size, self._manifest.min_batch)
        many = num_training_batches(
            verb, len(examples), windows.num_unlabelled, self._manifest.min_batch
        )
        if within.batches % len(parts) and (
            within.order is None or len(within.order) != len(examples)
        ):
            raise Unfit(f"it has no order of {len(examples)} windows in the middle of a pass")
        for number in range(within.batches, many):
            self._between()
            if number % len(parts) == 0:
                within.order = examples[self._rng.permutation(len(examples))]
            assert within.order is not None
            chosen = within.order[parts[number % len(parts)]]
            batch = self._batch(windows.train_x, windows.train_y, chosen) | self._draw(len(chosen))
            outputs = self._run(verb.graph, {**self.tensors, **batch, **scalars})
            self._advance(outputs, verb.report)
            self._count(outputs, len(chosen), 1)
            within.batches += 1

    def _count(self, outputs: Tensors, num_examples: int, num_steps: int) -> None:
        within = self._within
        self.result.num_steps += num_steps
        within.num_examples += num_examples
        within.loss_sum += float(outputs[names.LOSS_SUM])
        within.num_correct += float(outputs[names.NUM_CORRECT])

    def evaluate(self, verb: Evaluate) -> None:
        """Sum a graph's metrics over a split.

        ``loss_sum`` and ``num_correct`` become the metrics of the model in its present state if
        the verb reports. The other sums, divided by the number of windows, become responses. Over
        no windows, responses are zero for later graphs and are not reported.
        """
        tensors = {**self.tensors, **self._initial} if verb.model == "initial" else self.tensors
        sums, count = self._sums(verb.graph, tensors, verb.split, verb.holdout, verb.most)
        if "num_correct" in sums:
            metrics = Metrics(
                count, float(sums.pop("loss_sum")), round(float(sums.pop("num_correct")))
            )
            self.result.evaluated = metrics if verb.report else self.result.evaluated
        responses = {
            names.response(verb.graph, k): np.asarray(v / max(1, count), np.float32)
            for k, v in sums.items()
        }
        nothing = () if count else self._manifest.responses(verb.graph)
        self.tensors |= responses | {key: np.zeros(shape, dtype) for key, dtype, shape in nothing}
        self.result.tensors |= self._declared(verb.graph, responses) if verb.report else {}

    def choose(self, verb: Choose) -> None:
        """Continue from the model with the least loss over the training windows.

        A loss of NaN counts as infinite.
        """
        losses = self._within.losses
        for digest in verb.models[len(losses) :]:
            sums, _ = self._sums(verb.graph, {**self.tensors, **self._fetch(digest)}, "train")
            losses.append(float(np.nan_to_num(sums.get("loss_sum", 0.0), nan=np.inf)))
        chosen = verb.models[losses.index(min(losses))]
        self.receive(chosen, self._fetch(chosen))

    def annotate(self, verb: Annotate) -> None:
        if names.batch(verb.column) in (names.X, names.Y):
            raise Malformed(f"verb annotate: a column must not have the name {verb.column!r}")
        windows, scalars = self._windows, self._hyper
        every = np.arange(windows.num_train)

        def inputs(chosen: slice) -> Tensors:
            return {
                **self.tensors,
                **self._batch(windows.train_x, windows.train_y, every[chosen]),
                **scalars,
            }

        rows = self._rows(verb.graph, windows.num_train, inputs)
        column = np.concatenate(rows) if rows else np.zeros(0, np.float32)
        if len(column) != windows.num_train:
            raise BundleError(
                f"graph {verb.graph!r} gives {len(column)} rows for {windows.num_train} windows"
            )
        self.tensors[names.column(verb.column)] = column

    def apply(self, verb: Apply) -> None:
        self._between()
        outputs = self._run(verb.graph, {**self.tensors, **self._hyper})
        self._advance(outputs, report=False)
        self._check_moved(verb.graph)
        metrics = {
            names.response(verb.graph, name): value
            for name, value in names.part(outputs, names.METRIC).items()
        }
        self.tensors |= metrics
        self.result.tensors |= self._declared(verb.graph, metrics) if verb.report else {}

    def respond(self, verb: Respond) -> None:
        x, window = self._fetch(verb.inputs).get("x"), self._manifest.window
        if x is None or x.dtype != window.dtype or x.shape[1:] != window.shape or not len(x):
            description = "none" if x is None else f"{x.dtype}{list(x.shape)}"
            raise Malformed(
                f"inputs of verb respond: tensor x must be {window.dtype} (n, {window.shape}), got "
                f"{description}"
            )
        x = fitting(x, window, "inputs of verb respond")
        rows = self._rows(verb.graph, len(x), lambda chosen: {**self.tensors, names.X: x[chosen]})
        self.result.tensors[names.response(verb.graph)] = np.concatenate(rows)

    def protect(self, verb: Protect) -> None:
        """Clip the change of the model by training and add noise to it.

        The changed tensors are one vector, in the manifest's order. Without a change nothing is
        done.

        Raises:
            DataError: the change has values that are not finite.
        """
        keys = [s.key for s in self._manifest.of_role(*names.EXCHANGED) if s.key in self._changed]
        if not keys:
            return
        flat = np.concatenate([(self.tensors[k] - self.model[k]).ravel() for k in keys])
        # clipping does not hide the position of these values
        if not np.isfinite(flat).all():
            raise DataError(
                "training changed the model to values that are not finite, as a learning rate that "
                "is too high does"
            )
        flat = add_noise(clip(flat, verb.clip_norm), verb.noise_std, self._secret)
        at = 0
        for key in keys:
            base = self.model[key]
            self._protected[key] = flat[at : at + base.size].reshape(base.shape)
            value = base + self._protected[key]
            self.tensors[key] = (
                np.maximum(value, np.float32(0.0)) if names.is_variance(key) else value
            )
            at += base.size

    def finish(self) -> PlanResult:
        """Return the result, with the model's changes and the tensors that stay on the device."""
        for key in self._changed:
            if names.role_of(key) == names.STATISTIC:
                self.result.tensors[key] = self.tensors[key]
            # a protected change is sent unaltered: computed again as a difference it would be
            # rounded
            else:
                change = self._protected.get(key)
                self.result.tensors[names.delta(names.name_of(key))] = (
                    self.tensors[key] - self.model[key] if change is None else change
                )
        self.result.private = names.of_role(self.tensors, names.PRIVATE, names.COLUMN)
        self.result.private |= {names.personal(k): self.tensors[k] for k in self._tuned}
        return self.result

    def _advance(self, outputs: Tensors, report: bool) -> None:
        moved = names.part(outputs, names.NEXT)
        self.tensors.update(moved)
        of_model = names.of_role(moved, *names.EXCHANGED).keys()
        self._tuned |= names.of_role(moved, names.MEMORY).keys()
        if report:
            self._changed |= of_model
        else:
            self._tuned |= of_model

    def _declared(self, graph: str, measured: Tensors) -> Tensors:
        """Return the measurements that the manifest declares; nothing else leaves the device."""
        return {
            key: measured[key] for key, _, _ in self._manifest.responses(graph) if key in measured
        }

    def _run(self, graph: str, inputs: Tensors) -> Tensors:
        missing = (
            [name for name in self._manifest.graphs[graph].inputs if name not in inputs]
            if self._resumed
            else []
        )
        if missing:
            raise Unfit(f"it lacks {missing[0]!r}, which graph {graph!r} reads")
        outputs = self._graphs.run(graph, inputs)
        self._runs += 1
        return outputs

    def _check_moved(self, graph: str) -> None:
        """Raise BundleError if a tensor that the graph changed has another shape or dtype now.

        These tensors are stored, sent and read by other graphs.
        """
        for key in map(
            names.name_of,
            names.of_role(dict.fromkeys(self._manifest.graphs[graph].outputs), names.NEXT),
        ):
            spec, value = self._specs[key], self.tensors[key]
            if value.shape != spec.shape or value.dtype != spec.dtype:
                layout = f"{value.dtype}{list(value.shape)}"
                raise BundleError(
                    f"graph {graph!r}: {key!r} must be {spec.dtype}{list(spec.shape)}, as in the "
                    f"manifest, got {layout}"
                )

    def _batch(self, x: Array, y: Array, chosen: Array, training: bool = True) -> Tensors:
        columns = {}
        if training:
            columns = {
                names.batch(name): values[chosen]
                for name, values in names.part(self.tensors, names.COLUMN).items()
            }
        return {names.X: x[chosen], names.Y: y[chosen], **columns}

    def _draw(self, size: int) -> Tensors:
        """Return a batch's random inputs, float32.

        Uniform numbers come from the plan's seed, normal ones from the device's secret.
        """
        drawn: Tensors = {}
        for name, shape in self._manifest.random.items():
            if names.role_of(name) == names.UNIFORM:
                drawn[names.batch(name)] = self._rng.random((size, *shape), np.float32)
            else:
                drawn[names.batch(name)] = self._secret.standard_normal(shape, np.float32)
        return drawn

    def _sums(
        self, graph: str, tensors: Tensors, split: str, holdout: float = 0.0, most: int = 0
    ) -> tuple[Tensors, int]:
        """Return the sums of a graph's metrics over a split, and its number of examples."""
        x, y, places, order = split_of(self._windows, self._manifest.label, split, holdout, most)
        within, scalars = self._within, self._hyper
        slices = (
            evaluation_slices(len(order), self._manifest.min_batch, self._graphs.max_batch)
            if len(order)
            else []
        )
        for chosen in slices[within.batches :]:
            self._between()
            rows = order[chosen]
            batch = self._batch(x, y, rows, split in ("train", "holdout")) | {
                name: values[rows] for name, values in places.items()
            }
            outputs = self._run(graph, {**tensors, **batch, **scalars})
            for name, value in names.part(outputs, names.METRIC).items():
                within.sums[name] = (
                    within.sums[name] + value
                    if name in within.sums
                    else np.asarray(value, np.float64)
                )
            within.batches += 1
        sums, within.sums, within.batches = within.sums, {}, 0
        return sums, len(order)

    def _rows(
        self, graph: str, num_examples: int, inputs: Callable[[slice], Tensors]
    ) -> list[Array]:
        """Return the per-example output of a graph, one array per batch."""
        within = self._within
        for chosen in evaluation_slices(
            num_examples, self._manifest.min_batch, self._graphs.max_batch
        )[within.batches :]:
            self._between()
            outputs = list(names.part(self._run(graph, inputs(chosen)), names.OUTPUT).values())
            if len(outputs) != 1:
                raise Malformed(
                    f"graph {graph!r} must have one per-example output, got {len(outputs)}"
                )
            within.rows.append(outputs[0])
            within.batches += 1
        return within.rows
