"""A run by the fast engine: sets up workers and what devices keep, makes the rounds, keeps checkpoints."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from aggregator.adapters.memory import MemoryBlobs
from aggregator.aggregation import check_fit
from aggregator.core.state import RunSettings
from algorithms.algorithm import Algorithm
from algorithms.contract import Objective, Probe
from edge_client.ports import Windows
from simulation.attacks import Attack
from simulation.engine.kept import Arena
from simulation.engine.options import Engine
from simulation.engine.rounds import Progress, Rounds
from simulation.engine.site import Site
from simulation.engine.traffic import Traffic
from simulation.engine.workers import Inline
from simulation.ran import Ran, Tell, told_of
from simulation.torch_graphs import TorchGraphs
from wire.bundle import Bundle


def run_fast(
    settings: RunSettings,
    algorithm: Algorithm,
    probe: Probe,
    bundle: Bundle,
    objective: Objective,
    devices: Mapping[str, Windows],
    attack: Attack | None,
    tell: Tell,
    cohort: int,
    engine: Engine,
) -> Ran:
    """Run a fleet to the end.

    Raises:
        ConfigError: the algorithm does not fit the bundle.
        ShoalError: no device can carry out its plan.
    """
    check_fit(settings, algorithm, bundle.manifest)
    folder = Path(tempfile.mkdtemp(prefix="shoal-"))
    kept = Arena(folder, sorted(devices), (devices[d].num_train for d in sorted(devices)))
    site = Site(settings, bundle, TorchGraphs(objective), devices, kept, attack)
    blobs = MemoryBlobs()
    rounds = Rounds(settings, algorithm, probe, devices, Inline(site), blobs, Traffic(settings, len(bundle.payload)), cohort)
    progress = Progress(algorithm.begin(bundle.initial, probe, settings.seed))
    while not progress.finished:
        progress = rounds.advance(progress)
        if not progress.finished:
            tell(told_of(progress.trained, progress.records[-1].groups))
    state = rounds.conclude(progress)
    return Ran(state, list(progress.records), blobs, lambda d, x: site.predict(d, rounds.model_of(progress, d), x))
