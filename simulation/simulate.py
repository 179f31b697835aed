"""A run in one process: the aggregator's runner and one agent per device, joined by an in-process broker, on a virtual clock.

Nothing here decides anything about federated learning: messages, admission, rounds and the execution of plans are the same code
that runs in the field. Same seed, same bits.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch

from aggregator.adapters.memory import MemoryBlobs, MemoryStore
from aggregator.core.state import Event, RunSettings, RunState
from aggregator.fleet import Fleet
from aggregator.ports import Blobs, RoundRecord
from aggregator.runner import Runner
from aggregator.summary import spread, summarize
from algorithms.contract import Objective
from algorithms.models.registry import default_model, make_model
from algorithms.probe import make_probe
from algorithms.registry import make_algorithm, make_objective
from edge_client.adapters.state import MemoryState
from edge_client.agent import Agent
from edge_client.ports import GraphLoader, Windows
from export.bundle import describe_bundle
from simulation.attacks import Attack, Attacker, make_attack, success_rate, told_apart
from simulation.datasets.windows import FleetData
from simulation.newcomers import Reception, hold_out
from simulation.pretrain import pretrained_extractor
from simulation.torch_graphs import TorchGraphs
from wire.bundle import Bundle
from wire.errors import ConfigError, ShoalError
from wire.links.in_process import InProcessBroker
from wire.links.port import Will
from wire.messages import Plan
from wire.topics import Topics


@dataclass(frozen=True)
class SimulationSettings:
    """What a simulation is asked for. `hyper` takes the place of the objective's own hyper-parameters."""

    algorithm: str = "distfl"
    rounds: int = 20
    local_epochs: int = 1
    seed: int = 0
    batch_size: int = 32
    hyper: Mapping[str, float] = field(default_factory=dict)
    model: str = ""
    """Name of a model; the usual one for the data when empty."""
    attack: str = ""
    """Who attacks and how (`simulation.attacks`); nobody when empty."""
    pretrain: str = ""
    """Other data that the extractor is trained on before the first round; none when empty."""
    newcomers: int = 0
    """So many devices are held out of training and received when it is over (`simulation.newcomers`)."""


@dataclass(frozen=True)
class Outcome:
    """A finished run: its summary, its last state, its records, and the blobs these name."""

    summary: dict[str, Any]
    state: RunState
    records: list[RoundRecord]
    blobs: Blobs


PATIENCE = 20
"""A simulation gives up when time has passed so often without an end of the round."""


class VirtualClock:
    """Seconds since the start of a simulation; moves only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def build_objective(data: FleetData, algorithm: str, seed: int, model: str = "", pretrain: str = "") -> Objective:
    """The objective of an algorithm on a fresh model for this data; the seed decides the initial weights. `pretrain` names other data
    that its extractor is trained on first.

    Raises:
        ConfigError: an unknown algorithm or model, or one that does not fit the data.
    """
    torch.manual_seed(seed)
    name = model or default_model(data.window)
    made = make_model(name, data.window, len(data.classes), torch.from_numpy(data.channel_size()))
    if pretrain:
        made.extractor = pretrained_extractor(name, data.window, pretrain, seed)
    return make_objective(algorithm, made)


def in_process_bundle(data: FleetData, objective: Objective) -> Bundle:
    """The bundle of an objective for this data; its graphs are described only."""
    return describe_bundle(objective, name=data.name, classes=data.classes, window=data.window)


def simulate(
    data: FleetData,
    settings: SimulationSettings,
    observe: Callable[[RunState, Event], None] = lambda _s, _e: None,
    objective: Objective | None = None,
) -> Outcome:
    """Run a fleet to the end. `observe` sees every event, for progress; `objective` takes the place of that on a fresh model.

    Raises:
        ConfigError: an unknown algorithm or option.
    """
    started_s = perf_counter()
    if not 0 <= settings.newcomers < len(data.devices):
        raise ConfigError(f"{settings.newcomers} newcomers of {len(data.devices)} devices: at least one has to train")
    data, newcomers = hold_out(data, settings.newcomers, settings.seed)
    algorithm = make_algorithm(settings.algorithm)
    objective = objective or build_objective(data, settings.algorithm, settings.seed, settings.model, settings.pretrain)
    bundle = in_process_bundle(data, objective)
    probe = make_probe(objective.model, data.window.shape)
    broker, clock, topics = InProcessBroker(), VirtualClock(), Topics("simulation")
    store, blobs = MemoryStore(), MemoryBlobs()
    runner = Runner(algorithm, bundle, probe, store, blobs, Fleet(broker.connect("aggregator"), topics, "0"), clock, observe)
    runner.begin(
        RunSettings.for_bundle(
            bundle,
            hyper=settings.hyper,
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
        )
    )
    graphs, attack = TorchGraphs(objective), make_attack(settings.attack, data, settings.seed)
    agents = {d: _agent(d, windows, topics, broker, graphs, clock, attack) for d, windows in sorted(data.devices.items())}
    with _one_thread():
        _run(runner, list(agents.values()), clock)
        assert runner.state is not None
        summary = summarize(runner.state, store.rounds(), perf_counter() - started_s)
        if attack is not None:
            summary["attack"] = _measure(attack, settings.attack, agents, data, summary)
        if newcomers:
            reception = Reception(algorithm, runner.state, blobs, probe, bundle, graphs, repeatable_secret)
            summary["newcomers"] = spread(m.accuracy for m in reception.receive(newcomers).values() if m.num_examples)
    return Outcome(summary, runner.state, store.rounds(), blobs)


def _agent(
    device_id: str,
    windows: Windows,
    topics: Topics,
    broker: InProcessBroker,
    graphs: TorchGraphs,
    clock: VirtualClock,
    attack: Attack | None,
) -> Agent:
    link = broker.connect(device_id, Will(topics.device(device_id, "status"), b""))
    load: GraphLoader = lambda _bundle: graphs  # noqa: E731
    if attack is None or device_id not in attack.attackers:
        return Agent(device_id, topics, link, windows, MemoryState(), load, clock=clock, runtime="torch", secret=repeatable_secret)
    poisoned = attack.poison(windows)
    attacker = Attacker(device_id, topics, link, poisoned, MemoryState(), load, clock=clock, runtime="torch", secret=repeatable_secret)
    attacker.attack = attack
    return attacker


def _measure(attack: Attack, text: str, agents: Mapping[str, Agent], data: FleetData, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What an attack achieved on the honest devices: their accuracy, and its success rate with the models that they were given."""
    honest = [d for d in sorted(agents) if d not in attack.attackers]
    tested = [d for d in honest if data.devices[d].num_test]
    labels = np.concatenate([data.devices[d].test_y for d in tested])
    predicted = np.concatenate([agents[d].predict(data.devices[d].test_x).argmax(1) for d in tested])
    clusters = {d: device["cluster"] for d, device in summary["devices"].items()}
    return {
        "attack": text,
        "attackers": sorted(attack.attackers),
        "success_rate": success_rate(attack.targets, labels, predicted),
        "told_apart": told_apart(clusters, attack.attackers),
        "honest_accuracy": spread(summary["devices"][d]["accuracy"] for d in tested),
    }


def repeatable_secret(plan: Plan) -> np.random.Generator:
    """A device's private noise, the same in every simulation of the same seed: no secret at all, and good for nothing else."""
    return np.random.default_rng([plan.seed, zlib.crc32(plan.device_id.encode()), 0x5EC])


def _run(runner: Runner, agents: list[Agent], clock: VirtualClock) -> None:
    """Deliver until nobody has anything left to read; then let time pass to the next deadline; until the run is over."""
    links = [(runner.link, runner.handle), *((agent.link, agent.handle) for agent in agents)]
    reopened: dict[int, int] = {}
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
            assert runner.state is not None
            number = runner.state.round
            reopened[number] = reopened.get(number, 0) + 1
            if reopened[number] > PATIENCE:
                raise ShoalError(f"round {number} was opened {PATIENCE} times and no device could carry out its plan; the log says why")


class _one_thread:  # noqa: N801  # a context manager reads as a verb
    """The order in which threads add changes a float sum: one thread gives the same bits every time, and is faster at this size."""

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_error: object) -> None:
        torch.set_num_threads(self._threads)
