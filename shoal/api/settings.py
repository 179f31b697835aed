"""From options as people write them to the settings of a simulation: for the command line and for
Python."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from aggregator.core.round.cohort import read_policy
from aggregator.core.training import TrainingSettings
from algorithms.build import check_model
from algorithms.composition import Given, algorithm_of
from host.settings import settings_of
from shoal.campaign_settings import chosen, hyper_values, schedule_of, with_privacy
from simulation.engine.options import EngineOptions
from simulation.engine.workers.attacks import read_attack
from simulation.scenario import read_labels
from simulation.settings import EngineSettings, SimulationWords
from simulation.simulate import SimulationSettings
from simulation.splits import read_split
from simulation.timing.profiles import read_profiles


def make_settings(words: Mapping[str, Any], algorithm: Given = "") -> SimulationSettings:
    """Return the settings of a simulation from those of `SimulationWords`, by name; without an
    `algorithm`, those that several have in common.

    Raises:
        ConfigError: an option that cannot be read, or is out of its bounds.
    """
    values = {
        name: setting.read(words[name]) if words.get(name) is not None else setting.default
        for name, setting in settings_of(SimulationWords).items()
        if name != "algorithm"
    }
    check_model(values["model"])
    training = {name: values[name] for name in settings_of(TrainingSettings)}
    settings = SimulationSettings(
        **training
        | {
            "hyper": hyper_values(values["lr"], values["hyper"]),
            "lr_schedule": schedule_of(values["lr_schedule"]),
        },
        model=values["model"],
        attack=chosen(values["attack"], read_attack),
        pretrain=values["pretrain"],
        labels=read_labels(values["labels"]),
        split=read_split(values["split"]),
        newcomers=values["newcomers"],
        cohort=values["cohort"],
        profiles=chosen(values["profiles"], read_profiles),
        policy=chosen(values["policy"], read_policy),
    )
    if not algorithm:
        return settings
    return replace(settings, algorithm=with_privacy(algorithm_of(algorithm), values["privacy"]))


def engine_options(words: Mapping[str, Any]) -> EngineOptions:
    """Return how a run is to be computed, from the settings of `EngineSettings` by name.

    Raises:
        ConfigError: options that do not exist, or do not go together.
    """
    values = {name: each.read(words[name]) for name, each in settings_of(EngineSettings).items()}
    return EngineOptions(**values)
