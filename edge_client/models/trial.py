"""Trial of a model before it comes into use, and its comparison with the model before later."""

import math
import time

import msgspec
import numpy as np

from edge_client.core.ports import Windows
from edge_client.core.session import ModelOffer
from edge_client.models.loaded import LoadedModel
from edge_client.work.executor import Between
from wire.arrays.onnx_model import apart
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import BundleError
from wire.messages import Metrics, Policy
from wire.tasks import CLASSIFICATION, MULTI_LABEL, SEQUENCE

SUM_TOLERANCE = 1e-3
"""Maximum difference from 1 of the sum of a window's class probabilities."""
SAME = 1e-5
"""Maximum difference between the one-file model and the graph that it was made from."""
LEAST_PROBABILITY = 1e-7
"""Lower limit of a class probability in the loss of a window."""
TIMES = 5
"""Number of timed predictions of one window. Their median is the latency."""
BATCH = 64
LEAST_FRESH, MOST_FRESH = 8, 256
"""Limits of the number of held-out windows by which a device goes back to the model before."""


def check_answer(loaded: LoadedModel, windows: Windows) -> None:
    """Check a model's answer for `one_window` of this device.

    Raises:
        BundleError: the answer has not one finite number per name in the manifest (per step and
            name in a task of steps), or the numbers of a classification or of several labels are
            not probabilities.
    """
    manifest = loaded.bundle.manifest
    answer, expected = loaded.predict(one_window(windows, manifest.window)), (1, *manifest.answer)
    if answer.shape != expected:
        raise BundleError(f"The model must answer with shape {expected}, got {answer.shape}")
    totals = answer.sum(-1, dtype=np.float64)
    total = float(totals.ravel()[np.abs(totals - 1).argmax()])  # the worst step
    if manifest.task in (CLASSIFICATION, SEQUENCE):
        if not np.isfinite(answer).all() or abs(total - 1) > SUM_TOLERANCE:
            raise BundleError(
                f"The model must answer with probabilities that sum to 1, got {total}"
            )
    elif not np.isfinite(answer).all():
        raise BundleError(f"The model must answer with finite numbers, got {total}")
    elif manifest.task == MULTI_LABEL and not ((answer >= 0) & (answer <= 1 + SUM_TOLERANCE)).all():
        raise BundleError(
            f"The model must answer with probabilities, got values from {answer.min():g} to "
            f"{answer.max():g}"
        )


def check_whole(loaded: LoadedModel, onnx: bytes, windows: Windows) -> None:
    """Compare the one-file model with the graph on `one_window` of this device.

    Nothing is compared if this runtime cannot read the file.

    Raises:
        BundleError: their answers differ by more than `SAME`.
    """
    x = one_window(windows, loaded.bundle.manifest.window)
    answer, expected = loaded.answer(onnx, x), loaded.predict(x)
    if answer is not None and (
        answer.shape != expected.shape or not apart(answer, expected) <= SAME
    ):
        raise BundleError("The model in one file does not answer as the bundle's graph does")


def measure(
    offer: ModelOffer,
    loaded: LoadedModel,
    used: LoadedModel | None,
    windows: Windows,
    policy: Policy,
    between: Between,
) -> ModelOffer:
    """Evaluate an offered model and the model in use; return the offer with the measurements.

    Both are evaluated on the `held_back` windows. The latency is the time of a prediction of one
    window by the offered model, in milliseconds. `between` is called before each batch.
    """
    x, y = held_back(windows, policy)
    before = offer.before if used is None else _evaluate(used, x, y, between)
    evaluated = _evaluate(loaded, x, y, between)
    window, took_s = one_window(windows, loaded.bundle.manifest.window), []
    for _ in range(TIMES):
        began_s = time.perf_counter()
        loaded.predict(window)
        took_s.append(time.perf_counter() - began_s)
    latency_ms = round(1000 * float(np.median(took_s)), 3)
    return msgspec.structs.replace(offer, evaluated=evaluated, before=before, latency_ms=latency_ms)


def held_back(windows: Windows, policy: Policy) -> tuple[Array, Array]:
    r"""Return the test windows x (n, \*window) and their labels y (n, \*label).

    Neither training nor a memory has seen them. Windows that a plan holds out of the training
    windows are not used: other plans train on them, and a memory stores them with their labels.
    The result is empty if the policy forbids evaluations or requires more windows for one.
    """
    x, y = windows.test_x, windows.test_y
    permitted = policy.verbs is None or "evaluate" in policy.verbs
    return (x, y) if permitted and len(y) >= policy.min_windows else (x[:0], y[:0])


def has_fresh(windows: Windows, since_s: float) -> bool:
    """Return True if at least `LEAST_FRESH` test windows began after a time."""
    return int((windows.test_begins_s > since_s).sum()) >= LEAST_FRESH


def fresh(windows: Windows, policy: Policy, since_s: float) -> tuple[Array, Array]:
    r"""Return the newest `held_back` windows x (n, \*window) since a time, and their labels y (n,).

    The result is empty if there are fewer than `LEAST_FRESH` or than the policy's minimum, or if
    the times of windows are not known.
    """
    x, y = held_back(windows, policy)
    if len(windows.test_begins_s) != len(y):
        return x[:0], y[:0]
    chosen = np.flatnonzero(windows.test_begins_s > since_s)[-MOST_FRESH:]
    return (
        (x[:0], y[:0])
        if len(chosen) < max(LEAST_FRESH, policy.min_windows)
        else (x[chosen], y[chosen])
    )


def losses(loaded: LoadedModel, x: Array, y: Array, between: Between) -> Array:
    r"""Return the losses (n,) of classified windows x (n, \*window) with labels y (n,).

    `between` is called before each batch.
    """
    return _scores(loaded, x, y, between)[0]


def gain(used: Array, other: Array) -> tuple[float, float]:
    """Return by how much the other model's mean loss is lower, and the standard error of that.

    Args:
        used: losses (n,) of the model in use, at least two.
        other: losses (n,) of the other model over the same windows.
    """
    apart = used - other
    return float(apart.mean()), float(apart.std(ddof=1)) / math.sqrt(len(apart))


def one_window(windows: Windows, window: Window) -> Array:
    r"""Return one window of this device, x (1, \*window), or zeros if it has no window."""
    part = next((stored for stored in _parts(windows) if len(stored)), None)
    return np.zeros((1, *window.shape), window.dtype) if part is None else part[:1]


def has_any(windows: Windows) -> bool:
    """Return True if this device has a training, test or unlabelled window."""
    return any(len(stored) for stored in _parts(windows))


def _parts(windows: Windows) -> tuple[Array, ...]:
    return windows.train_x, windows.test_x, windows.unlabelled_x


def _evaluate(loaded: LoadedModel, x: Array, y: Array, between: Between) -> Metrics:
    if loaded.bundle.manifest.task != CLASSIFICATION:
        return loaded.evaluate(x, y, between)
    window_losses, is_correct = _scores(loaded, x, y, between)
    return Metrics(len(y), float(window_losses.sum()), int(is_correct.sum()))


def _scores(loaded: LoadedModel, x: Array, y: Array, between: Between) -> tuple[Array, Array]:
    """Return the loss (n,) of each classified window, and if its answer is correct (n,)."""
    window_losses, is_correct = np.zeros(len(y)), np.zeros(len(y), bool)
    for rows in [slice(start, start + BATCH) for start in range(0, len(y), BATCH)]:
        between()
        answer = loaded.predict(x[rows])
        probabilities = answer[np.arange(len(answer)), y[rows]].astype(np.float64)
        window_losses[rows] = -np.log(np.clip(np.nan_to_num(probabilities), LEAST_PROBABILITY, 1))
        is_correct[rows] = answer.argmax(1) == y[rows]
    return window_losses, is_correct
