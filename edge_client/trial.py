"""What is found out about a model before it is taken into use: whether it answers, how well, and how fast."""

import time
from statistics import median

import numpy as np

from edge_client.core.held import held_out
from edge_client.core.offers import Trial
from edge_client.core.ports import Windows
from edge_client.executor import Between
from edge_client.loaded import LoadedModel
from wire.errors import BundleError, DataError
from wire.messages import Evaluate, Metrics, Plan, Policy, Train
from wire.onnx_model import apart
from wire.tasks import CLASSIFICATION, MULTI_LABEL
from wire.tensors import Array

SUM_TOLERANCE = 1e-3
"""The probabilities of a window's classes sum to 1 but for so much."""
SAME = 1e-5
"""So far may the model in one file be from the graph that it was made from."""
LEAST_PROBABILITY = 1e-7
"""The loss of a window counts no smaller probability of its class."""
TIMES = 5
"""Of so many predictions of one window, the median's time counts."""
BATCH = 64


def check_answer(loaded: LoadedModel, windows: Windows) -> None:
    """Have a model answer on a window of this device.

    Raises:
        DataError: there is no window.
        BundleError: its answer is not a number for each name in the manifest, and of classes and names a probability.
    """
    manifest, stored = loaded.bundle.manifest, _some(windows)
    answer, expected = loaded.predict(stored[:1]), (1, len(manifest.classes))
    if answer.shape != expected:
        raise BundleError(f"the model answers with shape {answer.shape}, expected {expected}")
    total = float(answer.sum(dtype=np.float64))
    if manifest.task == CLASSIFICATION:
        if not np.isfinite(answer).all() or abs(total - 1) > SUM_TOLERANCE:
            raise BundleError(f"the model answers with probabilities that sum to {total}, expected 1")
    elif not np.isfinite(answer).all():
        raise BundleError(f"the model answers with {total}, expected a number")
    elif manifest.task == MULTI_LABEL and not ((answer >= 0) & (answer <= 1 + SUM_TOLERANCE)).all():
        raise BundleError(f"the model answers from {answer.min():g} to {answer.max():g}, expected probabilities")


def check_whole(loaded: LoadedModel, onnx: bytes, windows: Windows) -> None:
    """Have the same model in one file answer on a window of this device, if this runtime can read it.

    Raises:
        BundleError: it answers otherwise than the graph.
    """
    x = _some(windows)[:1]
    answer, expected = loaded.answer(onnx, x), loaded.predict(x)
    if answer is not None and (answer.shape != expected.shape or not apart(answer, expected) <= SAME):
        raise BundleError("the model in one file does not answer as the bundle's graph does")


def measure(loaded: LoadedModel, used: LoadedModel | None, held_back: tuple[Array, Array], windows: Windows, between: Between) -> Trial:
    """Evaluate a model, and the one that is in use, on windows that are held back, and time a prediction. `between` is called before each
    batch."""
    before = Metrics() if used is None else _evaluate(used, *held_back, between)
    return Trial(_evaluate(loaded, *held_back, between), before, _latency_ms(loaded, windows))


def held_back(windows: Windows, plan: Plan | None, policy: Policy) -> tuple[Array, Array]:
    """The windows that no training saw: the test windows; without any, those that the plans of this device hold out. None where its owner
    does not permit evaluations, or asks for more windows behind one."""
    x, y = windows.test_x, windows.test_y
    if not len(y):
        share = max((verb.holdout for verb in plan.verbs if isinstance(verb, Train | Evaluate)), default=0.0) if plan else 0.0
        mask = held_out(windows.num_train, share)
        x, y = windows.train_x[mask], windows.train_y[mask]
    permitted = policy.verbs is None or "evaluate" in policy.verbs
    return (x, y) if permitted and len(y) >= policy.min_windows else (x[:0], y[:0])


def _some(windows: Windows) -> Array:
    for stored in (windows.train_x, windows.test_x, windows.unlabelled_x):
        if len(stored):
            return stored
    raise DataError("this device has no window to try the model on")


def _evaluate(loaded: LoadedModel, x: Array, y: Array, between: Between) -> Metrics:
    if loaded.bundle.manifest.task != CLASSIFICATION:
        return loaded.evaluate(x, y, between)
    loss, correct = 0.0, 0
    for rows in [slice(at, at + BATCH) for at in range(0, len(y), BATCH)]:
        between()
        answer = loaded.predict(x[rows])
        own = answer[np.arange(len(answer)), y[rows]].astype(np.float64)
        loss -= float(np.log(np.clip(np.nan_to_num(own), LEAST_PROBABILITY, 1)).sum())
        correct += int((answer.argmax(1) == y[rows]).sum())
    return Metrics(len(y), loss, correct)


def _latency_ms(loaded: LoadedModel, windows: Windows) -> float:
    x, took_s = _some(windows)[:1], []
    for _ in range(TIMES):
        began_s = time.perf_counter()
        loaded.predict(x)
        took_s.append(time.perf_counter() - began_s)
    return round(1000 * median(took_s), 3)
