"""Carries out a plan: runs the bundle's graphs over local windows. Knows verbs, no algorithm."""

from functools import cached_property
from math import prod

import numpy as np

from edge_client.core.batches import evaluation_slices
from edge_client.core.checkpoint import Checkpoint, windows_digest
from edge_client.core.kept import own_tensors, usable
from edge_client.core.ports import Graphs, Windows
from edge_client.core.verbs import check_verbs
from edge_client.data.layout import PARTS, fit_windows, fitting, likely_meant, windows_for
from edge_client.work.job import Between as Between
from edge_client.work.job import Fetch, Job
from edge_client.work.job import Result as Result
from edge_client.work.job import Secret as Secret
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle
from wire.errors import BundleError, DataError
from wire.messages import Metrics, Plan

MOST_EXAMPLES = 4096
"""Examples in a batch, at most."""
MOST_RANDOM = 2**24
"""Random numbers for one example, at most: a manifest may ask for any shape."""


def from_entropy(_plan: Plan) -> "np.random.Generator":
    """Noise from the operating system's entropy."""
    return np.random.default_rng()


class Executor:
    """Carries out plans with one bundle's graphs over one device's windows."""

    def __init__(
        self, bundle: Bundle, graphs: Graphs, windows: Windows, secret: Secret = from_entropy
    ) -> None:
        """
        Raises:
            DataError: the windows do not fit the bundle.
            BundleError: it asks for larger batches, or more random numbers, than anybody needs.
        """
        self._bundle, self._graphs, self._secret = bundle, graphs, secret
        fitted = fit_windows(windows, bundle.manifest.window, PARTS)
        shape = bundle.manifest.window.shape
        unlabelled = [fitted.unlabelled_x] if fitted.num_unlabelled else []
        for part, x in zip(
            PARTS.values(), (fitted.train_x, fitted.test_x, *unlabelled), strict=False
        ):
            if x.shape[1:] != shape:
                raise DataError(
                    f"{part} have shape {x.shape[1:]}, bundle {bundle.manifest.name} expects "
                    f"{shape}{likely_meant(x.shape[1:], shape)}"
                )
        self._windows = windows_for(bundle.manifest, fitted)
        self._job: Job | None = None
        if bundle.manifest.min_batch > MOST_EXAMPLES:
            raise BundleError(
                f"bundle {bundle.manifest.name}: batches of at least {bundle.manifest.min_batch}, "
                f"at most {MOST_EXAMPLES} can be"
            )
        for name, shape in bundle.manifest.random.items():
            if min(shape, default=0) < 0 or prod(shape) > MOST_RANDOM:
                raise BundleError(
                    f"bundle {bundle.manifest.name}: random input {name!r} of shape {shape}, at "
                    f"most {MOST_RANDOM} numbers"
                )

    def execute(
        self,
        plan: Plan,
        model: Tensors,
        private: Tensors,
        fetch: Fetch,
        between: Between = lambda: None,
        resumed: Checkpoint | None = None,
    ) -> Result:
        """Carry out every verb in order. The first one starts from the tensors in `model` (shared,
        statistic, received) and in `private`; private tensors of another layout, and columns that
        were made for another number of windows, are as if they were not there. With `resumed`, what
        is left after this checkpoint of the same plan over the same windows; `private` is not read
        then.

        Raises:
            WrongLayout: the model's tensors are not the manifest's.
            DataError: training is asked of a device with fewer than `min_batch` windows.
            BundleError: a verb names a graph that the bundle does not have or that cannot do what
            the verb asks; or training is asked with
                larger batches than the bundle's programs take.
            Unfit: the checkpoint cannot be of this plan.
        """
        check_verbs(self._bundle.manifest, plan.verbs)
        job = Job(self._bundle, self._graphs, self._windows, plan, fetch, self._secret, between)
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
        """What is done so far of the plan that is carried out, to be asked for from `between`.
        `seconds`: how long it took."""
        assert self._job is not None
        return self._job.checkpoint(seconds)

    @cached_property
    def windows_digest(self) -> str:
        """The SHA-256 of the windows that plans are carried out over; made once, when it is first
        asked for."""
        return windows_digest(self._windows)

    def predict(self, model: Tensors, private: Tensors, x: Array) -> Array:
        """What the bundle's task answers (n, answers) float32, class probabilities or others in
        their place, of examples x (n, \\*window), whole numbers where the bundle asks for ids, with
        the device's own model: what it was given, and what it has kept."""
        held = own_tensors(self._bundle, model, private)
        least = self._bundle.manifest.min_batch
        x = fitting(x, self._bundle.manifest.window, "windows to predict")
        padded = np.concatenate([x, x[:1].repeat(least, 0)]) if len(x) < least else x
        slices = evaluation_slices(len(padded), least, self._graphs.max_batch)
        rows = [
            self._graphs.run("predict", {**held, names.X: padded[rows]})[names.PROBABILITIES]
            for rows in slices
        ]
        return np.concatenate(rows)[: len(x)]

    def evaluate(
        self, model: Tensors, private: Tensors, x: Array, y: Array, between: Between = lambda: None
    ) -> Metrics:
        """The metrics of the device's own model, with what it has kept, over examples x (n,
        \\*window) with the labels y (n, \\*label) of the task; of fewer than the bundle's least
        batch there are none. `between` is called before each batch."""
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
