"""Questions of the board's page: what is asked, and what was asked last.

Every look decides anew from what is stored (`edge_client.core.questions`), so a restart asks
nothing twice. A question stays on the page until it is answered, or until the next one is due.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from edge_client.core.questions import Question, due_question
from edge_client.live.labelling.labels import Labels
from host.files import write_atomically
from wire.errors import DataError

log = logging.getLogger("shoal.edge")

FILE = "question.json"


class LastQuestion(msgspec.Struct, frozen=True):
    """The last question, its time (Unix time), and True in `is_open` unless it was answered."""

    question: Question
    at_s: float
    is_open: bool


class ModelView(Protocol):
    """The model in use, as the page of labels sees it."""

    def is_there(self) -> bool:
        """Return True if a model is in use."""

    def describe(self) -> Sequence[str]:
        """Return the lines of `shoal-edge status`."""

    def stretches(self) -> Sequence[Question]:
        """Return the long stretches that the model has answered."""


class Questions:
    """Questions about a device's live data. Any thread may use them."""

    def __init__(self, model: ModelView, folder: Path, labels: Labels, most_a_day: int) -> None:
        """Read what was asked last.

        Args:
            model: the model in use.
            folder: folder of the live data.
            labels: labels of the folder.
            most_a_day: maximum number of questions a day.
        """
        self.model, self._path, self._labels = model, folder / FILE, labels
        self._most_a_day, self._lock = most_a_day, threading.Lock()

    def open(self) -> Question | None:
        """Return the question to show now, or None."""
        with self._lock:
            return self._open()

    def answer(self, begin_s: float, label: str | None) -> None:
        """Label the stretch of the open question, which begins then; None: none of the classes.

        Raises:
            DataError: another question is open, or none, or there is no such class.
            OSError: the answer cannot be stored.
        """
        with self._lock:
            question = self._open()
            if question is None or question.begin_s != begin_s:
                raise DataError("This question is no longer open: load the page again")
            if label is not None:
                self._labels.say(label, question.begin_s, question.end_s)
            last = self._last()
            assert last is not None
            self._put(msgspec.structs.replace(last, is_open=False))

    def _open(self) -> Question | None:
        if self._most_a_day < 1 or not self.model.is_there():
            return None
        now_s, last = self._labels.wall(), self._last()
        stretches = [each for each in self.model.stretches() if not self._has_label(each)]
        due = due_question(stretches, last.at_s if last else None, self._most_a_day, now_s)
        if due is not None:
            last = LastQuestion(due, now_s, True)
            try:
                self._put(last)
            except OSError as error:
                log.warning("Question not asked: file=%s: %s", self._path, error.strerror)
                return None
        if last is None or not last.is_open or self._has_label(last.question):
            return None
        return last.question

    def _has_label(self, question: Question) -> bool:
        return self._labels.has_any(question.begin_s, question.end_s)

    def _last(self) -> LastQuestion | None:
        """Return the last question, or None if there is none or its file is damaged."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=LastQuestion)
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def _put(self, last: LastQuestion) -> None:
        write_atomically(self._path, msgspec.json.encode(last))
