"""Runs the round core of one campaign: events become a new state, which is saved, and commands,
which are carried out.

An event that cannot be taken in, or a command that cannot be carried out, is logged, counted under
``defect``, and left out. Where nothing can be saved, or a round cannot be aggregated, the campaign
is *paused*: its devices are told that it is busy, what is on offer stays on offer, and it goes on
by itself when the cause is gone, or when it is told to. Other campaigns go on.
"""

import heapq
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from aggregator.aggregation.apply import aggregate
from aggregator.aggregation.placing import place_late
from aggregator.aggregation.stored import programs_of, retune
from aggregator.core.ports import BlobLost, Blobs, Clock, StorageFailed, Store
from aggregator.core.record import Group, RoundRecord
from aggregator.core.registry import withholds
from aggregator.core.settings import RunSettings
from aggregator.core.state import (
    Aborted,
    Aggregate,
    Command,
    DeadlinePassed,
    Event,
    FinishRun,
    Resumed,
    RolledBack,
    RunState,
    SendPlan,
    SetDeadline,
    UpdateAdmitted,
    UpdatesLost,
)
from aggregator.core.versions import remembered
from aggregator.leadership.identity import kept_alive
from aggregator.service.devices import Devices
from aggregator.service.forgetting import forgotten, without_kept
from aggregator.storage.blob_bucket import check_blobs
from aggregator.transfer.fleet import Fleet
from aggregator.transfer.offered import needed, offered
from algorithms.algorithm import Algorithm
from algorithms.core.contract import Mean, Probe
from wire import messages
from wire.bundle import Bundle
from wire.codec import digest
from wire.messages import Choose

log = logging.getLogger("shoal.aggregator")

Observer = Callable[[RunState, Event], None]
"""Called with the new state after every event, before commands are carried out."""

HELD = "the operator has paused it"
BUSY_S = 30.0
"""Seconds after which a device sends its update again where it cannot be taken now."""
RETRY_S = 5.0
"""Seconds between two looks at whether the cause of a pause is gone."""


class Campaign:
    """Runs one campaign, in the runner's thread. `state` is immutable and replaced as a whole, so
    that other threads may read it."""

    def __init__(
        self,
        state: RunState,
        algorithm: Algorithm,
        bundle: Bundle,
        probe: Probe,
        store: Store,
        blobs: Blobs,
        fleet: Fleet,
        clock: Clock,
        announce: Callable[[], None],
        count: Callable[[str, str], None],
        observe: Observer,
        takes: Callable[[str], bool],
        devices: Devices,
    ) -> None:
        """`announce`: publishes the service's status; `count`: counts what goes wrong, by a reason
        and a text; `takes`: whether it may ask a device."""
        self._algorithm, self.bundle, self._probe = algorithm, bundle, probe
        self.store, self.blobs, self._fleet, self._clock, self._observe = (
            store,
            blobs,
            fleet,
            clock,
            observe,
        )
        self._announce, self._count, self.takes, self._devices = announce, count, takes, devices
        self.has: Callable[[str], bool] = lambda _device_id: True
        """Whether a device works for this campaign, and for no other."""
        self.gives_to: Callable[[str], bool] = lambda _device_id: True
        """Whether a device is to have the models of this campaign, once it is over, and of no
        other."""
        self.releases = False
        """Whether devices get the models to use as releases, and not from the campaign."""
        self._deadlines: list[tuple[float, int]] = []  # a heap of (second, round)
        self._awaited: set[tuple[float, int]] = set()  # the same: each is in the heap once
        self.held = False
        """True if the operator has paused it."""
        self.paused = ""
        """Why nothing goes on; empty while it does."""
        self._cause: Callable[[], object] | None = None
        """Raises as long as the cause of the pause is there; None: only the operator ends it."""
        self._look_at_s = float("inf")
        """When to look again whether the cause of the pause is gone."""
        self._views = set[str]()
        """The digests of what groupings have compared in the rounds so far."""
        self._kept_in: dict[int, frozenset[str]] = {}
        """By round whose record says what devices keep, these devices."""
        self.state = state
        self._note(store.rounds())

    def _note(self, records: Iterable[RoundRecord]) -> None:
        """Take in records that are stored."""
        for record in records:
            self._views |= {record.views} - {""}
            self._kept_in[record.round] = frozenset(record.kept)

    def resume(self, settings: RunSettings, epoch: int) -> None:
        """Go on with the campaign from the state in the store, from the next round on with these
        settings."""
        self._fleet.offer(self, offered(self.state), self.blobs)
        changes = retune(self.state, settings, self._algorithm, self.blobs, self._clock())
        if self.tell() and self.take_back():
            self.dispatch(Resumed(self._clock(), epoch), *changes)

    def retune(self, settings: RunSettings, mean: Mean) -> bool:
        """Go on with other settings from the next round on, and with this mean from now on. Returns
        whether that was saved."""
        self._algorithm = replace(self._algorithm, name=settings.algorithm, mean=mean)
        return self.dispatch(
            *retune(self.state, settings, self._algorithm, self.blobs, self._clock())
        )

    @property
    def name(self) -> str:
        """What people call it."""
        return self.state.settings.name

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self.state.phase == "finished"

    @property
    def asks(self) -> bool:
        """Whether it is to ask devices for something."""
        return not self.finished and not self.held

    def next_deadline_s(self) -> float:
        """The clock's second at which the next deadline is due; infinity when none is set."""
        return self._deadlines[0][0] if self._deadlines and not self.paused else self._look_at_s

    def tick(self) -> None:
        """Dispatch an event for every deadline that is due, and look whether the cause of a pause
        is gone."""
        if self.paused:
            if self._clock() >= self._look_at_s:
                self.try_to_go_on()
            return
        while self._deadlines and self._deadlines[0][0] <= self._clock() and not self.paused:
            at_s, number = heapq.heappop(self._deadlines)
            self._awaited.discard((at_s, number))
            self.dispatch(DeadlinePassed(max(at_s, self._clock()), number))

    def dispatch(self, *events: Event) -> bool:
        """Take in events: compute the new state, save the events, then carry out what follows.
        Returns whether they were saved.

        A command is carried out only when its event is safe, and may be carried out again after a
        crash (`Resumed`).
        """
        group = Group(self.state)
        for event in events:
            self.add(group, event)
        return self.commit(group)

    def roll_back(self, number: int) -> bool:
        """Return to the models that the round of this number made, if they are remembered. Whatever
        keeps the campaign from going on with later ones is given up with them. Returns whether that
        was saved; if not, try again."""
        state, programs = self.state, None
        version = remembered(state, number)
        if version is not None:
            programs = programs_of(
                version, state.next_settings, self._algorithm, self.blobs, state.trained
            )
            self._end_pause()
        saved = self.dispatch(RolledBack(self._clock(), number, programs))
        self._announce()
        return saved

    def may_ask(self, device_id: str) -> bool:
        """Whether it may ask a device for anything."""
        return self.takes(device_id) and self._devices.may_be_asked(
            device_id, self.state.settings.where
        )

    def forget(self, device_id: str) -> None:
        """Forget a device: what came from it, what the algorithm remembers of it, what records say
        of it.

        Raises:
            BlobLost, StorageFailed: it is not forgotten.
        """
        group, needless, views = forgotten(
            self.state, self.store, self._algorithm, self.blobs, device_id, self._clock()
        )
        if not self.commit(group):
            raise StorageFailed(self.paused)
        self._views = views
        self.blobs.drop(needless)

    def tell(self) -> bool:
        """Take in what the registry knows of devices that is new to this campaign. Returns whether
        that was saved."""
        return self._devices.tell(self.state, self.dispatch, self.gives_to)

    def take_back(self, device_ids: Iterable[str] | None = None) -> bool:
        """Take out of the records what devices keep, of all or these, whose owners do not let it be
        told any more. Returns whether that is done; if not, all of it is when the campaign goes on.
        """
        kept_in = self._kept_in
        asked = set().union(*kept_in.values()) if device_ids is None else device_ids
        silent = {d for d in asked if withholds(self._devices.entry(d).said)}
        rounds = {number for number in kept_in if not kept_in[number].isdisjoint(silent)}
        try:
            records = [
                without_kept(record, silent)
                for record in (self.store.rounds(min(rounds) - 1) if rounds else ())
                if record.round in rounds
            ]
        except StorageFailed as error:
            self._begin_pause(str(error), self._check_storage)
            return False
        return not records or self.commit(Group(self.state, records=records))

    def abort(self) -> bool:
        """End the campaign where it stands. Returns whether that was saved."""
        self._end_pause()
        saved = self.dispatch(Aborted(self._clock()))
        self._announce()
        return saved

    def hold(self) -> None:
        """Pause until the operator says otherwise. No cause that ends of itself ends that."""
        self.held = True
        if not self.paused:
            self._begin_pause(HELD)

    def try_to_go_on(self, told: bool = False) -> None:
        """End a pause if its cause is gone, or if the operator says so (`told`)."""
        self.held = self.held and not told
        self._look_at_s = self._clock() + RETRY_S
        try:
            if self._cause is not None:
                self._cause()
            elif not told:
                return
        except (StorageFailed, BlobLost) as error:
            log.info("still paused: %s", error)
            return
        log.warning("going on after the pause: %s", self.paused)
        if self.held:
            self._begin_pause(HELD)
            return
        self._end_pause()
        self._fleet.rename()
        self._deadlines.clear()
        self._awaited.clear()
        if self.tell() and self.take_back():
            self.dispatch(Resumed(self._clock(), self.state.epoch))
        self._announce()

    def add(self, group: Group, event: Event) -> None:
        """Take one event into a group."""
        try:
            if isinstance(event, UpdateAdmitted):
                event = self._place_late(group, event)
            group.add(event)
        except (
            Exception
        ):  # a defect of the round core must not end the service: the event is left out
            log.exception("defect: an event was left out: %s", type(event).__name__)
            self._count("defect", type(event).__name__)

    def _place_late(self, group: Group, event: UpdateAdmitted) -> UpdateAdmitted:
        """Return the event with the group that a late device belongs to, where it is known."""
        payload = group.updates[-1][1]
        try:
            return place_late(group.state, self._algorithm, self.blobs, event, payload)
        except (BlobLost, StorageFailed) as error:
            log.error(
                "device=%s belongs where devices do of which nothing is known: %s",
                event.device_id,
                error,
            )
            return event

    def commit(self, group: Group) -> bool:
        """Save a group, then carry out what follows from it. If it cannot be saved, nothing of it
        has happened, and false is returned."""
        try:
            if group.updates:
                self.blobs.put(*(payload for _, payload in group.updates))
            if group.steps or group.records:
                snapshot = group.state if group.records or group.whole else None
                self.store.commit([event for event, _ in group.steps], group.records, snapshot)
        except StorageFailed as error:
            for device_id, payload in group.updates:
                self.tell_busy(device_id, digest(payload))
            self._begin_pause(str(error), self._check_storage)
            return False
        before, self.state = self.state, group.state
        for event, state in group.steps:
            self._observe(state, event)
            self._devices.observe(before, event, state)
            before = state
        self._note(group.records)
        for command in group.commands:
            self._carry_out(command)
        if group.records and not self.paused:
            self._fleet.withdraw_all_but(self, offered(self.state))
            try:  # what stays for want of a disk is forgotten after a later round
                self.blobs.keep(needed(self.state) | self._views)
            except OSError as error:
                log.warning("blobs that are not needed cannot be deleted: %s", error)
        return True

    def tell_busy(self, device_id: str, update: str) -> None:
        """Ask a device for its update of this digest again, later."""
        self._fleet.send(messages.Busy(device_id, update, BUSY_S))

    def _begin_pause(self, reason: str, cause: Callable[[], object] | None = None) -> None:
        log.error("paused: %s", reason)
        self.paused, self._cause, self._look_at_s = reason, cause, self._clock() + RETRY_S
        self._announce()

    def _end_pause(self) -> None:
        self.paused, self._look_at_s, self.held = "", float("inf"), False

    def _carry_out(self, command: Command | messages.Reply) -> None:
        try:
            match command:
                case SendPlan(plan) if self.held or not self.has(plan.device_id):
                    # it is commanded again when the campaign goes on, or when the device comes back
                    pass
                case Aggregate() if self.held:
                    pass
                case SendPlan(plan):
                    chosen = [
                        model
                        for verb in plan.verbs
                        if isinstance(verb, Choose)
                        for model in verb.models
                    ]
                    self._fleet.offer(self, {plan.bundle, plan.model, *chosen}, self.blobs)
                    self._fleet.send(plan)
                    asked_s = self._clock()
                    self._devices.change(plan.device_id, campaign=self.name, asked_s=asked_s)
                case SetDeadline(number, at_s) if (at_s, number) not in self._awaited:
                    heapq.heappush(self._deadlines, (at_s, number))
                    self._awaited.add((at_s, number))
                case SetDeadline():
                    pass
                case Aggregate():
                    self._aggregate()
                case FinishRun(device_id, gives=True) if not self.releases and not self.gives_to(
                    device_id
                ):
                    pass
                case FinishRun(device_id, model, gives):
                    state = self.state
                    if gives:
                        self._fleet.offer(self, {model, state.settings.bundle}, self.blobs)
                    own = (
                        device_id,
                        state.settings.run_id,
                        state.epoch,
                        state.settings.bundle,
                        model,
                    )
                    self._fleet.send(messages.Finish(*own, releases=self.releases or not gives))
                    if gives:
                        self._devices.on_models(state, device_id, self.releases)
                case _:
                    self._fleet.send(command)
        except (BlobLost, StorageFailed) as error:
            lost = error.digest if isinstance(error, BlobLost) else ""
            self._begin_pause(
                str(error), partial(self.blobs.get, lost) if lost else self._check_storage
            )
        # a defect must not end the service: the command is left out, and given again after a
        # restart
        except Exception:
            log.exception("defect: a command was left out: %s", type(command).__name__)
            self._count("defect", type(command).__name__)

    def _aggregate(self) -> None:
        """Apply the algorithm. Updates whose blobs are lost are asked for again; whatever else
        stands in the way pauses the campaign."""
        state = self.state
        try:
            with kept_alive(self._announce):
                event: Event = aggregate(
                    state, self._algorithm, self._probe, self.blobs, self._clock
                )
        except BlobLost as error:
            blobs = {d: told.blob for d, told in state.inputs.items()} | {
                d: received.blob for d, received in state.received.items()
            }
            devices = tuple(d for d, blob in blobs.items() if blob == error.digest)
            if not devices:
                raise
            log.error(
                "update lost device=%s round=%d: %s; it is asked for again",
                devices[0],
                state.round,
                error,
            )
            event = UpdatesLost(self._clock(), state.round, devices)
        except StorageFailed:
            raise
        # whatever an algorithm fails at: the updates are safe, and a later version may aggregate
        # them
        except Exception as error:
            log.exception("round %d cannot be aggregated", state.round)
            self._begin_pause(
                f"round {state.round} cannot be aggregated: {type(error).__name__}: {error}"
            )
            return
        self.dispatch(event)

    def _check_storage(self) -> None:
        check_blobs(self.blobs)
        self.store.check()
        # a commit whose answer was lost may have been carried out
        self.state = self.store.load() or self.state
        self._note(self.store.rounds())
