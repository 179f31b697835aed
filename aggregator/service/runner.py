"""Loop of a fleet over one link: messages and timers become events, and events become commands.

The new fleet is stored before its commands are carried out. The service and simulations by messages
(`simulation.engine.messages`) run this loop with different adapters.

Failures are contained in three rings. A message that cannot be read is refused
(`aggregator.service.inbox`). An event or a command that fails is left out and counted as a defect.
A campaign that cannot continue is stopped (`aggregator.service.trainer`). If nothing can be stored,
the whole fleet waits: devices are told that it is busy, and it resumes by itself.
"""

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aggregator.aggregation.forgetting import forgotten, records_without
from aggregator.aggregation.inherit import TrainedModels
from aggregator.aggregation.orders import configured, start_campaign
from aggregator.core.settings import RunSettings
from aggregator.core.sums import requests_of
from aggregator.fleet import events as e
from aggregator.fleet.desired import NOBODY
from aggregator.fleet.plan import plan_of
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import Assignment, Fleet
from aggregator.fleet.step import take_in
from aggregator.leadership.rivals import Rivals
from aggregator.ports import BlobLost, Blobs, Clock, StorageFailed, Store
from aggregator.service.inbox import BUSY_S, FleetInbox, Reading
from aggregator.service.start import Exported
from aggregator.service.telemetry import Telemetry
from aggregator.service.trainer import RETRY_S, Trainer
from aggregator.storage.blob_bucket import check_blobs
from aggregator.transfer.assembly import Assembly
from aggregator.transfer.fleet import FleetLink
from aggregator.transfer.offered import needed, offered, remembered
from aggregator.view.progress import needed_releases, offered_releases
from aggregator.view.round_record import RoundRecord, records_of, without_kept
from algorithms.algorithm import Algorithm
from wire import messages as m
from wire.codec import digest
from wire.errors import LimitExceeded, ShoalError
from wire.identity.certificates import write_public_key
from wire.links.port import Delivery, Denied, LinkDown, LinkEvent, LinkUp

log = logging.getLogger("shoal.aggregator")

GROUP = 64
"""Maximum number of messages that are stored together."""
MOST_TOGETHER = 64 * 2**20
"""Number of bytes of updates at which they are stored without waiting for more."""
Observer = Callable[[Fleet, e.Event], None]
"""Called with the new fleet after every event, before commands are carried out."""


@dataclass
class Group:
    """Events between two writes, and the fleet after them."""

    before: Fleet
    fleet: Fleet
    changed: set[str] = field(default_factory=set)
    """Ids of devices with changes to store."""
    steps: list[tuple[e.Event, Fleet]] = field(default_factory=list)
    commands: list[e.Command | m.Reply] = field(default_factory=list)
    """Commands and replies in order: a reply to a later message must not overtake a plan."""
    updates: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Campaign, device and bytes of each update among the events."""
    masks: list[tuple[str, bytes]] = field(default_factory=list)
    """Campaign and blob of each helper's sums of masks among the events."""
    records: list[tuple[str, RoundRecord]] = field(default_factory=list)
    """Rewritten records of rounds, with the names of their campaigns."""


class Runner:
    """Loop of a fleet, in one thread.

    `fleet` is replaced as a whole, so that other threads may read it.
    """

    def __init__(
        self,
        store: Store,
        link: FleetLink,
        inbox: FleetInbox,
        telemetry: Telemetry,
        rivals: Rivals,
        clock: Clock,
        *,
        assembly: Assembly | None = None,
        releases: Blobs | None = None,
        observe: Observer = lambda _fleet, _event: None,
    ) -> None:
        """Load the fleet from `store`.

        `releases`: blobs of releases; None if devices take up models when a campaign ends.

        Raises:
            StorageFailed: the fleet cannot be read.
        """
        self.link = link.link
        """Link whose events `handle` takes."""
        self._store, self._link, self._inbox, self._rivals = store, link, inbox, rivals
        self._clock, self._assembly, self._releases = clock, assembly, releases
        self._observe, self.telemetry = observe, telemetry
        self.refused = inbox.refused
        """Number of refused messages by reason; under ``defect``, the failures of Shoal itself."""
        self.fleet = store.load()
        self.trainers: dict[str, Trainer] = {}
        """Trainers by campaign. A campaign without one cannot continue."""
        self.problem = ""
        """Reason that nothing can be stored; empty while storing works."""
        self._timers: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._look_at_s = 0.0
        self._was_connected, self.connected = False, False

    def open(
        self,
        settings: RunSettings,
        algorithm: Algorithm,
        exported: Exported,
        blobs: Blobs,
        source: TrainedModels | None = None,
    ) -> None:
        """Continue a campaign from its stored record, or start it.

        `settings` apply from the next round on. `source`: models that a new campaign starts from,
        or None for the bundle's.

        Raises:
            ConfigError: the algorithm does not fit the bundle, or its updates are too large.
            StorageFailed: the campaign cannot be started.
        """
        bundle, name, now_s = exported.bundle, settings.name, self.now_s
        self._inbox.admit_updates_of(bundle.manifest)
        trainer_parts = (algorithm, bundle, exported.probe, blobs, self._clock, self.announce)
        self.trainers[name] = Trainer(name, *trainer_parts)
        campaign = self.fleet.campaigns.get(name)
        if campaign is None:
            blobs.put(bundle.payload)
            campaign_parts = (settings, algorithm, exported.probe, bundle.initial, blobs, now_s)
            self.order(start_campaign(*campaign_parts, source))
            return
        self._link.offer(name, offered(campaign, self.fleet), blobs)
        if settings != campaign.next_settings:
            self.order(configured(campaign, settings, algorithm, blobs, now_s))

    def begin(self, epoch: int) -> None:
        """Start to speak with an epoch and repeat lost commands. All campaigns must be open."""
        self._restart(epoch)

    @property
    def now_s(self) -> float:
        """Current time in Unix seconds."""
        return self._clock()

    def order(self, *events: e.Event) -> None:
        """Process the events of an operator's order. They are stored on return.

        Raises:
            StorageFailed: nothing has changed.
        """
        if self.problem or not self.dispatch(*events):
            raise StorageFailed(f"Nothing can be stored: {self.problem}")
        self.announce()

    def forget(self, device_id: str) -> None:
        """Delete a device from the fleet, algorithms' memories, records and the broker.

        The ban of a banned device stays.

        Raises:
            BlobLost, StorageFailed: some of it may remain; the order can be repeated.
        """
        fleet, store = self.fleet, self._store
        if missing := fleet.campaigns.keys() - self.trainers.keys():
            raise StorageFailed(
                f"Device {device_id} is not forgotten: campaign {min(missing)} cannot be opened"
            )
        trainers = self.trainers
        parts = (lambda c: trainers[c.name].algorithm, lambda c: trainers[c.name].blobs)
        group, before = self._group(), self._named_blobs()
        self._add(group, forgotten(fleet, device_id, *parts, self.now_s))
        for name in fleet.campaigns:
            arguments = (store.rounds(name), device_id, fleet.devices, trainers[name].blobs)
            group.records += [(name, record) for record in records_without(*arguments)]
        if not group.steps or not self._commit(group):
            problem = self.problem or "a defect of Shoal, which the log has"
            raise StorageFailed(f"Device {device_id} is not forgotten: {problem}")
        for name, after in self._named_blobs().items():
            trainers[name].blobs.drop(before[name] - after)
        self._link.clear(device_id)
        self._inbox.forget(device_id)
        self.telemetry.forget(device_id)

    def _named_blobs(self) -> dict[str, set[str]]:
        """Return the digests of all blobs that records name, by campaign.

        Raises:
            StorageFailed: the records of rounds cannot be read.
        """
        digests = dict[str, set[str]]()
        for name, campaign in self.fleet.campaigns.items():
            updates = {update.blob for update in campaign.updates.values()}
            digests[name] = needed(campaign, self.fleet) | self._store.views(name) | updates
        return digests

    # Events become a fleet.

    def dispatch(self, *events: e.Event) -> bool:
        """Process events, store the result, carry out the commands; return True if stored."""
        group = self._group()
        for event in events:
            self._add(group, event)
        return self._commit(group)

    def _group(self) -> Group:
        return Group(self.fleet, self.fleet)

    def _add(self, group: Group, event: e.Event) -> None:
        """Process one event as part of a group."""
        turn = Turn(group.fleet)
        try:
            take_in(turn, event)
        except Exception:  # a defect of the state machine must not end the service
            log.exception("Event left out because of a defect: event=%s", type(event).__name__)
            self._inbox.count("defect", type(event).__name__)
            return
        group.fleet = turn.fleet()
        group.steps.append((event, group.fleet))
        group.changed |= turn.changed
        group.commands += turn.commands

    def _commit(self, group: Group) -> bool:
        """Store a group, then carry out its commands.

        Return False if it cannot be stored. Nothing has changed then.
        """
        events = [event for event, _ in group.steps]
        try:
            for name in sorted({campaign for campaign, _, _ in group.updates}):
                blobs = self.trainers[name].blobs
                blobs.put(*(payload for c, _, payload in group.updates if c == name))
            for name, payload in group.masks:
                self.trainers[name].blobs.put(payload)
            all_records = [*group.records, *self._withheld(group)]
            all_records += records_of(group.before, group.steps)
            records = list(
                {(name, record.round): (name, record) for name, record in all_records}.values()
            )
            if group.fleet is not group.before:
                self._store.commit(group.before, group.fleet, group.changed, events, records)
        except StorageFailed as error:
            for _, device_id, payload in group.updates:
                self._tell_busy(device_id, digest(payload))
            self._wait(str(error))
            return False
        self.fleet = group.fleet
        for event, fleet in group.steps:
            self._observe(fleet, event)
        self.telemetry.observe(group.before, group.fleet, group.changed)
        if self._assembly is not None:
            for _, device_id, _ in group.updates:
                self._assembly.drop(device_id)
        for command in group.commands:
            self._carry_out(command)
        for name in sorted({*(name for name, _ in records), *_resurveyed(group)}):
            self._tidy(name)
        if self._releases is not None and group.before.releases is not group.fleet.releases:
            self._tidy_releases(self._releases)
        return True

    def _withheld(self, group: Group) -> list[tuple[str, RoundRecord]]:
        """Return records without the personal models that owners have begun to withhold.

        Raises:
            StorageFailed: the records cannot be read.
        """
        silent, devices = set[str](), group.before.devices
        for event, fleet in group.steps:
            if isinstance(event, e.CheckedIn) and (was := devices.get(event.device_id)) is not None:
                device = fleet.devices[event.device_id]
                if device.policy.withholds and not was.policy.withholds:
                    silent.add(event.device_id)
        names = group.fleet.campaigns if silent else ()
        records = ((name, record) for name in names for record in self._store.rounds(name))
        return [
            (n, without_kept(r, silent))
            for n, r in records
            if not silent.isdisjoint(r.personal_models)
        ]

    def _wait(self, problem: str) -> None:
        """Process no events until storing works again."""
        log.error("Nothing can be stored: %s", problem)
        self.problem, self._look_at_s = problem, self._clock() + RETRY_S
        self.announce()

    def _try_to_store(self) -> None:
        self._look_at_s = self._clock() + RETRY_S
        try:
            self._store.check()
            for trainer in self.trainers.values():
                check_blobs(trainer.blobs)
            # a commit without an answer may have succeeded
            self.fleet = self._store.load()
            self._timers.clear()  # a loaded fleet has no timers
            self._heap.clear()
        except StorageFailed as error:
            log.debug("Still nothing can be stored: %s", error)
            return
        log.info("Storage works again after an error: %s", self.problem)
        self.problem = ""
        self._link.rename()
        self._restart(self.fleet.epoch)
        self.announce()

    def _restart(self, epoch: int) -> None:
        """Repeat every command that may be lost, with this epoch."""
        self.dispatch(e.Resumed(at_s=self._clock(), epoch=epoch))

    # Commands are carried out.

    def _carry_out(self, command: e.Command | m.Reply) -> None:
        try:
            match command:
                case e.SetTimer(key, at_s):
                    self._timers[key] = at_s
                    heapq.heappush(self._heap, (at_s, key))
                case e.SendPlan(device_id, work):
                    self._send_plan(device_id, work)
                case e.Cancel(device_id, work):
                    self._cancel(device_id, work)
                case e.OfferRelease():
                    self._offer(command)
                case e.AcknowledgeUpdate(device_id, blob):
                    self._link.send(m.Acknowledge(device_id, blob))
                case e.Aggregate(name):
                    self._train(name, command)
                case e.AskHelpers():
                    self._ask_helpers(command)
                case e.PlaceDevice(name):
                    self._train(name, command)
                case _:
                    self._link.send(command)
        except (BlobLost, StorageFailed, LimitExceeded) as error:
            log.error("Command not carried out: command=%s: %s", type(command).__name__, error)
        # a defect must not end the service; the command is repeated after a start
        except Exception:
            kind = type(command).__name__
            log.exception("Command left out because of a defect: command=%s", kind)
            self._inbox.count("defect", kind)

    def _train(self, name: str, command: e.Aggregate | e.PlaceDevice) -> None:
        trainer = self.trainers.get(name)
        if trainer is None or trainer.problem:
            return
        campaign = self.fleet.campaigns[name]
        if isinstance(command, e.PlaceDevice):
            event = trainer.place(campaign, command)
        elif (campaign.phase, campaign.round) != ("aggregating", command.round):
            return  # an update of the round was withdrawn meanwhile
        else:
            event = trainer.aggregate(campaign, command)
        if event is not None:
            self.dispatch(event)

    def _ask_helpers(self, command: e.AskHelpers) -> None:
        """Ask the helpers whose answers are missing to open a sum of a round."""
        name, number, key = command.campaign, command.round, command.key
        trainer, campaign = self.trainers.get(name), self.fleet.campaigns[name]
        if trainer is None or trainer.problem:
            return
        if key not in campaign.sums or campaign.round != number:
            return
        helpers = {helper.digest: helper for helper in campaign.settings.helpers}
        keys = {digest: helper.der for digest, helper in helpers.items()}
        seal_to = write_public_key(self._inbox.sums_key.public_key())
        shares = trainer.shares(campaign, key)
        try:
            for helper, request in requests_of(campaign.sums[key], keys, seal_to).items():
                self._link.ask(helpers[helper].name, request, shares)
        except LimitExceeded as error:
            problem = f"too-large: a request to a helper: {error}"
            self.dispatch(
                e.SumFailed(at_s=self.now_s, campaign=name, round=number, key=key, problem=problem)
            )

    def _send_plan(self, device_id: str, work: Assignment) -> None:
        trainer, device = self.trainers.get(work.campaign), self.fleet.devices.get(device_id)
        if trainer is None or trainer.problem or device is None or device.assignment != work:
            return
        campaign = self.fleet.campaigns[work.campaign]
        encodings = device.facts.encodings if device.facts is not None else ()
        plan = plan_of(campaign.settings, work, device_id, self.fleet.epoch, encodings)
        chosen = (c for verb in plan.verbs if isinstance(verb, m.Choose) for c in verb.models)
        digests = {plan.bundle, plan.model, *chosen}

        def send() -> None:
            self._link.offer(work.campaign, digests, trainer.blobs)
            self._link.send(plan)

        try:
            send()
        except LimitExceeded as error:
            trainer.stop(str(error), send)

    def _cancel(self, device_id: str, work: Assignment) -> None:
        """Stop a device's work for an aborted campaign.

        Other work ends by itself, and its update is acknowledged.
        """
        campaign = self.fleet.campaigns.get(work.campaign)
        if campaign is not None and campaign.ended == "order":
            settings = campaign.settings
            fields = (device_id, settings.run_id, self.fleet.epoch, settings.bundle, work.model)
            self._link.send(m.Finish(*fields, releases=True))

    def _offer(self, command: e.OfferRelease) -> None:
        release = self.fleet.releases[command.release]
        device_id, names = command.device_id, release.blobs
        if command.direct:
            self._link.offer(release.campaign, names, self.trainers[release.campaign].blobs)
            fields = (release.run_id, self.fleet.epoch, release.bundle, release.model)
            self._link.send(m.Finish(device_id, *fields, number=command.serial))
        elif self._releases is not None:
            self._link.offer(self, names, self._releases)
            group = f"{release.campaign}/{release.group}"
            parts = (group, release.run_id, release.bundle, release.model)
            self._link.send(m.Release(device_id, self.fleet.epoch, command.serial, *parts))

    def _tidy(self, name: str) -> None:
        """Withdraw and delete blobs of a campaign that are no longer needed."""
        campaign, trainer = self.fleet.campaigns[name], self.trainers.get(name)
        if trainer is None or trainer.problem:
            return
        on_offer = offered(campaign, self.fleet)
        self._link.withdraw_all_but(name, on_offer)
        # blobs that cannot be deleted now are deleted after a later round
        try:
            trainer.blobs.keep(on_offer | remembered(campaign) | self._store.views(name))
        except OSError as error:
            log.warning("Blobs not deleted, trying again later: campaign=%s: %s", name, error)

    def _tidy_releases(self, blobs: Blobs) -> None:
        """Withdraw blobs of releases that no device needs, and delete the unneeded ones.

        A device needs the release that it has, and the one that it would return to.
        """
        fleet, offers = self.fleet, offered_releases(self.fleet)
        on_offer, needed_blobs = (
            {name for n in numbers & fleet.releases.keys() for name in fleet.releases[n].blobs}
            for numbers in (offers, needed_releases(fleet, offers))
        )
        self._link.withdraw_all_but(self, on_offer)
        # blobs that cannot be deleted now are deleted after a later release
        try:
            blobs.keep(needed_blobs)
        except OSError as error:
            log.warning("Blobs of releases not deleted, trying again later: %s", error)

    def _tell_busy(self, device_id: str, digest: str) -> None:
        self._link.send(m.Busy(device_id, digest, BUSY_S))

    # Messages and timers become events.

    def run(self, stop: Callable[[], bool]) -> None:
        """Handle messages and timers until `stop` returns True.

        `stop` is called at least every half second.

        Raises:
            OtherAggregator, WrongFleet: another aggregator has taken over the fleet, or the broker
                does not let this one speak for it.
        """
        link = self._link.link
        while not stop():
            wait_s = min(0.5, max(0.0, self.next_s() - self._clock()))
            event, events = link.receive(timeout_s=wait_s), list[LinkEvent]()
            while event is not None:
                events.append(event)
                event = link.receive(timeout_s=0) if len(events) < GROUP else None
            self.handle(*events)
            self.tick()

    def next_s(self) -> float:
        """Return the time of the next timer in Unix seconds; infinity if none is set."""
        if self.problem:
            return self._look_at_s
        stops = (trainer.look_at_s for trainer in self.trainers.values())
        return min(self._heap[0][0] if self._heap else float("inf"), *stops, float("inf"))

    def tick(self) -> None:
        """Ring every timer that is due, and check whether the causes of stops are gone."""
        now_s = self._clock()
        if self.problem:
            if now_s >= self._look_at_s:
                self._try_to_store()
            return
        due = dict[str, None]()
        while self._heap and self._heap[0][0] <= now_s:
            at_s, key = heapq.heappop(self._heap)
            if self._timers.get(key) == at_s:
                del self._timers[key]
                due[key] = None
        if due:
            self.dispatch(e.Tick(at_s=now_s, keys=tuple(due)))
        for trainer in self.trainers.values():
            if trainer.problem and now_s >= trainer.look_at_s and trainer.try_to_go_on():
                self._link.rename()
                self._restart(self.fleet.epoch)
                self.announce()
        if silent := self._inbox.silent(self.fleet):
            self.dispatch(*silent)
        self.telemetry.tick()

    def handle(self, *events: LinkEvent) -> None:
        """Process events of the link, and store the result together.

        No message raises an error: a bad one is refused with a reason.

        Raises:
            OtherAggregator, WrongFleet: as `run`.
        """
        group, deliveries, proofs = self._group(), list[Delivery](), list[tuple[str, str]]()
        for event in events:
            match event:
                case LinkUp(has_session):
                    self._connect(has_session)
                case LinkDown(reason):
                    self.connected = False
                    self._rivals.lost(reason)
                case Denied(action, topic, reason):
                    self._rivals.denied(action, topic, reason, self._link.topics)
                case Delivery(topic, payload):
                    deliveries.append(event)
                    if topic == self._link.topics.aggregator:
                        identity = (self._link.announced, self._link.boot_id, self.fleet.epoch)
                        self._rivals.check(payload, *identity)
                        continue
                    proofs += self._take(group, event)
                    if sum(len(update) for *_, update in group.updates) > MOST_TOGETHER:
                        self._commit(group)
                        group = self._group()
        self._commit(group)
        self._link.link.confirm(deliveries)
        self._believe(proofs)

    def _take(self, group: Group, delivery: Delivery) -> Iterable[tuple[str, str]]:
        """Process a message as part of a group; return the device with its proof of an epoch."""
        reading: Reading = self._inbox.read(delivery, group.fleet)
        if reading.about == "update":
            trainer = self.trainers.get(reading.campaign)
            stopped = reading.campaign and (trainer is None or trainer.problem)
            if self.problem or stopped:
                self._tell_busy(reading.device_id, reading.digest)
                return ()
        if reading.fetch is not None:
            self._fetch(reading)
        if reading.want is not None:
            self._link.send(reading.want)
        self._link.clear(reading.device_id, reading.clears)
        if self.problem and reading.events:
            return ()  # no reply either: only stored messages are confirmed
        if reading.masks is not None and reading.campaign not in self.trainers:
            return ()
        group.commands += reading.replies
        if reading.masks is not None:
            group.masks.append((reading.campaign, reading.masks))
        if reading.update is not None:
            group.updates.append((reading.campaign, reading.device_id, reading.update))
        for event in reading.events:
            self._add(group, event)
        return [(reading.device_id, reading.proof)] if reading.proof else ()

    def _fetch(self, reading: Reading) -> None:
        assert reading.fetch is not None
        try:
            is_offered = self._link.offer_again(reading.fetch.digest)
        except ShoalError as error:
            self._inbox.count("blob-unread", str(error))
            is_offered = False
        if not is_offered:
            detail = f"blob {reading.fetch.digest[:12]} is not on offer"
            self._inbox.refuse(reading, "unknown-blob", detail)

    def _connect(self, has_session: bool) -> None:
        """Announce the service after a connection.

        If the broker has lost waiting messages, every device is made to check in.
        """
        self.connected = True
        if self._was_connected:
            log.info("Connected to the broker again: session_kept=%s", str(has_session).lower())
        if self._was_connected and not has_session:
            self._link.rename()
        self.announce()
        try:
            if self._was_connected:
                self._link.offer_again()
        except LimitExceeded as error:  # a campaign that needs the blob stops at its next plan
            log.error("Blobs not offered again: %s", error)
        self._was_connected = True

    def _believe(self, proofs: Sequence[tuple[str, str]]) -> None:
        """Take an epoch above one that a device has proved to hold."""
        for device_id, proof in proofs:
            proven = self._rivals.proven_epoch(device_id, proof)
            if proven > self.fleet.epoch and not self.problem:
                log.warning(
                    "Device has a plan of a later epoch, taking a later one: device=%s "
                    "plan_epoch=%d epoch=%d",
                    device_id,
                    proven,
                    self.fleet.epoch,
                )
                self._restart(proven + 1)
                self.announce()

    def announce(self) -> None:
        """Publish that the aggregator is online, and its condition."""
        going = [c for c in self.fleet.campaigns.values() if c.phase != "finished"]
        latest = (going or [*self.fleet.campaigns.values()])[-1:]
        run_id = latest[0].settings.run_id if latest else ""
        self._link.announce(self.fleet.epoch, self._clock(), run_id, paused=self.condition)

    @property
    def condition(self) -> str:
        """Reason that no campaign advances; empty while one does."""
        going = [c.name for c in self.fleet.campaigns.values() if c.phase != "finished"]
        problems = [self.trainers[name].problem for name in going if name in self.trainers]
        return self.problem or (problems[-1] if problems and all(problems) else "")

    @property
    def finished(self) -> bool:
        """True if every campaign is finished and the sweep that informs its devices is over."""
        is_over = all(c.phase == "finished" for c in self.fleet.campaigns.values())
        return is_over and not self.fleet.sweep


def _resurveyed(group: Group) -> Iterator[str]:
    """Yield the campaigns in which a survey was replaced or deleted."""
    for name, campaign in group.before.campaigns.items():
        before, after = campaign.members, group.fleet.campaigns[name].members
        if before is not after and any(
            before.get(d, NOBODY).survey not in (None, after.get(d, NOBODY).survey)
            for d in group.changed
        ):
            yield name
