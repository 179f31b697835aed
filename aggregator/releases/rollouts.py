"""Connects a fleet's releases to its devices: what devices say becomes events, which are saved
together, and then releases are published.

`tick` does all of it: what came since the last one is taken in, saved in one transaction, and
carried out. What came after the last save is lost with the process, and comes again: a service that
starts asks every device to check in, and each says then which release it has.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from aggregator.core.ports import BlobLost, Blobs, Clock, StorageFailed
from aggregator.core.release import reach
from aggregator.core.release.gate import answer_of
from aggregator.core.release.releases import Draft
from aggregator.core.release.rollout import step
from aggregator.core.release.state import (
    Begun,
    CheckedIn,
    FleetEvent,
    FleetState,
    Give,
    Made,
    Presence,
    Removed,
    RolloutStep,
    Said,
    Ticked,
)
from aggregator.service_settings import RolloutSettings
from aggregator.transfer.fleet import Fleet
from wire.errors import ConfigError
from wire.messages import InUse, Release

if TYPE_CHECKING:  # simulations have no database, and load none of what it needs
    from aggregator.storage.sql_store import SqlStore

log = logging.getLogger("shoal.aggregator")

JUDGE_S = 1.0
"""Seconds between two looks at rollouts."""
BUSY_SHARE = 0.05
"""The share of the service's time in which rollouts are looked at, at most: in a large fleet that
is less often."""
RETRY_S = 5.0
"""Seconds after which something is saved again that could not be."""
SNAPSHOT_EVERY = 1000
"""After so many events the state itself is written, and they are forgotten."""
KEPT = 10
"""Of so many of the last releases of each group the models stay, whoever has them."""


class Rollouts:
    """The releases of a fleet. `state` is immutable and replaced as a whole, so that other threads
    may read it."""

    def __init__(
        self,
        store: "SqlStore",
        blobs: Blobs,
        fleet: Fleet,
        clock: Clock,
        epoch: Callable[[], int],
        *,
        online: Callable[[str], bool],
        group: Callable[[str], str] = lambda _device_id: "",
        tags: Callable[[str], tuple[str, ...]] = lambda _device_id: (),
        settings: RolloutSettings,
    ) -> None:
        """`store`: keeps the log of this fleet's releases. `blobs`: of releases alone; what no
        release needs is deleted from it. `online`, `group`, `tags`: of a device, by id; an empty
        group where no campaign has put it into one.

        Raises:
            StorageFailed: what is stored cannot be read.
        """
        self._store, self.blobs, self._fleet, self.clock, self._epoch = (
            store,
            blobs,
            fleet,
            clock,
            epoch,
        )
        self._online, self._group, self._tags, self.settings = online, group, tags, settings
        self._look_at_s = 0.0
        self.defects = 0
        """How many events were left out that the machine could not take in."""
        self.state: FleetState = store.load()
        self._is_known = True
        """False after a commit that failed: it may have been carried out."""
        there = tuple(d for d, holder in self.state.devices.items() if holder.online)
        self._waiting: list[FleetEvent] = [Presence(clock(), left=there)]
        self._offer(self.needed())

    def on_check_in(self, device_id: str) -> None:
        """A device has checked in, or is heard again."""
        self._waiting.append(
            CheckedIn(self.clock(), device_id, self._group(device_id), self._tags(device_id))
        )

    def on_in_use(self, message: InUse) -> None:
        """A device says which release is in use."""
        self._waiting.append(Said(self.clock(), message))

    def release(
        self,
        drafts: Sequence[Draft],
        source: Blobs,
        groups: Mapping[str, str],
        newcomers: str = "",
        roll_out: bool = True,
    ) -> tuple[int, ...]:
        """Make releases of a campaign's models, whose blobs are in `source`, and begin to roll them
        out unless told otherwise. `groups`: by device, its group; `newcomers`: the group of devices
        that are in none.

        Returns the releases' numbers: those of before where the same were made of the same round
        already.

        Raises:
            BlobLost, StorageFailed: nothing was made.
        """
        numbers = self.made_of(drafts)
        if not numbers:
            self.blobs.put(
                *(
                    source.get(name)
                    for name in sorted(
                        {name for draft in drafts for name in (draft.bundle, draft.model)}
                    )
                )
            )
            first = self.state.catalogue.last
            self.take_in(Made(self.clock(), tuple(drafts)))
            numbers = tuple(
                number for number in sorted(self.state.catalogue.releases) if number > first
            )
            log.info(
                "campaign=%s releases made: %s", drafts[0].campaign, ", ".join(map(str, numbers))
            )
        if roll_out:
            self.roll_out(numbers, groups, newcomers)
        return numbers

    def roll_out(
        self, numbers: Sequence[int], groups: Mapping[str, str], newcomers: str = ""
    ) -> None:
        """Begin to roll out candidates of one campaign; others are left out.

        Raises:
            StorageFailed: nothing was begun.
        """
        campaign, chosen = self.state.catalogue.releases[numbers[0]].campaign, self.settings
        begun = Begun(
            at_s=self.clock(),
            campaign=campaign,
            numbers=tuple(numbers),
            steps=chosen.steps,
            gate=chosen.gate,
            groups=dict(groups),
            newcomers=newcomers,
            salt=secrets.token_hex(8),
        )
        self.take_in(begun)

    def made_of(self, drafts: Sequence[Draft]) -> tuple[int, ...]:
        """The numbers of the releases that were made of the very same models of the same round;
        empty if none were."""
        made = {
            (r.run_id, r.round, r.group, r.bundle, r.model): number
            for number, r in self.state.catalogue.releases.items()
            if not r.returns_to
        }
        found = [made.get((d.run_id, d.round, d.group, d.bundle, d.model), 0) for d in drafts]
        return tuple(sorted(found)) if all(found) else ()

    def forget(self, device_id: str) -> None:
        """Forget a device, and clear what the broker retains of it.

        Raises:
            StorageFailed: it is not forgotten.
        """
        self.take_in(Removed(self.clock(), device_id))
        self._fleet.clear(device_id)

    def tick(self) -> None:
        """Take in what came, save it, and carry out what follows. What cannot be saved is tried
        again."""
        now_s = self.clock()
        due = now_s >= self._look_at_s
        if not due and not self._waiting:
            return
        began_s = time.monotonic()
        try:
            running = any(each.phase == "running" for each in self.state.rollouts.values())
            devices = self.state.devices.items() if due and running else ()
            came = tuple(d for d, holder in devices if not holder.online and self._online(d))
            left = tuple(d for d, holder in devices if holder.online and not self._online(d))
            events: list[FleetEvent] = [Presence(now_s, came, left)] if came or left else []
            self.take_in(*events, *([Ticked(now_s)] if due else []))
            if due:
                self._look_at_s = now_s + max(JUDGE_S, (time.monotonic() - began_s) / BUSY_SHARE)
        except StorageFailed as error:
            log.error("releases wait: %s", error)
            self._look_at_s = now_s + RETRY_S

    def take_in(self, *events: FleetEvent) -> None:
        """Take in what came, and then these events; save them, and carry out what follows.

        Raises:
            StorageFailed: nothing of it has happened; what came before is tried again at the next
            `tick`.
        """
        is_reloaded = not self._is_known
        state: FleetState = self._store.load() if is_reloaded else self.state
        saved, gives = list[FleetEvent](), list[Give]()
        for event in (*self._waiting, *events):
            try:
                after, more = step(state, event)
            except (
                Exception
            ):  # a defect of the machine must not end the service: the event is left out
                log.exception("defect: an event was left out: %s", type(event).__name__)
                self.defects += 1
                continue
            if after is not state:
                saved.append(event)
            state, gives = after, [*gives, *more]
        if saved:
            is_long = self._store.num_events + len(saved) >= SNAPSHOT_EVERY
            self._is_known = False
            self._store.commit(saved, snapshot=state if is_long else None)
        self._is_known = True
        self._waiting.clear()
        before, self.state = self.state, state
        self._tell(before)
        if is_reloaded:  # what the lost commit gave was never sent
            gives += [
                Give(device_id, holder.given)
                for device_id, holder in state.devices.items()
                if holder.given and answer_of(holder, holder.given)[0] == "waiting"
            ]
        for give in dict.fromkeys(gives):
            self._send(give)
        if before.catalogue is not state.catalogue:
            releases = state.catalogue.releases
            chosen = [releases[number] for number in reach.needed(state, KEPT)]
            self._fleet.withdraw_all_but(self, self.needed())
            try:  # what stays for want of a disk is deleted later
                self.blobs.keep({name for each in chosen for name in (each.bundle, each.model)})
            except OSError as error:
                log.warning("blobs of releases that are not needed cannot be deleted: %s", error)

    def needed(self) -> set[str]:
        """The digests of the blobs that devices may fetch."""
        releases, state = self.state.catalogue.releases, self.state
        numbers = {holder.given for holder in state.devices.values()} | set(
            state.catalogue.released.values()
        )
        return {
            name
            for number in numbers
            if number in releases
            for name in (releases[number].bundle, releases[number].model)
        }

    def _send(self, give: Give) -> None:
        holder, release = (
            self.state.devices.get(give.device_id),
            self.state.catalogue.releases[give.number],
        )
        if (
            holder is None or holder.given != give.number
        ):  # a later one was given in the same breath
            return
        if not self._offer({release.bundle, release.model}):
            log.error(
                "release %d cannot be given to device=%s: a part of it is not here",
                give.number,
                give.device_id,
            )
            return
        self._fleet.send(
            Release(
                give.device_id,
                self._epoch(),
                release.number,
                release.group,
                release.run_id,
                release.bundle,
                release.model,
            )
        )

    def _offer(self, digests: set[str]) -> bool:
        """Put blobs on offer, unless they are; whether all are then. What is lost must not keep the
        others from devices."""
        whole = True
        for name in sorted(digests):
            try:
                self._fleet.offer(self, {name}, self.blobs)
            except (BlobLost, StorageFailed) as error:
                log.error("a part of a release cannot be offered: %s", error)
                whole = False
        return whole

    def _tell(self, before: FleetState) -> None:
        """Say in the log what became of rollouts."""
        for campaign, rollout in self.state.rollouts.items():
            was = before.rollouts.get(campaign)
            if (
                was is None
                or was.began_at_s != rollout.began_at_s
                or (was.phase, was.step) != (rollout.phase, rollout.step)
            ):
                level = logging.ERROR if rollout.phase == "rolled-back" else logging.INFO
                number, of, numbers = (
                    rollout.step + 1,
                    len(rollout.steps),
                    ", ".join(map(str, sorted(rollout.releases.values()))),
                )
                told = f": {rollout.reason}" if rollout.reason else ""
                log.log(
                    level,
                    "campaign=%s rollout of releases %s: %s, step %d of %d%s",
                    campaign,
                    numbers,
                    rollout.phase,
                    number,
                    of,
                    told,
                )


def read_steps(text: str) -> tuple[RolloutStep, ...]:
    """The steps of a rollout as people write them: shares that grow up to 1 and tags, such as
    ``canary,0.1,1``. What is not a number is a tag.

    Raises:
        ConfigError: they are not.
    """
    steps, last = list[RolloutStep](), 0.0
    for part in (part.strip() for part in text.split(",")):
        try:
            share = float(part)
        except ValueError:
            if not part:
                raise ConfigError(
                    f"rollout steps {text!r}: expected shares and tags between commas, such as "
                    "canary,0.1,1"
                ) from None
            steps.append(RolloutStep(tags=(part,)))
            continue
        if not last < share <= 1:
            raise ConfigError(
                f"rollout steps {text!r}: share {part}: expected shares that grow, above 0 and up "
                "to 1"
            )
        last = share
        steps.append(RolloutStep(share))
    if steps[-1].share != 1:
        raise ConfigError(
            f"rollout steps {text!r}: the last must be 1, or some devices would never be reached"
        )
    return tuple(steps)
