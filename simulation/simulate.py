"""A simulation: a fleet on one machine, with the fast engine or message by message.

The same seed gives the same bits.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import msgspec
import numpy as np

from aggregator.aggregation.stored import check_fit, work_of
from aggregator.core.policies import read_policy, with_cohort
from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.training import SAME_DEVICES, check_fixed
from aggregator.fleet.records import Campaign, Fleet
from aggregator.ports import Blobs
from aggregator.view.fleet import FleetView
from aggregator.view.round_record import RoundRecord
from aggregator.view.summary import (
    AttackSummary,
    Newcomers,
    Spread,
    Summary,
    accuracy_of,
    spread,
    spread_of_errors,
    summarize,
)
from algorithms.build import check_model, probe_of
from algorithms.composition import algorithm_of, make_algorithm
from algorithms.core.contract import USUAL_PASSES
from algorithms.objectives.supervised import Supervised
from algorithms.schedules import read_schedule
from algorithms.spec import Choice
from algorithms.sums import check_cells, check_in_clear, check_in_sums
from edge_client.core.ports import Windows
from export.describe import MIN_BATCH, describe_bundle
from export.exportable import obstacles
from host.native.arithmetic import NativeArithmetic
from host.threads import one_thread
from simulation.datasets.windows import FleetData, able_to_train, for_task, says_anomalies
from simulation.engine.experiment import EngineResult, Experiment
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.messages import run_by_messages
from simulation.engine.options import DEFAULT, EngineOptions
from simulation.engine.progress import HeldModels, OnProgress, RunProgress
from simulation.engine.run import run_fast
from simulation.engine.schedule import Drawn, Schedule, Timed
from simulation.engine.workers.attacks import (
    COLLUDING,
    Attack,
    make_attack,
    read_attack,
    stamped,
    success_rate,
    summary_of,
)
from simulation.engine.workers.device_host import repeatable_secret
from simulation.measures import measure
from simulation.newcomers import NewcomerResult, Reception, hold_out
from simulation.objective import objective_for_fleet
from simulation.partition import read_partition
from simulation.pretrain import examples_for
from simulation.scenario import read_labels, scenario_of, set_scene
from simulation.settings import SimulationSettings
from simulation.splits import read_split
from simulation.timing.campaign import TimedCampaign
from simulation.timing.fleet import JobSize, TimedFleet
from simulation.timing.profiles import make_profiles, read_profiles
from wire.arrays import names
from wire.arrays.quantised import change_bytes
from wire.arrays.tensors import Array
from wire.bundle import Bundle
from wire.errors import ConfigError
from wire.tasks import CLASSIFICATION, MULTI_LABEL, RECONSTRUCTION, REGRESSION, SEQUENCE, TaskName


@dataclass(frozen=True)
class SimulationResult:
    """A finished simulation: summary, final fleet, records, and the blobs that these refer to."""

    summary: Summary
    fleet: Fleet
    records: list[RoundRecord]
    blobs: Blobs
    data: FleetData
    """Data of the devices that train, without newcomers."""
    newcomers: Mapping[str, Windows]
    """Windows of the newcomers, by device."""
    models: HeldModels
    """Final models, including those of newcomers."""
    predict: Callable[[str, Array], Array]
    """(device, x (n, \\*window)) -> predictions of that device's model in use.

    They are class probabilities (n, classes) float32, or the answers of another task.
    """

    @property
    def campaign(self) -> Campaign:
        """The only campaign of the fleet."""
        return next(iter(self.fleet.campaigns.values()))


CHOICES: Mapping[str, Callable[[str], Choice]] = {
    "partition": read_partition,
    "split": read_split,
    "attack": read_attack,
    "profiles": read_profiles,
    "policy": read_policy,
    "lr_schedule": read_schedule,
}
"""Settings that are choices with options, and their readers."""


def read_settings(settings: SimulationSettings) -> SimulationSettings:
    """Return the settings with the algorithm read and every choice in its canonical form.

    The privacy mechanism becomes part of the algorithm, and the learning rate one of the
    hyperparameters.

    Raises:
        ConfigError: a choice cannot be read.
    """
    algorithm = algorithm_of(settings.algorithm).with_privacy(settings.privacy)
    check_model(settings.model)
    if settings.secret:
        check_in_sums(algorithm)
        check_fixed(settings, {"profiles": ("", SAME_DEVICES), "policy": ("", SAME_DEVICES)})
    else:
        check_in_clear(algorithm)
    return msgspec.structs.replace(
        settings,
        algorithm=algorithm,
        privacy="",
        hyper=({} if settings.lr is None else {"lr": settings.lr}) | settings.hyper,
        lr=None,
        labels=str(read_labels(settings.labels)),
        **{
            name: str(read(text))
            for name, read in CHOICES.items()
            if (text := getattr(settings, name))
        },
    )


def simulate(
    data: FleetData,
    settings: SimulationSettings,
    on_progress: OnProgress = lambda _progress: None,
    objective: Supervised | Callable[[FleetData], Supervised] | None = None,
    engine: EngineOptions = DEFAULT,
    on_step: Callable[[str], object] = lambda _text: None,
) -> SimulationResult:
    """Run a simulated fleet to its end.

    Args:
        data: the data of the fleet; the settings' scenario decides which part each device has.
        settings: training and scenario.
        on_progress: called after every round; its answer `STOP` ends the training, except with
        backend messages.
        objective: used in place of the objective on a fresh model; or a function that makes it from
        the data of the devices that train.
        engine: options of the engine.
        on_step: called with the next step before the rounds.

    Raises:
        ConfigError: settings do not fit each other, the data or the engine.
        DataError: the data do not allow the split.
    """
    started_s = perf_counter()
    settings = read_settings(settings)
    if engine.backend == "messages":
        for name in ("profiles", "policy"):
            if value := getattr(settings, name):
                raise ConfigError(
                    f"{name} {value}: backend messages has its own virtual clock; leave it out"
                )
        if settings.secret:
            raise ConfigError("secret: backend messages has no helpers; use another backend")
        if read_attack(settings.attack).name in COLLUDING if settings.attack else False:
            raise ConfigError(
                f"attack {settings.attack}: attackers of backend messages do not know the updates "
                "of others; use another backend"
            )
    on_step("making the model")
    data, newcomers, experiment = _set_up(data, settings, objective)
    if settings.exportable != "off":
        on_step("checking if devices can train the model")
    _check_exportable(settings, data, experiment.objective, stacklevel=5)
    on_step("compiling what this machine has not compiled before")
    privacy = experiment.algorithm.privacy
    if cost := privacy.cost(settings.rounds, _counts(data), work_of(experiment.settings)):
        on_progress(RunProgress(0, 0, privacy=cost))
    algorithm, bundle, attack = (
        experiment.algorithm,
        experiment.bundle,
        experiment.attack,
    )
    with one_thread():
        graphs = EagerGraphs(experiment.objective)
        if engine.backend == "messages":
            result = run_by_messages(experiment, graphs, on_progress)
        else:
            schedule = make_schedule(settings, data, bundle)
            named = {
                name: getattr(settings, name)
                for name in ("attack", "profiles", "policy", "labels", "split")
            }
            description = (
                named
                | {"cohort": settings.cohort, "newcomers": len(newcomers)}
                | {"secret": settings.min_sum if settings.secret else 0}
                | {f"source of {n}": s for n, s in settings.algorithm.sources.items()}
            )
            result = run_fast(experiment, schedule, description, engine, on_progress)
        view, name = FleetView(result.fleet), result.campaign.name
        summary = summarize(view, name, result.records, perf_counter() - started_s)
        summary = msgspec.structs.replace(
            summary, backend=result.backend, backend_reason=result.reason
        )
        if result.campaign.ended == "order":
            summary = msgspec.structs.replace(summary, ended="a callback stopped it")
        parts = settings.algorithm.parts
        task = parts.task.of
        summary = msgspec.structs.replace(
            summary,
            labels=settings.labels,
            split=settings.split,
            accuracy_is="" if settings.algorithm.has_classes else parts.task.accuracy,
        )
        summary = _with_measures(summary, result, data, task)
        if isinstance(result.schedule, Timed):
            accuracies = [
                (r.opened_at_s, spread(accuracy_of(r).values()).mean)
                for r in result.records
                if r.phase != "preparing"
            ]
            summary = msgspec.structs.replace(summary, time=result.schedule.report(accuracies))
        if attack is not None:
            summary = msgspec.structs.replace(
                summary,
                attack=_of_attack(attack, settings.attack, result, data, summary, task),
            )
        models = result.models
        if newcomers:
            reception = Reception(
                algorithm, result.campaign, result.blobs, bundle, graphs, repeatable_secret
            )
            received = reception.receive(newcomers)
            summary = msgspec.structs.replace(
                summary, newcomers=_of_newcomers(received, newcomers, task, data.classes)
            )
            of_device = models.of_device
            models = replace(
                models,
                of_device=lambda d: received[d].tensors if d in received else of_device(d),
            )
    return SimulationResult(
        summary, result.fleet, result.records, result.blobs, data, newcomers, models, result.predict
    )


def scene_of(data: FleetData, settings: SimulationSettings) -> FleetData:
    """Return the data of all devices, including newcomers, under the scenario and for the task.

    Raises:
        DataError: the data do not allow the split, or have no labels although the task needs some.
        ConfigError: the scenario removes labels that tell which windows are anomalous.
    """
    task = settings.algorithm.parts.task.of
    if task == RECONSTRUCTION and says_anomalies(data.classes) and settings.labels != "all":
        raise ConfigError(
            f"labels must be all, because without labels models would also train on the anomalous "
            f"windows of data {data.name}, got {settings.labels}"
        )
    return for_task(set_scene(data, scenario_of(settings), settings.seed), task)


def check_settings(data: FleetData, settings: SimulationSettings) -> None:
    """Check the arguments of `simulate` without training.

    Data to pre-train on are loaded.

    Raises:
        ConfigError: settings do not fit each other or the data.
        DataError: data to pre-train on, or a trace, cannot be read or do not fit.
    """
    settings = read_settings(settings)
    if settings.pretrain:
        examples_for(data.window, settings.pretrain)
    fleet, _, experiment = _set_up(data, msgspec.structs.replace(settings, pretrain=""), None)
    _check_exportable(settings, data, experiment.objective, stacklevel=7)
    make_schedule(settings, fleet, experiment.bundle)
    check_fit(experiment.settings, experiment.algorithm, experiment.bundle.manifest)
    experiment.algorithm.begin(experiment.bundle.initial, experiment.probe, settings.seed)


def _check_exportable(
    settings: SimulationSettings, data: FleetData, objective: Supervised, stacklevel: int
) -> None:
    """Warn if devices cannot train the model, at the caller of `shoal.simulate` or `compare`.

    Raises:
        ConfigError: the settings require that devices can train it.
    """
    if settings.exportable == "off":
        return
    if not (reasons := obstacles(objective, data.window.shape)):
        return
    text = f"Devices cannot train this model. {'; '.join(reasons)}"
    if settings.exportable == "require":
        raise ConfigError(text)
    warnings.warn(f"{text} (exportable=off: no check)", stacklevel=stacklevel)


@one_thread()
def _set_up(
    data: FleetData,
    settings: SimulationSettings,
    objective: Supervised | Callable[[FleetData], Supervised] | None,
) -> tuple[FleetData, Mapping[str, Windows], Experiment]:
    """Return the fleet without its newcomers, the newcomers, and the experiment."""
    count = scenario_of(settings).num_newcomers(len(data.devices))
    data, newcomers = hold_out(scene_of(data, settings), count, settings.seed)
    settings = _with_noise(settings, _counts(data))
    algorithm = make_algorithm(settings.algorithm, arithmetic=NativeArithmetic())
    if settings.secret:
        check_cells(algorithm.mean, len(_counts(data)), settings.min_sum)
    if objective is None:
        objective = objective_for_fleet(
            data, settings.algorithm, settings.seed, settings.model, settings.pretrain
        )
    elif callable(objective):
        objective = objective(data)
    bundle = describe_bundle(objective, name=data.name, classes=data.classes, window=data.window)
    probe = probe_of(objective, data.window.shape)
    attack = None
    if settings.attack:
        attack = make_attack(read_attack(settings.attack), data, settings.seed)
    run_settings = RunSettings.for_bundle(
        bundle,
        settings,
        run_id="simulation",
        data=data.name,
        min_devices=max(1, len(able_to_train(data, bundle.manifest.min_batch))),
        deadline_s=3600.0,
        cohort=settings.cohort,
        **ADMIT_ALL,
    )
    return (
        data,
        newcomers,
        Experiment(run_settings, algorithm, objective, probe, bundle, data.devices, attack),
    )


def _counts(data: FleetData) -> list[int]:
    """Return the number of training windows of each device that can train."""
    return [data.devices[d].num_train for d in able_to_train(data, MIN_BATCH)]


def _with_noise(settings: SimulationSettings, counts: Sequence[int]) -> SimulationSettings:
    """Return the settings with the noise of the privacy budget, for devices of so many windows.

    Raises:
        ConfigError: no noise is enough, or a device has fewer windows than the mechanism's minimum.
    """
    spec, fewest = settings.algorithm, min(counts, default=0)
    if spec.parts.privacy.min_examples > fewest:
        raise ConfigError(
            f"min_examples of {spec.privacy.name} must be at most {fewest}, the fewest training "
            f"windows of a device, got {spec.parts.privacy.min_examples}"
        )
    if not counts:  # the run ends with its own error
        return settings
    spec = spec.with_noise(settings.rounds, counts, work_of(settings))
    return msgspec.structs.replace(settings, algorithm=spec)


def make_schedule(settings: SimulationSettings, data: FleetData, bundle: Bundle) -> Schedule:
    """Return the schedule of a simulation: drawn cohorts, or rounds on a virtual clock.

    Raises:
        ConfigError: the cohort, or an option of the profiles or the policy, does not fit the fleet.
        DataError: a trace cannot be read, or has too few devices.
    """
    ids = able_to_train(data, bundle.manifest.min_batch)
    if settings.cohort > len(ids):
        raise ConfigError(
            f"cohort must be at most {len(ids)}, the devices that can train, got {settings.cohort}"
        )
    if not settings.profiles and not settings.policy:
        return Drawn(ids, settings.cohort, settings.seed)
    policy = read_policy(settings.policy or "sync")
    if settings.cohort:
        policy = with_cohort(policy, settings.cohort)
    manifest = bundle.manifest
    in_an_epoch = (  # an epoch may pass over the labelled windows repeatedly (`wire.verbs.Train`)
        min(w.num_train + w.num_unlabelled, USUAL_PASSES * w.num_train)
        for w in (data.devices[d] for d in ids)
    )
    examples = np.array([settings.local_epochs * count for count in in_an_epoch], np.int64)
    down, statistics = (
        sum(spec.num_bytes for spec in specs)
        for specs in (manifest.received(), manifest.of_role(names.STATISTIC))
    )
    changed = [
        (names.delta(spec.name), spec.dtype, spec.shape) for spec in manifest.of_role(names.SHARED)
    ]
    up = statistics + change_bytes(changed, settings.update_encoding)
    devices = read_profiles(settings.profiles or "always")
    profiles = make_profiles(devices, len(ids), settings.seed)
    fleet = TimedFleet(profiles, JobSize(examples, down, up), settings.seed)
    return Timed(ids, TimedCampaign(policy, fleet, ids))


def _with_measures(
    summary: Summary, result: EngineResult, data: FleetData, task: TaskName
) -> Summary:
    """Return the summary with the task's measures added to every accuracy."""
    if task == RECONSTRUCTION and not says_anomalies(data.classes):
        return summary
    devices = dict(summary.devices)
    for device_id in (d for d, device in summary.devices.items() if device.accuracy is not None):
        windows = data.devices[device_id]
        device_measures = measure(task, windows.test_y, result.predict(device_id, windows.test_x))
        mae = (
            None
            if device_measures.mae is None
            else {
                name: round(e, 6) for name, e in zip(data.classes, device_measures.mae, strict=True)
            }
        )
        fields = {
            "macro_f1": _rounded(device_measures.macro_f1),
            "auc": _rounded(device_measures.auc),
            "mae": mae,
        }
        devices[device_id] = msgspec.structs.replace(devices[device_id], **fields)
    f1, auc = _over(d.macro_f1 for d in devices.values()), _over(d.auc for d in devices.values())
    return msgspec.structs.replace(
        summary,
        devices=devices,
        macro_f1=None if task in (REGRESSION, RECONSTRUCTION) else f1,
        auc=auc if task in (MULTI_LABEL, RECONSTRUCTION) else None,
        mae=_errors(data.classes, [d.mae for d in devices.values() if d.mae])
        if task == REGRESSION
        else None,
    )


def _errors(
    quantities: tuple[str, ...], by_device: Sequence[Mapping[str, float]]
) -> dict[str, Spread]:
    """Return the spread over devices of the error of each quantity."""
    return {name: spread_of_errors(errors[name] for errors in by_device) for name in quantities}


def _over(values: Iterable[float | None]) -> Spread:
    return spread(value for value in values if value is not None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _of_newcomers(
    received: Mapping[str, NewcomerResult],
    newcomers: Mapping[str, Windows],
    task: TaskName,
    names: tuple[str, ...],
) -> Newcomers:
    """Return the results of the newcomers, by device and over those that have test windows."""
    tested = {d: r for d, r in sorted(received.items()) if r.evaluated.num_examples}
    measures_of_devices = [measure(task, newcomers[d].test_y, r.answers) for d, r in tested.items()]
    errors = [
        dict(zip(names, device_measures.mae, strict=True))
        for device_measures in measures_of_devices
        if device_measures.mae is not None
    ]
    return Newcomers(
        **msgspec.structs.asdict(spread(r.evaluated.accuracy for r in tested.values())),
        devices={
            d: received[d].evaluated.accuracy if d in tested else None for d in sorted(received)
        },
        macro_f1=_over(device_measures.macro_f1 for device_measures in measures_of_devices)
        if task in (CLASSIFICATION, SEQUENCE, MULTI_LABEL)
        else None,
        placed={d: received[d].placed for d in sorted(received)},
        personal_models={d: received[d].personal_model for d in sorted(received)},
        mae=_errors(names, errors) if task == REGRESSION else None,
    )


def _of_attack(
    attack: Attack,
    text: str,
    result: EngineResult,
    data: FleetData,
    summary: Summary,
    task: TaskName,
) -> AttackSummary:
    """Return the effect of an attack on the honest devices: their accuracy, and its success rate.

    The success rate is measured with the models that honest devices received.
    """
    honest = [d for d in sorted(data.devices) if d not in attack.attackers]
    tested = [d for d in honest if data.devices[d].num_test]
    rate = None
    if task == CLASSIFICATION:
        labels = np.concatenate([data.devices[d].test_y for d in tested])
        shown = stamped if attack.name == "backdoor" else np.asarray
        predicted = np.concatenate(
            [result.predict(d, shown(data.devices[d].test_x)).argmax(1) for d in tested]
        )
        rate = success_rate(attack.targets, labels, predicted)
    return summary_of(attack, text, summary, rate)
