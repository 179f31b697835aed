"""Names of tensors on the wire, in graphs and on devices (SPEC.md, 'Names of tensors').

They are built and parsed here alone. A name begins with its role, up to the first ``/``; the rest
is the name within the role::

    shared/NAME  statistic/NAME  private/NAME  slot/NAME  memory/NAME       a bundle's tensors
    received/NAME
    received/start.NAME                                                     shared/NAME as the
    device received it
    delta/NAME  statistic/NAME  response/GRAPH.METRIC  response/GRAPH       an update
    int8/values  int8/scales                                                an update in int8, in
    place of delta/NAME
    batch/x  batch/y  batch/COLUMN  batch/uniform/NAME  batch/normal/NAME   inputs of a graph,
    besides a bundle's tensors
    hyper/NAME  response/GRAPH.METRIC
    next/ROLE/NAME  metric/NAME  output/NAME                                outputs of a graph
    column/COLUMN  personal/ROLE/NAME                                       tensors stored on a
    device, besides private/NAME

A manifest names random inputs ``uniform/NAME`` and ``normal/NAME`` as well. GRAPH ends at the first
dot. NAME is the model's own name of a parameter or a buffer: it may be any text and does not reveal
the role. A parameter may be called ``my_running_var``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

Role = Literal["shared", "statistic", "private", "slot", "memory", "received"]
T = TypeVar("T")

SHARED: Final = "shared"
STATISTIC: Final = "statistic"
PRIVATE: Final = "private"
SLOT: Final = "slot"
MEMORY: Final = "memory"
RECEIVED: Final = "received"
EXCHANGED: Final = (SHARED, STATISTIC)
"""Roles of the tensors that leave a device and are averaged."""
OF_MODEL: Final = (*EXCHANGED, MEMORY)
"""Roles of the tensors that belong to one model and are stored only with it."""
DELTA: Final = "delta"
RESPONSE: Final = "response"
INT8: Final = "int8"
INT8_VALUES: Final = "int8/values"
"""All changes of an update one after the other, in int8."""
INT8_SCALES: Final = "int8/scales"
"""Factors of the values of each block."""
BATCH: Final = "batch"
HYPER: Final = "hyper"
UNIFORM: Final = "uniform"
NORMAL: Final = "normal"
NEXT: Final = "next"
METRIC: Final = "metric"
OUTPUT: Final = "output"
COLUMN: Final = "column"
PERSONAL: Final = "personal"

X: Final = "batch/x"
Y: Final = "batch/y"
LOSS_SUM: Final = "metric/loss_sum"
NUM_CORRECT: Final = "metric/num_correct"
EVALUATE: Final = "evaluate"
ASSESS: Final = "assess"
SURVEY: Final = "survey"
PROBABILITIES: Final = "output/probabilities"
RUNNING_MEAN: Final = "running_mean"
RUNNING_VAR: Final = "running_var"
MEAN_OF: Final = "mean."
"""Prefix of a survey's metric for the mean of a layer: ``mean.LAYER``."""
VARIANCE_OF: Final = "variance."
"""Prefix of a survey's metric for the variance of a layer: ``variance.LAYER``."""
PLACES: Final = ("rank", "count", "holdout")
"""Columns of the split ``windows``.

They have each window's rank, the number of windows, and 1 if the window is held out.
"""


def key_of(role: str, name: str) -> str:
    """Return ``ROLE/NAME``."""
    return f"{role}/{name}"


@dataclass(frozen=True)
class Prefix:
    """Prefix of the names of one kind. A call with the rest returns the name."""

    text: str

    def __call__(self, rest: str) -> str:
        return self.text + rest


shared = Prefix(f"{SHARED}/")
"""Tensor that is exchanged and averaged."""
statistic = Prefix(f"{STATISTIC}/")
"""Running statistic that is exchanged and averaged; it has the same name in an update."""
private = Prefix(f"{PRIVATE}/")
"""Tensor that stays on the device between rounds."""
slot = Prefix(f"{SLOT}/")
"""Tensor that is set to its initial value in every round."""
memory = Prefix(f"{MEMORY}/")
"""Memory of a device's windows by one model.

It is set to its initial value in every round, and stored with the model.
"""
received = Prefix(f"{RECEIVED}/")
"""Tensor that the aggregator sends for a round."""
received_start = Prefix("received/start.")
"""Device's copy of ``shared/NAME`` as received."""
delta = Prefix(f"{DELTA}/")
"""Change of ``shared/NAME`` in an update: local minus received."""
batch = Prefix(f"{BATCH}/")
"""Input with a row for each example, or random input ``uniform/NAME`` or ``normal/NAME``."""
hyper = Prefix(f"{HYPER}/")
"""Hyper-parameter as an input, a float32 scalar."""
uniform = Prefix(f"{UNIFORM}/")
"""Random input, uniform in [0, 1), drawn for each example."""
normal = Prefix(f"{NORMAL}/")
"""Random input, standard normal, drawn once a batch."""
following = Prefix(f"{NEXT}/")
"""Output with the next value of ``ROLE/NAME``."""
metric = Prefix(f"{METRIC}/")
"""Output that is a sum over the batch."""
output = Prefix(f"{OUTPUT}/")
"""Output with one row per example."""
column = Prefix(f"{COLUMN}/")
"""Stored column of a device's training windows; graphs read it as ``batch/COLUMN``."""
personal = Prefix(f"{PERSONAL}/")
"""Tensor ``ROLE/NAME`` of a personal model."""


def response(graph: str, metric: str = "") -> str:
    """Return the name of a graph's metric, or of its one output per example without a `metric`."""
    return f"response/{graph}.{metric}" if metric else f"response/{graph}"


def role_of(key: str) -> str:
    """Return the part before the first ``/``; the whole key if it has none."""
    return key.partition("/")[0]


def name_of(key: str) -> str:
    """Return the part after the first ``/``: ``ROLE/NAME`` for ``next/ROLE/NAME``.

    Raises:
        ValueError: the key has no ``/``.
    """
    _, slash, name = key.partition("/")
    if not slash:
        raise ValueError(f"name of a tensor {key!r}: expected ROLE/NAME")
    return name


def is_start(key: str) -> bool:
    """Return True if the key is ``received/start.NAME``."""
    return key.startswith(received_start.text)


def started_from(key: str) -> str:
    """Return ``shared/NAME`` for ``received/start.NAME``."""
    return shared(key.removeprefix(received_start.text))


def has_rows(key: str) -> bool:
    """Return True if an input of a graph has a row for each example.

    That is ``batch/...`` except for ``batch/normal/NAME``.
    """
    return key.startswith("batch/") and not key.startswith("batch/normal/")


def is_running_statistic(name: str) -> bool:
    """Return True if the buffer of this name is a running statistic, by BatchNorm's names.

    The function is for buffers: a parameter of such a name is not a running statistic.
    """
    return name.endswith((RUNNING_MEAN, RUNNING_VAR))


def is_variance(key: str) -> bool:
    """Return True if a value below 0 is wrong: the tensor is a variance.

    These are ``statistic/NAME`` where NAME ends with ``running_var``, and
    ``response/GRAPH.variance.LAYER``. No parameter, delta or other metric is a variance,
    whatever its name.
    """
    if key.startswith("response/"):
        return key.partition(".")[2].startswith(VARIANCE_OF)
    return key.startswith("statistic/") and key.endswith(RUNNING_VAR)


def of_role(tensors: Mapping[str, T], *roles: str) -> dict[str, T]:
    """Return the entries of these roles, in their order, by their whole names."""
    prefixes = tuple(f"{role}/" for role in roles)
    return {key: value for key, value in tensors.items() if key.startswith(prefixes)}


def part(tensors: Mapping[str, T], role: str) -> dict[str, T]:
    """Return the entries of one role, in their order, by their names within it."""
    prefix = f"{role}/"
    begin = len(prefix)
    return {key[begin:]: value for key, value in tensors.items() if key.startswith(prefix)}
