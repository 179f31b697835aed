"""Carries out plans with a bundle's graphs over local windows. Knows verbs, no algorithm."""

from functools import cached_property
from math import prod

import numpy as np

from edge_client.core.batches import evaluation_slices
from edge_client.core.checkpoint import Checkpoint, windows_digest
from edge_client.core.kept import own_tensors, usable
from edge_client.core.ports import Graphs, Windows
from edge_client.core.verbs import check_verbs
from edge_client.data.layout import check_shape, fitting, windows_for
from edge_client.work.job import Between as Between
from edge_client.work.job import Fetch, PlanExecution
from edge_client.work.job import PlanResult as PlanResult
from edge_client.work.job import Secret as Secret
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle
from wire.errors import BundleError
from wire.messages import Metrics, Plan

MOST_EXAMPLES = 4096
"""Maximum number of examples in a batch."""
MOST_RANDOM = 2**24
"""Maximum number of random numbers per example. A manifest may name any shape."""


def from_entropy(_plan: Plan) -> "np.random.Generator":
    """Return a generator seeded from the operating system's entropy."""
    return np.random.default_rng()


class Executor:
    """Executor of plans with one bundle's graphs over one device's windows."""

    def __init__(
        self, bundle: Bundle, graphs: Graphs, windows: Windows, secret: Secret = from_entropy
    ) -> None:
        """Check that the bundle fits the windows and the limits of a device.

        Raises:
            DataError: the windows do not have the shape that the bundle expects.
            BundleError: the bundle needs batches above `MOST_EXAMPLES` or more random numbers than
                `MOST_RANDOM`.
        """
        self._bundle, self._graphs, self._secret = bundle, graphs, secret
        fitted = check_shape(windows, bundle.manifest)
        self._windows = windows_for(bundle.manifest, fitted)
        self._job: PlanExecution | None = None
        if bundle.manifest.min_batch > MOST_EXAMPLES:
            raise BundleError(
                f"bundle {bundle.manifest.name}: min_batch must be at most {MOST_EXAMPLES}, got "
                f"{bundle.manifest.min_batch}"
            )
        for name, shape in bundle.manifest.random.items():
            if min(shape, default=0) < 0 or prod(shape) > MOST_RANDOM:
                raise BundleError(
                    f"bundle {bundle.manifest.name}: random input {name!r} must have at most "
                    f"{MOST_RANDOM} numbers, got shape {shape}"
                )

    def execute(
        self,
        plan: Plan,
        model: Tensors,
        private: Tensors,
        fetch: Fetch,
        between: Between = lambda: None,
        resumed: Checkpoint | None = None,
    ) -> PlanResult:
        """Carry out the verbs of the plan in order and return the result.

        The first verb starts from the tensors in `model` (shared, statistic, received) and in
        `private`. Private tensors of another layout are ignored, and so are columns for another
        number of windows.

        Args:
            plan: the plan to carry out.
            model: tensors of the model that the plan names.
            private: private tensors and columns that earlier plans left on the device.
            fetch: returns the tensors of a blob that the plan names.
            between: called before each batch; an exception from it ends the work.
            resumed: checkpoint of the same plan over the same windows. Only the work after it is
                done, and `private` is not read.

        Raises:
            WrongLayout: the model's tensors are not the manifest's.
            DataError: the plan trains and the device has fewer than `min_batch` windows.
            BundleError: a verb names a graph that is not in the bundle or does not suit the verb,
                or the plan's batches are larger than the bundle's programs take.
            Unfit: the checkpoint cannot be of this plan.
        """
        check_verbs(self._bundle.manifest, plan.verbs)
        job = PlanExecution(
            self._bundle, self._graphs, self._windows, plan, fetch, self._secret, between
        )
        if resumed is None:
            job.tensors |= usable(
                self._bundle.manifest.of_role(names.PRIVATE), private, self._windows.num_train
            )
            job.receive(plan.model, model)
        else:
            job.go_on(resumed, model)
        self._job = job
        try:
            return job.carry_out()
        finally:
            self._job = None

    def checkpoint(self, seconds: float) -> Checkpoint:
        """Return a checkpoint of the plan in work. Call it from `between` only.

        Args:
            seconds: time spent on the plan so far.
        """
        assert self._job is not None
        return self._job.checkpoint(seconds)

    @cached_property
    def windows_digest(self) -> str:
        """SHA-256 of the windows that plans are carried out over, computed at the first access."""
        return windows_digest(self._windows)

    def predict(self, model: Tensors, private: Tensors, x: Array) -> Array:
        """Return the answers (n, answers) float32 for examples x (n, \\*window).

        The answers are class probabilities, or the values that the bundle's task has instead. If
        the bundle takes ids, x holds whole numbers. `model` are the tensors that the device
        received, `private` those of its personal model.
        """
        tensors = own_tensors(self._bundle, model, private)
        least = self._bundle.manifest.min_batch
        x = fitting(x, self._bundle.manifest.window, "windows to predict")
        padded = np.concatenate([x, x[:1].repeat(least, 0)]) if len(x) < least else x
        slices = evaluation_slices(len(padded), least, self._graphs.max_batch)
        rows = [
            self._graphs.run("predict", {**tensors, names.X: padded[rows]})[names.PROBABILITIES]
            for rows in slices
        ]
        return np.concatenate(rows)[: len(x)]

    def evaluate(
        self, model: Tensors, private: Tensors, x: Array, y: Array, between: Between = lambda: None
    ) -> Metrics:
        """Return the metrics over examples x (n, \\*window) with labels y (n, \\*label).

        `model` are the tensors that the device received, `private` those of its personal model.
        The metrics are empty if there are fewer examples than the bundle's smallest batch.
        `between` is called before each batch.
        """
        manifest, tensors = self._bundle.manifest, own_tensors(self._bundle, model, private)
        least, graph = manifest.min_batch, manifest.measuring
        if len(x) < least:
            return Metrics()
        sums = np.zeros(2)
        for rows in evaluation_slices(len(x), least, self._graphs.max_batch):
            between()
            batch = {names.X: np.ascontiguousarray(x[rows]), names.Y: np.ascontiguousarray(y[rows])}
            outputs = self._graphs.run(graph, {**tensors, **batch})
            sums += float(outputs[names.LOSS_SUM]), float(outputs[names.NUM_CORRECT])
        return Metrics(len(x), float(sums[0]), round(sums[1]))
