"""Orders that come over HTTP, on their way from the server's thread to the service's one thread."""

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from aggregator.operator.desk import Answer

MOST = 64
"""Orders that may wait."""
WAIT_S = 10.0
"""For so long an answer is waited for."""


class OrderQueue:
    """Takes orders from any thread; one thread carries them out. They are not on the disk: when the
    service ends, those that wait are gone."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[str, msgspec.Struct, Future[Answer]]] = queue.Queue(MOST)

    def give(self, by: str, order: msgspec.Struct) -> "Future[Answer]":
        """Leave an order of somebody; what is returned has the answer once it was carried out.

        Raises:
            queue.Full: too many wait already.
        """
        answer: Future[Answer] = Future()
        answer.set_running_or_notify_cancel()  # whoever waits may go away; the order stays
        self._waiting.put_nowait((by, order, answer))
        return answer

    async def ask(self, by: str, order: msgspec.Struct) -> Answer | None:
        """Leave an order of somebody, and wait for the answer; None: the service was busy for
        `WAIT_S`, and the order stays.

        Raises:
            queue.Full: too many wait already.
        """
        given = self.give(by, order)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(given)), WAIT_S)
        except TimeoutError:
            return None

    def carry_out(self, act: Callable[[str, msgspec.Struct], Answer]) -> None:
        """Carry out what waits now, in the order of arrival."""
        for _ in range(self._waiting.qsize()):
            by, order, answer = self._waiting.get_nowait()
            answer.set_result(act(by, order))
