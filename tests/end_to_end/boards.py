"""A service and boards in one process, with a real broker between them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.training import TrainingSettings
from aggregator.service.campaign import Campaign
from aggregator.service.runner import Runner
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.transfer.fleet import Fleet
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.probe import make_probe
from export.bundle import capture_graphs
from simulation.datasets.windows import FleetData
from simulation.engine.workers.device_host import repeatable_secret
from simulation.local.broker import EmbeddedBroker
from simulation.objective import objective_for_fleet
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.end_to_end.agents import devices
from tests.support.bundles import pack_graphs
from tests.support.fleets import synthetic_fleet
from wire.arrays.tensors import Tensors, decode_tensors
from wire.bundle import unpack
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.topics import Topics

ROUNDS = 2


def check_on_devices(algorithm: str, folder: Path) -> None:
    """Train on devices and in the simulation, to the same models."""
    data = synthetic_fleet(3, num_windows=24)
    expected = simulate(data, SimulationSettings(read_algorithm(algorithm), ROUNDS, batch_size=8))
    campaign, blobs = run_on_devices(data, algorithm, folder)
    assert campaign.state.models.keys() == expected.state.models.keys()
    for key in expected.state.models:
        theirs, ours = model(blobs, campaign.state.models[key]), model_of(expected, key)
        for name, value in ours.items():
            scale = max(1e-2, float(np.abs(value).max()))
            assert float(np.abs(theirs[name] - value).max()) < 2e-3 * scale, (key, name)
    final = next(r for r in campaign.store.rounds() if r.phase == "evaluating")
    told = {d: m.num_correct for d, m in final.evaluated.items()}
    simulated = next(r for r in expected.records if r.phase == "evaluating")
    assert all(abs(told[d] - m.num_correct) <= 1 for d, m in simulated.evaluated.items())


def model(blobs: MemoryBlobs, digest: str) -> Tensors:
    return decode_tensors(blobs.get(digest))[0]


def model_of(outcome: SimulationResult, key: str) -> Tensors:
    return decode_tensors(outcome.blobs.get(outcome.state.models[key]))[0]


def run_on_devices(data: FleetData, algorithm: str, folder: Path) -> tuple[Campaign, MemoryBlobs]:
    """One run of edge clients with the exported graphs, in threads, over a real broker."""
    objective = objective_for_fleet(data, read_algorithm(algorithm), 0)
    exported = capture_graphs(objective, data.window.shape)
    bundle = unpack(pack_graphs(exported, data, objective))
    probe = make_probe(objective.model, data.window.shape)
    topics, blobs = Topics("f"), MemoryBlobs()
    with EmbeddedBroker() as broker:
        address = BrokerAddress.parse(broker.url, None, None, None)
        with (
            aggregator(address, topics) as runner,
            devices(address, topics, data, folder, lambda _: {"secret": repeatable_secret}),
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
            made = make_algorithm(read_algorithm(algorithm))
            campaign = runner.add(settings, made, bundle, probe, MemoryStore(), blobs)
            runner.run(lambda: runner.finished)
    return campaign, blobs


@contextmanager
def aggregator(address: BrokerAddress, topics: Topics) -> Iterator[Runner]:
    link = MqttLink(address, "f.aggregator", Will(topics.aggregator, b""))
    try:
        yield Runner(Fleet(link, topics, "boot"), time.time)
    finally:
        link.close()
