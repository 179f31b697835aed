"""The registry of a running service: what messages say of devices, what operators order, and who
may be asked.

An order is safe when it returns. Telemetry is written together, every `SAVE_EVERY_S` seconds and at
a stop: a kill loses what came since, which devices say again when they check in at the next start.
Lost then are counts of these seconds (`Entry.updates`, `Entry.declines`) and changes of group. What
devices keep is taken from their runs again, and tags and bans are never lost
(`tests/aggregator/test_devices.py`).
"""

import logging
from collections.abc import Callable, Iterable

from immutables import Map

from aggregator.core import registry as core
from aggregator.core.eligibility import read_rule
from aggregator.core.ports import Clock, RegistryStore, StorageFailed
from aggregator.core.registry import MOST_TAGS, NOBODY, Entry
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
from wire.messages import CheckIn, Decline, InUse, Policy, Update
from wire.topics import check_name

log = logging.getLogger("shoal.aggregator")

SAVE_EVERY_S = 10.0


class Devices:
    """Keeps the registry. One thread writes; `state` is replaced as a whole, so that others may
    read it."""

    def __init__(
        self,
        store: RegistryStore,
        clock: Clock,
        tags: Callable[[str], tuple[str, ...]] = lambda _device_id: (),
    ) -> None:
        """`tags`: those that a device has from its enrolment, when it is here for the first time.

        Raises:
            StorageFailed: the registry cannot be read.
        """
        self._store, self._clock, self._first_tags = store, clock, tags
        self.state = core.Registry(Map({d: core.away(entry) for d, entry in store.load().items()}))
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
        return self.state.devices.get(device_id, NOBODY)

    def is_banned(self, device_id: str) -> bool:
        """Whether everything that comes from the device is refused."""
        return self.entry(device_id).ban is not None

    def withholds(self, device_id: str) -> bool:
        """Whether a device's owner does not let it be told what the device keeps."""
        return core.withholds(self.entry(device_id).said)

    def eligible(self, rule: str) -> frozenset[str]:
        """The devices that a rule means, but for those that are banned or whose owners have
        withdrawn.

        Raises:
            ConfigError: not a rule.
        """
        means = read_rule(rule).means
        return frozenset(
            d for d, entry in self.state.devices.items() if _takes_part(entry) and means(d, entry)
        )

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
                self._take(device_id, core.Left(self._clock(), device_id))
            case DeviceCheckedIn(device_id=device_id):
                self._place(run, device_id)
                self._unkeep(before, run, [device_id])
            case KeptChanged(devices=devices):
                self._unkeep(before, run, devices)
            case UpdateAdmitted(placed=Placed() as own):
                name = run.settings.name
                self._take(
                    event.device_id,
                    core.Regrouped(self._clock(), event.device_id, name, run.round, own.group, own),
                )
            case RoundAggregated() if event.starts:
                placed = all_placed(run)
                name, groups = run.settings.name, groups_of(run, placed)
                grouped = core.Grouped(self._clock(), name, event.round, groups, placed)
                entries, self.state = self.state.devices, core.step(self.state, grouped)
                after = self.state.devices.items()
                self._note(d for d, entry in after if entry is not entries.get(d))

    def _place(self, run: RunState, device_id: str) -> None:
        """Note where a run places a device that has come; or that it does no longer: it has labels
        enough to train now."""
        name, entry, placed = run.settings.name, self.entry(device_id), placed_of(run, device_id)
        if placed is not None:
            self._take(
                device_id,
                core.Regrouped(self._clock(), device_id, name, run.round, placed.group, placed),
            )
        elif entry.placed is not None and entry.groups[-1].campaign == name:
            self._take(
                device_id,
                core.Regrouped(
                    self._clock(), device_id, name, run.round, run.starts.get(device_id, "")
                ),
            )

    def _unkeep(self, before: RunState, run: RunState, device_ids: Iterable[str]) -> None:
        """Note which of these devices no longer hold what they had chosen to keep of this run's
        model."""
        for device_id in device_ids:
            kept = self.entry(device_id).kept
            has_lost = device_id in before.received and device_id not in run.received
            if has_lost and kept is not None and kept.campaign == run.settings.name:
                self._take(
                    device_id, core.Keeps(self._clock(), device_id, kept.campaign, kept.round, None)
                )

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
        """Have a run take in what there is to be told (`changes`). Returns whether that was saved;
        if not, it is told again."""
        events = self.changes(run, gives)
        if events and not dispatch(*events):
            self._rules.pop(run.settings.run_id, None)
            return False
        return True

    def changes(
        self, run: RunState, gives: Callable[[str], bool] = lambda _device_id: True
    ) -> list[EligibilityChanged | DeviceBarred | KeptChanged]:
        """What a run is to be told of who may be asked, and of what devices hold and may say.
        `gives`: whether a device has this run's models, if it is over: of earlier ones' it keeps
        something for a while only."""
        rule, name = run.settings.where, run.settings.run_id
        if self._rules.get(name) != rule:
            self._rules[name], self._unseen[name] = rule, set(run.devices)
        looked, self._unseen[name] = self._unseen[name], set()
        found: dict[bool, list[str]] = {True: [], False: []}
        events: list[EligibilityChanged | DeviceBarred | KeptChanged] = []
        if says := {
            d: said
            for d in sorted(looked & run.received.keys())
            if (said := self._says(run, d, gives)) is not None
        }:
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
        return [*events, changed] if any(found.values()) else events

    def _says(self, run: RunState, device_id: str, gives: Callable[[str], bool]) -> Says | None:
        """What a device has said when it checked in, with whichever run, if that takes back
        something that this one has been told."""
        said = self.entry(device_id).said
        if said is None:
            return None
        policy = said.policy or Policy()
        held = said.kept if said.kept is not None and gives(device_id) else None
        says = Says(held, policy.withholds, policy.min_windows)
        return says if left_of(run, device_id, says) != run.received[device_id] else None

    # What messages say.

    def on_check_in(self, said: CheckIn) -> None:
        """A device says what it is and how it is."""
        is_new = self.entry(said.device_id).said is None
        self._take(said.device_id, core.Told(self._clock(), said))
        if is_new:
            self._tag_first(said.device_id)

    def _tag_first(self, device_id: str) -> None:
        try:
            if tags := self._first_tags(device_id):
                self.tag([device_id], tags)
        except ShoalError as error:
            log.error("device=%s has not got the tags of its enrolment: %s", device_id, error)

    def on_heard(self, device_id: str) -> None:
        """Something came from a device. It changes nothing but the time, so that it is not written
        for this alone."""
        self.state = core.step(self.state, core.Seen(self._clock(), device_id))

    def on_plan(self, device_id: str, campaign: str) -> None:
        """A device is given a plan."""
        self._take(device_id, core.Asked(self._clock(), device_id, campaign))

    def on_decline(self, decline: Decline, campaign: str, detail: str) -> None:
        """A device does not carry out a plan. `detail`: its own, made safe to print."""
        self.declined[decline.reason] = self.declined.get(decline.reason, 0) + 1
        event = core.Declined(
            self._clock(), decline.device_id, campaign, decline.round, decline.reason, detail
        )
        self._take(decline.device_id, event)

    def on_update(self, update: Update, bytes_up: int, chooses: bool = False) -> None:
        """A device's update was taken. `chooses`: whether it was asked what it keeps."""
        examples = update.trained.num_examples
        event = core.Reported(
            self._clock(),
            update.device_id,
            update.train_s,
            bytes_up,
            update.bytes_received,
            examples,
            chooses,
        )
        self._take(update.device_id, event)

    def on_kept(self, device_id: str, campaign: str, number: int, kept: Kept) -> None:
        """A device says what it keeps after the last round of a campaign, and why."""
        self._take(device_id, core.Keeps(self._clock(), device_id, campaign, number, kept))

    def on_models(self, run: RunState, device_id: str, released: bool) -> None:
        """A device has its model of a run that is over: what it keeps of that is what the run
        knows, which has it safe. `released`: devices get models to use as releases, so that it may
        still use another one with what it has kept of that."""
        received = run.received.get(device_id)
        kept = received.kept if received is not None else None
        entry = self.entry(device_id)
        if entry is not NOBODY and (kept is not None or not released):
            at_s = self._clock() if run.ended_at_s is None else run.ended_at_s
            event = core.Keeps(at_s, device_id, run.settings.name, run.round, kept)
            if core.step(self.state, event) is not self.state:
                self._take(device_id, event)

    def on_in_use(self, message: InUse) -> None:
        """A device says which release it uses."""
        told = (message.number, message.problem, message.alone)
        self._take(message.device_id, core.ReleaseTaken(self._clock(), message.device_id, *told))

    # What operators order. Each is safe when it returns, or raises `StorageFailed` and has not
    # happened.

    def tag(self, device_ids: Iterable[str], tags: Iterable[str]) -> None:
        """Add tags to devices, which need not have been here.

        Raises:
            ConfigError: a name is none, or a device would have too many tags.
        """
        ids, chosen = _names(device_ids, "device id"), tuple(_names(tags, "tag"))
        for device_id in ids:
            if len({*self.entry(device_id).tags, *chosen}) > MOST_TAGS:
                raise ConfigError(f"device {device_id}: it would have more than {MOST_TAGS} tags")
        self._order(*(core.Tagged(self._clock(), device_id, chosen) for device_id in ids))

    def untag(self, device_ids: Iterable[str], tags: Iterable[str]) -> None:
        """Take tags away from devices."""
        chosen = tuple(_names(tags, "tag"))
        self._order(
            *(
                core.Untagged(self._clock(), device_id, chosen)
                for device_id in _names(device_ids, "device id")
            )
        )

    def ban(self, device_id: str, reason: str) -> None:
        """Refuse everything of a device from now on."""
        self._order(core.Banned(self._clock(), check_name(device_id, "device id"), reason))

    def unban(self, device_id: str) -> None:
        """End a ban.

        Raises:
            ConfigError: the device is not banned.
        """
        if not self.is_banned(device_id):
            raise ConfigError(f"device {device_id}: it is not banned")
        self._order(core.Unbanned(self._clock(), device_id))

    def forget(self, device_id: str) -> None:
        """Delete a device's entry; of one that is banned, all but the ban."""
        self._order(core.Forgotten(self._clock(), device_id))
        self._store.scrub()

    def withdraw(self, device_id: str) -> None:
        """Note that a device's owner agrees no longer: it is asked for nothing until it checks in
        again. Safe when it returns.

        Raises:
            StorageFailed: it is not noted.
        """
        if not self.entry(device_id).withdrawn_s:
            self._order(core.Withdrew(self._clock(), device_id))

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
        self._store.save(
            {d: entry for d in self._unsaved if (entry := self.state.devices.get(d)) is not None}
        )
        self._unsaved.clear()

    def _take(self, device_id: str, event: core.Event) -> None:
        self.state = core.step(self.state, event)
        self._note([device_id])

    def _note(self, device_ids: Iterable[str]) -> None:
        changed = set(device_ids)
        self._unsaved |= changed
        self._changed |= changed
        for unseen in self._unseen.values():
            unseen |= changed

    def _order(self, *events: core.Order) -> None:
        after = self.state
        for event in events:
            after = core.step(after, event)
        ids = {event.device_id for event in events}
        kept = {d: entry for d in ids if (entry := after.devices.get(d)) is not None}
        self._store.save(kept, ids - kept.keys())
        self.state = after
        self._note(ids)


def _takes_part(entry: Entry) -> bool:
    return entry.ban is None and not entry.withdrawn_s


def _names(values: Iterable[str], what: str) -> list[str]:
    return [check_name(value, what) for value in dict.fromkeys(values)]
