"""From options as people write them to the settings of a simulation: for the command line and for
Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from aggregator.core.round.cohort import read_policy
from algorithms.build import check_model
from algorithms.given import Given, spec_of
from algorithms.spec import read_word
from shoal.choices import (
    check_bounds,
    chosen,
    hyper_values,
    read_encoding,
    schedule_of,
    with_privacy,
)
from simulation.engine.options import BackendName, EngineOptions
from simulation.engine.workers.attacks import read_attack
from simulation.scenario import read_labels
from simulation.simulate import SimulationSettings
from simulation.splits import read_split
from simulation.timing.profiles import read_profiles


def make_settings(
    *,
    algorithm: Given = "",
    rounds: int,
    patience: int = 0,
    min_delta: float = 0.0,
    local_epochs: int,
    seed: int = 0,
    batch_size: int,
    update_encoding: str,
    lr: float | None,
    hyper: Mapping[str, float],
    lr_schedule: str = "",
    model: str,
    attack: str,
    privacy: str,
    pretrain: str,
    labels: str | int,
    split: str,
    newcomers: int,
    cohort: int,
    profiles: str,
    policy: str,
) -> SimulationSettings:
    """The settings of a simulation; without an `algorithm`, those that several have in common.

    Raises:
        ConfigError: an option that cannot be read, or is out of its bounds.
    """
    check_bounds(
        rounds=rounds, patience=patience, min_delta=min_delta, local_epochs=local_epochs, seed=seed
    )
    check_bounds(batch_size=batch_size, newcomers=newcomers, cohort=cohort)
    check_model(model)
    settings = SimulationSettings(
        rounds=rounds,
        patience=patience,
        min_delta=min_delta,
        local_epochs=local_epochs,
        seed=seed,
        batch_size=batch_size,
        hyper=hyper_values(lr, hyper),
        lr_schedule=schedule_of(lr_schedule),
        update_encoding=read_encoding(update_encoding),
        model=model,
        attack=chosen(attack, read_attack),
        pretrain=pretrain,
        labels=read_labels(str(labels)),
        split=read_split(split),
        newcomers=newcomers,
        cohort=cohort,
        profiles=chosen(profiles, read_profiles),
        policy=chosen(policy, read_policy),
    )
    if not algorithm:
        return settings
    spec = spec_of(algorithm)
    return replace(settings, algorithm=with_privacy(spec, privacy))


def engine_options(
    backend: str, workers: int, checkpoint: Path | None, cluster: str, device: str, bf16: bool
) -> EngineOptions:
    """How a run is to be computed.

    Raises:
        ConfigError: options that do not exist, or do not go together.
    """
    check_bounds(workers=workers)
    names: tuple[BackendName, ...] = get_args(BackendName)
    return EngineOptions(
        read_word(backend, names, "backend"), workers, checkpoint, cluster, device, bf16
    )
