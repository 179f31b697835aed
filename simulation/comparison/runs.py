"""The runs of a comparison: several algorithms on the same fleets over several seeds.

A job is one algorithm with one seed. Its result is a file named by a digest of everything that
decides it. An interrupted comparison therefore resumes where it stopped, and an extended one runs
only the missing jobs.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from aggregator.view.summary import accuracy_of, spread
from algorithms.composition import AlgorithmSpec, read_algorithm
from algorithms.models.adoption.from_file import is_file
from algorithms.objectives.supervised import Supervised
from algorithms.personalisation.kept import kept_text
from simulation.cost import count
from simulation.datasets.catalog import NAMES, Cuts, cuts_of
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.engine.progress import RunProgress
from simulation.heterogeneity import measure
from simulation.measures import confusion
from simulation.partition import make_fleet, read_partition
from simulation.scenario import Scenario, check_scenario, scenario_of, set_scene
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, read_settings, simulate
from wire.errors import ConfigError, DataError, Stalled
from wire.messages import Evaluate
from wire.tasks import CLASSIFICATION, SEQUENCE

NOTHING: dict[str, Any] = {
    "accuracy": {"mean": None, "std": None, "worst": None, "worst_tenth": None},
    "macro_f1": None,
    "auc": None,
    "mae": None,
    "accuracy_by_round": [],
    "pooled_by_round": [],
    "closes": False,
    "devices": {},
    "groups": {"count": None, "by_round": [], "ari": None},
    "bytes": {"up": 0, "down": 0},
    "epsilon": None,
    "attack": None,
    "newcomers": None,
    "group_by_device": {},
    "personal_model_by_device": {},
    "classes": [],
    "confusion": None,
    "cost": None,
    "preparations": None,
    "wall_s": None,
}
"""Result of a run that ended without a model."""
MEASURED = 1000
"""Maximum number of devices over which heterogeneity and confusion are measured."""


@cache
def _usual() -> dict[str, Any]:
    return msgspec.structs.asdict(read_settings(SimulationSettings()))


@dataclass(frozen=True)
class Job:
    """One run of a comparison.

    `data` is the name or path that the user gave. `content` is the digest of the files that it
    refers to (`content_of`).
    """

    data: str
    settings: SimulationSettings
    content: str = ""

    @cached_property
    def key(self) -> str:
        """Name of the result: a digest that is equal for equal jobs at any time.

        Settings at their default are left out, so that results stay valid when a setting is added.
        The content of files counts (data, a model, an algorithm's own classes): an edited file
        makes another job.
        """
        usual = _usual()
        settings = msgspec.structs.asdict(self.settings)
        unusual = {name: value for name, value in settings.items() if value != usual[name]}
        about = {"data": self.data, "settings": unusual}
        contents = {"sources": self.settings.algorithm.sources, "content": self.content}
        text = json.dumps(
            about | {k: v for k, v in contents.items() if v}, sort_keys=True, default=str
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def jobs_of(
    data: str,
    algorithms: Sequence[AlgorithmSpec],
    seeds: int,
    settings: SimulationSettings,
) -> list[Job]:
    """Return every run, ordered by seed, so that the first seed of all algorithms completes first.

    `settings` are the ones that all runs share; their algorithm and seed are not used.
    """
    content, settings = content_of(data, settings.model), read_settings(settings)
    return [
        Job(data, msgspec.structs.replace(settings, algorithm=algorithm, seed=seed), content)
        for seed in range(seeds)
        for algorithm in algorithms
    ]


def content_of(data: str, model: str = "") -> str:
    """Return a digest of the data files and the model file of a job, or "" if there are none.

    Only data given by a path and a model from a file are digested. The name of a built-in data set
    or model identifies its content already.
    """
    folder, code = Path(data), Path(model.rpartition(":")[0])
    paths = (
        []
        if data in NAMES or not folder.exists()
        else [folder]
        if folder.is_file()
        else sorted(folder.rglob("*"))
    )
    files = [(path, str(path.relative_to(folder))) for path in paths if path.is_file()]
    if is_file(model) and code.is_file():
        files.append((code, "model"))
    digests = [
        (name, _digest(path, path.stat().st_size, path.stat().st_mtime_ns)) for path, name in files
    ]
    return hashlib.sha256(repr(digests).encode()).hexdigest() if digests else ""


@lru_cache(maxsize=100_000)
def _digest(path: Path, size: int, changed_ns: int) -> str:
    """Return the digest of a file's content.

    Size and modification time are arguments so that a changed file misses the cache.
    """
    del size, changed_ns
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=2)
def fleet_of(
    data: str, devices: int | None, partition: str, seed: int, content: str, cuts: Cuts
) -> FleetData:
    del content  # part of the cache's key: other content is another fleet
    return make_fleet(data, read_partition(partition), devices, seed, cuts)


def data_of(job: Job) -> FleetData:
    """Return the data of a job as its partition assigns them, before its scenario is applied.

    Raises:
        ShoalError: the data cannot be read or assigned, or the scenario does not fit the partition.
    """
    settings = job.settings
    check_scenario(scenario_of(settings), read_partition(settings.partition))
    return fleet_of(*_place(job))


def _place(job: Job) -> tuple[str, int | None, str, int, str, Cuts]:
    """Return the arguments of `fleet_of` for a job."""
    s = job.settings
    return job.data, s.devices, s.partition, s.seed, job.content, cuts_of(s)


@lru_cache(maxsize=2)
def _heterogeneity(place: tuple[Any, ...], scenario: Scenario) -> dict[str, float]:
    """Return the heterogeneity of a fleet; `place` are the arguments of `fleet_of`."""
    return measure(set_scene(fleet_of(*place), scenario, place[3]).some(MEASURED))


def run_job(
    job: Job,
    on_round: Callable[[int], None] = lambda _round: None,
    workers: int = 0,
    fleet: FleetData | None = None,
    objective: Callable[[FleetData], Supervised] | None = None,
    keep: Callable[[Job, SimulationResult], None] | None = None,
) -> dict[str, Any]:
    """Run one job, and return its result: everything that `tabulate` and the pictures need.

    The run ends without a model if no device's update can be accepted any more, or if newcomers
    have too few windows for the algorithm. The result is then `NOTHING` with the reason in
    `failed`.

    Args:
        job: the algorithm, seed and settings to run.
        on_round: called with the number of every finished round.
        workers: number of devices that are simulated at a time; 0: one for each core.
        fleet: used in place of the data that the job names.
        objective: makes the objective, in place of the one on the model that the settings name.
        keep: called with the job and the end of its run, before the result is returned.
    """
    torch.set_num_threads(1)
    settings = job.settings
    if objective is None:  # `check_jobs` has checked the model
        settings = msgspec.structs.replace(settings, exportable="off")
    scenario = scenario_of(settings)
    if fleet is None:
        fleet = data_of(job)
        heterogeneity = _heterogeneity(_place(job), scenario)
    else:
        heterogeneity = measure(set_scene(fleet, scenario, settings.seed).some(MEASURED))

    def tell(progress: RunProgress) -> None:
        if progress.trained:
            on_round(progress.trained)

    job_fields = {
        "data": job.data,
        "algorithm": str(settings.algorithm),
        "seed": settings.seed,
        "labels": settings.labels,
        "heterogeneity": heterogeneity,
    }
    try:
        outcome = simulate(fleet, settings, tell, objective, EngineOptions(workers=workers))
    except (Stalled, DataError) as error:
        return {**NOTHING, **job_fields, "failed": str(error)}
    if keep is not None:
        keep(job, outcome)
    summary, verbs = outcome.summary, chain(*outcome.campaign.version.programs.values())
    objective_of_all = outcome.models.objective
    cost = count(outcome.records, list(verbs), objective_of_all, outcome.data.window.shape)
    attackers = summary.attack.attackers if summary.attack else ()
    tested = [accuracy_of(r) for r in outcome.records[summary.preparations + 1 :]]
    by_round = [
        spread(a for d, a in accuracies.items() if d not in attackers).mean for accuracies in tested
    ]
    f1 = {d: device.macro_f1 for d, device in summary.devices.items()}
    groups = {d: device.group for d, device in summary.devices.items()}
    pooled = [
        pooled_accuracy({d: a for d, a in accuracies.items() if d not in attackers}, fleet)
        for accuracies in tested
    ]
    truth = {
        d: f"{group}, attacks" if d in attackers else group for d, group in fleet.truth.items()
    }
    return {
        **job_fields,
        "accuracy": msgspec.to_builtins(
            summary.attack.honest_accuracy if summary.attack else summary.accuracy
        ),
        "accuracy_by_round": by_round,
        "macro_f1": msgspec.to_builtins(
            spread(f for d, f in f1.items() if f is not None and d not in attackers)
        ),
        "auc": msgspec.to_builtins(summary.auc),
        "mae": {name: error.mean for name, error in summary.mae.items()} if summary.mae else None,
        "pooled_by_round": pooled,
        "closes": any(
            not isinstance(verb, Evaluate)
            for verb in outcome.campaign.version.programs.get("closing", ())
        ),
        "devices": {d: device.accuracy for d, device in summary.devices.items()},
        "macro_f1_by_device": f1,
        "group_by_device": groups,
        "personal_model_by_device": {
            d: kept_text(device.personal_model) for d, device in summary.devices.items()
        }
        if summary.personal_models
        else {},
        "classes": list(outcome.data.classes),
        "confusion": _confusion(outcome),
        "cost": None if cost is None else asdict(cost),
        "groups": {
            "count": summary.groups.count,
            "by_round": summary.groups.by_round,
            "ari": agreement(truth, groups),
        },
        "bytes": msgspec.to_builtins(summary.bytes),
        "bytes_by_round": msgspec.to_builtins(summary.bytes_by_round),
        "epsilon": summary.epsilon,
        "attack": msgspec.to_builtins(summary.attack),
        "newcomers": msgspec.to_builtins(summary.newcomers),
        "preparations": summary.preparations,
        "accuracy_over_time": summary.time.accuracy if summary.time else [],
        "wall_s": summary.wall_s,
    }


def _confusion(outcome: SimulationResult) -> list[list[int]] | None:
    """Return the confusion matrix over the test windows of at most `MEASURED` devices, by id.

    None if answers are not classes, or if no device has test windows.
    """
    if outcome.models.objective.task.of not in (CLASSIFICATION, SEQUENCE):
        return None
    tested = [(d, w) for d, w in sorted(outcome.data.devices.items()) if w.num_test][:MEASURED]
    counts = [
        confusion(w.test_y, outcome.predict(d, w.test_x).argmax(-1), len(outcome.data.classes))
        for d, w in tested
    ]
    whole: list[list[int]] = np.sum(counts, axis=0).tolist() if counts else []
    return whole or None


def pooled_accuracy(accuracies: Mapping[str, float], fleet: FleetData) -> float | None:
    """Return the accuracy over the test examples of all devices together.

    `accuracies` are by device. None if no device has test examples.
    """
    counts = {d: fleet.devices[d].num_test for d in accuracies}
    total = sum(counts.values())
    return round(sum(counts[d] * accuracies[d] for d in counts) / total, 6) if total else None


def agreement(truth: Mapping[str, str], groups: Mapping[str, int | None]) -> float | None:
    """Return the adjusted Rand index of the groups found and the true groups.

    None if no true groups are known. A device without a group counts as a group of its own.
    """
    device_ids = [d for d in sorted(groups) if d in truth]
    if not device_ids:
        return None
    labels = [groups[d] if groups[d] is not None else f"alone {d}" for d in device_ids]
    from sklearn.metrics import adjusted_rand_score  # imported here: it takes a second

    return round(
        float(adjusted_rand_score([truth[d] for d in device_ids], [str(f) for f in labels])), 6
    )


def read_algorithms(text: str) -> tuple[AlgorithmSpec, ...]:
    """Return the algorithms of a text that separates them by commas.

    Raises:
        ConfigError: there is no algorithm, one occurs twice, or one cannot be read.
    """
    algorithms = tuple(read_algorithm(name.strip()) for name in text.split(",") if name.strip())
    if not algorithms or len(set(algorithms)) < len(algorithms):
        raise ConfigError(f"--algorithms must be different names separated by commas, got {text!r}")
    return algorithms
