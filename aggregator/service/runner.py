"""Runs the campaigns of a fleet over one link: messages go to the campaign that they are for.

The service runs this, and so does a simulation by messages (`simulation.engine.messages`); only
their adapters differ.

What was not foreseen is contained in three rings. A message that cannot be read is refused
(`aggregator.service.inbox`). An event or a command that fails is left out, and a campaign that
cannot go on is paused (`aggregator.service.campaign`); the others go on.

A device works for one campaign at a time: the one that was started last of those that ask devices
and take it. It is given the models of the one that came to its end last
(`aggregator.core.round.dismissal`).
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from aggregator.aggregation.inherit import Source
from aggregator.aggregation.stored import check_fit, start_run
from aggregator.core.ports import Blobs, Clock, Store
from aggregator.core.record import Group
from aggregator.core.round.dismissal import by_end
from aggregator.core.round.machine import step
from aggregator.core.settings import RunSettings
from aggregator.core.state import DeviceCheckedIn, DeviceLost, Resumed, RunState
from aggregator.leadership.rivals import Rivals
from aggregator.releases.rollouts import Rollouts
from aggregator.service.campaign import Campaign, Observer
from aggregator.service.devices import Devices
from aggregator.service.inbox import Inbox
from aggregator.transfer.assembly import Assembly
from aggregator.transfer.fleet import Fleet
from algorithms.algorithm import Algorithm
from algorithms.core.contract import Probe
from wire.bundle import Bundle
from wire.codec import digest
from wire.errors import ShoalError, UnknownTopic
from wire.identity.signed import Verifier
from wire.links.port import Delivery, Denied, LinkDown, LinkEvent, LinkUp

log = logging.getLogger("shoal.aggregator")

GROUP = 64
"""Messages that are saved together, at most."""
MOST_TOGETHER = 64 * 2**20
"""Once updates have more bytes together they are saved."""


class Runner:
    """Runs campaigns, in one thread."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        *,
        epoch: int = 1,
        silence_s: float = float("inf"),
        verifier: Verifier | None = None,
        devices: Devices | None = None,
        rollouts: Rollouts | None = None,
        assembly: Assembly | None = None,
    ) -> None:
        """`epoch`: that of this start. A device that is silent for `silence_s` is taken for absent.
        `verifier`: opens what other aggregators of this fleet have signed; without one, nothing
        that they sent is believed. `rollouts`: the fleet's releases, by which devices get the
        models to use; without, a campaign gives them its models when it is over. `assembly`: where
        large updates are put together; without, all have to come whole."""
        self._rollouts = rollouts
        self._fleet, self._clock, self._epoch, self._silence_s = fleet, clock, epoch, silence_s
        self.devices = devices or Devices(None, clock)
        self._inbox, self._assembly = (
            Inbox(fleet.topics, clock, fleet.offered, self.devices, assembly),
            assembly,
        )
        self.link = fleet.link
        """The link whose events `handle` takes."""
        self.refused = self._inbox.refused
        """Number of refused messages by reason; under ``defect``, those that Shoal failed at."""
        self._rivals = Rivals(verifier, clock, self._inbox.count)
        self._was_connected, self.connected = False, False
        self._look_at_s, self._started_s = 0.0, clock()
        self.campaigns: dict[str, Campaign] = {}
        """By name, in the order of their starts. It is replaced as a whole, so that other threads
        may read it."""
        self._asking: list[str] = []

    def add(
        self,
        settings: RunSettings,
        algorithm: Algorithm,
        bundle: Bundle,
        probe: Probe,
        store: Store,
        blobs: Blobs,
        *,
        observe: Observer = lambda _state, _event: None,
        takes: Callable[[str], bool] = lambda _device_id: True,
        source: Source | None = None,
        held: bool = False,
    ) -> Campaign:
        """Start a campaign, or go on with the one in the store, from the next round on with these
        settings. `observe` and `takes` as in `Campaign`; `source`: models that it starts from;
        `held`: True if the operator has paused it.

        Raises:
            ConfigError: the algorithm does not fit the bundle, or its updates are larger than what
            is taken.
            StorageFailed: the campaign cannot be begun.
        """
        self._inbox.admit_updates_of(bundle.manifest)
        state, started = store.load(), None
        if state is None:
            check_fit(settings, algorithm, bundle.manifest)
            blobs.put(bundle.payload)
            run = settings, algorithm, probe, bundle.initial, blobs, self._clock()
            started = start_run(*run, self.epoch, source)
            store.commit([started])
            state, _ = step(None, started)
        campaign = Campaign(
            state,
            algorithm,
            bundle,
            probe,
            store,
            blobs,
            self._fleet,
            self._clock,
            self.announce,
            self._inbox.count,
            observe,
            takes,
            self.devices,
        )
        campaign.releases = self._rollouts is not None
        if held:
            campaign.hold()
        campaign.gives_to = lambda device_id: self.giver_of(device_id) is campaign
        if started is not None:
            observe(campaign.state, started)
        else:
            campaign.resume(settings, self.epoch)
        self.campaigns = {**self.campaigns, settings.name: campaign}
        campaign.has = lambda device_id: self.campaign_of(device_id) is campaign
        if (
            campaign.finished
        ):  # the registry may have been killed before it wrote what devices said last
            for device_id, received in campaign.state.received.items():
                if received.kept is not None and self.giver_of(device_id) is campaign:
                    self.devices.on_models(campaign.state, device_id, campaign.releases)
        self.reassign()
        return campaign

    @property
    def epoch(self) -> int:
        """Which start of the service speaks."""
        return max([self._epoch, *(campaign.state.epoch for campaign in self.campaigns.values())])

    @property
    def finished(self) -> bool:
        """Whether every campaign is over."""
        return all(campaign.finished for campaign in self.campaigns.values())

    @property
    def paused(self) -> str:
        """Why nothing goes on; empty while anything does."""
        unfinished = [
            campaign for campaign in self.campaigns.values() if not campaign.finished
        ] or list(self.campaigns.values())
        return (
            unfinished[-1].paused
            if unfinished and all(campaign.paused for campaign in unfinished)
            else ""
        )

    def run(self, stop: Callable[[], bool]) -> None:
        """Handle messages and deadlines until `stop` returns true; it is called at least every half
        second.

        Raises:
            OtherAggregator, WrongFleet: another aggregator has taken over the fleet, or the broker
            does not let this one speak for it.
        """
        while not stop():
            event = self._fleet.link.receive(
                timeout_s=min(0.5, max(0.0, self.next_deadline_s() - self._clock()))
            )
            group = []
            while event is not None:
                group.append(event)
                event = self._fleet.link.receive(timeout_s=0) if len(group) < GROUP else None
            self.handle(*group)
            self.tick()

    def next_deadline_s(self) -> float:
        """The clock's second at which the next deadline is due; infinity when none is set."""
        return min(
            (campaign.next_deadline_s() for campaign in self.campaigns.values()),
            default=float("inf"),
        )

    def tick(self) -> None:
        """Act on every deadline that is due, and on every device that was silent for too long."""
        for campaign in list(self.campaigns.values()):
            campaign.tick()
        epoch, now_s = self.epoch, self._clock()
        for campaign in self.campaigns.values():  # a device takes nothing of a smaller epoch
            if campaign.state.epoch < epoch and not campaign.paused:
                campaign.dispatch(Resumed(now_s, epoch))
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + self._silence_s / 10
            if now_s - self._started_s > self._silence_s:
                for campaign in self.campaigns.values():
                    if not campaign.paused:
                        campaign.dispatch(
                            *(
                                DeviceLost(now_s, d)
                                for d, known in campaign.state.devices.items()
                                if known.online
                                and max(known.last_seen_s, self._inbox.heard.get(d, 0.0))
                                < now_s - self._silence_s
                            )
                        )
        self.devices.tick()
        self.tell_devices()
        self._reassign_if_needed()

    def tell_devices(self) -> bool:
        """Tell the campaigns which devices they may ask, where that has changed. Returns whether
        all have saved it."""
        open_now = [c for c in self.campaigns.values() if not c.paused]
        saved, changed = [c.tell() for c in open_now], self.devices.changed()
        saved = [done and c.take_back(changed) for done, c in zip(saved, open_now, strict=True)]
        self.reassign(changed)
        return all(saved) and len(saved) == len(self.campaigns)

    def forget(self, device_id: str) -> None:
        """Forget a device in every campaign, and on the broker.

        Raises:
            BlobLost, StorageFailed: it is not forgotten everywhere.
        """
        for campaign in self.campaigns.values():
            campaign.forget(device_id)
        if self._rollouts is not None:
            self._rollouts.forget(device_id)
        else:
            self._fleet.clear(device_id)
        self._inbox.forget(device_id)
        if self._assembly is not None:
            self._assembly.drop(device_id)

    def handle(self, *events: LinkEvent) -> None:
        """Act on events of the link, and save what follows from them together. Whatever a message
        holds, it raises nothing: it is refused with a reason.

        Raises:
            OtherAggregator, WrongFleet: another aggregator has taken over the fleet, or the broker
            does not let this one speak for it.
        """
        groups, deliveries, proofs = dict[str, Group](), list[Delivery](), list[tuple[str, str]]()
        for event in events:
            match event:
                case LinkUp(kept):
                    self.connected = True
                    if (
                        self._was_connected and not kept
                    ):  # the broker has lost what waited for us, and maybe what waited for devices
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
                    self._rivals.check(
                        payload, self._fleet.announced, self._fleet.boot_id, self.epoch
                    )
                    deliveries.append(event)
                case Delivery():
                    proofs += self._take(groups, event)
                    deliveries.append(event)
                    updates = [each for group in groups.values() for each in group.updates]
                    # what comes after a buffered campaign is to aggregate counts in its next round
                    is_due = any(
                        group.state.settings.buffer and group.state.phase == "aggregating"
                        for group in groups.values()
                    )
                    if is_due or sum(len(payload) for _, payload in updates) > MOST_TOGETHER:
                        self._commit(groups)
        self._commit(groups)
        self._fleet.link.confirm(deliveries)
        for device_id, proof in proofs:
            proven = self._rivals.proven_epoch(device_id, proof)
            if proven > self.epoch and not self.paused:
                log.warning(
                    "device=%s has a plan of epoch %d, this was %d: a greater one is taken",
                    device_id,
                    proven,
                    self.epoch,
                )
                self._epoch = proven + 1
                for campaign in self.campaigns.values():
                    campaign.dispatch(Resumed(self._clock(), proven + 1))
                self.announce()
        self._reassign_if_needed()

    def _commit(self, groups: dict[str, Group]) -> None:
        """Save groups, and forget the pieces of what is safe then."""
        for name, group in groups.items():
            if self.campaigns[name].commit(group) and self._assembly is not None:
                for device_id, _ in group.updates:
                    self._assembly.drop(device_id)
        groups.clear()

    def announce(self) -> None:
        """Publish that the aggregator is there, and how it is."""
        latest = next((c for c in reversed(self.campaigns.values()) if c.asks), None) or next(
            reversed(self.campaigns.values()), None
        )
        run_id = latest.state.settings.run_id if latest is not None else ""
        self._fleet.announce(self.epoch, self._clock(), run_id, paused=self.paused)

    def campaign_of(self, device_id: str) -> Campaign | None:
        """The campaign that a device works for; where none asks it, the one whose models it has;
        before any has come to its end, the last that it worked for, or the last of all."""
        latest = list(reversed(self.campaigns.values()))
        asking = next((c for c in latest if c.asks and c.may_ask(device_id)), None)
        if (found := asking or self.giver_of(device_id)) is not None:
            return found
        knowing = (c for c in latest if device_id in c.state.devices)
        return next(knowing, None) or next((c for c in latest if c.takes(device_id)), None)

    def giver_of(self, device_id: str) -> Campaign | None:
        """The campaign whose models a device has, or is to have: of those that take it, the one
        that came to its end last."""
        names = by_end({name: campaign.state for name, campaign in self.campaigns.items()})
        over = [campaign for name in names if (campaign := self.campaigns[name]).takes(device_id)]
        for campaign in over:
            device = campaign.state.devices.get(device_id)
            if campaign.may_ask(device_id) or (device is not None and device.accepted):
                return campaign
        return over[0] if over else None

    def reassign(self, device_ids: Iterable[str] | None = None) -> None:
        """Let devices that are there, all or these, go to the campaigns that they are to work for
        now."""
        if device_ids is None:
            self._asking = self._names_asking()
        names = list(self.campaigns)
        chosen = (
            {d for c in self.campaigns.values() for d in c.state.devices}
            if device_ids is None
            else set(device_ids)
        )
        moved: dict[str, list[DeviceCheckedIn | DeviceLost]] = {name: [] for name in names}
        for device_id in sorted(chosen):
            target = self.campaign_of(device_id)
            held = [
                c
                for c in self.campaigns.values()
                if (known := c.state.devices.get(device_id)) is not None and known.online
            ]
            if target is None or not held or (len(held) == 1 and held[0] is target):
                continue
            now_s = self._clock()
            for campaign in held:
                if campaign is not target:
                    moved[campaign.name].append(DeviceLost(now_s, device_id))
            if target not in held:
                moved[target.name].append(self._comes_over(device_id, held[-1], target))
        for name, events in moved.items():
            if events:
                self.campaigns[name].dispatch(*events)

    def _comes_over(self, device_id: str, before: Campaign, target: Campaign) -> DeviceCheckedIn:
        """A device goes to another campaign, with what it has said to the one before."""
        device = before.state.devices[device_id]
        said = (
            device.num_train,
            device.num_test,
            device.runtime,
            device.bundle,
            device.moved,
            target.may_ask(device_id),
        )
        return DeviceCheckedIn(
            self._clock(),
            device_id,
            *said,
            device.encodings,
            device.withholds,
            device.terms,
            device.untested,
        )

    def bring(self, campaign: Campaign) -> None:
        """Let a campaign that is to go on after its end know what devices have said last to the
        campaigns that it takes them from: its next round asks by that."""
        names = list(self.campaigns)
        later = [self.campaigns[name] for name in names[names.index(campaign.name) + 1 :]]
        found = {
            device_id: other
            for other in self.campaigns.values()
            for device_id, device in other.state.devices.items()
            if other is not campaign and device.online and campaign.may_ask(device_id)
        }
        free = [d for d in sorted(found) if not any(c.asks and c.may_ask(d) for c in later)]
        campaign.dispatch(*(self._comes_over(d, found[d], campaign) for d in free))

    def _names_asking(self) -> list[str]:
        return [name for name, campaign in self.campaigns.items() if campaign.asks]

    def _reassign_if_needed(self) -> None:
        """A campaign that ended leaves its devices to the others."""
        if self._asking != self._names_asking():
            self.reassign()

    def _take(self, groups: dict[str, Group], delivery: Delivery) -> list[tuple[str, str]]:
        """Add what follows from a message to the groups of its campaigns. Returns the device and
        the proof where one was shown."""

        def state_of(name: str) -> RunState:
            return groups[name].state if name in groups else self.campaigns[name].state

        def of_device(device_id: str) -> tuple[str, RunState] | None:
            campaign = self.campaign_of(device_id)
            return (campaign.name, state_of(campaign.name)) if campaign is not None else None

        def of_run(run_id: str) -> tuple[str, RunState] | None:
            return next(
                (
                    (n, state_of(n))
                    for n, c in self.campaigns.items()
                    if c.state.settings.run_id == run_id
                ),
                None,
            )

        if self.paused:
            with suppress(UnknownTopic):
                address = self._fleet.topics.parse(delivery.topic)
                first = self.campaign_of(address.device_id) if address.kind == "update" else None
                if first is not None:
                    first.tell_busy(address.device_id, digest(delivery.payload))
                    return []
        reading = self._inbox.read(delivery, of_device, of_run)
        if reading.in_use is not None and self._rollouts is not None:
            self._rollouts.on_in_use(reading.in_use)
        campaign = self.campaigns.get(reading.campaign)
        if (fetch := reading.fetch) is not None:
            try:
                is_offered = self._fleet.offer_again(fetch.digest)
            except ShoalError as error:
                self._inbox.count("blob-unread", str(error))
                is_offered = False
            if not is_offered:
                detail = f"blob {fetch.digest[:12]} is not on offer"
                self._inbox.refuse(reading, "unknown-blob", detail)
        if campaign is None:
            for reply in reading.replies:
                self._fleet.send(reply)
            return []
        if campaign.paused and reading.about == "update":
            campaign.tell_busy(reading.device_id, reading.digest)
            return []
        if reading.want is not None:
            self._fleet.send(reading.want)
        group = groups.setdefault(reading.campaign, Group(campaign.state))
        group.commands += reading.replies
        if campaign.paused:
            return []
        if reading.update is not None:
            group.updates.append((reading.device_id, reading.update))
        for event in reading.events:
            campaign.add(group, event)
            others = self.campaigns.items() if isinstance(event, DeviceCheckedIn) else ()
            for name, other in others:  # it works for no other
                known = other.state.devices.get(reading.device_id)
                if other is not campaign and known and known.online and not other.paused:
                    lost = DeviceLost(event.at_s, reading.device_id)
                    other.add(groups.setdefault(name, Group(other.state)), lost)
        return [(reading.device_id, reading.proof)] if reading.proof else []
