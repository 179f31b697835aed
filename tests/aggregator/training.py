"""A campaign of two devices that trains with an algorithm: the machine and the aggregation, without
messages."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from aggregator.aggregation.admission import norms_of
from aggregator.aggregation.apply import aggregate
from aggregator.aggregation.inherit import TrainedModels
from aggregator.aggregation.orders import start_campaign
from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.fleet import events as e
from aggregator.fleet.records import AdmittedUpdate, Campaign, Fleet
from aggregator.fleet.step import step
from aggregator.storage.memory import MemoryBlobs
from aggregator.view.round_record import RoundRecord, records_of
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Mean
from algorithms.core.probe import make_probe
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from wire import messages as m
from wire.arrays.tensors import OWN_FILES, decode_tensors
from wire.codec import digest, encode_update

NAME = "run-1"
RECEIVED = AdmittedUpdate(
    blob="a" * 64,
    start="initial",
    num_train=10,
    num_steps=2,
    evaluated=m.Metrics(4, 1.0, 3),
    trained=m.Metrics(10, 2.0, 5),
    bytes_up=100,
    bytes_down=50,
)
"""An update, in the first round."""


class Training:
    """A fleet with a campaign, whose devices a and b have their first assignments."""

    def __init__(
        self,
        data: FleetData,
        algorithm: str = "fedavg",
        mean: Mean | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
        source: TrainedModels | None = None,
        device_ids: str = "ab",
    ) -> None:
        """`mean`: in place of the algorithm's; `settings`: other fields of `RunSettings`."""
        objective = objective_for_fleet(data, read_algorithm("fedavg"), 0)
        self.bundle = describe_bundle(
            objective, name=data.name, classes=data.classes, window=data.window
        )
        self.probe = make_probe(objective.model, data.window.shape)
        self.algorithm = make_algorithm(read_algorithm(algorithm))
        self.algorithm = replace(self.algorithm, mean=mean or self.algorithm.mean)
        layout = self.bundle.manifest.reported("step")
        self.tensors = {name: np.zeros(shape, dtype) for name, dtype, shape in layout}
        usual: dict[str, Any] = {
            "run_id": "r",
            "name": NAME,
            "algorithm": algorithm,
            "data": "x",
            "bundle": self.bundle.digest,
            "rounds": 5,
            "min_devices": 2,
            "deadline_s": 100.0,
            "grace_s": 1.0,
            "reported": {"step": layout},
            "responses": {"evaluate": ()},
            "max_update_norm": 100.0,
        }
        chosen = RunSettings(**usual | dict(ADMIT_ALL) | dict(settings))
        self.fleet, self.blobs, self.now_s = Fleet(), MemoryBlobs(), 1.0
        self.records: dict[int, RoundRecord] = {}
        self.commands: list[e.Command] = []
        started = start_campaign(
            chosen, self.algorithm, self.probe, self.bundle.initial, self.blobs, 1.0, source
        )
        self.feed(started)
        for device_id in device_ids:
            self.check_in(device_id)
        self.ring()

    @property
    def campaign(self) -> Campaign:
        return self.fleet.campaigns[NAME]

    def feed(self, event: e.Event) -> list[e.Command]:
        """Have something happen, and aggregate where that is commanded."""
        before = self.fleet
        self.fleet, commands = step(before, event)
        self.commands += commands
        self.records |= {r.round: r for _, r in records_of(before, [(event, self.fleet)])}
        for command in commands:
            if isinstance(command, e.Aggregate):
                self.feed(self.aggregated())
        return commands

    def aggregated(self) -> e.Aggregated:
        """The end of the round."""
        parts = (self.algorithm, self.probe, self.blobs, lambda: self.now_s)
        return aggregate(self.campaign, *parts)

    def ring(self) -> None:
        """Let the timer of campaigns ring, until all devices are reconciled."""
        self.feed(e.Tick(at_s=self.now_s, keys=("",)))
        while self.fleet.sweep:
            self.feed(e.Tick(at_s=self.now_s, keys=("",)))

    def check_in(self, device_id: str, num_train: int = 10) -> None:
        facts = m.CheckIn(device_id, num_train, 4)
        self.feed(e.CheckedIn(at_s=self.now_s, device_id=device_id, facts=facts))

    def configure(self, **changes: Any) -> None:
        settings = msgspec.structs.replace(self.campaign.next_settings, **changes)
        self.feed(e.Configured(at_s=self.now_s, campaign=NAME, settings=settings))
        self.ring()

    def update(
        self, device_id: str, norm: float = 1.0, right: int = 2, loss: float = 0.25, **changes: Any
    ) -> None:
        """A device answers its assignment, with a change of this Euclidean norm; so many of four
        test windows the received model had right."""
        work = self.fleet.devices[device_id].assignment
        assert work is not None
        deltas = [array for name, array in self.tensors.items() if name.startswith("delta/")]
        fill = np.float32(norm / sum(array.size for array in deltas) ** 0.5)
        tensors = {
            name: np.full_like(array, fill) if name.startswith("delta/") else array
            for name, array in self.tensors.items()
        }
        evaluated, trained = m.Metrics(4, 4 * loss, right), m.Metrics(10, 2.0, 5)
        told = ("r", 1, work.round, work.serial, device_id, work.model, 10, 2, evaluated, trained)
        payload = encode_update(m.Update(*told), tensors)
        self.blobs.put(payload)
        received = msgspec.structs.replace(
            RECEIVED,
            blob=digest(payload),
            start=work.start,
            norms=norms_of(tensors, decode_tensors(self.blobs.get(work.model), OWN_FILES)[0]),
            evaluated=evaluated,
            **changes,
        )
        own: dict[str, Any] = {
            "device_id": device_id,
            "serial": work.serial,
            "update": received,
        }
        self.feed(e.Updated(at_s=self.now_s, **own))

    def close(self, **updates: tuple[float, int] | tuple[float, int, float]) -> Mapping[str, Any]:
        """Have these devices answer, which ends the round: by device, the arguments of `update`.
        Return the notes of the round."""
        number = self.campaign.round
        self.now_s += 1
        for device_id, answer in updates.items():
            self.update(device_id, *answer)
        assert self.campaign.round == number + 1, "the round is over"
        self.ring()
        return self.records[number].notes
