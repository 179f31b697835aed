"""What an algorithm does in simulation it does on devices: exported to ONNX, trained by edge
clients over MQTT, to the same result."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from aggregator.core.settings import RunSettings, TrainingSettings
from aggregator.service.campaign import Campaign
from aggregator.service.runner import Runner
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.transfer.fleet import Fleet
from algorithms.core.probe import make_probe
from algorithms.registry import make_algorithm, read_algorithm
from export.bundle import capture_graphs
from simulation.datasets.windows import FleetData
from simulation.engine.workers.secret import repeatable_secret
from simulation.local.broker import EmbeddedBroker
from simulation.objective import objective_for_fleet
from simulation.simulate import SimulationResult, SimulationSettings, simulate
from tests.end_to_end.agents import devices
from tests.support.bundles import pack_graphs
from tests.support.fleets import synthetic_fleet
from wire.arrays.tensors import Tensors, decode_tensors
from wire.bundle import unpack
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.topics import Topics

ROUNDS = 2
ALGORITHMS = [
    "fedavg",
    "fedprox:mu=0.1",
    "scaffold",
    "fedper",
    "fedrod",
    "ditto",
    "lg-net:fine_tune_epochs=1",
    "cgau:units=8",
    "fedavg+dp-sgd",
    "fedavg+local-gaussian:noise_multiplier=0.01",
    "dbe+distfl+irls",
]
MORE = [
    "moon",
    "fedbn",
    "fedrep",
    "fedbabu:fine_tune_epochs=1",
    "dbe",
    "feddisk:preparations=2:local_checks=1:local_epochs=1:ratio_epochs=1:density_units=4",
    "fedavg+ifca",
    "fedavg+autocfl:earliest=1",
    "apfl",
    "pfedme:inner_steps=2",
    "per-fedavg",
    "fedfomo:num_others=2",
    "apple:num_others=2",
    "fedala",
    "fedpcl:num_others=2",
    "fedgen:generator_steps=2:bank_size=32",
    "dbe-moon",
    "mr-ditto",
]


@pytest.mark.representatives("fedavg")
@pytest.mark.parametrize(
    "algorithm", [*ALGORITHMS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_devices_reach_what_the_simulation_does(algorithm: str, tmp_path: Path) -> None:
    data = synthetic_fleet(3, num_windows=24)
    expected = simulate(data, SimulationSettings(read_algorithm(algorithm), ROUNDS, batch_size=8))
    campaign, blobs = run_on_devices(data, algorithm, tmp_path)
    assert campaign.known().models.keys() == expected.state.models.keys()
    for key in expected.state.models:
        theirs, ours = model(blobs, campaign.known().models[key]), model_of(expected, key)
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
