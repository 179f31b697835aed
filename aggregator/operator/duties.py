"""Periodic duties of a service, apart from messages and deadlines."""

import logging
import time
from collections.abc import Callable

from aggregator.fleet.records import Fleet
from aggregator.leadership.identity import EVERY_S
from aggregator.operator.desk import Desk
from aggregator.ports import Clock, StorageFailed
from aggregator.releases import ReleaseMaker
from aggregator.service.runner import Runner
from wire.errors import ConfigError

log = logging.getLogger("shoal.aggregator")

RENEW_EVERY_S = 3600.0
"""Seconds between two reads of the service's key and voucher."""


class Duties:
    """Periodic duties: announce the service, renew its voucher, act on orders, make releases."""

    def __init__(
        self,
        runner: Runner,
        desk: Desk,
        clock: Clock,
        renew: Callable[[], float],
        maker: ReleaseMaker,
    ) -> None:
        """Set up the duties, and read key and voucher.

        `clock` returns the service's time, which devices follow. `renew` reads the service's key
        and voucher, and returns the end of the voucher in Unix seconds; it raises `ConfigError` if
        they cannot be used. `maker` makes the releases that are due.
        """
        self._runner, self._desk, self._maker = runner, desk, maker
        self._renew, self._announce_at_s, self._renew_at_s = (
            renew,
            0.0,
            time.monotonic() + RENEW_EVERY_S,
        )
        self._clock, self._vouched_until_s = clock, renew()
        self._seen: Fleet | None = None

    @property
    def unvouched(self) -> str:
        """Reason why devices reject this service's signatures; empty if they accept them."""
        over_s = self._clock() - self._vouched_until_s
        return (
            f"the voucher ended {over_s:.0f} s ago: `shoal vouch` makes another"
            if over_s > 0
            else ""
        )

    def done(self) -> bool:
        """Do what is due, and return False, so that the call can stand in a loop's condition."""
        self._release()
        now_s = time.monotonic()
        self._desk.look()
        if now_s >= self._announce_at_s:
            self._announce_at_s = now_s + EVERY_S
            if self._runner.connected:
                self._runner.announce()
        if now_s >= self._renew_at_s:
            self._renew_at_s = now_s + RENEW_EVERY_S
            try:
                self._vouched_until_s = self._renew()
            except ConfigError as error:
                log.error("Key and voucher not read again, the earlier ones are kept: %s", error)
        return False

    def _release(self) -> None:
        """Make the releases that are due, once after every change of the fleet."""
        fleet = self._runner.fleet
        if fleet is self._seen or self._runner.problem:
            return
        try:
            for event in self._maker.due(fleet):
                self._runner.order(event)
        except StorageFailed as error:
            log.error("Models not released, trying again: %s", error)
            return
        self._seen = fleet
