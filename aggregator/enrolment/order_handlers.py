"""Carries out an operator's orders on devices; where this folder enrols them, at the broker too."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from aggregator.core.eligibility import read_rule
from aggregator.core.registry import NOBODY
from aggregator.enrolment.authority import CERTIFICATE
from aggregator.enrolment.desk import ban, forget
from aggregator.operator.desk import (
    BanDevice,
    ForgetDevice,
    Handler,
    TagDevices,
    UnbanDevice,
    UntagDevices,
)
from aggregator.service.forgetting import REMAINS, forgotten
from aggregator.service.runner import Runner
from aggregator.storage.choice import open_blobs
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
        `database`: its URL. `blobs`: as `aggregator.storage.choice.open_blobs` takes it."""
        self._runner, self._devices = runner, runner.devices
        self._folder, self._database, self._blobs = folder, database, blobs
        self._enrolments = "" if database == sqlite_url(folder / "shoal.db") else database
        self.handlers: dict[type, Handler] = {
            TagDevices: self.tag,
            UntagDevices: self.tag,
            BanDevice: self.ban,
            UnbanDevice: self.ban,
            ForgetDevice: self.forget,
        }
        """By type of order."""

    def tag(self, order: TagDevices | UntagDevices) -> str:
        """Give devices tags, or take tags away from them.

        Raises:
            ConfigError: the order names devices neither by ids nor by a rule, or by both, or the
            rule cannot be read or means no device.
        """
        if bool(order.device_ids) == bool(order.where):
            raise ConfigError("name devices either by their ids or with --where RULE")
        ids = order.device_ids
        if order.where:
            means, known = read_rule(order.where).means, self._devices.state.devices
            ids = tuple(sorted(name for name, entry in known.items() if means(name, entry)))
            if not ids:
                raise ConfigError(f"--where {order.where!r}: it means no device")
        if isinstance(order, TagDevices):
            self._devices.tag(ids, order.tags)
            change = "tagged"
        else:
            self._devices.untag(ids, order.tags)
            change = "without"
        self._runner.tell_devices()
        devices = f"device {ids[0]}" if len(ids) == 1 else f"{len(ids)} devices"
        return f"{devices} {change} {', '.join(order.tags)}"

    def ban(self, order: BanDevice | UnbanDevice) -> str:
        """Ban a device, here and at the broker, or lift its ban."""
        lifted = isinstance(order, UnbanDevice)
        if isinstance(order, BanDevice):
            self._devices.ban(order.device_id, order.reason)
        else:
            self._devices.unban(order.device_id)
        self._at_the_broker(partial(ban, lifted=lifted), order.device_id)
        self._runner.tell_devices()
        device = f"device {order.device_id} is banned"
        if lifted:
            return f"{device} no longer; it takes part when it is heard"
        return f"{device}: nothing of it is taken, and it is asked for nothing"

    def forget(self, order: ForgetDevice) -> str:
        """
        Raises:
            BlobLost, StorageFailed: something of it may remain; the order can be given again.
        """
        self._runner.forget(order.device_id)
        for run in run_names(self._database):
            if run not in self._runner.campaigns:
                self._forget_in(run, order.device_id)
        self._at_the_broker(forget, order.device_id)
        banned, was_known = (
            self._devices.is_banned(order.device_id),
            self._devices.entry(order.device_id) is not NOBODY,
        )
        self._devices.forget(order.device_id)
        if not was_known:
            return (
                f"device {order.device_id} is not known: nothing of it was in the registry; "
                f"{REMAINS}"
            )
        back = "; if it is not switched off or banned, it comes back as a new device"
        if (self._folder / CERTIFICATE).exists():
            back += ", until its certificate ends: then it needs another token"
        kept = "; its ban stays, with its id" if banned else back
        return f"device {order.device_id} is forgotten; {REMAINS}{kept}"

    def _at_the_broker(self, act: Callable[[EnrolmentStore, str], None], device_id: str) -> None:
        """Have the broker and the enrolment do the same, where this folder enrols devices."""
        if (self._folder / CERTIFICATE).exists():
            with closing(open_enrolments(self._folder, self._enrolments)) as store:
                act(store, device_id)

    def _forget_in(self, run: str, device_id: str) -> None:
        store, blobs = SqlStore(self._database, run), open_blobs(self._blobs, self._folder, run)
        try:
            before = store.load()
            if before is None:
                return
            algorithm = make_algorithm(read_algorithm(before.settings.algorithm))
            found = forgotten(before, store, algorithm, blobs, device_id, before.at_s)
            store.commit(
                [event for event, _ in found.group.steps], found.group.records, found.group.state
            )
            blobs.keep(
                needed(found.group.state) | found.views
            )  # also what an order before this one, which was cut off, has left
            blobs.drop(found.needless)
        finally:
            store.close()
