"""What a service does beside messages and deadlines."""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

from aggregator.core.ports import Clock
from aggregator.identity import RESUME, ROLLBACK
from aggregator.lease import EVERY_S
from aggregator.runner import Runner
from wire.errors import ConfigError

log = logging.getLogger("shoal.aggregator")

RENEW_EVERY_S = 3600.0
"""Seconds between two looks at the service's key and voucher."""


class Duties:
    """It holds the lease, takes up a new key or voucher, and looks for the operator's words to go on or to go back."""

    def __init__(self, runner: Runner, folder: Path, clock: Clock, renew: Callable[[], float]) -> None:
        """`clock` is the service's, by which devices go. `renew` reads the service's key and voucher, and returns until when the voucher
        holds, in Unix seconds; it raises `ConfigError` where they are of no use."""
        self._runner, self._resume, self._rollback = runner, folder / RESUME, folder / ROLLBACK
        self._rolled_back: str | None = None
        self._renew, self._announce_at_s, self._renew_at_s = renew, 0.0, time.monotonic() + RENEW_EVERY_S
        self._clock, self._vouched_until_s = clock, renew()

    @property
    def unvouched(self) -> str:
        """Why devices believe nothing that this service signs; empty while they do."""
        over_s = self._clock() - self._vouched_until_s
        return f"the voucher ended {over_s:.0f} s ago: `shoal vouch` makes another" if over_s > 0 else ""

    def done(self) -> bool:
        """Do what is due. Returns false, so that it can stand in a loop's condition."""
        now_s = time.monotonic()
        if now_s >= self._announce_at_s:
            self._announce_at_s = now_s + EVERY_S
            if self._runner.connected:
                self._runner.announce()
            self._look_for_resume()
            self._look_for_rollback()
        if now_s >= self._renew_at_s:
            self._renew_at_s = now_s + RENEW_EVERY_S
            try:
                self._vouched_until_s = self._renew()
            except ConfigError as error:
                log.error("the key and the voucher that were read before are kept: %s", error)
        return False

    def _look_for_resume(self) -> None:
        """The file is taken away first, also where nothing is paused: it must not end a later pause."""
        if self._resume.exists() and _is_taken(self._resume) and self._runner.paused:
            self._runner.try_to_go_on(told=True)

    def _look_for_rollback(self) -> None:
        """The file stays until what it says is safe: on a full disk it would be lost."""
        try:
            told = self._rollback.read_bytes().decode(errors="replace") if self._rollback.exists() else None
        except OSError as error:
            log.error("%s: the operator's file cannot be read: %s", self._rollback, error.strerror)
            return
        if told is not None and told != self._rolled_back and self._roll_back(told):
            self._rolled_back = None if _is_taken(self._rollback) else told  # what cannot be taken away must not count again and again

    def _roll_back(self, told: str) -> bool:
        """Return to the models of an earlier round. `told`: what the operator's file holds. Returns whether it is done with."""
        settings = self._runner.known().settings
        run, _, number = told.partition(" ")
        if run != settings.name or not re.fullmatch("[0-9]{1,9}", number):
            log.error("rollback: the file says %r, expected %r and the number of a round: nothing is done", told, settings.name)
            return True
        if not self._runner.roll_back(int(number)):
            log.error("rollback: it waits, since nothing can be saved: %s", self._runner.paused)
            return False
        made_in = self._runner.known().made_in
        if made_in == int(number):
            log.warning("rolled back to the models of round %d", made_in)
        else:
            log.error("rollback: the models of round %s are not remembered, those of round %d stay", number, made_in)
        return True


def _is_taken(path: Path) -> bool:
    """Take the operator's file away; whether it is gone."""
    try:
        path.unlink()
    except OSError as error:
        log.error("%s: the operator's file cannot be taken away: %s", path, error.strerror)
        return False
    return True
