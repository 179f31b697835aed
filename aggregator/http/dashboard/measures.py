"""What follows from the name of a campaign's algorithm: how its models are measured, and what
protects devices' updates. Pure."""

from functools import lru_cache
from typing import NamedTuple

from algorithms.registry import AlgorithmSpec, read_algorithm, task_of
from wire.errors import ShoalError
from wire.tasks import CLASSIFICATION, MULTI_LABEL, RECONSTRUCTION, REGRESSION, SEQUENCE, TaskName

NAMES: dict[TaskName, str] = {
    CLASSIFICATION: "Accuracy",
    SEQUENCE: "Accuracy of steps",
    MULTI_LABEL: "Exact match",
    REGRESSION: "Within tolerance",
    RECONSTRUCTION: "Within tolerance",
}
"""What the share that devices tell is called, by task."""


class Measure(NamedTuple):
    """How the models of a campaign are measured."""

    name: str = NAMES[CLASSIFICATION]
    of: str = ""
    """What it is the share of, where that is not windows whose class is told rightly."""

    @property
    def by_loss(self) -> bool:
        """Whether the mean loss says more, since that is what models are trained for and the share
        has a bound of its own."""
        return bool(self.of)


class Mechanism(NamedTuple):
    """What protects updates, and how much."""

    name: str
    options: dict[str, float]

    @property
    def is_noiseless(self) -> bool:
        """Whether it adds no noise, so that nothing bounds what a model says of a device."""
        return self.options.get("noise_multiplier") == 0


def measure_of(algorithm: str) -> Measure:
    """How the models of this algorithm are measured; as those of classes where the algorithm is one
    of a file that is here no more."""
    spec = _read(algorithm)
    if spec is None or spec.has_classes:
        return Measure()
    task = task_of(spec)
    return Measure(NAMES.get(task.of, NAMES[CLASSIFICATION]), task.accuracy)


def mechanism_of(algorithm: str) -> Mechanism | None:
    """The privacy mechanism of this algorithm; None where it has none."""
    spec = _read(algorithm)
    if spec is None or not spec.privacy.options:
        return None
    return Mechanism(spec.privacy.name, spec.privacy.options)


@lru_cache(maxsize=64)
def _read(algorithm: str) -> AlgorithmSpec | None:
    try:
        return read_algorithm(algorithm)
    except ShoalError:
        return None
