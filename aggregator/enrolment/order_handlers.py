"""Handlers of an operator's orders on devices, in the registry and at the broker."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from aggregator.aggregation.forgetting import REMAINS
from aggregator.enrolment import desk
from aggregator.enrolment.authority import CERTIFICATE
from aggregator.operator import device_orders
from aggregator.operator.desk import Handler
from aggregator.service.runner import Runner
from aggregator.storage.engine import sqlite_url
from aggregator.storage.enrolment_store import EnrolmentStore, open_enrolments


class DeviceOrders:
    """Handlers of orders on devices. The effects of an order are durable when it returns."""

    def __init__(self, runner: Runner, folder: Path, database: str) -> None:
        """Set up the handlers.

        `database`: URL of the service's database.
        """
        self._runner, self._folder = runner, folder
        self._enrolments = "" if database == sqlite_url(folder / "shoal.db") else database
        self.handlers: dict[str, Handler] = {
            "tag-devices": partial(self._tag, True),
            "untag-devices": partial(self._tag, False),
            "ban-device": self._ban,
            "unban-device": self._unban,
            "forget-device": self._forget,
        }
        """Handlers by names of their orders."""

    def _tag(
        self, adds: bool, device_ids: tuple[str, ...], tags: tuple[str, ...], where: str = ""
    ) -> str:
        """Add tags to devices, or remove tags from them, and return the answer to the operator.

        Raises:
            ConfigError: devices are named by neither or both of ids and rule, the rule cannot be
            read or matches no device, or a tag or an id is not a valid name.
        """
        fleet, now_s = self._runner.fleet, self._runner.now_s
        names = device_orders.named(fleet, device_ids, where)
        change = device_orders.tag if adds else device_orders.untag
        self._runner.order(*change(fleet, names, tags, now_s))
        devices = f"device {names[0]}" if len(names) == 1 else f"{len(names)} devices"
        return f"{devices} {'tagged' if adds else 'without'} {', '.join(tags)}"

    def _ban(self, device_id: str, reason: str = "") -> str:
        """Ban a device, in the registry and at the broker."""
        device = self._runner.fleet.devices.get(device_id)
        events = device_orders.ban(self._runner.fleet, device_id, reason, self._runner.now_s)
        self._runner.order(*events)
        self._at_the_broker(desk.ban, device_id)
        hint = (
            "; no device of this id was ever here: `shoal devices list` has the ids, and `shoal "
            "devices unban` lifts the ban"
        )
        return (
            f"device {device_id} is banned: nothing of it is taken, and it is asked for nothing"
            + (hint if device is None or device.facts is None else "")
        )

    def _unban(self, device_id: str) -> str:
        """Lift the ban of a device, in the registry and at the broker.

        The refusal of a second device with this id ends too.
        """
        events = device_orders.unban(self._runner.fleet, device_id, self._runner.now_s)
        self._runner.order(*events)
        self._at_the_broker(partial(desk.ban, lifted=True), device_id)
        return f"device {device_id} is not refused any more; it takes part when it checks in"

    def _forget(self, device_id: str) -> str:
        """Delete everything about a device: registry, blobs and enrolment.

        Raises:
            BlobLost, StorageFailed: data of the device may remain; the order can be given again.
        """
        device = self._runner.fleet.devices.get(device_id)
        self._runner.forget(device_id)
        self._at_the_broker(desk.forget, device_id)
        if device is None:
            return f"device {device_id} is not known: nothing of it was in the registry; {REMAINS}"
        back = "; if it is not switched off or banned, it comes back as a new device"
        if (self._folder / CERTIFICATE).exists():
            back += ", until its certificate ends: then it needs another token"
        remark = "; its ban stays, with its id" if device.ban is not None else back
        return f"device {device_id} is forgotten; {REMAINS}{remark}"

    def _at_the_broker(self, act: Callable[[EnrolmentStore, str], None], device_id: str) -> None:
        """Apply a change to the enrolment database, if this folder enrols devices."""
        if (self._folder / CERTIFICATE).exists():
            with closing(open_enrolments(self._folder, self._enrolments)) as store:
                act(store, device_id)
