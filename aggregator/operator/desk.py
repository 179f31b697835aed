"""Orders of an operator, on their way from HTTP to the service's one thread."""

import asyncio
import logging
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from aggregator.operator.audit import note
from aggregator.ports import StorageFailed
from wire.errors import ShoalError, printable

log = logging.getLogger("shoal.aggregator")

MOST = 64
"""Maximum number of waiting orders."""
WAIT_S = 30.0
"""Time for which an HTTP request waits for an answer (s)."""


class Answer(msgspec.Struct, frozen=True):
    """Result of an order."""

    is_done: bool
    text: str
    cause: Literal["", "refused", "storage", "defect"] = ""
    """Cause of failure: the order is not allowed now, storage failed, or Shoal has a defect."""


Handler = Callable[..., str]
"""Handler of an order: takes its fields as keywords and returns the outcome as text.

It raises `ShoalError` if the order cannot be carried out. Its effects are durable when it returns.
"""


@dataclass(frozen=True)
class Desk:
    """Queue of orders: any thread adds them, one thread carries them out.

    The queue is in memory only: orders that wait when the service ends are lost.
    """

    folder: Path
    """Folder of the service, which has the audit log."""
    handlers: Mapping[str, Handler]
    """Handlers by the names of their orders, such as ``campaign-pause``."""
    _waiting: "queue.Queue[tuple[str, str, dict[str, Any], Future[Answer]]]" = field(
        default_factory=partial(queue.Queue, MOST)
    )

    async def ask(self, by: str, order: str, **fields: Any) -> Answer | None:
        """Queue an order of a person and return its answer, or None after `WAIT_S` seconds.

        The order stays in the queue, even if nobody waits for its answer any more.

        Raises:
            queue.Full: too many orders wait already.
        """
        answer: Future[Answer] = Future()
        answer.set_running_or_notify_cancel()
        self._waiting.put_nowait((by, order, fields, answer))
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(answer)), WAIT_S)
        except TimeoutError:
            return None

    def look(self) -> None:
        """Carry out the waiting orders, in the order of their arrival."""
        for _ in range(self._waiting.qsize()):
            by, order, fields, answer = self._waiting.get_nowait()
            answer.set_result(self._act(by, order, fields))

    def _act(self, by: str, order: str, fields: dict[str, Any]) -> Answer:
        """Carry out a person's order, and add it to the audit log."""
        try:
            answer = Answer(True, self.handlers[order](**fields))
        except StorageFailed as error:
            answer = Answer(False, str(error), "storage")
        except ShoalError as error:
            answer = Answer(False, str(error), "refused")
        except Exception as error:  # a defect in an order must not end the service
            log.exception("Order not carried out because of a defect: order=%s", order)
            answer = Answer(False, f"{type(error).__name__}: {error}", "defect")
        what = msgspec.json.encode({"type": order, **fields}).decode()
        level = {"": logging.INFO, "refused": logging.WARNING}.get(answer.cause, logging.ERROR)
        message = "Order carried out" if answer.is_done else "Order not carried out"
        log.log(
            level,
            message + ": by=%s order=%s: %s",
            printable(by),
            printable(what)[:500],
            answer.text,
        )
        note(
            self.folder, by, what[:2000], "done" if answer.is_done else "refused", text=answer.text
        )
        return answer
