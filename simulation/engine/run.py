"""A run by the fast engine: chooses how graphs run and by how many workers, makes the rounds, keeps checkpoints."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil, prod
from typing import Any

from aggregator.adapters.memory import MemoryBlobs
from aggregator.aggregation import check_fit
from aggregator.core.state import RunSettings
from algorithms.algorithm import Algorithm
from algorithms.contract import Objective, Probe
from edge_client.ports import Windows
from simulation.attacks import Attack
from simulation.engine.batched_graphs import BatchedGraphs
from simulation.engine.checkpoint import Checkpoint
from simulation.engine.kept import Arena
from simulation.engine.options import Engine
from simulation.engine.paths import Way, choose
from simulation.engine.processes import Processes, can_fork
from simulation.engine.rounds import Progress, Rounds, Workers
from simulation.engine.schedule import Schedule
from simulation.engine.site import Blueprint, Site
from simulation.engine.traffic import Traffic
from simulation.engine.workers import Batched, Inline, Threads
from simulation.ran import Ran, Tell, told_of
from wire.bundle import Bundle
from wire.messages import Train
from wire.tensors import Array

FORK_FROM = 500
"""Steps of training in a run from which worker processes are worth their start."""


def run_fast(
    settings: RunSettings,
    algorithm: Algorithm,
    probe: Probe,
    bundle: Bundle,
    objective: Objective,
    devices: Mapping[str, Windows],
    attack: Attack | None,
    tell: Tell,
    schedule: Schedule,
    asked: Mapping[str, Any],
    engine: Engine,
) -> Ran:
    """Run a fleet to the end, or go on with it where its checkpoint is. `asked` is what decides the run besides its settings.

    Raises:
        ConfigError: the algorithm does not fit the bundle, the way cannot be taken, or the checkpoint is another run's.
        Stalled: no device can carry out its plan.
    """
    check_fit(settings, algorithm, bundle.manifest)
    blobs, traffic = MemoryBlobs(), Traffic(settings, len(bundle.payload))
    rounds = Rounds(settings, algorithm, probe, devices, blobs, traffic, schedule, sorted(devices))
    checkpoint = Checkpoint(engine.checkpoint, settings, asked) if engine.checkpoint else None
    progress = checkpoint.load(blobs, traffic) if checkpoint else None
    progress = progress or Progress(algorithm.begin(bundle.initial, probe, settings.seed))
    steps = _steps(rounds, devices, asked["cohort"] or len(devices))
    way = choose(objective, bundle.manifest, engine, _trained(rounds, progress), settings.batch_size, steps)
    arena = Arena(checkpoint.arena if checkpoint else None, rounds.device_ids, (devices[d].num_train for d in rounds.device_ids))
    site = Site(settings, bundle, way.graphs, devices, arena, attack)
    blueprint = Blueprint(settings, bundle, algorithm, way.make, devices, attack)
    with _on_ray(blueprint, engine, arena) if engine.ray else _workers(site, way, engine, settings, steps) as workers:
        if not progress.finished:
            tell(told_of(progress.trained, {}))
        while not progress.finished:
            progress = rounds.advance(progress, workers)
            if checkpoint:
                checkpoint.save(progress, blobs, traffic)
            if not progress.finished:
                tell(told_of(progress.trained, progress.records[-1].groups, progress.records[-1].closed_at_s))

    def predict(device_id: str, x: Array) -> Array:
        return site.predict(device_id, rounds.model_of(progress, device_id), progress.round + 1, x)

    return Ran(rounds.conclude(progress), list(progress.records), blobs, predict, way.name, way.why, schedule)


@contextmanager
def _workers(site: Site, way: Way, engine: Engine, settings: RunSettings, steps: int) -> Iterator[Workers]:
    count = engine.num_workers
    workers: Inline | Threads | Processes | Batched
    if isinstance(way.graphs, BatchedGraphs):
        workers = Batched(site, way.graphs, engine.num_together)
    elif count == 1 or (not way.threads and (steps < FORK_FROM or not can_fork())):
        workers = Inline(site)
    elif way.threads:
        workers = Threads(site, count)
    else:
        entries = {e[0]: prod(e[2]) for layouts in (settings.reported, settings.responses) for layout in layouts.values() for e in layout}
        workers = Processes(site, count, sum(entries.values()))
    try:
        yield workers
    finally:
        workers.close()


@contextmanager
def _on_ray(blueprint: Blueprint, engine: Engine, arena: Arena) -> Iterator[Workers]:
    from simulation.engine.ray_workers import RayWorkers  # an optional dependency; `Engine` says where it is missing

    workers = RayWorkers(engine.ray, engine.workers, blueprint, arena)
    try:
        yield workers
    finally:
        workers.close()


def _steps(rounds: Rounds, devices: Mapping[str, Windows], num_invited: int) -> int:
    """About how many steps of training the run has, from a few of its devices."""
    settings, some = rounds.settings, rounds.device_ids[:: max(1, len(rounds.device_ids) // 32)]
    batches = sum(ceil(devices[d].num_train / settings.batch_size) for d in some) / len(some)
    return round(settings.rounds * settings.local_epochs * batches * num_invited)


def _trained(rounds: Rounds, progress: Progress) -> set[str]:
    """The graphs that the next round trains with."""
    programs = rounds.programs(progress.state)
    return {verb.graph for verbs in programs.values() for verb in verbs if isinstance(verb, Train)}
