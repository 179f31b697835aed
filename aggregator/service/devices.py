"""The registry of a running service: what messages say of devices, what operators order, and who
may be asked.

An order is safe when it returns. Telemetry is written together, every `SAVE_EVERY_S` seconds and at
a stop: a kill loses what came since, which devices say again when they check in at the next start.
Lost then are counts of these seconds (`Entry.updates`, `Entry.declines`) and changes of group. What
devices keep is taken from their runs again, and tags and bans are never lost
(`tests/aggregator/test_devices.py`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from immutables import Map
from msgspec.structs import replace

from aggregator.core import registry as core
from aggregator.core.eligibility import read_rule
from aggregator.core.ports import Clock, StorageFailed
from aggregator.core.registry import MOST_TAGS, NOBODY, Ban, Entry, GroupChange, Training
from aggregator.core.round.asking import all_placed, groups_of, placed_of
from aggregator.core.round.closings import left_of
from aggregator.core.state import (
    DeviceBarred,
    DeviceCheckedIn,
    DeviceLost,
    EligibilityChanged,
    Event,
    KeptChanged,
    Placed,
    RoundAggregated,
    RunState,
    Says,
    UpdateAdmitted,
)
from algorithms.personalisation.kept import Kept
from wire.errors import ConfigError, ShoalError
from wire.messages import CheckIn, Decline, Policy, Update
from wire.topics import check_name

if TYPE_CHECKING:  # simulations have no database, and load none of what it needs
    from aggregator.storage.registry_table import RegistryTable

log = logging.getLogger("shoal.aggregator")

SAVE_EVERY_S = 10.0


class Devices:
    """Keeps the registry. One thread writes; `entries` is replaced as a whole, so that others may
    read it."""

    def __init__(
        self,
        store: "RegistryTable | None",
        clock: Clock,
        tags: Callable[[str], tuple[str, ...]] = lambda _device_id: (),
    ) -> None:
        """`store`: None for a registry that lives as long as the process. `tags`: those that a
        device has from its enrolment, when it is here for the first time.

        Raises:
            StorageFailed: the registry cannot be read.
        """
        self._store, self._clock, self._first_tags = store, clock, tags
        stored = store.load() if store is not None else {}
        self.entries = Map({d: core.away(entry) for d, entry in stored.items()})
        """Every device's entry, by id."""
        self._unsaved: set[str] = set()
        self._unseen: dict[str, set[str]] = {}
        """By run, the devices that have changed since it was last told who is eligible."""
        self._changed: set[str] = set()
        self._rules: dict[str, str] = {}
        self._save_at_s = clock() + SAVE_EVERY_S
        self.declined: dict[str, int] = {}
        """Plans that were declined since the service was started, by reason."""

    def entry(self, device_id: str) -> Entry:
        """What is known of a device."""
        return self.entries.get(device_id, NOBODY)

    def is_banned(self, device_id: str) -> bool:
        """Whether everything that comes from the device is refused."""
        return self.entry(device_id).ban is not None

    def may_be_asked(self, device_id: str, rule: str) -> bool:
        """Whether a run with this rule may ask a device for anything."""
        entry = self.entry(device_id)
        return _takes_part(entry) and read_rule(rule).means(device_id, entry)

    def observe(self, before: RunState, event: Event, run: RunState) -> None:
        """Take in what a run was told, which was in the state `before`."""
        if (
            run.phase == "finished" != before.phase
        ):  # what was said in its evaluation may count only now
            self._unseen.setdefault(run.settings.run_id, set()).update(run.received)
        match event:
            case DeviceLost(_, device_id):
                if device_id in self.entries:
                    self.change(device_id, online=False)
            case DeviceCheckedIn(device_id=device_id):
                entry, own = self.entry(device_id), placed_of(run, device_id)
                if own is not None:
                    self._regroup(run, run.round, {device_id: own.group}, {device_id: own})
                elif entry.placed is not None and entry.groups[-1].campaign == run.settings.name:
                    # it has labels enough to train now
                    self._regroup(run, run.round, {device_id: run.starts.get(device_id, "")}, {})
                self._unkeep(before, run, [device_id])
            case KeptChanged(devices=devices):
                self._unkeep(before, run, devices)
            case UpdateAdmitted(placed=Placed() as own):
                device_id = event.device_id
                self._regroup(run, run.round, {device_id: own.group}, {device_id: own})
            case RoundAggregated() if event.starts:
                placed = all_placed(run)
                groups = groups_of(run, placed)
                everybody = {device_id: groups.get(device_id, "") for device_id in self.entries}
                self._regroup(run, event.round, everybody, placed)

    def _regroup(
        self,
        run: RunState,
        number: int,
        groups: Mapping[str, str],
        placed: Mapping[str, Placed],
    ) -> None:
        """Note the groups in which a run has devices since a round; empty for none.

        `number`: the round's. `groups`: by device. `placed` as `all_placed` returns it."""
        of_run = self._clock(), run.settings.name, number
        changed = dict[str, Entry]()
        for device_id, group in groups.items():
            entry = self.entry(device_id)
            after = core.regrouped(entry, GroupChange(*of_run, group), placed.get(device_id))
            if after is not entry:
                changed[device_id] = after
        self._put(changed)

    def _unkeep(self, before: RunState, run: RunState, device_ids: Iterable[str]) -> None:
        """Note which of these devices no longer hold what they had chosen to keep of this run's
        model."""
        for device_id in device_ids:
            kept = self.entry(device_id).kept
            has_lost = device_id in before.received and device_id not in run.received
            if has_lost and kept is not None and kept.campaign == run.settings.name:
                self.change(device_id, kept=None)

    def changed(self) -> set[str]:
        """The devices of which something else is known than when this was asked last."""
        changed, self._changed = self._changed, set()
        return changed

    def tell(
        self,
        run: RunState,
        dispatch: Callable[..., bool],
        gives: Callable[[str], bool] = lambda _device_id: True,
    ) -> bool:
        """Have a run take in what there is to be told of who may be asked, and of what devices hold
        and may say. `gives`: true if a device has this run's models, if it is over: of earlier
        ones' it keeps something for a while only. Returns false if that was not saved; then it is
        told again."""
        rule, name = run.settings.where, run.settings.run_id
        if self._rules.get(name) != rule:
            self._rules[name], self._unseen[name] = rule, set(run.devices)
        looked, self._unseen[name] = self._unseen[name], set()
        found: dict[bool, list[str]] = {True: [], False: []}
        events: list[EligibilityChanged | DeviceBarred | KeptChanged] = []
        says = dict[str, Says]()
        for device_id in sorted(looked & run.received.keys()):
            # what it has said when it checked in, with whichever run, if that takes back something
            # that this one has been told
            said = self.entry(device_id).said
            if said is not None:
                policy = said.policy or Policy()
                held = said.kept if said.kept is not None and gives(device_id) else None
                now = Says(held, policy.withholds, policy.min_windows)
                if left_of(run, device_id, now) != run.received[device_id]:
                    says[device_id] = now
        if says:
            events.append(KeptChanged(self._clock(), says))
        for device_id in sorted(looked):
            known = run.devices.get(device_id)
            if known is None:
                continue
            if self.is_banned(device_id):
                events += [] if known.barred else [DeviceBarred(self._clock(), device_id)]
            elif (may := self.may_be_asked(device_id, rule)) != known.eligible or known.barred:
                found[may].append(device_id)
        changed = EligibilityChanged(self._clock(), tuple(found[True]), tuple(found[False]))
        events += [changed] if any(found.values()) else []
        if events and not dispatch(*events):
            self._rules.pop(name, None)
            return False
        return True

    # What messages say.

    def on_check_in(self, said: CheckIn) -> None:
        """A device says what it is and how it is."""
        device_id, entry = said.device_id, self.entry(said.device_id)
        self._put({device_id: core.checked_in(entry, said, self._clock())})
        if entry.said is not None:
            return
        try:
            if tags := self._first_tags(device_id):
                self.tag([device_id], tags)
        except ShoalError as error:
            log.error("device=%s has not got the tags of its enrolment: %s", device_id, error)

    def on_heard(self, device_id: str) -> None:
        """Something came from a device. It changes nothing but the time, so that it is not written
        for this alone."""
        if (entry := self.entries.get(device_id)) is not None:
            heard = replace(entry, last_seen_s=self._clock(), online=True)
            self.entries = self.entries.set(device_id, heard)

    def on_decline(self, decline: Decline, campaign: str, detail: str) -> None:
        """A device does not carry out a plan. `detail`: its own, made safe to print."""
        self.declined[decline.reason] = self.declined.get(decline.reason, 0) + 1
        last = core.Decline(self._clock(), campaign, decline.round, decline.reason, detail)
        declines = self.entry(decline.device_id).declines + 1
        self.change(decline.device_id, decline=last, declines=declines)

    def on_update(self, update: Update, bytes_up: int, chooses: bool = False) -> None:
        """A device's update was taken. `chooses`: True if it was asked what it keeps."""
        entry = self.entry(update.device_id)
        training = Training(
            update.trained.num_examples,
            update.train_s,
            max(0.0, self._clock() - entry.asked_s) if entry.asked_s else 0.0,
            bytes_up,
            update.bytes_received,
        )
        self._put({update.device_id: core.reported(entry, training, chooses)})

    def on_kept(self, device_id: str, campaign: str, number: int, kept: Kept) -> None:
        """A device says what it keeps after the last round of a campaign, and why."""
        entry = self.entry(device_id)
        self._put({device_id: core.keeping(entry, self._clock(), campaign, number, kept)})

    def on_models(self, run: RunState, device_id: str, released: bool) -> None:
        """A device has its model of a run that is over: what it keeps of that is what the run
        knows, which has it safe. `released`: devices get models to use as releases, so that it may
        still use another one with what it has kept of that."""
        received = run.received.get(device_id)
        kept = received.kept if received is not None else None
        entry = self.entry(device_id)
        if entry is not NOBODY and (kept is not None or not released):
            at_s = self._clock() if run.ended_at_s is None else run.ended_at_s
            after = core.keeping(entry, at_s, run.settings.name, run.round, kept)
            if after is not entry:
                self._put({device_id: after})

    # What operators order. Each is safe when it returns, or raises `StorageFailed` and has not
    # happened.

    def tag(self, device_ids: Iterable[str], tags: Iterable[str]) -> None:
        """Add tags to devices, which need not have been here.

        Raises:
            ConfigError: a name is none, or a device would have too many tags.
        """
        tagged, chosen = dict[str, Entry](), _names(tags, "tag")
        for device_id in _names(device_ids, "device id"):
            entry = self.entry(device_id)
            own = tuple(sorted({*entry.tags, *chosen}))
            if len(own) > MOST_TAGS:
                raise ConfigError(f"device {device_id}: it would have more than {MOST_TAGS} tags")
            tagged[device_id] = replace(entry, tags=own)
        self._order(tagged)

    def untag(self, device_ids: Iterable[str], tags: Iterable[str]) -> None:
        """Take tags away from devices."""
        chosen = _names(tags, "tag")
        known = {d: self.entries.get(d) for d in _names(device_ids, "device id")}
        self._order(
            {
                d: replace(entry, tags=tuple(tag for tag in entry.tags if tag not in chosen))
                for d, entry in known.items()
                if entry is not None
            }
        )

    def ban(self, device_id: str, reason: str) -> None:
        """Refuse everything of a device from now on. A device that is banned stays so since then,
        for this reason."""
        entry = self.entry(check_name(device_id, "device id"))
        since_s = entry.ban.since_s if entry.ban else self._clock()
        self._order({device_id: replace(entry, ban=Ban(since_s, reason), online=False)})

    def unban(self, device_id: str) -> None:
        """End a ban.

        Raises:
            ConfigError: the device is not banned.
        """
        if not self.is_banned(device_id):
            raise ConfigError(f"device {device_id}: it is not banned")
        self._order({device_id: replace(self.entry(device_id), ban=None)})

    def forget(self, device_id: str) -> None:
        """Delete a device's entry; of one that is banned, all but the ban. What was deleted is
        overwritten."""
        entry = self.entry(device_id)
        self._order({device_id: Entry(ban=entry.ban) if entry.ban else None})
        if self._store is not None:
            self._store.scrub()

    def withdraw(self, device_id: str) -> None:
        """Note that a device's owner agrees no longer: it is asked for nothing until it checks in
        again. Safe when it returns.

        Raises:
            StorageFailed: it is not noted.
        """
        entry = self.entries.get(device_id)
        if entry is not None and not entry.withdrawn_s:
            self._order({device_id: replace(entry, withdrawn_s=self._clock(), online=False)})

    def tick(self) -> None:
        """Write telemetry if it is time to. What cannot be written now is written later."""
        if self._clock() >= self._save_at_s:
            self._save_at_s = self._clock() + SAVE_EVERY_S
            try:
                self.save()
            except StorageFailed as error:
                log.warning("%s; it is tried again", error)

    def save(self) -> None:
        """Write what has changed since the last time.

        Raises:
            StorageFailed: nothing was written.
        """
        if self._store is not None:
            self._store.save({d: self.entries[d] for d in self._unsaved if d in self.entries})
        self._unsaved.clear()

    def change(self, device_id: str, **changes: object) -> None:
        """Take in what becomes of a device: other values of fields of its entry."""
        self._put({device_id: replace(self.entry(device_id), **changes)})

    def _put(self, entries: Mapping[str, Entry | None]) -> None:
        """Take in these entries together; None: the device has none any more."""
        with self.entries.mutate() as after:
            for device_id, entry in entries.items():
                if entry is not None:
                    after[device_id] = entry
                else:
                    after.pop(device_id, None)
            self.entries = after.finish()
        for noted in (self._unsaved, self._changed, *self._unseen.values()):
            noted.update(entries)

    def _order(self, entries: Mapping[str, Entry | None]) -> None:
        """Write these entries, and take them in then."""
        if self._store is not None:
            there = {d: entry for d, entry in entries.items() if entry is not None}
            self._store.save(there, entries.keys() - there.keys())
        self._put(entries)


def _takes_part(entry: Entry) -> bool:
    return entry.ban is None and not entry.withdrawn_s


def _names(values: Iterable[str], what: str) -> list[str]:
    return [check_name(value, what) for value in dict.fromkeys(values)]
