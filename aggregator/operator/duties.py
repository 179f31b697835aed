"""What a service does beside messages and deadlines."""

import logging
import time
from collections.abc import Callable

from aggregator.core.ports import Clock
from aggregator.leadership.identity import EVERY_S
from aggregator.operator.desk import Desk
from aggregator.releases.policy import ReleasePolicy
from aggregator.service.runner import Runner
from wire.errors import ConfigError

log = logging.getLogger("shoal.aggregator")

RENEW_EVERY_S = 3600.0
"""Seconds between two looks at the service's key and voucher."""


class Duties:
    """It holds the lease, takes up a new key or voucher, and carries out the operator's orders."""

    def __init__(
        self,
        runner: Runner,
        desk: Desk,
        clock: Clock,
        renew: Callable[[], float],
        releases: ReleasePolicy | None = None,
    ) -> None:
        """`clock` is the service's, by which devices go. `renew` reads the service's key and
        voucher, and returns until when the voucher holds, in Unix seconds; it raises `ConfigError`
        where they are of no use. `releases`: the fleet's, which are let go on."""
        self._runner, self._desk, self._releases = runner, desk, releases
        self._renew, self._announce_at_s, self._renew_at_s = (
            renew,
            0.0,
            time.monotonic() + RENEW_EVERY_S,
        )
        self._clock, self._vouched_until_s = clock, renew()

    @property
    def unvouched(self) -> str:
        """Why devices believe nothing that this service signs; empty while they do."""
        over_s = self._clock() - self._vouched_until_s
        return (
            f"the voucher ended {over_s:.0f} s ago: `shoal vouch` makes another"
            if over_s > 0
            else ""
        )

    def done(self) -> bool:
        """Do what is due. Returns false, so that it can stand in a loop's condition."""
        if self._releases is not None:
            self._releases.tick()
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
                log.error("the key and the voucher that were read before are kept: %s", error)
        return False
