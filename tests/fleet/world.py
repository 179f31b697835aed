"""A service and its devices, as far as the machine can tell: messages are lost, devices come and
go, the service crashes, a clock is virtual."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from aggregator.core.settings import RunSettings
from aggregator.core.steps import Gate, Step
from aggregator.fleet import events as e
from aggregator.fleet import rollouts, rounds
from aggregator.fleet.desired import NEW, can_train, is_at_work, releases_for, works_for
from aggregator.fleet.reconcile import Turn, reconcile
from aggregator.fleet.records import (
    AdmittedUpdate,
    Assignment,
    Campaign,
    Fleet,
    ModelRelease,
    Placed,
    Version,
)
from aggregator.fleet.step import step, take_in
from aggregator.ports import Store
from algorithms.core.keys import NEWCOMER, UNLABELLED
from tests.support.known import known
from wire.messages import CheckIn, Evaluate, InUse, Mask, Metrics, Train, Verb
from wire.secret.question import Part

MESSAGES = (e.SendPlan, e.OfferRelease, e.AcknowledgeUpdate, e.Cancel)
TRAIN = Train(graph="step", epochs=1, batch_size=2, hyper={})
CLOSING = (Evaluate(graph="evaluate", split="test"),)
SURVEY = (Evaluate(graph="survey", split="windows"),)
USUAL_GATE = Gate()


def settings_of(**changes: Any) -> RunSettings:
    """Settings of a campaign; `min_devices` says `min_updates` too."""
    usual: dict[str, Any] = {
        **{"algorithm": "fedavg", "data": "d", "bundle": "b" * 64, "reported": {}, "responses": {}},
        **{"name": "run", "run_id": "run", "min_devices": 1, "grace_s": 30.0, "min_batch": 1},
    }
    usual |= changes
    return RunSettings(**usual | {"min_updates": usual["min_devices"]})


def digest_of(name: str) -> str:
    """The digest of a blob with this name; names that begin alike have digests that do."""
    return name.encode().hex().ljust(64, "0")


def metrics_of(accuracy: float | None) -> Metrics:
    """Metrics with this accuracy on 1000 windows; None for none."""
    return Metrics() if accuracy is None else Metrics(1000, 1.0, round(1000 * accuracy))


def asks_for_sum(work: Assignment) -> bool:
    """True if an assignment asks for a secret sum."""
    return isinstance(work.verbs[-1], Mask)


@dataclass
class Client:
    """A device: what it has been told, and what it has not been answered yet."""

    num_train: int = 10
    battery: int = 80
    moved: bool = False
    online: bool = False
    plan: Assignment | None = None
    update: e.Updated | None = None
    kept: list[str] = field(default_factory=list)
    offered: int = 0
    serial: int = 0
    model: str = ""
    spoils: str = ""
    """The model that fails here."""
    drop: float | None = 0.0
    accuracy: float | None = 0.5
    empty: bool = False


class World:
    """Runs the machine: saves what happened, then carries out commands."""

    def __init__(self, store: Store | None = None) -> None:
        """`store`: where the fleet is saved, and loaded after a crash; in memory by default."""
        self.store, self.fleet = store, store.load() if store is not None else Fleet()
        self.now_s, self.events = 1.0, list[e.Event]()
        self.timers: dict[str, float] = {}
        self.outbox: list[e.Command] = []
        self.clients: dict[str, Client] = {}
        self.left_out: tuple[str, ...] = ()
        """Devices whose updates are out of bounds."""
        self.made = 0
        self.released: dict[str, tuple[bool, tuple[Step, ...], Gate]] = {}
        self.given_out: dict[str, int] = {}
        self.counted: Counter[str] = Counter()
        """Number of aggregations in which each update counted."""
        self.admitted: set[str] = set()
        self.acknowledged: set[str] = set()
        self.rounds: list[tuple[str, int, int, str]] = []
        """Campaign, round, number of updates and phase of each aggregation."""
        self.plans: list[tuple[float, str, Assignment]] = []
        self.most = 0
        """Maximum number of plans that were sent in one event."""

    def feed(self, event: e.Event) -> list[e.Command]:
        """Have something happen."""
        before = self.fleet
        turn = Turn(self.fleet)
        take_in(turn, event)
        self.fleet, commands = turn.fleet(), turn.commands
        self.check_changed(before, turn.changed)
        if self.store is not None:
            self.store.commit(before, self.fleet, turn.changed, [event])
        self.events.append(event)
        self.outbox += [c for c in commands if not isinstance(c, e.SetTimer)]
        self.timers |= {c.key: c.at_s for c in commands if isinstance(c, e.SetTimer)}
        self.most = max(self.most, sum(isinstance(c, e.SendPlan) for c in commands))
        for command in commands:
            if isinstance(command, e.SendPlan):
                self.plans.append((self.now_s, command.device_id, command.assignment))
            if isinstance(command, e.AcknowledgeUpdate):
                self.acknowledged.add(command.blob)
        if isinstance(event, e.Updated):
            self.admitted.add(event.update.blob)
            assert event.update.blob in self.acknowledged
        self.check_received(before, event)
        self.check_staleness(before, event)
        self.check_assignments(before, event, commands)
        self.check_counts()
        self.release_what_ended()
        return commands

    def assigned(self, device_id: str) -> Assignment:
        """The assignment of a device."""
        return known(self.fleet.devices[device_id].assignment)

    # What the machine must never do.

    def check_changed(self, before: Fleet, changed: set[str]) -> None:
        """Check that every device is named of which something else is to be stored."""

        def stored(fleet: Fleet, device_id: str) -> Any:
            device = fleet.devices.get(device_id)
            kept = device.stored() if device else None
            campaigns = fleet.campaigns.values()
            return kept, [(c.members.get(device_id), c.updates.get(device_id)) for c in campaigns]

        names = {*before.devices, *self.fleet.devices}
        if before.campaigns.keys() == self.fleet.campaigns.keys():
            others = {d for d in names if stored(before, d) != stored(self.fleet, d)}
            assert others <= changed, others - changed

    def check_received(self, before: Fleet, event: e.Event) -> None:
        """Check that an update that counts is not lost before it is aggregated, unless somebody has
        said so."""
        may_drop = (
            *(e.RolledBack, e.Forgotten, e.UpdatesLost, e.Configured, e.Directed, e.Banned),
            e.Excluded,
        )
        for name, was in before.campaigns.items():
            now = self.fleet.campaigns[name]
            if isinstance(event, may_drop) or bool(getattr(event, "withdrawal", False)):
                continue
            gone = {u.blob for u in was.updates.values()} - {u.blob for u in now.updates.values()}
            if isinstance(event, e.Aggregated) and event.campaign == name and now.round > was.round:
                used = {u.blob for u in was.updates.values() if u.round == was.round}
                assert used <= gone
                is_over = now.phase == "evaluating"
                assert gone == used or is_over, "only an end of training drops what is early"
                self.counted.update(used)
                self.rounds.append(
                    (name, was.round, len(used), "preparing" if was.preparing else "training")
                )
                least = min(was.settings.min_devices, was.next_settings.min_devices)
                assert len(used) >= least or (was.settings.secret and was.preparing)
            else:
                assert not gone or now.phase in ("evaluating", "finished", "waiting"), (event, gone)
                assert not gone or was.phase in ("evaluating", "waiting", "finished"), (event, gone)
        assert all(count == 1 for count in self.counted.values()), "an update counts once"

    def check_staleness(self, before: Fleet, event: e.Event) -> None:
        """Check that an update that has just come counts with the number of rounds since its
        device was asked."""
        was = before.devices.get(getattr(event, "device_id", ""))
        if not isinstance(event, e.Updated) or was is None or was.assignment is None:
            return
        campaign = self.fleet.campaigns[was.assignment.campaign]
        update = campaign.updates.get(event.device_id)
        if update is not None and update.blob == event.update.blob:
            since = update.round - update.staleness
            is_new = event.serial == was.assignment.serial
            assert since == was.assignment.round or not is_new
            assert update.round - campaign.round in (0, 1)

    def check_assignments(self, before: Fleet, event: e.Event, commands: list[e.Command]) -> None:
        """Check that a device gets other work only when the work that it had is answered, over, or
        wanted by nobody."""
        cancelled = {c.assignment.serial for c in commands if isinstance(c, e.Cancel)}
        for device_id, was in before.devices.items():
            now = self.fleet.devices.get(device_id)
            if now is None or not is_at_work(was) or now.assignment == was.assignment:
                continue
            work = known(was.assignment)
            is_answered = getattr(event, "serial", 0) == work.serial
            is_over = work.deadline_s <= self.fleet.at_s or bool(now.barred)
            assert is_answered or is_over or work.serial in cancelled, (event, was, now)
        for command in commands:
            if isinstance(command, e.SendPlan) and command.device_id in self.fleet.devices:
                assert command.assignment.serial <= self.assigned(command.device_id).serial

    def check_counts(self) -> None:
        """Check that what is derived is what it is derived from."""
        fleet = self.fleet
        pools: dict[str, set[str]] = {}
        for device_id, device in fleet.devices.items():
            if device.pool:
                pools.setdefault(device.pool, set()).add(device_id)
        assert {name: set(pool) for name, pool in fleet.pools.items() if len(pool)} == pools
        assert all(len(set(pool)) == len(pool) for pool in fleet.pools.values())
        assert dict(fleet.counts) == Counter(
            mark for device in fleet.devices.values() for mark in device.marks
        )
        for campaign in fleet.campaigns.values():
            refused = {d for d, each in campaign.members.items() if each.refused == campaign.round}
            assert campaign.refused == len(refused)
            assert refused.isdisjoint(campaign.updates) or campaign.preparing
        assert sorted(fleet.order) == sorted(fleet.devices)
        assert not any(device.pool for device in fleet.devices.values() if is_at_work(device)), (
            "one assignment at a time"
        )

    def check_settled(self) -> None:
        """Check that looking once more at a device, a campaign or a rollout finds nothing to do,
        when no timer is due and no sweep is under way: nobody depends on an event that may be
        missed."""
        assert not self.fleet.sweep
        looks = [partial(reconcile, device_id=device_id) for device_id in self.fleet.devices]
        looks += [partial(rounds.advance, name=name) for name in self.fleet.campaigns]
        looks.append(partial(rollouts.judge_due))
        for look in looks:
            turn = Turn(self.fleet)
            turn.now_s = max(turn.now_s, self.now_s)
            look(turn)
            assert not turn.commands, (look, turn.commands)
            assert replace(turn.fleet(), at_s=self.fleet.at_s) == self.fleet, look

    def check_not_stalled(self) -> None:
        """Check that an unfinished campaign that has enough devices waits for something."""
        busy = Counter(
            mark.split("/")[1]
            for device in self.fleet.devices.values()
            for mark in device.marks
            if mark.count("/") == 2
        )
        for name, campaign in self.fleet.campaigns.items():
            if campaign.phase == "finished" or campaign.paused:
                continue
            there = (
                (d, device)
                for d, device in self.fleet.devices.items()
                if device.online and not device.barred
            )
            eligible = [
                device
                for d, device in there
                if works_for(self.fleet, d, device) == campaign and can_train(campaign, device)
            ]
            if len(eligible) < campaign.next_settings.min_devices:
                continue
            rings = [
                at_s
                for key, at_s in self.timers.items()
                if not key or self.fleet.devices.get(key) in eligible
            ]
            waits = rings or busy[name] or campaign.phase == "aggregating"
            assert waits, f"{name} has stalled in {campaign.phase}"

    def replayed(self) -> Fleet:
        """The fleet as it becomes of the same events."""
        fleet = Fleet()
        for event in self.events:
            fleet, _ = step(fleet, event)
        return fleet

    # What goes on around it.

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and timers ring."""
        until_s = self.now_s + seconds
        while (
            due := min(self.timers.items(), key=lambda item: (item[1], item[0]), default=None)
        ) is not None and due[1] <= until_s:
            del self.timers[due[0]]
            self.now_s = max(self.now_s, due[1])
            self.feed(e.Tick(at_s=self.now_s, keys=(due[0],)))
        self.now_s = until_s

    def ring(self) -> None:
        """Let the timers ring that are due now."""
        self.pass_time(0)

    def carry_out(self, count: int = 10**6, lose: bool = False) -> None:
        """Carry out so many commands; `lose`: messages to devices are lost."""
        while self.outbox and count > 0:
            count -= 1
            command = self.outbox.pop(0)
            if isinstance(command, MESSAGES):
                client = self.clients[command.device_id]
                if client.online and not lose:
                    self.deliver(client, command)
            elif isinstance(command, e.Aggregate):
                self.aggregate(command)
            elif (
                isinstance(command, e.PlaceDevice)
                and self.fleet.campaigns[command.campaign].trained
            ):
                own = {"campaign": command.campaign, "device_id": command.device_id}
                group = str(sum(map(ord, command.device_id)) % 2)
                self.feed(e.PlacedBySurvey(at_s=self.now_s, placed=Placed(group, 1.0), **own))

    def aggregate(
        self, command: e.Aggregate, reverted_to: int | None = None, preparing: bool = False
    ) -> None:
        """Do as an algorithm does that puts every device into one of two groups."""
        campaign = self.fleet.campaigns[command.campaign]
        used = [d for d, update in campaign.updates.items() if update.round == command.round]
        groups = {d: str(sum(map(ord, d)) % 2) for d in used}
        placed = {
            d: Placed(str(sum(map(ord, d)) % 2), 1.0)
            for d, m in campaign.members.items()
            if m.survey
        }
        name = f"{command.campaign}-{command.round}"
        keys = {NEWCOMER: "new", "0": "0", "1": "1"}
        models = {key: digest_of(f"{name}-{end}") for key, end in keys.items()}
        changes = {
            "round": command.round,
            "models": models,
            "memory": digest_of(f"{name}-memory"),
            "newcomers": NEWCOMER,
        }
        version = replace(campaign.version, evaluated={}, **changes)
        if reverted_to is not None:
            version = next((v for v in campaign.history if v.round == reverted_to), version)
        self.feed(
            e.Aggregated(
                at_s=self.now_s,
                campaign=command.campaign,
                round=command.round,
                version=version,
                groups={d: g for d, g in groups.items() if self.group(campaign, d) != g},
                placed=placed | {"": Placed("0", 1.0)},
                preparing=preparing,
                reverted=reverted_to is not None,
                left_out=self.left_out,
                pulls={d: float(sum(map(ord, d)) % 3 == 0) for d in used},
            )
        )

    @staticmethod
    def group(campaign: Campaign, device_id: str) -> str:
        """The group of a device."""
        return campaign.members[device_id].group if device_id in campaign.members else ""

    def deliver(self, client: Client, command: e.Command) -> None:
        """Do as a device does with a message, see the wire protocol."""
        match command:
            case e.SendPlan(device_id, work):
                if client.plan is None or client.plan.serial != work.serial:
                    client.update = None
                client.plan = work
            case e.AcknowledgeUpdate(_, blob) if (
                client.update is not None and client.update.update.blob == blob
            ):
                client.plan = client.update = None
            case e.Cancel(_, work) if client.plan == work and client.update is None:
                client.plan = None
            case e.OfferRelease(device_id, serial, release) if serial > client.offered:
                client.offered, model = serial, self.fleet.releases[release].model
                if model != client.spoils:
                    client.serial, client.model = serial, model
                self.say_in_use(device_id)

    def say_in_use(self, device_id: str) -> None:
        """A device reports which release it uses."""
        client = self.clients[device_id]
        problem = "" if client.serial == client.offered else "it fails"
        accuracies = (None, None) if client.drop is None else (0.5, 0.5 + client.drop)
        evaluated, before = map(metrics_of, accuracies)
        in_use = InUse(
            device_id, client.serial, client.offered, problem, evaluated=evaluated, before=before
        )
        self.feed(e.UsesRelease(at_s=self.now_s, device_id=device_id, in_use=in_use))

    def check_in(self, device_id: str) -> None:
        """A device connects."""
        client = self.clients.setdefault(device_id, Client())
        client.online = True
        facts = CheckIn(
            device_id,
            client.num_train,
            0,
            battery_percent=client.battery,
            moved=client.moved,
            personal_models=tuple(client.kept),
        )
        self.feed(e.CheckedIn(at_s=self.now_s, device_id=device_id, facts=facts))
        client.moved = False
        if client.offered and device_id in self.fleet.devices:
            self.say_in_use(device_id)

    def leave(self, device_id: str, withdrawn: bool = False) -> None:
        """A device disconnects."""
        if (client := self.clients.get(device_id)) is not None and client.online:
            client.online = False
            number = len(self.fleet.devices[device_id].once) + 1 if withdrawn else 0
            self.feed(e.Seen(at_s=self.now_s, device_id=device_id, online=False, withdrawal=number))

    def work(self, device_id: str) -> None:
        """A device does what its plan says, and sends its update; or sends that again."""
        client = self.clients.get(device_id)
        if client is None or client.plan is None or not client.online:
            return
        if client.update is None:
            self.made += 1
            work = client.plan
            if work.kind == "personalise":
                client.kept = [*(m for m in client.kept if m != work.model), work.model][-3:]
            update = AdmittedUpdate(
                blob=digest_of(f"{device_id}.{self.made}"),
                start=work.start,
                num_train=client.num_train,
                num_steps=1,
                norms={} if client.empty else {"response": 1.0},
                evaluated=metrics_of(client.accuracy),
                trained=Metrics(),
                bytes_up=1,
                bytes_down=1,
                share=digest_of(f"s{device_id}.{self.made}") if asks_for_sum(work) else "",
            )
            client.update = e.Updated(
                at_s=self.now_s,
                device_id=device_id,
                serial=work.serial,
                update=update,
                node=self.node(device_id, work),
            )
        device = self.fleet.devices.get(device_id)
        if device is None or device.barred:
            return
        self.feed(client.update)

    def node(self, device_id: str, work: Assignment) -> str:
        """The node that a device tells by its plan; empty if the plan asks for none."""
        return ""

    def decline(self, device_id: str) -> None:
        """A device does not carry out its plan, or its update is refused as too large."""
        client = self.clients.get(device_id)
        if (
            client is not None
            and client.plan is not None
            and client.update is None
            and client.online
        ):
            work, client.plan = client.plan, None
            own: dict[str, Any] = {"device_id": device_id, "serial": work.serial}
            own["too_large"] = work.serial % 2 == 1
            self.feed(e.AssignmentDeclined(at_s=self.now_s, **own))

    def crash(self) -> None:
        """The service is killed, and comes up again from what it has saved."""
        self.outbox.clear()
        self.timers.clear()
        if self.store is not None:
            self.fleet = self.store.load()
        self.feed(e.Resumed(at_s=self.now_s, epoch=self.fleet.epoch + 1))

    def start(
        self,
        name: str,
        preparing: bool = False,
        surveys: bool = False,
        keeps: bool = False,
        steps: tuple[Step, ...] = (Step(1.0),),
        auto: bool = True,
        gate: Gate = USUAL_GATE,
        programs: Mapping[str, tuple[Verb, ...]] = MappingProxyType({}),
        parts: Mapping[str, dict[str, Part]] = MappingProxyType({}),
        has_cells: bool = False,
        **changes: Any,
    ) -> None:
        """A campaign begins. `auto`: its models are released when it is over; `programs`: other
        verbs than the usual; `parts`: those of questions in secret mode; `has_cells`: its mean
        compares sums over cells."""
        chosen = settings_of(name=name, candidates=("own", "group") if keeps else (), **changes)
        usual: dict[str, tuple[Verb, ...]] = {"": (TRAIN,), NEW: (TRAIN,), "closing": CLOSING}
        if surveys:
            usual[UNLABELLED] = SURVEY
        version = Version(
            round=0,
            models={NEWCOMER: digest_of(f"{name}-0-new")},
            memory="",
            programs={**usual, **programs},
            newcomers=NEWCOMER,
            parts=dict(parts),
            has_cells=has_cells,
        )
        record = Campaign(
            settings=chosen, next_settings=chosen, version=version, preparing=preparing
        )
        self.released[name] = (auto, steps, gate)
        self.feed(e.Started(at_s=self.now_s, campaign=name, record=record))
        self.ring()

    def release(self, name: str) -> None:
        """Release the models of a campaign, unless its last release has them."""
        campaign, (_, steps, gate) = self.fleet.campaigns[name], self.released[name]
        numbers = enumerate(
            sorted(campaign.models.items()), max(self.fleet.releases, default=0) + 1
        )
        made = tuple(
            ModelRelease(
                number=n,
                group=group,
                bundle="b" * 64,
                model=model,
                run_id=name,
                campaign=name,
                round=campaign.version.round,
                algorithm="",
                devices=1,
            )
            for n, (group, model) in numbers
        )
        last = next(
            (
                r
                for r in reversed(self.fleet.rollouts)
                if r.campaign == name and r.phase != "failed"
            ),
            None,
        )
        if (
            last is None
            or {g: self.fleet.releases[n].model for g, n in last.releases.items()}
            != campaign.models
        ):
            self.feed(
                e.Released(
                    at_s=self.now_s,
                    campaign=name,
                    releases=made,
                    newcomers="",
                    steps=steps,
                    gate=gate,
                    salt=f"{name}{made[0].number}",
                )
            )

    def release_what_ended(self) -> None:
        """Do as a service does: release the models of campaigns that are over."""
        for name, campaign in self.fleet.campaigns.items():
            given = self.given_out.get(name)
            if (
                campaign.phase == "finished"
                and campaign.ended != "order"
                and self.released[name][0]
                and given != campaign.version.round
            ):
                self.given_out[name] = campaign.version.round
                self.release(name)

    def holds_what_is_wanted(self, device_id: str) -> bool:
        """True if a device uses the release that it should hold."""
        client, device = self.clients[device_id], self.fleet.devices[device_id]
        releases = releases_for(self.fleet, device_id, device)
        model = next((release.model for _, release, is_reached in releases if is_reached), None)
        return model is None or model in (client.model, client.spoils)

    def settle(self, most: int = 3000) -> None:
        """Let everybody do what they are asked to, and time pass, until nothing happens."""
        for _ in range(most):
            self.ring()
            self.carry_out()
            for device_id in sorted(self.clients):
                self.work(device_id)
            self.ring()
            if self.outbox or any(c.plan is not None and c.online for c in self.clients.values()):
                self.now_s += 1
            elif self.timers:
                self.pass_time(max(0.0, min(self.timers.values()) - self.now_s))
            else:
                return
        raise AssertionError("it does not come to rest")
