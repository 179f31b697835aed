"""`shoal-edge predict`: answers of the model in use for windows of a file or standard input."""

import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.data.windows import read_windows
from edge_client.models.application import Model
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
        for answer in _answers(model, read_windows(Path(arguments.input), model.window)):
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


def _answers(model: Model, x: Array) -> Iterator[dict[str, Any]]:
    for row in model.predict(x):
        yield told(model.task, model.classes, row)
