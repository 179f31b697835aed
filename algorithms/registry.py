"""The only place that lists the choices an algorithm is made of, and the names of compositions that papers have given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from algorithms.algorithm import Algorithm
from algorithms.contract import Grouping, Mean, Objective, Privacy
from algorithms.groupings.distfl import SIGNATURES, DistFL
from algorithms.groupings.knowledge import Extraction
from algorithms.groupings.single import SingleGroup
from algorithms.means.weighted import UniformMean, WeightedMean
from algorithms.objectives.fedavg import FedAvg
from algorithms.privacy.none import NoPrivacy
from wire.errors import ConfigError

Options = dict[str, Any]

OBJECTIVES: dict[str, Callable[[nn.Module], Objective]] = {"fedavg": FedAvg}
GROUPINGS: dict[str, Callable[[Options], Grouping]] = {"none": lambda _options: SingleGroup(), "distfl": lambda options: _distfl(options)}
MEANS: dict[str, Callable[[], Mean]] = {"weighted": WeightedMean, "uniform": UniformMean}
PRIVACY: dict[str, Callable[[], Privacy]] = {"none": NoPrivacy}


@dataclass(frozen=True)
class Composition:
    """Four choices under a paper's name."""

    objective: str
    grouping: str
    mean: str
    privacy: str = "none"


COMPOSITIONS = {
    "fedavg": Composition("fedavg", "none", "weighted"),
    "distfl": Composition("fedavg", "distfl", "uniform"),
}

OPTIONS = {"signature", "num_inputs", "channel_share", "iterations"}


def make_algorithm(name: str, options: Options | None = None) -> Algorithm:
    """The algorithm of this name.

    Raises:
        ConfigError: no such algorithm, or an option it does not have.
    """
    if name not in COMPOSITIONS:
        raise ConfigError(f"algorithm {name!r}: expected one of {', '.join(sorted(COMPOSITIONS))}")
    options = dict(options or {})
    chosen = COMPOSITIONS[name]
    if unknown := sorted(set(options) - (OPTIONS if chosen.grouping == "distfl" else set())):
        raise ConfigError(f"algorithm {name!r} has no option {unknown[0]!r}")
    return Algorithm(name, chosen.objective, GROUPINGS[chosen.grouping](options), MEANS[chosen.mean](), PRIVACY[chosen.privacy]())


def _distfl(options: Options) -> DistFL:
    signature = options.pop("signature", "both")
    if signature not in SIGNATURES:
        raise ConfigError(f"signature {signature!r}: expected one of {', '.join(SIGNATURES)}")
    return DistFL(signature, Extraction(**options))
