"""Names of tensors on the wire, in graphs and on devices are built and parsed here alone (SPEC.md,
'Names of tensors').

A name begins with its role, up to the first ``/``; the rest is the name within the role::

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
    column/COLUMN  kept/ROLE/NAME                                           what a device keeps,
    besides private/NAME

``uniform/NAME`` and ``normal/NAME`` are also how a manifest names random inputs. GRAPH ends at the
first dot. NAME is the model's own name of a parameter or a buffer: it may be any text and says
nothing of the role. A parameter may be called ``my_running_var``.
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
"""The roles of what leaves a device and is averaged."""
OF_MODEL: Final = (*EXCHANGED, MEMORY)
"""The roles of what belongs to one model, and is kept with it or not at all."""
DELTA: Final = "delta"
RESPONSE: Final = "response"
INT8: Final = "int8"
INT8_VALUES: Final = "int8/values"
"""All changes of an update one after the other, in int8."""
INT8_SCALES: Final = "int8/scales"
"""What the values of each block are to be multiplied with."""
BATCH: Final = "batch"
HYPER: Final = "hyper"
UNIFORM: Final = "uniform"
NORMAL: Final = "normal"
NEXT: Final = "next"
METRIC: Final = "metric"
OUTPUT: Final = "output"
COLUMN: Final = "column"
KEPT: Final = "kept"

X: Final = "batch/x"
Y: Final = "batch/y"
LOSS_SUM: Final = "metric/loss_sum"
NUM_CORRECT: Final = "metric/num_correct"
EVALUATE: Final = "evaluate"
ASSESS: Final = "assess"
PROBABILITIES: Final = "output/probabilities"
RUNNING_MEAN: Final = "running_mean"
RUNNING_VAR: Final = "running_var"
MEAN_OF: Final = "mean."
"""How the metric begins that a survey has of a layer's mean: ``mean.LAYER``."""
VARIANCE_OF: Final = "variance."
"""How the metric begins that a survey has of a layer's variance: ``variance.LAYER``."""
PLACES: Final = ("rank", "count", "held")
"""What the split ``windows`` says of each window: its rank among them, how many there are, and 1
where it is held out."""


def key_of(role: str, name: str) -> str:
    """``ROLE/NAME``."""
    return f"{role}/{name}"


@dataclass(frozen=True)
class Prefix:
    """The text with which names of one kind begin; calling it with the rest makes a name."""

    text: str

    def __call__(self, rest: str) -> str:
        return self.text + rest


shared = Prefix(f"{SHARED}/")
"""A tensor that is exchanged and averaged."""
statistic = Prefix(f"{STATISTIC}/")
"""A running statistic that is exchanged and averaged; it has the same name in an update."""
private = Prefix(f"{PRIVATE}/")
"""A tensor that stays on the device between rounds."""
slot = Prefix(f"{SLOT}/")
"""A tensor that is set to its initial value in every round."""
memory = Prefix(f"{MEMORY}/")
"""Memory of a device's windows by one model: set to its initial value every round, and kept with
that model."""
received = Prefix(f"{RECEIVED}/")
"""A tensor that the aggregator sends for a round."""
received_start = Prefix("received/start.")
"""The device's copy of ``shared/NAME`` as it was received."""
delta = Prefix(f"{DELTA}/")
"""Change of ``shared/NAME`` in an update: local minus received."""
batch = Prefix(f"{BATCH}/")
"""An input with a row for each example, or a random input by ``uniform/NAME`` or
``normal/NAME``."""
hyper = Prefix(f"{HYPER}/")
"""A hyper-parameter as an input, a float32 scalar."""
uniform = Prefix(f"{UNIFORM}/")
"""A random input, uniform in [0, 1), drawn for each example."""
normal = Prefix(f"{NORMAL}/")
"""A random input, standard normal, drawn once a batch."""
following = Prefix(f"{NEXT}/")
"""The output that is the next value of ``ROLE/NAME``."""
metric = Prefix(f"{METRIC}/")
"""An output that is a sum over the batch."""
output = Prefix(f"{OUTPUT}/")
"""An output with one row per example."""
column = Prefix(f"{COLUMN}/")
"""A column of a device's training windows, where it is kept; graphs read it as
``batch/COLUMN``."""
kept = Prefix(f"{KEPT}/")
"""``ROLE/NAME`` of a model that the device has trained for itself alone."""


def response(graph: str, metric: str = "") -> str:
    """What a graph measured: a metric of it, or its one output per example where there is no
    `metric`."""
    return f"response/{graph}.{metric}" if metric else f"response/{graph}"


def role_of(key: str) -> str:
    """What stands before the first ``/``; a key without one is all role."""
    return key.partition("/")[0]


def name_of(key: str) -> str:
    """What stands after the first ``/``: of ``next/ROLE/NAME`` it is ``ROLE/NAME``.

    Raises:
        ValueError: the key has no ``/``.
    """
    _, slash, name = key.partition("/")
    if not slash:
        raise ValueError(f"name of a tensor {key!r}: expected ROLE/NAME")
    return name


def is_start(key: str) -> bool:
    """Whether it is ``received/start.NAME``."""
    return key.startswith(received_start.text)


def started_from(key: str) -> str:
    """``shared/NAME`` for ``received/start.NAME``."""
    return shared(key.removeprefix(received_start.text))


def has_rows(key: str) -> bool:
    """Whether an input of a graph has a row for each example: ``batch/...`` but for
    ``batch/normal/NAME``."""
    return key.startswith("batch/") and not key.startswith("batch/normal/")


def is_running_statistic(name: str) -> bool:
    """Whether the buffer of this name is a running statistic, as BatchNorm names them. It is for
    buffers: a parameter may have such a name and is none."""
    return name.endswith((RUNNING_MEAN, RUNNING_VAR))


def is_variance(key: str) -> bool:
    """Whether a value below 0 is wrong: ``statistic/NAME`` where NAME ends with ``running_var``,
    and ``response/GRAPH.variance.LAYER``.

    A parameter, a delta and any other metric are none, whatever their names are.
    """
    if key.startswith("response/"):
        return key.partition(".")[2].startswith(VARIANCE_OF)
    return key.startswith("statistic/") and key.endswith(RUNNING_VAR)


def of_role(tensors: Mapping[str, T], *roles: str) -> dict[str, T]:
    """The entries of these roles, in their order, by their whole names."""
    prefixes = tuple(f"{role}/" for role in roles)
    return {key: value for key, value in tensors.items() if key.startswith(prefixes)}


def part(tensors: Mapping[str, T], role: str) -> dict[str, T]:
    """The entries of one role, in their order, by their names within it."""
    prefix = f"{role}/"
    begin = len(prefix)
    return {key[begin:]: value for key, value in tensors.items() if key.startswith(prefix)}
