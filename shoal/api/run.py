"""`shoal.simulate`: what the command of this name does, from Python."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec.structs import replace
from torch import nn

from algorithms.composition import Given
from algorithms.spec import DEFAULT_ALGORITHM
from shoal.api.callbacks import Callback
from shoal.api.data import fleet_of
from shoal.api.progress import Models, progress_of
from shoal.api.result import Result
from shoal.api.settings import engine_options, make_settings
from simulation import simulate as simulation
from simulation.datasets.doubts import doubts
from simulation.datasets.windows import FleetData
from simulation.engine.progress import STOP, RunProgress, Stop
from simulation.objective import ModelMaker, objective_on, suited
from wire.errors import ConfigError


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
    pretrain: str = "",
    labels: str | int = "all",
    split: str = "own",
    newcomers: int = 0,
    cohort: int = 0,
    profiles: str = "",
    policy: str = "",
    backend: str = "auto",
    workers: int = 0,
    checkpoint: str | Path | None = None,
    cluster: str = "",
    device: str = "",
    bf16: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Simulate a fleet to the end. The options are those of `shoal simulate`, with the same names
    and defaults (docs/simulate.md).

    `algorithm` is a name, a class of your own, or what `algorithms.composition.algorithm_of` makes
    of several. `model` is a name, ``FILE.py:FUNCTION``, such a function itself, or an `nn.Module`,
    whose weights are those of round 0 and which is not changed. `checkpoint` names a folder in
    which every round is kept: the same call goes on there. `callbacks` are called after each round,
    in their order; when one answers `shoal.STOP`, no further round of training is made.

    Raises:
        ConfigError: options that cannot be read, or do not fit each other, the data or the model.
        DataError: the data cannot be read, or do not allow what is asked of them.
        Stalled: no device can carry out its plan.
    """
    words = dict(locals()) | {"hyper": hyper or {}, "labels": str(labels)}
    own = None if isinstance(model, str) else model
    settings = make_settings(words | {"model": "" if own is not None else model}, algorithm)
    engine = engine_options(words | {"checkpoint": checkpoint or None})
    if own is not None and pretrain:
        raise ConfigError(
            f"pretrain {pretrain!r}: a model of your own brings its weights; expected a model's "
            "name"
        )
    if callbacks and backend == "messages":
        raise ConfigError("callbacks: backend messages has none; expected another backend")
    for callback in callbacks:
        if not callable(getattr(callback, "on_round", None)):
            raise ConfigError(
                f"callbacks: a {type(callback).__name__} has no method on_round(progress)"
            )
    fleet = fleet_of(data, partition, devices, seed, settings.scenario)
    settings = replace(settings, algorithm=suited(settings.algorithm, fleet))
    for said in doubts(fleet, settings.algorithm.has_classes):
        warnings.warn(said, stacklevel=2)
    ids = frozenset(fleet.devices)

    @cache
    def scene() -> FleetData:
        return simulation.scene_of(fleet, settings)

    def tell(run: RunProgress) -> Stop | None:
        if not run.records or run.models is None:  # the run begins
            return None
        progress = progress_of(run.records, Models(run.models, ids), scene)
        answers = [callback.on_round(progress) for callback in callbacks]
        return STOP if STOP in answers else None

    objective = (
        None if own is None else lambda held: objective_on(own, held, settings.algorithm, seed)
    )
    outcome = simulation.simulate(fleet, settings, tell, objective, engine)
    if callbacks:
        last = progress_of(
            outcome.records, Models(outcome.models, outcome.data.devices), lambda: outcome.data
        )
        for callback in callbacks:
            callback.on_round(last)
    return Result(outcome)
