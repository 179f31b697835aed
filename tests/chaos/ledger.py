"""Promises of a service: a subscriber that reads everything on a fleet's topics, and compares the
records of its rounds with it."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from aggregator.view.round_record import RoundRecord
from wire import messages as m
from wire.arrays.tensors import Tensors, decode_tensors
from wire.codec import decode_update, digest
from wire.errors import WireError
from wire.identity.signed import Verifier
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery
from wire.topics import Topics

CLOSING_S = 1.0
"""Seconds from the close of a round to the first plan of the next, at most."""
TOLERANCE = 1e-5
"""Tolerance of a model's numbers against the mean that is computed again here in float64."""


class Place(NamedTuple):
    """A round of a run."""

    run_id: str
    round: int


@dataclass
class Verdict:
    """Findings of an audit."""

    lost: list[str] = field(default_factory=list)
    """Acknowledged updates that the record of their round lacks, though they came in time."""
    asked_again: list[str] = field(default_factory=list)
    """Updates that devices were asked for again after they had been acknowledged: the service had
    forgotten them."""
    twice: list[str] = field(default_factory=list)
    """Rounds whose record or model is not what the updates of its devices make, each counted
    once."""
    acknowledged: int = 0
    """Acknowledged updates whose round was closed."""
    rounds: int = 0
    """Records that were held against all updates of their round."""
    unseen: int = 0
    """Records of rounds of which the witness, too, missed an update while the broker was down."""


class Witness:
    """Reads everything that goes over the broker, in a thread."""

    def __init__(self, broker: str, fleet: str) -> None:
        self._topics, self._verifier, self._lock = (
            Topics(fleet),
            Verifier(fleet, ()),
            threading.Lock(),
        )
        self._updates: dict[str, tuple[m.Update, Tensors]] = {}
        self._acknowledged: list[tuple[str, str]] = []
        self._acknowledged_s: list[float] = []
        self._begun_s: dict[Place, float] = {}
        """Time at which the first plan of each round was read."""
        self._models: dict[Place, set[str]] = defaultdict(set)
        self._blobs: dict[str, bytes] = {}
        self._pending: list[int] = []
        self._safe: set[tuple[Place, str]] = set()
        self._asked_again: list[str] = []
        self._seeds: dict[tuple[str, str], bytes] = {}
        self._link = MqttLink(
            BrokerAddress.parse(broker), f"{fleet}.witness", wait_s=30.0, persistent=False
        )
        self._link.subscribe(f"shoal/1/{fleet}/#")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name="witness", daemon=True)
        self._thread.start()

    @property
    def link(self) -> MqttLink:
        """The connection, to publish by."""
        return self._link

    def seeds(self, device_ids: Collection[str]) -> dict[str, bytes]:
        """The last message of each kind that one of these devices sent, as it came."""
        with self._lock:
            return {
                kind: payload
                for (device_id, kind), payload in self._seeds.items()
                if device_id in device_ids
            }

    def mark(self) -> int:
        """The number of acknowledgements so far. A backup is taken at it."""
        with self._lock:
            return len(self._acknowledged)

    def forget_since(self, mark: int, place: Place) -> None:
        """Leave out what was acknowledged since `mark`, and the models after `place`: the service
        goes on from a state of that time."""
        with self._lock:
            del self._acknowledged[mark:], self._acknowledged_s[mark:]
            self._pending = [at for at in self._pending if at < mark]
            self._safe = {self._work(device_id, name) for device_id, name in self._acknowledged}
            self._asked_again.clear()
            for later in [
                other
                for other in self._models
                if other.run_id == place.run_id and other.round > place.round
            ]:
                del self._models[later]
                self._begun_s.pop(later, None)

    def forget_run(self) -> None:
        """Leave out everything that was acknowledged: the service has no way to know of it."""
        with self._lock:
            self._pending.clear()
            self._safe.clear()
            self._asked_again.clear()

    def audit(
        self, run_id: str, records: Sequence[RoundRecord], since: int, models: bool = True
    ) -> Verdict:
        """Hold the records from round `since` on, and every acknowledgement that was not audited
        yet, against each other. `models`: whether the models are computed again."""
        verdict, by_round = Verdict(), {record.round: record for record in records}
        with self._lock:
            versions: dict[tuple[int, str], list[tuple[m.Update, Tensors]]] = defaultdict(list)
            for update, tensors in self._updates.values():
                if update.run_id == run_id and update.round >= since:
                    versions[update.round, update.device_id].append((update, tensors))
            waiting = []
            for at in self._pending:
                device_id, name = self._acknowledged[at]
                if name not in self._updates:
                    continue  # it was sent while the witness was away
                update = self._updates[name][0]
                record = by_round.get(update.round)
                if update.run_id == run_id and record is None:
                    waiting.append(at)
                else:
                    verdict.acknowledged += 1
                    closed = record if update.run_id == run_id else None
                    if closed is None or not (
                        device_id in closed.evaluated or self._came_late(at, run_id, closed)
                    ):
                        verdict.lost.append(
                            f"device {device_id}, round {update.round}, update {name[:12]}"
                        )
            self._pending = waiting
            verdict.asked_again += self._asked_again
            self._asked_again.clear()
            for record in records:
                if models and record.round >= since and record.phase == "training":
                    self._check(Place(run_id, record.round), record, versions, verdict)
            for name in [
                name
                for name, (update, _) in self._updates.items()
                if update.run_id != run_id or update.round < since - 50
            ]:
                del self._updates[name]
        return verdict

    def close(self) -> None:
        """End the thread and the connection."""
        self._stopping.set()
        self._thread.join()
        self._link.close()

    def _check(
        self, place: Place, record: RoundRecord, versions: dict[Any, list[Any]], verdict: Verdict
    ) -> None:
        """Return True if a record and the next model follow from one update of each device."""
        sent = [
            [
                version
                for version in versions[place.round, device_id]
                if version[0].evaluated == evaluated
            ]
            for device_id, evaluated in record.evaluated.items()
        ]
        before, after = self._model(place), self._model(Place(place.run_id, place.round + 1))
        if not all(sent) or before is None or after is None:
            verdict.unseen += 1
            return
        verdict.rounds += 1
        if not any(_fits(record, chosen, before, after) for chosen in product(*sent)):
            verdict.twice.append(f"round {place.round} of {sorted(record.evaluated)}")

    def _came_late(self, at: int, run_id: str, record: RoundRecord) -> bool:
        """Return True if a round was closed before this acknowledgement: all updates that count in
        it had been acknowledged, and the next round began before, or at once."""
        before = {name for _, name in self._acknowledged[:at]}
        for device_id, name in self._acknowledged[at + 1 :]:
            is_of_round = name in self._updates and self._updates[name][0].round == record.round
            if is_of_round and name not in before and device_id in record.evaluated:
                return False
        begun_s = self._begun_s.get(Place(run_id, record.round + 1), math.inf)
        return begun_s < self._acknowledged_s[at] + CLOSING_S

    def _model(self, place: Place) -> Tensors | None:
        names = self._models.get(place, set())
        payload = self._blobs.get(next(iter(names))) if len(names) == 1 else None
        return decode_tensors(payload)[0] if payload else None

    def _work(self, device_id: str, name: str) -> tuple[Place, str]:
        """The round that an update is of, and its device; no round where nobody saw the update."""
        update = self._updates.get(name)
        return Place(update[0].run_id, update[0].round) if update else Place("", 0), device_id

    def _read(self) -> None:
        while not self._stopping.is_set():
            event = self._link.receive(timeout_s=0.2)
            if isinstance(event, Delivery):
                with self._lock:
                    self._take(event)

    def _take(self, delivery: Delivery) -> None:
        try:
            address = self._topics.parse(delivery.topic)
            match address.kind:
                case "update":
                    self._seeds[address.device_id, address.kind] = delivery.payload
                    update, tensors = decode_update(delivery.payload)
                    self._updates[digest(delivery.payload)] = update, tensors
                case "reply":
                    reply = self._verifier.open(delivery.payload, m.Reply, 0.0)
                    if isinstance(reply, m.Acknowledge):
                        self._pending.append(len(self._acknowledged))
                        self._acknowledged.append((reply.device_id, reply.update))
                        self._acknowledged_s.append(time.monotonic())
                        self._safe.add(self._work(reply.device_id, reply.update))
                case "plan":
                    plan: m.Plan = self._verifier.open(delivery.payload, m.Plan, 0.0)
                    place = Place(plan.run_id, plan.round)
                    self._models[place].add(plan.model)
                    self._begun_s.setdefault(place, time.monotonic())
                    if (place, plan.device_id) in self._safe:
                        self._asked_again.append(
                            f"device {plan.device_id} was asked again, round {plan.round}, "
                            f"attempt {plan.attempt}"
                        )
                case "blob" if delivery.payload:  # without one, the broker is told to forget it
                    self._blobs[delivery.topic.rpartition("/")[2]] = delivery.payload
                case "check-in" | "status" | "decline" | "fetch":
                    self._seeds[address.device_id, address.kind] = delivery.payload
        except WireError:
            pass  # what the storm sends


def _fits(
    record: RoundRecord, chosen: Sequence[tuple[m.Update, Tensors]], before: Tensors, after: Tensors
) -> bool:
    """Return True if the record's sums and the next model are those of these updates; the model may
    be the last one, of too small a group."""
    if sum(update.trained.num_examples for update, _ in chosen) != record.trained.num_examples:
        return False
    weights = np.array([update.num_train for update, _ in chosen], float)
    for name in (name for name in before if name.startswith("shared/")):
        delta = "delta/" + name.partition("/")[2]
        if not all(
            delta in tensors and tensors[delta].shape == before[name].shape for _, tensors in chosen
        ):
            return False
        deltas = [tensors[delta].astype(float) for _, tensors in chosen]
        mean = (
            sum(
                (w * change for w, change in zip(weights, deltas, strict=True)),
                np.zeros(before[name].shape),
            )
            / weights.sum()
        )
        if not np.allclose(after[name], before[name] + mean, atol=TOLERANCE):
            return len(chosen) < 2 and bool(np.array_equal(after[name], before[name]))
    return True
