"""A service and boards in one process, with a real broker between them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from aggregator.aggregation.orders import rolled_back
from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.steps import Gate, Step
from aggregator.core.training import TrainingSettings
from aggregator.fleet.records import Campaign, Fleet
from aggregator.leadership.rivals import Rivals
from aggregator.releases import ReleaseMaker
from aggregator.service.inbox import FleetInbox
from aggregator.service.runner import Runner
from aggregator.service.start import Exported
from aggregator.service.telemetry import Telemetry
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.transfer.fleet import FleetLink
from aggregator.view.device import DeviceView
from aggregator.view.fleet import FleetView
from aggregator.view.round_record import RoundRecord
from aggregator.view.summary import Summary, summarize
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Probe
from algorithms.core.probe import make_probe
from export.bundle import capture_graphs
from simulation.datasets.windows import FleetData
from simulation.engine.workers.device_host import PERMISSIONS, repeatable_secret
from simulation.local.broker import EmbeddedBroker
from simulation.objective import objective_for_fleet
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.end_to_end.agents import devices
from tests.support.bundles import pack_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.arrays.tensors import Tensors, decode_tensors
from wire.bundle import Bundle, unpack
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.topics import Topics

ROUNDS = 2


class Board:
    """An aggregator on a broker, with one campaign, that releases its models when it is over."""

    def __init__(self, link: MqttLink, topics: Topics) -> None:
        self.store, self.blobs = MemoryStore(), MemoryBlobs()
        offers, telemetry = FleetLink(link, topics, "boot"), Telemetry(None, time.time)
        inbox = FleetInbox(topics, time.time, offers.offered, telemetry)
        rivals = Rivals(None, time.time, inbox.count)
        self._runner = Runner(self.store, offers, inbox, telemetry, rivals, time.time)
        self._runner.begin(1)
        whole, own = (Step(1.0),), (lambda _name: self.blobs, time.time)
        self._maker = ReleaseMaker("off", whole, Gate(), None, *own)

    def start(self, settings: RunSettings, bundle: Bundle, probe: Probe) -> None:
        """Start the campaign."""
        self._name = settings.name
        algorithm = make_algorithm(read_algorithm(settings.algorithm))
        self._runner.open(settings, algorithm, Exported(bundle, probe), self.blobs)

    def run(self, done: Callable[[], object]) -> None:
        """Run until this is true."""

        def is_done() -> bool:
            for event in self._maker.due(self.fleet):
                self._runner.order(event)
            return bool(done())

        self._runner.run(is_done)

    def finish(self) -> None:
        """Run to the end of the campaign."""
        self.run(lambda: self._runner.finished)

    def roll_back(self, to: int) -> None:
        """Return to the models that a round made."""
        algorithm = self._runner.trainers[self._name].algorithm
        event = rolled_back(self.campaign, to, algorithm, self.blobs, time.time())
        self._runner.order(event)

    @property
    def fleet(self) -> Fleet:
        """The fleet as it is now."""
        return self._runner.fleet

    @property
    def campaign(self) -> Campaign:
        """The campaign as it is now."""
        return self.fleet.campaigns[self._name]

    @property
    def records(self) -> list[RoundRecord]:
        """Records of the campaign's rounds."""
        return self.store.rounds(self._name)

    @property
    def summary(self) -> Summary:
        """The summary of the campaign."""
        return summarize(FleetView(self.fleet), self._name, self.records, 1.0)

    def device(self, device_id: str) -> DeviceView:
        """Return a device, as the campaign sees it."""
        return known(FleetView(self.fleet).device(device_id))


def check_on_devices(algorithm: str, folder: Path) -> None:
    """Train on devices and in the simulation, to the same models."""
    data = synthetic_fleet(3, num_windows=24)
    expected = simulate(data, SimulationSettings(read_algorithm(algorithm), ROUNDS, batch_size=8))
    board = run_on_devices(data, algorithm, folder)
    assert board.campaign.models.keys() == expected.campaign.models.keys()
    for key in expected.campaign.models:
        theirs, ours = model(board.blobs, board.campaign.models[key]), model_of(expected, key)
        for name, value in ours.items():
            scale = max(1e-2, float(np.abs(value).max()))
            assert float(np.abs(theirs[name] - value).max()) < 2e-3 * scale, (key, name)
    final = next(r for r in board.records if r.phase == "evaluating")
    told = {d: m.num_correct for d, m in final.evaluated.items()}
    simulated = next(r for r in expected.records if r.phase == "evaluating")
    assert all(abs(told[d] - m.num_correct) <= 1 for d, m in simulated.evaluated.items())


def model(blobs: MemoryBlobs, digest: str) -> Tensors:
    return decode_tensors(blobs.get(digest))[0]


def model_of(outcome: SimulationResult, key: str) -> Tensors:
    return decode_tensors(outcome.blobs.get(outcome.campaign.models[key]))[0]


def run_on_devices(data: FleetData, algorithm: str, folder: Path) -> Board:
    """One run of edge clients with the exported graphs, in threads, over a real broker."""
    objective = objective_for_fleet(data, read_algorithm(algorithm), 0)
    exported = capture_graphs(objective, data.window.shape)
    bundle = unpack(pack_graphs(exported, data, objective))
    probe = make_probe(objective.model, data.window.shape)
    topics = Topics("f")
    with EmbeddedBroker() as broker:
        address = BrokerAddress.parse(broker.url, None, None, None)
        options = {"secret": repeatable_secret, "policy": PERMISSIONS}
        with (
            aggregator(address, topics) as board,
            devices(address, topics, data, folder, lambda _: options),
        ):
            settings = RunSettings.for_bundle(
                bundle,
                TrainingSettings(algorithm=read_algorithm(algorithm), rounds=ROUNDS, batch_size=8),
                run_id="simulation",
                data=data.name,
                min_devices=len(data.devices),
                deadline_s=60.0,
                grace_s=10.0,
                **ADMIT_ALL,
            )
            board.start(settings, bundle, probe)
            board.finish()
    return board


@contextmanager
def aggregator(address: BrokerAddress, topics: Topics) -> Iterator[Board]:
    """Yield an aggregator of a fleet."""
    link = MqttLink(address, "f.aggregator", Will(topics.aggregator, b""))
    try:
        yield Board(link, topics)
    finally:
        link.close()
