"""Carries out an operator's orders on devices; where this folder enrols them, at the broker too."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from aggregator.core.eligibility import read_rule
from aggregator.core.registry import NOBODY
from aggregator.enrolment.authority import CERTIFICATE
from aggregator.enrolment.desk import ban, forget
from aggregator.operator.desk import Handler
from aggregator.service.forgetting import REMAINS, forgotten
from aggregator.service.runner import Runner
from aggregator.storage.blob_bucket import open_blobs
from aggregator.storage.engine import sqlite_url
from aggregator.storage.enrolment_store import EnrolmentStore, open_enrolments
from aggregator.storage.sql_store import SqlStore, run_names
from aggregator.transfer.offered import needed
from algorithms.composition import make_algorithm, read_algorithm
from wire.errors import ConfigError


class DeviceOrders:
    """Carries out orders on devices. What it did is safe when it returns."""

    def __init__(self, runner: Runner, folder: Path, database: str, blobs: str = "") -> None:
        """`runner`: runs campaigns in this process; the other runs of the database lie still.
        `database`: its URL. `blobs`: as `aggregator.storage.blob_bucket.open_blobs` takes it."""
        self._runner, self._devices = runner, runner.devices
        self._folder, self._database, self._blobs = folder, database, blobs
        self._enrolments = "" if database == sqlite_url(folder / "shoal.db") else database
        self.handlers: dict[str, Handler] = {
            "tag-devices": partial(self._tag, True),
            "untag-devices": partial(self._tag, False),
            "ban-device": partial(self._ban, True),
            "unban-device": partial(self._ban, False),
            "forget-device": self._forget,
        }
        """Handlers by the names of their orders."""

    def _tag(
        self, has: bool, device_ids: tuple[str, ...], tags: tuple[str, ...], where: str = ""
    ) -> str:
        """Give devices tags beside others, or take tags away from them: those of these ids, or
        those that a rule means.

        Raises:
            ConfigError: the order names devices neither by ids nor by a rule, or by both, or the
            rule cannot be read or means no device.
        """
        if bool(device_ids) == bool(where):
            raise ConfigError("name devices either by their ids or with --where RULE")
        ids = tuple(device_ids)
        if where:
            means, known = read_rule(where).means, self._devices.entries
            ids = tuple(sorted(name for name, entry in known.items() if means(name, entry)))
            if not ids:
                raise ConfigError(f"--where {where!r}: it means no device")
        if has:
            self._devices.tag(ids, tags)
        else:
            self._devices.untag(ids, tags)
        change = "tagged" if has else "without"
        self._runner.tell_devices()
        devices = f"device {ids[0]}" if len(ids) == 1 else f"{len(ids)} devices"
        return f"{devices} {change} {', '.join(tags)}"

    def _ban(self, banned: bool, device_id: str, reason: str = "") -> str:
        """Ban a device, here and at the broker, or lift its ban."""
        if banned:
            self._devices.ban(device_id, reason)
        else:
            self._devices.unban(device_id)
        self._at_the_broker(partial(ban, lifted=not banned), device_id)
        self._runner.tell_devices()
        if banned:
            return (
                f"device {device_id} is banned: nothing of it is taken, and it is asked for nothing"
            )
        return f"device {device_id} is banned no longer; it takes part when it is heard"

    def _forget(self, device_id: str) -> str:
        """Forget a device everywhere.

        Raises:
            BlobLost, StorageFailed: something of it may remain; the order can be given again.
        """
        self._runner.forget(device_id)
        for run in run_names(self._database):
            if run in self._runner.campaigns:
                continue
            blobs = open_blobs(self._blobs, self._folder, run)
            with closing(SqlStore(self._database, run)) as store:
                before = store.load()
                if before is None:
                    continue
                algorithm = make_algorithm(read_algorithm(before.settings.algorithm))
                group, needless, views = forgotten(
                    before, store, algorithm, blobs, device_id, before.at_s
                )
                store.commit([event for event, _ in group.steps], group.records, group.state)
                # also what an order before this one, which was cut off, has left
                blobs.keep(needed(group.state) | views)
                blobs.drop(needless)
        self._at_the_broker(forget, device_id)
        banned = self._devices.is_banned(device_id)
        was_known = self._devices.entry(device_id) is not NOBODY
        self._devices.forget(device_id)
        if not was_known:
            return f"device {device_id} is not known: nothing of it was in the registry; {REMAINS}"
        back = "; if it is not switched off or banned, it comes back as a new device"
        if (self._folder / CERTIFICATE).exists():
            back += ", until its certificate ends: then it needs another token"
        kept = "; its ban stays, with its id" if banned else back
        return f"device {device_id} is forgotten; {REMAINS}{kept}"

    def _at_the_broker(self, act: Callable[[EnrolmentStore, str], None], device_id: str) -> None:
        """Have the broker and the enrolment do the same, where this folder enrols devices."""
        if (self._folder / CERTIFICATE).exists():
            with closing(open_enrolments(self._folder, self._enrolments)) as store:
                act(store, device_id)
