"""The function `shoal.simulate`: the body of the command, and an API for Python."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import asdict, replace
from torch import nn

from aggregator.view.summary import Heterogeneity
from algorithms.composition import AlgorithmSpec, Given
from algorithms.spec import DEFAULT_ALGORITHM
from host.files import prepare_folder
from host.settings import settings_of
from host.threads import one_thread
from shoal.api.callbacks import Callback, CsvLog
from shoal.api.data import fleet_of
from shoal.api.pointing import pointing
from shoal.api.progress import Models, progress_of
from shoal.api.result import Result
from shoal.asked import NOW
from shoal.reports.model_list import remove_models, why_left_out
from simulation import simulate as simulation
from simulation.cost import count
from simulation.datasets.catalog import cuts_of
from simulation.datasets.description import column_rows, device_rows
from simulation.datasets.doubts import doubts, remarks_of
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.engine.progress import STOP, RunProgress, Stop
from simulation.heterogeneity import measure
from simulation.objective import ModelMaker, objective_on, suited
from simulation.scenario import scenario_of
from simulation.settings import EngineSettings, SimulationSettings
from simulation.simulate import SimulationResult, read_settings
from wire.errors import ConfigError
from wire.tasks import CLASSIFICATION, SEQUENCE

if TYPE_CHECKING:
    from shoal.reports.run_page import Extras

MODELS = ("auto", "all", "groups", "none")
FEW = 20
"""Maximum number of devices whose models are written by default."""
SHOWN = 1000
"""Maximum number of devices of a fleet that are measured and drawn."""


@pointing()
def simulate(
    data: FleetData | str | Path = "watch",
    *,
    algorithm: Given = DEFAULT_ALGORITHM,
    rounds: int = 20,
    patience: int = 0,
    min_delta: float = 0.0,
    local_epochs: int = 1,
    seed: int = 0,
    partition: str = "user",
    attack: str = "",
    privacy: str = "",
    devices: int | None = None,
    batch_size: int = 32,
    update_encoding: str = "float32",
    lr: float | None = None,
    hyper: Mapping[str, float] | None = None,
    lr_schedule: str = "",
    model: str | nn.Module | ModelMaker = "",
    exportable: str = "warn",
    pretrain: str = "",
    labels: str | int = "all",
    split: str = "own",
    newcomers: int = 0,
    cohort: int = 0,
    window: int = 0,
    stride: int = 0,
    steps: int = 0,
    rate: float = 0.0,
    profiles: str = "",
    policy: str = "",
    secret: bool = False,
    min_sum: int = 5,
    backend: str = "auto",
    workers: int = 0,
    checkpoint: str | Path | None = None,
    cluster: str = "",
    device: str = "",
    bf16: bool = False,
    out: str | Path | None = None,
    models: str = "auto",
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[RunProgress | str], object] = lambda _progress: None,
) -> Result:
    """Simulate a fleet to the end.

    The options are those of `shoal simulate`, with the same names and defaults (docs/simulate.md).

    `algorithm` is a name, a class of your own, or several as `algorithms.composition.algorithm_of`
    composes them. `model` is a name, ``FILE.py:FUNCTION``, such a function itself, or an
    `nn.Module`, whose weights are those of round 0 and which is not changed. `checkpoint` is the
    path of a folder that stores every round: the same call resumes from it. With `out`, the files
    of the command are written to this folder, with the models that `models` selects; without it
    nothing is written.

    `callbacks` are called after each round, in their order. When one returns `shoal.STOP`, no
    further round of training opens. `on_progress` is called with a line before each step that may
    take long, and with the progress after each round.

    Raises:
        ConfigError: options that cannot be read, or do not fit each other, the data or the model.
        DataError: the data cannot be read, or do not allow the scenario.
        Stalled: no device can carry out its plan.
    """
    words = dict(locals()) | {"hyper": hyper or {}, "labels": str(labels)}
    words["checkpoint"] = checkpoint or None
    user_model = None if isinstance(model, str) else model
    settings = make_settings(words | {"model": "" if user_model is not None else model})
    fields = settings_of(EngineSettings).items()
    engine = EngineOptions(**{name: each.read(words[name]) for name, each in fields})
    if user_model is not None and pretrain:
        raise ConfigError(
            "pretrain must be left out with a model of your own, which brings its weights, got "
            f"{pretrain!r}"
        )
    _check_callbacks(callbacks, backend)
    if models not in MODELS:
        raise ConfigError(f"models must be one of {', '.join(MODELS)}, got {models!r}")
    folder = None if out is None else prepare_folder(Path(out), "out")
    on_progress(f"reading {data.name if isinstance(data, FleetData) else data}")
    fleet = fleet_of(data, partition, devices, seed, scenario_of(settings), cuts_of(settings))
    settings = replace(settings, algorithm=suited(settings.algorithm, fleet))
    for doubt in doubts(fleet, settings.algorithm.has_classes):
        warnings.warn(doubt, stacklevel=3)
    ids, tracked = frozenset(fleet.devices), parameters(fleet.name, settings)

    @cache
    def scene() -> FleetData:
        return simulation.scene_of(fleet, settings)

    def tell(run: RunProgress) -> Stop | None:
        on_progress(run)
        if not callbacks or not run.records or run.models is None:  # the run begins
            return None
        progress = progress_of(run.records, Models(run.models, ids), scene, tracked)
        answers = [callback.on_round(progress) for callback in callbacks]
        return STOP if STOP in answers else None

    objective = (
        None
        if user_model is None
        else lambda held: objective_on(user_model, held, settings.algorithm, seed)
    )
    outcome = simulation.simulate(fleet, settings, tell, objective, engine, on_progress)
    last = Models(outcome.models, outcome.data.devices)
    progress = progress_of(outcome.records, last, lambda: outcome.data, tracked)
    for callback in [*callbacks, *([] if folder is None else [CsvLog(folder / "rounds.csv")])]:
        callback.on_round(progress)
    if folder is None:
        return Result(outcome)
    on_progress("measuring how much devices differ")
    shown = scene().some(SHOWN)
    added = {"heterogeneity": Heterogeneity(**measure(shown)), "command": NOW.get().command}
    outcome = dataclasses.replace(outcome, summary=replace(outcome.summary, **added))
    on_progress("writing the report")
    files = [*_write_report(outcome, settings.algorithm, shown, folder), folder / "rounds.csv"]
    if models != "none":
        on_progress("writing models")
        groups_alone = models == "groups" or (models == "auto" and len(outcome.data.devices) > FEW)
        with one_thread():
            written = Result(outcome).save(folder / "models", [] if groups_alone else None)
        if lacking := why_left_out(written):
            warnings.warn(lacking, stacklevel=3)
        files.append(folder / "models")
    else:
        remove_models(folder / "models")
    return Result(outcome, tuple(files))


def _check_callbacks(callbacks: Sequence[Callback], backend: str) -> None:
    if callbacks and backend == "messages":
        raise ConfigError("callbacks must be left out with the backend messages")
    for callback in callbacks:
        if not callable(getattr(callback, "on_round", None)):
            raise ConfigError(
                f"callbacks: a {type(callback).__name__} has no method on_round(progress)"
            )


@one_thread()
def _write_report(
    outcome: SimulationResult, algorithm: AlgorithmSpec, data: FleetData, out: Path
) -> list[Path]:
    """Write the report of a run with its pictures, and return the paths of the files."""
    from shoal.reports.files import write_report
    from shoal.reports.pictures import draw_holdings

    groups = {
        device_id: f"group {number}"
        for number, ids in Result(outcome).groups.items()
        for device_id in ids
    }
    holdings, extras = (
        draw_holdings(out / "holdings.png", data, groups),
        extras_of(outcome, algorithm, data),
    )
    return [
        holdings,
        *write_report(out, outcome.summary, outcome.records, outcome.blobs, extras),
    ]


def extras_of(outcome: SimulationResult, algorithm: AlgorithmSpec, held: FleetData) -> "Extras":
    """Return the extras of a finished simulation's report.

    `held` has the data of all devices, newcomers included.
    """
    from shoal.reports.pictures import class_counts
    from shoal.reports.run_page import Extras
    from simulation.surveys import MOST, distances

    data, result, objective = outcome.data, Result(outcome), outcome.models.objective
    measured = sorted(data.devices)[:SHOWN]
    confusion, by_group = None, {}
    if objective.task.of in (CLASSIFICATION, SEQUENCE):
        by_device = {device_id: result.confusion(device_id) for device_id in measured}
        confusion = np.sum([*by_device.values()], axis=0)
        members = {
            n: [by_device[d] for d in ids if d in by_device] for n, ids in result.groups.items()
        }
        by_group = {n: np.sum(each, axis=0) for n, each in members.items() if each}
    matrices, surveyed = distances(data.some(MOST), objective)
    verbs = [verb for program in outcome.campaign.version.programs.values() for verb in program]
    return Extras(
        recipe=algorithm.recipe,
        confusion=confusion,
        group_confusions=by_group,
        distances=matrices,
        surveyed=surveyed,
        confused=len(measured),
        classes=data.classes,
        holdings={
            d: class_counts(w.train_y, len(held.classes), held.window.steps)
            for d, w in held.devices.items()
        },
        counted=count(outcome.records, verbs, objective, data.window.shape),
        settings=NOW.get().settings,
        readings=(column_rows(held), device_rows(held)) if held.reading else (),
        remarks=remarks_of(held),
    )


def parameters(data: str, settings: SimulationSettings) -> dict[str, str | float]:
    """Return the settings of a run as numbers and texts, with hyper-parameters as hyper.NAME."""
    values = asdict(settings) | {f"hyper.{name}": value for name, value in settings.hyper.items()}
    return {"data": data} | {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in values.items()
        if name != "hyper" and value not in (None, "")
    }


def make_settings(words: Mapping[str, Any]) -> SimulationSettings:
    """Return the settings of a simulation from values of `SimulationSettings` by name.

    Raises:
        ConfigError: a value that cannot be read, or is out of its bounds.
    """
    values = {
        name: setting.read(words[name])
        for name, setting in settings_of(SimulationSettings).items()
        if name != "algorithm" and words.get(name) is not None
    }
    if "algorithm" in words:
        values["algorithm"] = words["algorithm"]
    return read_settings(SimulationSettings(**values))
