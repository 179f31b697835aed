"""Lease on a fleet in a PostgreSQL database: of two services, one writes and the other waits.

The holder counts up a number every `BEAT_S` seconds; if it stands still for `LEASE_S`, another may
take the lease with a greater epoch. Every writing transaction checks and locks the epoch.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from aggregator.ports import StorageFailed
from aggregator.storage.engine import database_name, is_server
from aggregator.storage.schema import LEASES, opened
from wire.errors import ConfigError, OtherAggregator

log = logging.getLogger("shoal.aggregator")

BEAT_S = 1.0
"""Seconds between two signs of life in the database."""
LEASE_S = 5.0
"""Seconds without a sign of life after which a lease is free."""


Row = sql.Row[tuple[Any, ...]]
"""Row of a lease."""


class LeaseLost(OtherAggregator):
    """Another service of this database has taken over; this one may start again, and wait."""

    exit_status = 4


class FleetLease:
    """Lease on a fleet from the view of one service.

    One thread uses it; another thread, which it starts, gives the signs of life. No clock is
    compared with another machine's. A service that was stopped or cut off cannot write when it
    comes back.
    """

    def __init__(self, url: str, fleet: str, holder: str) -> None:
        """Open the database.

        `holder`: boot id of this start of the service.

        Raises:
            ConfigError: the database cannot be opened, or has another schema.
        """
        self._engine, self._database = opened(url), database_name(url)
        self._fleet, self.name, self._secret = fleet, holder, ""
        self._over, self._lost = threading.Event(), ""
        self._thread = threading.Thread(target=self._give_signs, name="fleet-lease", daemon=True)
        self.epoch = 0
        """Epoch of the lease; 0 before it is taken."""
        self.holder_before = ""

    def take(
        self, known: Collection[str], wait: bool, force: bool, stop: Callable[[], bool]
    ) -> bool:
        """Take the lease, and return True if it was taken.

        It is taken at once if it is free, if its holder is in `known` (earlier starts of this
        service), or with `force`. Otherwise it is taken when its holder has given no sign of life
        for `LEASE_S`. With `wait`, this method waits for that without limit, until `stop` returns
        True.

        Raises:
            OtherAggregator: the holder is alive, and this service does not wait.
            ConfigError: the database cannot be used, or the holder drew noise from another secret.
        """
        has_logged, since_s, last_s = False, 0.0, 0.0
        last_row: Row | None = None
        while not self.epoch and not stop():
            now_s = time.monotonic()
            try:
                with self._engine.connect() as connection:
                    row = connection.execute(
                        sql.select(LEASES).where(LEASES.c.fleet == self._fleet)
                    ).one_or_none()
                if (
                    row != last_row or now_s - last_s > 2 * BEAT_S
                ):  # restart the wait: this process was stopped, or the database was away
                    since_s = now_s
                if (
                    last_row is not None
                    and row is not None
                    and row != last_row
                    and not wait
                    and not force
                ):
                    raise OtherAggregator(
                        f"fleet {self._fleet}: another aggregator is at work, with the same "
                        "database; stop it, or wait for it with --standby"
                    )
                last_row, last_s = row, now_s
                free = row is None or row.holder == "" or row.holder in known or force
                if (free or now_s - since_s >= LEASE_S) and self._replace(row):
                    self.holder_before = row.holder if row else ""
                    self._thread.start()
                    log.info(
                        "Lease taken: fleet=%s epoch=%d database=%s",
                        self._fleet,
                        self.epoch,
                        self._database,
                    )
                    return True
            except SQLAlchemyError as error:
                if not wait:
                    raise ConfigError(
                        f"database {self._database}: not read or written: "
                        f"{str(getattr(error, 'orig', None) or error).splitlines()[0]}"
                    ) from None
                last_s = 0.0
                problem, database = str(error).splitlines()[0], self._database
                log.warning("Lease not read, trying again: database=%s: %s", database, problem)
            if not has_logged:
                log.info(
                    "Waiting for the lease of another aggregator: fleet=%s database=%s",
                    self._fleet,
                    self._database,
                )
                has_logged = True
            self._over.wait(BEAT_S / 2)
        return bool(self.epoch)

    def fence(self, connection: sql.Connection) -> None:
        """Check the lease, and lock it until the end of this transaction.

        Raises:
            StorageFailed: another service has taken the lease.
        """
        query = (
            sql.select(LEASES.c.epoch)
            .where(LEASES.c.fleet == self._fleet)
            .with_for_update(read=True)
        )
        if (epoch := connection.scalar(query)) != self.epoch:
            self._lost = (
                f"another aggregator has taken the lease of the fleet (epoch {epoch}, this one "
                f"had {self.epoch}): this one ends"
            )
            raise StorageFailed(f"database {self._database}: {self._lost}")

    def holds(self) -> bool:
        """Return True if this service has the lease now."""
        try:
            with self._engine.begin() as connection:
                self.fence(connection)
        except (SQLAlchemyError, StorageFailed) as error:
            log.warning("Lease not confirmed: %s", str(error).splitlines()[0])
            return False
        return True

    def is_lost(self) -> bool:
        """Return False, so that the call can stand in a loop's condition.

        Raises:
            LeaseLost: another service has taken the lease.
        """
        if self._lost:
            raise LeaseLost(f"fleet {self._fleet}: {self._lost}")
        return False

    def share(self, secret: bytes) -> None:
        """Let only services with this secret, or without any secret, take over the lease.

        A service has to know the noise that its predecessor has drawn.
        """
        self._secret = hashlib.sha256(b"shared secret" + secret).hexdigest() if secret else ""

    def close(self) -> None:
        """Give the lease back, so that another service may take it at once."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            if self.epoch and not self._lost:
                with self._engine.begin() as connection:
                    connection.execute(self._of(self.epoch).values(holder=""))
        except SQLAlchemyError as error:
            log.warning(
                "Lease not given back, so the next aggregator waits: wait_s=%.0f: %s",
                LEASE_S,
                str(error).splitlines()[0],
            )
        self._engine.dispose()

    def _replace(self, row: Row | None) -> bool:
        """Put this service in place of the holder in `row`; False if the row has changed since.

        Raises:
            ConfigError: the holder drew noise from another secret.
        """
        if row and row.secret and self._secret and row.secret != self._secret:
            raise ConfigError(
                "secret.key: differs from the key with which the service that had the lease drew "
                "noise; copy that service's secret.key into this folder"
            )
        epoch = max(int(time.time()), row.epoch + 1 if row else 1)
        new = {
            "epoch": epoch,
            "holder": self.name,
            "beat": 0,
            "secret": self._secret or (row.secret if row else ""),
        }
        with self._engine.begin() as connection:
            if row is None:
                try:
                    connection.execute(LEASES.insert().values(fleet=self._fleet, **new))
                except IntegrityError:
                    return False
            elif connection.execute(self._of(row.epoch).values(**new)).rowcount != 1:
                return False
        self.epoch = epoch
        return True

    def _of(self, epoch: int) -> sql.Update:
        return LEASES.update().where(LEASES.c.fleet == self._fleet, LEASES.c.epoch == epoch)

    def _give_signs(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                with self._engine.begin() as connection:
                    if (
                        connection.execute(
                            self._of(self.epoch).values(beat=LEASES.c.beat + 1)
                        ).rowcount
                        == 1
                    ):
                        continue
                self._lost = (
                    "another aggregator has taken the lease of the fleet (this one had epoch "
                    f"{self.epoch}): this one ends"
                )
                log.error("Lease lost: %s", self._lost)
                return
            except SQLAlchemyError as error:
                problem = str(error).splitlines()[0]
                log.warning("Lease not renewed: database=%s: %s", self._database, problem)


def open_lease(database: str, fleet: str, holder: str, standby: bool) -> FleetLease | None:
    """Return the lease on a fleet, or None for an SQLite file, which services cannot share.

    Raises:
        ConfigError: `standby` is True and the database has no lease.
    """
    if is_server(database):
        return FleetLease(database, fleet, holder)
    if standby:
        raise ConfigError(
            "--standby needs a PostgreSQL database that the services share, got "
            f"{database_name(database)}"
        )
    return None
