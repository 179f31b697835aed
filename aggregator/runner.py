"""Runs the round core: messages and deadlines become events, events a new state, which is saved, and commands, which are carried out.

The service runs this, and so does a simulation by messages (`simulation.engine.messages`); only their adapters differ.

What was not foreseen is contained in three rings. A message that cannot be read is refused (`aggregator.inbox`). An event that cannot be
taken in, or a command that cannot be carried out, is logged, counted under ``defect``, and left out. Where nothing can be saved, or a round
cannot be aggregated, the run is *paused*: devices are told that it is busy, what is on offer stays on offer, and the run goes on by
itself when the cause is gone, or when it is told to.
"""

import heapq
import logging
from collections.abc import Callable
from functools import partial

from aggregator import lease
from aggregator.adapters.memory import MemoryRegistry
from aggregator.aggregation import aggregate, check_fit, retune, start_run
from aggregator.core.ports import BlobLost, Blobs, Clock, StorageFailed, Store
from aggregator.core.round import step
from aggregator.core.settings import RunSettings
from aggregator.core.state import (
    Acknowledge,
    Aggregate,
    Command,
    DeadlinePassed,
    DeviceLost,
    Event,
    FinishRun,
    Resumed,
    RolledBack,
    RunState,
    SendPlan,
    SetDeadline,
    UpdatesLost,
)
from aggregator.core.versions import returned
from aggregator.devices import Devices
from aggregator.fleet import Fleet
from aggregator.forgetting import forgotten
from aggregator.group import Group
from aggregator.inbox import Inbox
from aggregator.offers import Offers, offered
from aggregator.pause import Pause
from aggregator.rivals import Rivals
from algorithms.algorithm import Algorithm
from algorithms.core.contract import Probe
from wire import messages
from wire.bundle import Bundle
from wire.codec import digest
from wire.links.port import Delivery, Denied, Link, LinkDown, LinkEvent, LinkUp
from wire.messages import Choose
from wire.signed import Verifier

log = logging.getLogger("shoal.aggregator")

Observer = Callable[[RunState, Event], None]
"""Called with the new state after every event, before commands are carried out."""

GROUP = 64
"""Messages that are saved together, at most."""
BUSY_S = 30.0
"""Seconds after which a device sends its update again to an aggregator that is paused."""


class Runner:
    """Runs one run, in one thread. `state` is immutable and replaced as a whole, so that other threads may read it."""

    def __init__(
        self,
        algorithm: Algorithm,
        bundle: Bundle,
        probe: Probe,
        store: Store,
        blobs: Blobs,
        fleet: Fleet,
        clock: Clock,
        observe: Observer = lambda _state, _event: None,
        *,
        epoch: int = 1,
        silence_s: float = float("inf"),
        verifier: Verifier | None = None,
        devices: Devices | None = None,
    ) -> None:
        """`epoch`: that of this start. A device that is silent for `silence_s` is taken for absent. `verifier`: opens what other
        aggregators of this fleet have signed; without one, nothing that they sent is believed."""
        self._algorithm, self._bundle, self._probe = algorithm, bundle, probe
        self._store, self._blobs, self._fleet, self._clock, self._observe = store, blobs, fleet, clock, observe
        self._epoch, self._silence_s = epoch, silence_s
        self.devices = devices or Devices(MemoryRegistry(), clock)
        self._inbox = Inbox(fleet.topics, bundle.manifest, clock, fleet.offered, self.devices)
        self._rivals = Rivals(verifier, clock, self._inbox.count)
        self._deadlines: list[tuple[float, int]] = []  # a heap of (second, round)
        self._was_connected, self.connected = False, False
        self._pause, self._look_at_s, self._started_s = Pause(clock), 0.0, clock()
        self.state: RunState | None = store.load()
        self._offers = Offers(blobs, fleet, {record.views for record in store.rounds()} - {""})

    def start_or_resume(self, settings: RunSettings) -> RunState:
        """Start the run, or go on with it from the state in the store, from the next round on with these settings.

        Raises:
            ConfigError: the algorithm does not fit the bundle.
            StorageFailed: the run cannot be begun.
        """
        if self.state is None:
            check_fit(settings, self._algorithm, self._bundle.manifest)
            self._blobs.put(self._bundle.payload)
            started = start_run(settings, self._algorithm, self._probe, self._bundle.initial, self._blobs, self._clock(), self._epoch)
            self._store.commit([started])
            self.state, _ = step(None, started)
            self._observe(self.state, started)
        else:
            self._offers.offer(offered(self.state))
            told = retune(self.state, settings, self._algorithm, self._blobs, self._clock())
            self.dispatch(*self.devices.changes(self.state), Resumed(self._clock(), self._epoch), *told)
        return self.known()

    def known(self) -> RunState:
        """The state of a run that was started."""
        assert self.state is not None, "the run was started"
        return self.state

    @property
    def link(self) -> Link:
        """The link whose events `handle` takes."""
        return self._fleet.link

    @property
    def refused(self) -> dict[str, int]:
        """How often something that arrived was refused, by reason; under ``defect``, what Shoal failed at."""
        return self._inbox.refused

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self.state is not None and self.state.phase == "finished"

    def run(self, stop: Callable[[], bool]) -> None:
        """Handle messages and deadlines until `stop` returns true; it is called at least every half second.

        Raises:
            OtherAggregator, WrongFleet: another aggregator has taken over the fleet, or the broker does not let this one speak for it.
        """
        while not stop():
            event = self._fleet.link.receive(timeout_s=min(0.5, max(0.0, self.next_deadline_s() - self._clock())))
            group = []
            while event is not None:
                group.append(event)
                event = self._fleet.link.receive(timeout_s=0) if len(group) < GROUP else None
            self.handle(*group)
            self.tick()

    def next_deadline_s(self) -> float:
        """The clock's second at which the next deadline is due; infinity when none is set."""
        return self._deadlines[0][0] if self._deadlines and not self.paused else self._pause.look_at_s

    def tick(self) -> None:
        """Dispatch an event for every deadline that is due, and for every device that was silent for too long."""
        now_s = self._clock()
        if self.paused:
            if now_s >= self._pause.look_at_s:
                self.try_to_go_on()
            return
        while self._deadlines and self._deadlines[0][0] <= self._clock() and not self.paused:
            at_s, number = heapq.heappop(self._deadlines)
            self.dispatch(DeadlinePassed(max(at_s, self._clock()), number))
        self.devices.tick()
        self.tell_devices()
        if self.state is not None and now_s >= self._look_at_s:
            self._look_at_s = now_s + self._silence_s / 10
            if now_s - self._started_s > self._silence_s:
                self.dispatch(*(DeviceLost(now_s, d) for d in self._inbox.silent(self.state, now_s - self._silence_s)))

    def handle(self, *events: LinkEvent) -> None:
        """Act on events of the link, and save what follows from them together. Whatever a message holds, it raises nothing: it is refused
        with a reason.

        Raises:
            OtherAggregator, WrongFleet: another aggregator has taken over the fleet, or the broker does not let this one speak for it.
        """
        group, deliveries, proofs = Group(self.known()), list[Delivery](), list[tuple[str, str]]()
        for event in events:
            match event:
                case LinkUp(kept):
                    self.connected = True
                    if self._was_connected and not kept:  # the broker has lost what waited for us, and maybe what waited for devices
                        self._fleet.rename()
                    self.announce()
                    if self._was_connected:
                        self._fleet.offer_again()
                    self._was_connected = True
                case LinkDown(reason):
                    self.connected = False
                    self._rivals.lost(reason)
                case Denied(action, topic):
                    self._rivals.denied(action, topic, self._fleet.topics)
                case Delivery(topic, payload) if topic == self._fleet.topics.aggregator:
                    self._rivals.check(payload, self._fleet.announced, self._fleet.boot_id, self.known().epoch)
                    deliveries.append(event)
                case Delivery():
                    proofs += self._take(group, event)
                    deliveries.append(event)
        self._commit(group)
        self._fleet.link.confirm(deliveries)
        for proof in proofs:
            self._on_proof(*proof)

    def tell_devices(self) -> bool:
        """Tell the run which devices may be asked for anything, where that has changed. Returns whether that was saved."""
        return self.devices.tell(self.known(), self.dispatch)

    def forget(self, device_id: str) -> None:
        """Make the run forget a device: what came from it, what the algorithm remembers of it, what records say of it.

        Raises:
            BlobLost, StorageFailed: it is not forgotten.
        """
        found = forgotten(self.known(), self._store, self._algorithm, self._blobs, device_id, self._clock())
        if not self._commit(found.group):
            raise StorageFailed(self.paused)
        self._offers.drop(found.needless, found.views)
        self._inbox.forget(device_id)
        self._fleet.clear(device_id)

    def announce(self) -> None:
        """Publish that the aggregator is there, and how it is."""
        if self.state is not None:
            self._fleet.announce(self.state.epoch, self._clock(), self.state.settings.run_id, paused=self.paused)

    def dispatch(self, *events: Event) -> bool:
        """Take in events: compute the new state, save the events, then carry out what follows. Returns whether they were saved.

        A command is carried out only when its event is safe, and may be carried out again after a crash (`Resumed`).
        """
        group = Group(self.known())
        for event in events:
            self._add(group, event)
        return self._commit(group)

    def roll_back(self, number: int) -> bool:
        """Return to the models that the round of this number made, if they are remembered. Whatever keeps the run from going on with later
        ones is given up with them. Returns whether that was saved; if not, try again."""
        if returned(self.known(), number) is not None:
            self._pause.end()
        saved = self.dispatch(RolledBack(self._clock(), number))
        self.announce()
        return saved

    @property
    def paused(self) -> str:
        """Why nothing goes on; empty while it does."""
        return self._pause.reason

    def try_to_go_on(self, told: bool = False) -> None:
        """End a pause if its cause is gone, or if the operator says so (`told`)."""
        if self._pause.ends(told):
            self._fleet.rename()
            self._deadlines.clear()
            self.dispatch(Resumed(self._clock(), self.known().epoch))
            self.announce()

    def _begin_pause(self, reason: str, cause: Callable[[], object] | None = None) -> None:
        self._pause.begin(reason, cause)
        self.announce()

    def _take(self, group: Group, delivery: Delivery) -> list[tuple[str, str]]:
        """Add what follows from a message to the group. Returns the device and the proof where one was shown."""
        if self.paused and (device_id := self._inbox.device_of_update(delivery)):
            self._tell_busy(device_id, delivery.payload)
            return []
        reading = self._inbox.read(group.state, delivery)
        if reading.fetch and not self._fleet.offer_again(reading.fetch):
            self._inbox.refuse_fetch(reading)
        group.commands += reading.replies
        if self.paused:
            return []
        if reading.update is not None:
            group.updates.append((reading.device_id, reading.update))
        for event in reading.events:
            self._add(group, event)
        return [(reading.device_id, reading.proof)] if reading.proof else []

    def _tell_busy(self, device_id: str, payload: bytes) -> None:
        self._fleet.reply(messages.Busy(device_id, digest(payload), BUSY_S))

    def _add(self, group: Group, event: Event) -> None:
        try:
            group.add(event)
        except Exception:  # a defect of the round core must not end the service: the event is left out
            log.exception("defect: an event was left out: %s", type(event).__name__)
            self._inbox.count("defect", type(event).__name__)

    def _commit(self, group: Group) -> bool:
        """Save a group, then carry out what follows from it. If it cannot be saved, nothing of it has happened, and false is returned."""
        try:
            if group.updates:
                self._blobs.put(*(payload for _, payload in group.updates))
            if group.steps:
                self._store.commit(
                    [event for event, _ in group.steps], group.records, group.state if group.records or group.whole else None
                )
        except StorageFailed as error:
            for device_id, payload in group.updates:
                self._tell_busy(device_id, payload)
            self._begin_pause(str(error), self._check_storage)
            return False
        self.state = group.state
        for event, state in group.steps:
            self._observe(state, event)
            self.devices.observe(state, event)
        self._offers.keep_views({record.views for record in group.records} - {""})
        for command in group.commands:
            self._carry_out(command)
        if group.records and not self.paused:
            self._offers.forget(self.known())
        return True

    def _carry_out(self, command: Command | messages.Reply) -> None:
        try:
            match command:
                case SendPlan(plan):
                    chosen = [model for verb in plan.verbs if isinstance(verb, Choose) for model in verb.models]
                    self._offers.offer({plan.bundle, plan.model, *chosen})
                    self._fleet.send_plan(plan)
                    self.devices.on_plan(plan.device_id, self.known().settings.name)
                case SetDeadline(number, at_s):
                    heapq.heappush(self._deadlines, (at_s, number))
                case Acknowledge(device_id, update):
                    self._fleet.reply(messages.Acknowledge(device_id, update))
                case Aggregate():
                    self._aggregate()
                case FinishRun(device_id, model):
                    state = self.known()
                    self._offers.offer({model, state.settings.bundle})
                    self._fleet.reply(messages.Finish(device_id, state.settings.run_id, state.epoch, state.settings.bundle, model))
                case _:
                    self._fleet.reply(command)
        except (BlobLost, StorageFailed) as error:
            lost = error.digest if isinstance(error, BlobLost) else ""
            self._begin_pause(str(error), partial(self._blobs.get, lost) if lost else self._check_storage)
        except Exception:  # a defect must not end the service: the command is left out, and given again after a restart
            log.exception("defect: a command was left out: %s", type(command).__name__)
            self._inbox.count("defect", type(command).__name__)

    def _aggregate(self) -> None:
        """Apply the algorithm. Updates whose blobs are lost are asked for again; whatever else stands in the way pauses the run."""
        state = self.known()
        try:
            with lease.held(self.announce):
                event: Event = aggregate(state, self._algorithm, self._probe, self._blobs, self._clock)
        except BlobLost as error:
            devices = tuple(d for d, received in state.received.items() if received.blob == error.digest)
            if not devices:
                raise
            log.error("update lost device=%s round=%d: %s; it is asked for again", devices[0], state.round, error)
            event = UpdatesLost(self._clock(), state.round, devices)
        except StorageFailed:
            raise
        except Exception as error:  # whatever an algorithm fails at: the updates are safe, and a later version may aggregate them
            log.exception("round %d cannot be aggregated", state.round)
            self._begin_pause(f"round {state.round} cannot be aggregated: {type(error).__name__}: {error}")
            return
        self.dispatch(event)

    def _on_proof(self, device_id: str, proof: str) -> None:
        """A device has a plan of a greater epoch: this aggregator came from an older state. It takes a greater epoch yet."""
        proven = self._rivals.proven_epoch(device_id, proof)
        if proven > self.known().epoch and not self.paused:
            log.warning("device=%s has a plan of epoch %d, this was %d: a greater one is taken", device_id, proven, self.known().epoch)
            self.dispatch(Resumed(self._clock(), proven + 1))
            self.announce()

    def _check_storage(self) -> None:
        self._blobs.check()
        self._store.check()
