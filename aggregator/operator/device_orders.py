"""An operator's orders on devices, for a running service (`aggregator.operator.desk`) and for a folder
without one."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from aggregator.core.registry import NOBODY
from aggregator.enrolment.authority import CERTIFICATE
from aggregator.enrolment.desk import forget, restore, revoke
from aggregator.operator.desk import Handler
from aggregator.service.devices import Devices
from aggregator.service.forgetting import REMAINS, forgotten
from aggregator.service.runner import Runner
from aggregator.storage.choice import open_blobs
from aggregator.storage.engine import sqlite_url
from aggregator.storage.enrolment_store import EnrolmentStore, open_enrolments
from aggregator.storage.sql_store import SqlStore, run_names
from aggregator.transfer.offers import needed
from algorithms.registry import make_algorithm, read_algorithm


class TagDevices(msgspec.Struct, frozen=True, tag="tag-devices"):
    """These devices are to have these tags beside others."""

    device_ids: tuple[str, ...]
    tags: tuple[str, ...]


class UntagDevices(msgspec.Struct, frozen=True, tag="untag-devices"):
    """These devices are not to have these tags."""

    device_ids: tuple[str, ...]
    tags: tuple[str, ...]


class BanDevice(msgspec.Struct, frozen=True, tag="ban-device"):
    """Nothing of this device is to be taken, and it is to be asked for nothing."""

    device_id: str
    reason: str


class UnbanDevice(msgspec.Struct, frozen=True, tag="unban-device"):
    """The device is to take part again."""

    device_id: str


class ForgetDevice(msgspec.Struct, frozen=True, tag="forget-device"):
    """Nothing of this device is to remain."""

    device_id: str


class DeviceOrders:
    """Carries out orders on devices. What it did is safe when it returns."""

    def __init__(
        self,
        devices: Devices,
        folder: Path,
        database: str,
        blobs: str = "",
        runner: Runner | None = None,
    ) -> None:
        """`database`: its URL. `blobs`: as in `aggregator.storage.choice.open_blobs`. `runner`: runs
        campaigns in this process; the other runs of the database lie still."""
        self._devices, self._folder, self._database, self._blobs, self._runner = (
            devices,
            folder,
            database,
            blobs,
            runner,
        )
        self._enrolments = "" if database == sqlite_url(folder / "shoal.db") else database

    @property
    def handlers(self) -> dict[type, Handler]:
        """For a desk."""
        return {
            TagDevices: self.tag,
            UntagDevices: self.untag,
            BanDevice: self.ban,
            UnbanDevice: self.unban,
            ForgetDevice: self.forget,
        }

    def tag(self, order: TagDevices) -> str:
        self._devices.tag(order.device_ids, order.tags)
        self._tell()
        return f"{_count(order.device_ids)} tagged {', '.join(order.tags)}"

    def untag(self, order: UntagDevices) -> str:
        self._devices.untag(order.device_ids, order.tags)
        self._tell()
        return f"{_count(order.device_ids)} without {', '.join(order.tags)}"

    def ban(self, order: BanDevice) -> str:
        self._devices.ban(order.device_id, order.reason)
        self._at_the_broker(revoke, order.device_id)
        self._tell()
        return (
            f"device {order.device_id} is banned: nothing of it is taken, and it is asked for "
            "nothing"
        )

    def unban(self, order: UnbanDevice) -> str:
        self._devices.unban(order.device_id)
        self._at_the_broker(restore, order.device_id)
        self._tell()
        return f"device {order.device_id} is banned no longer; it takes part when it is heard"

    def forget(self, order: ForgetDevice) -> str:
        """
        Raises:
            BlobLost, StorageFailed: something of it may remain; the order can be given again.
        """
        if self._runner is not None:
            self._runner.forget(order.device_id)
        running = self._runner.campaigns if self._runner is not None else {}
        for run in run_names(self._database):
            if run not in running:
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

    def _tell(self) -> None:
        """Tell the campaigns who may be asked now. One that is paused takes it in when it goes
        on."""
        if self._runner is not None:
            self._runner.tell_devices()

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


def _count(device_ids: tuple[str, ...]) -> str:
    return f"device {device_ids[0]}" if len(device_ids) == 1 else f"{len(device_ids)} devices"
