"""Telemetry of a running service: updated in memory, written to the database at intervals.

It is written every `SAVE_EVERY_S` seconds and at a stop. A kill loses the changes since. The
fleet's decisions do not depend on telemetry.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from immutables import Map
from msgspec.structs import replace

from aggregator.core.telemetry import (
    NO_TELEMETRY,
    DeviceTelemetry,
    GroupChange,
    LastDecline,
    LastError,
    LastTraining,
    regrouped,
)
from aggregator.fleet.reconcile import NOBODY
from aggregator.fleet.records import Assignment, Device, Fleet
from aggregator.fleet.step import may_do_more
from aggregator.ports import Clock, StorageFailed
from wire.messages import Decline, ErrorReport, Reason, Update

if TYPE_CHECKING:  # simulations must not load the database's modules
    from aggregator.storage.telemetry_table import TelemetryTable

log = logging.getLogger("shoal.aggregator")

SAVE_EVERY_S = 10.0


class Telemetry:
    """Telemetry of devices.

    One thread writes. `records` is replaced as a whole, so that other threads may read it.
    """

    def __init__(self, store: "TelemetryTable | None", clock: Clock) -> None:
        """Load the stored telemetry.

        `store`: None for telemetry that lives as long as the process.

        Raises:
            StorageFailed: the telemetry cannot be read.
        """
        self._store, self._clock = store, clock
        self.records: Map[str, DeviceTelemetry] = Map(store.load() if store is not None else {})
        """Telemetry of every device, by id."""
        self._unsaved: set[str] = set()
        self._save_at_s = clock() + SAVE_EVERY_S
        self.declined: dict[str, int] = {}
        """Number of declined assignments since the service was started, by reason."""

    def of(self, device_id: str) -> DeviceTelemetry:
        """Return the telemetry of a device; empty for an unknown device."""
        return self.records.get(device_id, NO_TELEMETRY)

    # From messages. The caller makes sure that the device is in the fleet.

    def on_heard(self, device_id: str) -> None:
        """Record the time of a message. The change alone is not written to the database."""
        heard = replace(self.of(device_id), heard_s=self._clock())
        self.records = self.records.set(device_id, heard)

    def on_clock(self, device_id: str, at_s: float) -> None:
        """Record a device's clock; 0: it is not reported.

        The change alone is not written to the database.
        """
        off_s = at_s - self._clock() if at_s else 0.0
        self.records = self.records.set(device_id, replace(self.of(device_id), clock_off_s=off_s))

    def on_retained(self, device_id: str) -> None:
        """Record that a message was cleared that the broker retained for the device."""
        self._change(device_id, retained=self.of(device_id).retained + 1)

    def on_decline(self, decline: Decline, campaign: str, detail: str) -> None:
        """Record that a device declined an assignment.

        `detail`: the device's text, made safe to print.
        """
        self.declined[decline.reason] = self.declined.get(decline.reason, 0) + 1
        last = LastDecline(self._clock(), campaign, decline.round, decline.reason, detail)
        self._change(decline.device_id, decline=last)

    def on_refusal(self, device_id: str, work: Assignment, reason: Reason, detail: str) -> None:
        """Record that the update of an assignment was refused for its contents."""
        last = LastDecline(self._clock(), work.campaign, work.round, reason, detail, refused=True)
        self._change(device_id, decline=last)

    def on_error(self, report: ErrorReport) -> None:
        """Record the last error of a device. Its text is made safe to print.

        A device repeats its report after each check-in.
        """
        last = self.of(report.device_id).error
        if last is None or last.report != report:
            error = LastError(self._clock(), report)
            before = self.of(report.device_id).standing_error
            is_same = before is not None and before.key == error.key
            first_s = before.first_s if before is not None and is_same else error.at_s
            self._change(report.device_id, error=replace(error, first_s=first_s))

    def on_update(self, update: Update, device: Device, work: Assignment, bytes_up: int) -> None:
        """Record an admitted update of an assignment."""
        sizes = {"bytes_up": bytes_up, "bytes_down": update.bytes_received}
        changes: dict[str, Any] = {**sizes, "mended_s": self._clock()}
        if work.kind == "train" and update.trained.num_examples:
            changes["training"] = LastTraining(
                examples=update.trained.num_examples,
                train_s=update.train_s,
                answer_s=max(0.0, self._clock() - device.asked_s) if device.asked_s else 0.0,
                **sizes,
            )
        self._change(update.device_id, **changes)

    # From the fleet.

    def observe(self, before: Fleet, after: Fleet, device_ids: Iterable[str]) -> None:
        """Record which of these devices have changed, after the fleet is stored.

        A change is another group, or facts that may end a failure.
        """
        for device_id in device_ids:
            earlier, now = (f.devices.get(device_id, NOBODY).facts for f in (before, after))
            if earlier is not now and earlier and now and may_do_more(earlier, now):
                self._change(device_id, mended_s=after.at_s)
        for campaign in after.campaigns.values():
            past = before.campaigns.get(campaign.name)
            if past is None or past.members is campaign.members:
                continue
            for device_id in device_ids:
                member, former = (c.members.get(device_id) for c in (campaign, past))
                group = member.current_group if member is not None else ""
                if group and group != (former.current_group if former is not None else ""):
                    change = GroupChange(after.at_s, campaign.name, past.round, group)
                    self._put(device_id, regrouped(self.of(device_id), change))

    def forget(self, device_id: str) -> None:
        """Delete the telemetry of a device, and overwrite its data in the database.

        It is called after the fleet has forgotten the device.

        Raises:
            StorageFailed: some of it may remain; call the function again.
        """
        if self._store is not None:
            self._store.save({}, [device_id])
            self._store.scrub()
        self._unsaved.discard(device_id)
        if device_id in self.records:
            self.records = self.records.delete(device_id)

    # To the database.

    def tick(self) -> None:
        """Write the telemetry if it is due. After a failure it is written later."""
        if self._clock() >= self._save_at_s:
            self._save_at_s = self._clock() + SAVE_EVERY_S
            try:
                self.save()
            except StorageFailed as error:
                log.warning("Telemetry not written, trying again later: %s", error)

    def save(self) -> None:
        """Write the changes since the last save.

        Raises:
            StorageFailed: nothing was written.
        """
        if self._store is not None:
            self._store.save({d: self.records[d] for d in self._unsaved})
        self._unsaved.clear()

    def close(self) -> None:
        """Close the database."""
        if self._store is not None:
            self._store.close()

    def _change(self, device_id: str, **changes: Any) -> None:
        self._put(device_id, replace(self.of(device_id), **changes))

    def _put(self, device_id: str, record: DeviceTelemetry) -> None:
        self.records = self.records.set(device_id, record)
        self._unsaved.add(device_id)
