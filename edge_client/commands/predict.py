"""`shoal-edge predict`: what the model in use makes of windows."""

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
    """The class and the probability of each class; of steps the class of each, and by class its
    probability in each; of several labels those that are there, and the probability of each name;
    else the numbers by their names. `answer` is a row of `Model.predict`."""
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
    if task == REGRESSION:  # to seven digits, which float32 has, however small the unit
        return {
            name: float(f"{float(value):.7g}") for name, value in zip(names, answer, strict=True)
        }
    return numbers


def predict(arguments: Namespace) -> int:
    """Print a line of JSON for each window: its class and all probabilities. 1 if a line of the
    input was no window, else 0.

    Lines of JSON are answered one by one, as they come; a model that comes into use meanwhile
    answers from then on.

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
    """Write what is printed; where nobody reads standard output any more, end with the status of
    SIGPIPE. The signal itself stays ignored: it would end the process for a connection that breaks
    as well."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # what is still in the buffer goes nowhere
        raise SystemExit(128 + signal.SIGPIPE) from None


def _answer_line(model: Model, text: str) -> dict[str, Any]:
    """The answer to one window, a nested list; or what is wrong with it."""
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
