"""A run in one process: the aggregator's runner and one agent per device, joined by an in-process broker, on a virtual clock.

Nothing here decides anything about federated learning: messages, admission, rounds and the execution of plans are the same code
that runs in the field. Same seed, same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from aggregator.adapters.memory import MemoryBlobs, MemoryStore
from aggregator.core.state import Event, RunSettings, RunState
from aggregator.fleet import Fleet
from aggregator.ports import Blobs, RoundRecord
from aggregator.runner import Runner
from aggregator.summary import summarize
from algorithms.contract import Objective
from algorithms.models.har_cnn import HarCnn
from algorithms.probe import make_probe
from algorithms.registry import OBJECTIVES, make_algorithm
from edge_client.adapters.state import MemoryState
from edge_client.agent import Agent
from edge_client.ports import Windows
from export.bundle import specs_of, to_numpy
from simulation.datasets.windows import FleetData
from simulation.torch_graphs import TorchGraphs
from wire.bundle import Bundle, Manifest, pack, unpack
from wire.links.in_process import InProcessBroker
from wire.links.port import Will
from wire.topics import Topics


@dataclass(frozen=True)
class SimulationSettings:
    """What a simulation is asked for. `options` go to the algorithm."""

    algorithm: str = "distfl"
    rounds: int = 20
    local_epochs: int = 1
    seed: int = 0
    batch_size: int = 32
    lr: float | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A finished run: its summary, its last state, its records, and the blobs these name."""

    summary: dict[str, Any]
    state: RunState
    records: list[RoundRecord]
    blobs: Blobs


class VirtualClock:
    """Seconds since the start of a simulation; moves only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def build_objective(data: FleetData, name: str, seed: int) -> Objective:
    """The objective on a fresh model for this data; the seed decides the initial weights."""
    torch.manual_seed(seed)
    window = data.window
    model = HarCnn(len(window.channels), window.length, len(data.classes), torch.from_numpy(data.channel_size()))
    return OBJECTIVES[name](model)


def in_process_bundle(data: FleetData, objective: Objective) -> Bundle:
    """A bundle without graphs: in a simulation the objective itself runs."""
    tensors = objective.initial()
    manifest = Manifest(data.name, 1, objective.name, {}, data.classes, data.window, 2, dict(objective.hyper), specs_of(tensors), {}, {})
    return unpack(pack(manifest, {}, to_numpy(tensors)))


def simulate(data: FleetData, settings: SimulationSettings, observe: Callable[[RunState, Event], None] = lambda _s, _e: None) -> Outcome:
    """Run a fleet to the end. `observe` sees every event, for progress.

    Raises:
        ConfigError: an unknown algorithm or option.
    """
    started_s = perf_counter()
    algorithm = make_algorithm(settings.algorithm, settings.options)
    objective = build_objective(data, algorithm.objective, settings.seed)
    bundle = in_process_bundle(data, objective)
    probe = make_probe(objective.model, (len(data.window.channels), data.window.length))
    broker, clock, topics = InProcessBroker(), VirtualClock(), Topics("simulation")
    store, blobs = MemoryStore(), MemoryBlobs()
    runner = Runner(algorithm, bundle, probe, store, blobs, Fleet(broker.connect("aggregator"), topics, "0"), clock, observe)
    runner.begin(
        RunSettings.for_bundle(
            bundle,
            surveys=algorithm.grouping.surveys,
            lr=settings.lr,
            run_id="simulation",
            algorithm=settings.algorithm,
            data=data.name,
            rounds=settings.rounds,
            min_devices=len(data.devices),
            deadline_s=3600.0,
            grace_s=60.0,
            seed=settings.seed,
            local_epochs=settings.local_epochs,
            batch_size=settings.batch_size,
            options=settings.options,
        )
    )
    graphs = TorchGraphs(objective)
    agents = [_agent(device_id, windows, topics, broker, graphs, clock) for device_id, windows in sorted(data.devices.items())]
    with _one_thread():
        _run(runner, agents, clock)
    assert runner.state is not None
    records = store.rounds()
    return Outcome(summarize(runner.state, records, perf_counter() - started_s), runner.state, records, blobs)


def _agent(device_id: str, windows: Windows, topics: Topics, broker: InProcessBroker, graphs: TorchGraphs, clock: VirtualClock) -> Agent:
    link = broker.connect(device_id, Will(topics.device(device_id, "status"), b""))
    return Agent(device_id, topics, link, windows, MemoryState(), lambda _bundle: graphs, clock=clock, runtime="torch")


def _run(runner: Runner, agents: list[Agent], clock: VirtualClock) -> None:
    """Deliver until nobody has anything left to read; then let time pass to the next deadline; until the run is over."""
    links = [(runner.link, runner.handle), *((agent.link, agent.handle) for agent in agents)]
    while True:
        delivered = 0
        for link, handle in links:
            while (event := link.receive(timeout_s=0)) is not None:
                handle(event)
                delivered += 1
        if not delivered:
            if runner.finished:
                return
            next_s = min(runner.next_deadline_s(), *(agent.retry_at_s for agent in agents))
            if next_s == float("inf"):
                raise RuntimeError("the simulation stands still: no message, no deadline, and the run is not over")
            clock.now_s = max(clock.now_s, next_s)
            runner.tick()
            for agent in agents:
                agent.tick()


class _one_thread:  # noqa: N801  # a context manager reads as a verb
    """The order in which threads add changes a float sum: one thread gives the same bits every time, and is faster at this size."""

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_error: object) -> None:
        torch.set_num_threads(self._threads)
