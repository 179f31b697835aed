"""From options as people write them to the settings of a simulation."""

from collections.abc import Mapping
from typing import Any

from host.settings import settings_of
from simulation.settings import SimulationSettings
from simulation.simulate import read_settings


def make_settings(words: Mapping[str, Any]) -> SimulationSettings:
    """Return the settings of a simulation from those of `SimulationSettings`, by name.

    Raises:
        ConfigError: an option that cannot be read, or is out of its bounds.
    """
    values = {
        name: setting.read(words[name])
        for name, setting in settings_of(SimulationSettings).items()
        if name != "algorithm" and words.get(name) is not None
    }
    if "algorithm" in words:
        values["algorithm"] = words["algorithm"]
    return read_settings(SimulationSettings(**values))
