"""What a service does beside messages and deadlines."""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

from aggregator.core.ports import Clock
from aggregator.core.state import RolledBack
from aggregator.identity import RESUME, ROLLBACK
from aggregator.runner import Runner
from wire.errors import ConfigError
from wire.messages import LEASE_S

log = logging.getLogger("shoal.aggregator")

RENEW_EVERY_S = 3600.0
"""Seconds between two looks at the service's key and voucher."""


class Duties:
    """It holds the lease, takes up a new key or voucher, and looks for the operator's words to go on or to go back."""

    def __init__(self, runner: Runner, folder: Path, clock: Clock, renew: Callable[[], None]) -> None:
        """`renew` reads the service's key and voucher; it raises `ConfigError` where they are of no use."""
        self._runner, self._resume, self._rollback, self._clock = runner, folder / RESUME, folder / ROLLBACK, clock
        self._renew, self._announce_at_s, self._renew_at_s = renew, 0.0, time.monotonic() + RENEW_EVERY_S

    def done(self) -> bool:
        """Do what is due. Returns false, so that it can stand in a loop's condition."""
        now_s = time.monotonic()
        if now_s >= self._announce_at_s:
            self._announce_at_s = now_s + LEASE_S / 3
            if self._runner.connected:
                self._runner.announce()
            self._obey(self._resume, lambda _: self._runner.try_to_go_on(told=True) if self._runner.paused else None)
            self._obey(self._rollback, self._roll_back)
        if now_s >= self._renew_at_s:
            self._renew_at_s = now_s + RENEW_EVERY_S
            try:
                self._renew()
            except ConfigError as error:
                log.error("the key and the voucher that were read before are kept: %s", error)
        return False

    def _obey(self, path: Path, act: Callable[[str], None]) -> None:
        """Take the operator's file away, if it is there, and act on what it holds. It is gone first: it must not count a second time."""
        try:
            if not path.exists():
                return
            told = path.read_bytes().decode(errors="replace")
            path.unlink()
        except OSError as error:
            log.error("%s: the file cannot be read and taken away, nothing is done: %s", path, error.strerror)
            return
        act(told)

    def _roll_back(self, told: str) -> None:
        """Return to the models of an earlier round. `told`: what the operator's file holds."""
        settings = self._runner.known().settings
        run, _, number = told.partition(" ")
        if run != settings.name or not re.fullmatch("[0-9]{1,9}", number):
            log.error("rollback: the file says %r, expected %r and the number of a round: nothing is done", told, settings.name)
            return
        self._runner.dispatch(RolledBack(self._clock(), int(number)))
        made_in = self._runner.known().made_in
        if made_in == int(number):
            log.warning("rolled back to the models of round %d", made_in)
        else:
            log.error("rollback: the models of round %s are not remembered, those of round %d stay", number, made_in)
