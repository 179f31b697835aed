"""`shoal-edge predict`: answers of the model in use for windows of a file or standard input."""

import itertools
import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.core.stream import StreamFilter, StreamSums
from edge_client.data.tables.parts import is_table
from edge_client.data.windows import read_stretches
from edge_client.models.application import Model
from edge_client.storage.state import DeviceState
from wire.arrays.tensors import Array
from wire.errors import DataError
from wire.tasks import CLASSIFICATION, MULTI_LABEL, PRESENT, REGRESSION, SEQUENCE, TaskName


def told(task: TaskName, names: Sequence[str], answer: Array) -> dict[str, Any]:
    """Return an answer as a JSON object. `answer` is a row of `Model.predict`.

    The object depends on the task:

    - classification: the class, and the probability of each class
    - a class per step: the class of each step, and by class its probability in each step
    - several labels: the labels that are present, and the probability of each name
    - other tasks: the numbers by their names
    """
    if task == SEQUENCE:
        of_steps = {
            name: [round(float(value), 6) for value in column]
            for name, column in zip(names, answer.T, strict=True)
        }
        return {"classes": [names[at] for at in answer.argmax(1)], "probabilities": of_steps}
    numbers = {name: round(float(value), 6) for name, value in zip(names, answer, strict=True)}
    if task == CLASSIFICATION:
        return {"class": max(numbers, key=numbers.__getitem__), "probabilities": numbers}
    if task == MULTI_LABEL:
        return {
            "labels": [name for name, value in numbers.items() if value >= PRESENT],
            "probabilities": numbers,
        }
    if task == REGRESSION:  # seven significant digits, the precision of float32
        return {
            name: float(f"{float(value):.7g}") for name, value in zip(names, answer, strict=True)
        }
    return numbers


def predict(arguments: Namespace) -> int:
    """Print a line of JSON with the answer to each window; return the exit status.

    The status is 1 if a line of the input was not a window, else 0. Lines of JSON on standard input
    are answered one by one. A model that comes into use meanwhile answers the following lines.

    Raises:
        ShoalError: no model is in use, or the file cannot be read.
    """
    model = Model(
        arguments.state,
        runtime=arguments.runtime,
        provider=arguments.provider,
        threads=arguments.threads,
        library=arguments.library,
    )
    failed = 0
    with reader_may_leave():
        if arguments.input == "-":
            for text in sys.stdin:
                if text.strip():
                    answer = _answer_line(model, text)
                    failed |= "error" in answer
                    print(json.dumps(answer), flush=True)
            return failed
        path = Path(arguments.input)
        stretches = read_stretches(path, model.window)
        is_stream = arguments.stream == "auto" and (path.is_dir() or is_table(path))
        answers = (
            _filtered(model, arguments.state, stretches, arguments.lag)
            if is_stream
            else itertools.chain.from_iterable(_answers(model, x) for x in stretches)
        )
        for answer in answers:
            print(json.dumps(answer))
    return 0


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Flush standard output at the end; exit with SIGPIPE's status if its reader has gone.

    The signal itself stays ignored: it would also end the process when a network connection breaks.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # the rest of the buffer is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def _answer_line(model: Model, text: str) -> dict[str, Any]:
    """Return the answer to one window, a nested list in JSON, or an object with its error."""
    try:
        window = np.array(json.loads(text), model.window.dtype)
        return next(iter(_answers(model, window[None])))
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        return {
            "error": (
                f"a line of {len(text)} characters: expected a window as a list of lists of "
                f"numbers: {error}"
            )[:300]
        }
    except DataError as error:
        return {"error": str(error)}


def _filtered(
    model: Model, state: Path, stretches: Iterable[Array], lag: int
) -> Iterator[dict[str, Any]]:
    """Yield the answers to the windows of recordings. Earlier windows of a stretch count, too.

    The filter begins with what this device's live stream has taught it, and stores nothing: the
    recordings may be of another device.
    """
    sums = StreamSums("")
    for x in stretches:
        p = model.predict(x)
        if model.task != CLASSIFICATION or not len(x):
            yield from (told(model.task, model.classes, row) for row in p)
            continue
        if sums.bundle != model.current.bundle:
            sums = DeviceState(state, read_only=True).stream(model.current.bundle)
        stream = StreamFilter(sums, 1.0, lag)
        rows = itertools.chain.from_iterable(stream.answer(at, row) for at, row in enumerate(p))
        for _, row in itertools.chain(rows, stream.end()):
            yield told(CLASSIFICATION, model.classes, row)
        sums = stream.sums


def _answers(model: Model, x: Array) -> Iterator[dict[str, Any]]:
    for row in model.predict(x):
        yield told(model.task, model.classes, row)
