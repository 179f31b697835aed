"""A run by the fast engine, with its backend and its workers."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from aggregator.aggregation.stored import check_fit
from aggregator.core.settings import RunSettings
from aggregator.storage.memory import MemoryBlobs
from aggregator.view.summary import count_groups
from edge_client.core.ports import Windows
from simulation.engine.backend import Backend, at_a_time, choose, training_graphs
from simulation.engine.checkpoint import CheckpointFolder
from simulation.engine.experiment import EngineResult, Experiment
from simulation.engine.graphs.batched import BatchedGraphs
from simulation.engine.measured import Workload
from simulation.engine.options import EngineOptions
from simulation.engine.progress import STOP, HeldModels, OnProgress, RunProgress
from simulation.engine.rounds import Rounds, Snapshot
from simulation.engine.schedule import Schedule
from simulation.engine.traffic import MessageScale
from simulation.engine.workers.device_host import DeviceHost, DeviceHostSpec, Workers
from simulation.engine.workers.local import batched, inline, threads
from simulation.engine.workers.private_store import MappedStore
from simulation.engine.workers.processes import processes
from wire.arrays.tensors import Array


def run_fast(
    experiment: Experiment,
    schedule: Schedule,
    identity: Mapping[str, Any],
    options: EngineOptions,
    on_progress: OnProgress,
) -> EngineResult:
    """Run a fleet to the end, or resume it from its checkpoint.

    `identity` are the values that identify the run besides its settings.

    Raises:
        ConfigError: the algorithm does not fit the bundle, the backend cannot run it, or the
            checkpoint is another run's.
        Stalled: no device can carry out its plan.
    """
    settings, bundle, devices = experiment.settings, experiment.bundle, experiment.devices
    check_fit(settings, experiment.algorithm, bundle.manifest)
    blobs, traffic = MemoryBlobs(), MessageScale(settings, len(bundle.payload))
    rounds = Rounds(experiment, blobs, traffic, schedule)
    checkpoint = (
        CheckpointFolder(options.checkpoint, settings, identity) if options.checkpoint else None
    )
    snapshot = checkpoint.load(blobs, traffic) if checkpoint else None
    snapshot = snapshot or Snapshot(
        experiment.algorithm.begin(bundle.initial, experiment.probe, settings.seed)
    )
    programs = rounds.campaign(snapshot).version.programs
    trained = training_graphs(programs, experiment.objective)
    workload = _workload(settings, devices, identity["cohort"] or len(devices))
    backend = choose(experiment.objective, bundle.manifest, options, trained, workload)
    store = MappedStore(
        checkpoint.store if checkpoint else None,
        rounds.device_ids,
        (devices[d].num_train for d in rounds.device_ids),
    )
    spec = DeviceHostSpec(
        settings, bundle, experiment.algorithm, backend.make, devices, experiment.attack
    )
    host = DeviceHost(spec, backend.graphs, store)
    with _workers(host, backend, options, workload) as workers:
        if not snapshot.finished:
            on_progress(RunProgress(snapshot.trained, count_groups({})))
        while not snapshot.finished:
            snapshot = rounds.advance(snapshot, workers)
            if checkpoint:
                checkpoint.save(snapshot, blobs, traffic)
            if snapshot.finished:
                break
            last, model_source = snapshot.records[-1], _held(rounds, snapshot, host)
            groups = count_groups(last.groups)
            if (
                on_progress(
                    RunProgress(
                        snapshot.trained, groups, last.closed_at_s, snapshot.records, model_source
                    )
                )
                is STOP
            ):
                snapshot = replace(snapshot, stopped=True)
                if checkpoint:
                    checkpoint.save(snapshot, blobs, traffic)

    def predict(device_id: str, x: Array) -> Array:
        return host.predict(device_id, rounds.model_of(snapshot, device_id), snapshot.round + 1, x)

    models = _held(rounds, snapshot, host)
    return EngineResult(
        rounds.conclude(snapshot),
        list(snapshot.records),
        blobs,
        predict,
        models,
        backend.name,
        backend.reason,
        schedule,
    )


def _held(rounds: Rounds, snapshot: Snapshot, host: DeviceHost) -> HeldModels:
    """Return the models between two rounds."""
    return HeldModels(
        rounds.experiment.objective,
        lambda key: rounds.algorithm.given(snapshot.state, key),
        lambda device_id: host.own_tensors(
            device_id, rounds.model_of(snapshot, device_id), snapshot.round + 1
        ),
    )


def _workload(settings: RunSettings, devices: Mapping[str, Windows], cohort_size: int) -> Workload:
    """Return the workload of a run, estimated from a few of its devices."""
    some = [devices[d].num_train for d in sorted(devices)[:: max(1, len(devices) // 32)]]
    batches = sum(ceil(number / settings.batch_size) for number in some) / len(some)
    return Workload(
        min(cohort_size, len(devices)),
        max(1, round(sum(some) / len(some))),
        settings.batch_size,
        round(settings.rounds * settings.local_epochs * batches * cohort_size),
    )


def _workers(
    host: DeviceHost, backend: Backend, options: EngineOptions, workload: Workload
) -> AbstractContextManager[Workers]:
    if options.cluster:
        from simulation.engine.workers.ray import (
            on_ray,
        )  # optional; `EngineOptions` reports if it is missing

        return on_ray(options.cluster, options.workers, host.spec, host.store)
    count = at_a_time(backend, options, workload)
    if isinstance(backend.graphs, BatchedGraphs):
        return batched(host, backend.graphs, count)
    if count == 1:
        return nullcontext(partial(inline, host))
    if backend.threads:
        return threads(host, count)
    return processes(host, count)
