"""A rendezvous of plans that run at the same time, whose requests are answered together."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class Rendezvous(Generic[Q, A]):
    """One thread for each plan, and one more that answers.

    A plan that asks waits until every other plan has asked too, or has ended.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked: list[tuple[Q, Future[A]]] = []
        self._busy = 0
        self._closed = False
        self._here = threading.local()

    @property
    def joined(self) -> bool:
        """True if the calling thread carries out a plan of this rendezvous."""
        return getattr(self._here, "joined", False)

    def expect(self, count: int) -> None:
        """Announce `count` more plans, each of which asks or ends."""
        with self._changed:
            self._busy += count

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Let the calling thread carry out one of the announced plans.

        The plan ends when the context is left, also by an exception.
        """
        self._here.joined = True
        try:
            yield
        finally:
            self._here.joined = False
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def ask(self, request: Q) -> A:
        """Return the answer to a request, from a thread that takes part.

        Raises:
            CancelledError: the rendezvous was closed.
        """
        answer: Future[A] = Future()
        with self._changed:
            if self._closed:
                answer.cancel()
            else:
                self._asked.append((request, answer))
                self._busy -= 1
                self._changed.notify_all()
        return answer.result()

    def answer(self, together: Callable[[list[Q]], list[A]]) -> bool:
        """Wait until all plans have asked or ended, and answer the requests.

        One call of `together` answers them. Return False if all plans have ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._busy == 0)
            requests = list(self._asked)
        answers = together([request for request, _ in requests]) if requests else []
        with self._changed:
            self._asked.clear()
            self._busy = len(requests)
        for (_, future), answer in zip(requests, answers, strict=True):
            future.set_result(answer)
        return bool(requests)

    def close(self) -> None:
        """End every thread that waits, or asks later, with an exception."""
        with self._changed:
            self._closed = True
            for _, future in self._asked:
                future.cancel()
            self._asked.clear()
