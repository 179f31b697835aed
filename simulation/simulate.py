"""A simulation: a fleet on one machine, by the fast engine or message by message. Same seed, same bits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch

from aggregator.core.state import RunSettings, RunState
from aggregator.ports import Blobs, RoundRecord
from aggregator.summary import accuracy_of, spread, summarize
from algorithms.contract import Objective
from algorithms.models.build import build_model
from algorithms.models.registry import default_model
from algorithms.probe import make_probe
from algorithms.registry import make_algorithm, make_objective
from export.describe import describe_bundle
from host.native.arithmetic import NativeArithmetic
from simulation.attacks import Attack, make_attack, success_rate, told_apart
from simulation.datasets.windows import FleetData
from simulation.engine.experiment import Experiment
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.messages import run_by_messages
from simulation.engine.options import DEFAULT, EngineOptions
from simulation.engine.progress import OnProgress
from simulation.engine.result import EngineResult
from simulation.engine.run import run_fast
from simulation.engine.schedule import Drawn, Schedule, Timed
from simulation.engine.secret import repeatable_secret
from simulation.newcomers import Reception, hold_out
from simulation.pretrain import pretrained_extractor
from simulation.timing.fleet import Fleet, Work
from simulation.timing.policies import make_policy
from simulation.timing.profiles import make_profiles
from wire import names
from wire.bundle import Bundle
from wire.errors import ConfigError


@dataclass(frozen=True)
class SimulationResult:
    """A finished simulation: its summary, its last state, its records, and the blobs that these name."""

    summary: dict[str, Any]
    state: RunState
    records: list[RoundRecord]
    blobs: Blobs


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
    cohort: int = 0
    """So many devices, drawn anew, take part in each round; 0: all do."""
    profiles: str = ""
    """What devices are like on the virtual clock (`simulation.timing.profiles`); without profiles and policy no time passes."""
    policy: str = ""
    """How the server makes rounds on the virtual clock (`simulation.timing.policies`)."""


def build_objective(data: FleetData, algorithm: str, seed: int, model: str = "", pretrain: str = "") -> Objective:
    """The objective of an algorithm on a fresh model for this data; the seed decides the initial weights. `pretrain` names other data
    that its extractor is trained on first.

    Raises:
        ConfigError: an unknown algorithm or model, or one that does not fit the data.
    """
    torch.manual_seed(seed)
    name = model or default_model(data.window)
    made = build_model(name, data.window, len(data.classes), torch.from_numpy(data.channel_size()))
    if pretrain:
        made.extractor = pretrained_extractor(name, data.window, pretrain, seed)
    return make_objective(algorithm, made)


def in_process_bundle(data: FleetData, objective: Objective) -> Bundle:
    """The bundle of an objective for this data; its graphs are described only."""
    return describe_bundle(objective, name=data.name, classes=data.classes, window=data.window)


def simulate(
    data: FleetData,
    settings: SimulationSettings,
    on_progress: OnProgress = lambda _progress: None,
    objective: Objective | None = None,
    engine: EngineOptions = DEFAULT,
) -> SimulationResult:
    """Run a fleet to the end. `on_progress` is called after every round; `objective` takes the place of that on a fresh model.

    Raises:
        ConfigError: an unknown algorithm or option.
    """
    started_s = perf_counter()
    if not 0 <= settings.newcomers < len(data.devices):
        raise ConfigError(f"{settings.newcomers} newcomers of {len(data.devices)} devices: at least one has to train")
    data, newcomers = hold_out(data, settings.newcomers, settings.seed)
    algorithm = replace(make_algorithm(settings.algorithm), arithmetic=NativeArithmetic())
    objective = objective or build_objective(data, settings.algorithm, settings.seed, settings.model, settings.pretrain)
    bundle = in_process_bundle(data, objective)
    probe = make_probe(objective.model, data.window.shape)
    attack = make_attack(settings.attack, data, settings.seed)
    run_settings = RunSettings.for_bundle(
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
    experiment = Experiment(run_settings, algorithm, objective, probe, bundle, data.devices, attack)
    with _one_thread():
        graphs = EagerGraphs(objective)
        if engine.backend == "messages":
            result = run_by_messages(experiment, graphs, on_progress)
        else:
            schedule = make_schedule(settings, data, bundle)
            asked = {name: getattr(settings, name) for name in ("cohort", "attack", "profiles", "policy")}
            result = run_fast(experiment, schedule, asked, engine, on_progress)
        summary = summarize(result.state, result.records, perf_counter() - started_s) | {
            "backend": result.backend,
            "backend_reason": result.reason,
        }
        if result.schedule is not None:
            accuracies = [(r.opened_at_s, spread(accuracy_of(r).values())["mean"]) for r in result.records if r.phase != "preparing"]
            summary |= result.schedule.report(accuracies)
        if attack is not None:
            summary["attack"] = _measure(attack, settings.attack, result, data, summary)
        if newcomers:
            reception = Reception(algorithm, result.state, result.blobs, probe, bundle, graphs, repeatable_secret)
            summary["newcomers"] = spread(m.accuracy for m in reception.receive(newcomers).values() if m.num_examples)
    return SimulationResult(summary, result.state, result.records, result.blobs)


def make_schedule(settings: SimulationSettings, data: FleetData, bundle: Bundle) -> Schedule:
    """Who takes part when, as the settings say.

    Raises:
        ConfigError: profiles or a policy that do not exist, or an option that they cannot have.
        DataError: a trace that cannot be read, or has too few devices.
    """
    ids = sorted(data.devices)
    if not settings.profiles and not settings.policy:
        return Drawn(ids, settings.cohort, settings.seed)
    if settings.cohort and settings.policy.partition(":")[0] == "buffered":
        raise ConfigError(f"cohort {settings.cohort}: policy {settings.policy!r} has no rounds; say concurrency= and buffer=")
    manifest = bundle.manifest
    examples = np.array([settings.local_epochs * data.devices[d].num_train for d in ids], np.int64)
    down, up = (sum(spec.num_bytes for spec in specs) for specs in (manifest.received(), manifest.of_role(*names.EXCHANGED)))
    fleet = Fleet(make_profiles(settings.profiles or "always", len(ids), settings.seed), Work(examples, down, up), settings.seed)
    policy = settings.policy or "sync"
    if settings.cohort:
        policy += f":cohort={settings.cohort}"
    return Timed(ids, make_policy(policy, fleet))


def _measure(attack: Attack, text: str, result: EngineResult, data: FleetData, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What an attack achieved on the honest devices: their accuracy, and its success rate with the models that they were given."""
    honest = [d for d in sorted(data.devices) if d not in attack.attackers]
    tested = [d for d in honest if data.devices[d].num_test]
    labels = np.concatenate([data.devices[d].test_y for d in tested])
    predicted = np.concatenate([result.predict(d, data.devices[d].test_x).argmax(1) for d in tested])
    clusters = {d: device["cluster"] for d, device in summary["devices"].items()}
    return {
        "attack": text,
        "attackers": sorted(attack.attackers),
        "success_rate": success_rate(attack.targets, labels, predicted),
        "told_apart": told_apart(clusters, attack.attackers),
        "honest_accuracy": spread(summary["devices"][d]["accuracy"] for d in tested),
    }


class _one_thread:  # noqa: N801  # a context manager reads as a verb
    """The order in which threads add changes a float sum: one thread gives the same bits every time, and is faster at this size."""

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_error: object) -> None:
        torch.set_num_threads(self._threads)
