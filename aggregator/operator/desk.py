"""Orders of an operator for a service. An order is a file in the folder ``orders`` of the service's
folder; the service takes the files in the order of their names, and leaves an answer beside each.

Whoever may write in the folder may give orders. Where no service runs, orders wait for the next
start. An order is taken away after it was carried out, so that after a kill it may be carried out
once more: an order says what is to be, not what is to be added.
"""

import getpass
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal

import msgspec

from aggregator.core.ports import StorageFailed
from aggregator.leadership.identity import is_served
from aggregator.operator.audit import note
from host.files import make_folder, write_atomically
from wire.errors import ConfigError, ShoalError, printable

log = logging.getLogger("shoal.aggregator")

ORDERS = "orders"
ORDER_BYTES = 2**20
ANSWERS_S = 3600.0
"""For so long an answer stays that nobody has read."""
WAIT_S = 30.0


class Answer(msgspec.Struct, frozen=True):
    """What became of an order."""

    done: bool
    text: str
    cause: Literal["", "refused", "storage", "defect"] = ""
    """Why it was not done: it may not be as things are, something cannot be written or read, or
    Shoal failed at it."""


class _Envelope(msgspec.Struct, frozen=True):
    by: str
    order: msgspec.Raw


Handler = Callable[[Any], str]
"""Carries out an order and says what came of it; raises `ShoalError` where it cannot be. What it
did is safe when it returns."""


def submit(folder: Path, order: msgspec.Struct, wait_s: float = WAIT_S) -> str:
    """Give an order to the service of this folder, and wait for what it says. Where none runs, the
    order waits for one.

    Raises:
        ConfigError: the order was refused, could not be left, or had no answer in time.
    """
    orders, name = folder / ORDERS, f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    if not folder.is_dir():
        raise ConfigError(
            f"folder {folder}: there is no such folder; `shoal serve --folder` makes it"
        )
    try:
        make_folder(orders)
        write_atomically(
            orders / f"{name}.json",
            msgspec.json.encode(
                _Envelope(getpass.getuser(), msgspec.Raw(msgspec.json.encode(order)))
            ),
        )
        answer = orders / f"{name}.answer"
        until_s = time.monotonic() + wait_s
        while not answer.exists():
            if not is_served(folder):
                return f"no service runs in {folder}: it is carried out when one starts"
            if time.monotonic() > until_s:
                raise ConfigError(
                    f"the service in {folder} has not answered for {wait_s:.0f} s; it is busy, "
                    "and takes the order when it can"
                )
            time.sleep(0.05)
        told = msgspec.json.decode(answer.read_bytes(), type=Answer)
        answer.unlink(missing_ok=True)
    except (OSError, KeyError) as error:
        raise ConfigError(f"folder {orders}: {getattr(error, 'strerror', None) or error}") from None
    if not told.done:
        raise ConfigError(told.text)
    return told.text


class Desk:
    """Takes orders in a service's folder."""

    def __init__(self, folder: Path, handlers: Mapping[type, Handler]) -> None:
        """`handlers`: by type of order, which is a tagged struct."""
        self._folder, self._orders, self._handlers = folder, folder / ORDERS, dict(handlers)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(reduce(or_, self._handlers))
        self._stuck: set[str] = set()

    def look(self) -> None:
        """Carry out the orders that are there. Nothing that lies in the folder raises."""
        try:
            found = sorted(self._orders.iterdir()) if self._orders.is_dir() else []
        except OSError as error:
            log.error("%s: orders cannot be read: %s", self._orders, error.strerror)
            return
        for path in found:
            try:
                if path.suffix == ".json" and path.name not in self._stuck:
                    self._take(path)
                elif path.suffix == ".answer" and time.time() - path.stat().st_mtime > ANSWERS_S:
                    path.unlink(missing_ok=True)
            except OSError as error:
                log.error("%s: %s", path, error.strerror)

    def act(self, by: str, order: msgspec.Struct) -> Answer:
        """Carry out an order of somebody, and note it in the audit log."""
        try:
            answer = Answer(True, self._handlers[type(order)](order))
        except StorageFailed as error:
            answer = Answer(False, str(error), "storage")
        except ShoalError as error:
            answer = Answer(False, str(error), "refused")
        except Exception as error:  # a defect in an order must not end the service
            log.exception("defect in carrying out an order")
            answer = Answer(False, f"{type(error).__name__}: {error}", "defect")
        what = msgspec.json.encode(order).decode()
        log.log(
            logging.INFO if answer.done else logging.ERROR,
            "order of %s: %s: %s",
            printable(by),
            printable(what)[:500],
            answer.text,
        )
        note(self._folder, by, what[:2000], "done" if answer.done else "refused", text=answer.text)
        return answer

    def _take(self, path: Path) -> None:
        """Carry out one order, leave the answer, and then take the order away."""
        if path.stat().st_size > ORDER_BYTES:
            answer = Answer(False, f"an order of more than {ORDER_BYTES} bytes", "refused")
        else:
            try:
                envelope = msgspec.json.decode(path.read_bytes(), type=_Envelope)
                order = self._decoder.decode(envelope.order)
            except msgspec.MsgspecError as error:
                answer = Answer(False, f"not an order that this service knows: {error}", "refused")
                log.error("%s: %s", path, answer.text)
            else:
                answer = self.act(envelope.by, order)
        write_atomically(path.with_suffix(".answer"), msgspec.json.encode(answer))
        try:
            path.unlink()
        except OSError as error:  # it must not be carried out again and again
            self._stuck.add(path.name)
            log.error("%s: the order cannot be taken away: %s", path, error.strerror)
