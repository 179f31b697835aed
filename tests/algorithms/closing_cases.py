"""Closing plans that are carried out on one device."""

from edge_client.core.ports import Windows
from edge_client.work.executor import Executor, PlanResult
from simulation.contract.fleet import (
    WORK,
    Field,
    make_field,
)
from wire.arrays.tensors import Tensors
from wire.messages import Plan, Verb

KEPT_WAYS = ("personal", "recalibrated", "knn-per")


def labelled(windows: Windows, count: int) -> Windows:
    """Return the device with labels for its first windows alone; the others stay as windows without
    labels."""
    x, y = windows.train_x, windows.train_y
    return Windows(x[:count], y[:count], windows.test_x, windows.test_y, x[count:])


def close(
    field: Field, windows: Windows, private: Tensors | None = None, verbs: tuple[Verb, ...] = ()
) -> tuple[PlanResult, Tensors]:
    """Device d0 with these windows carries out the closing plan, or other verbs; its result, and
    the model that it started from."""
    blobs = {key: field.algorithm.given(field.state, key) for key in field.state.models}
    digests = {key: f"{i:064x}" for i, key in enumerate(sorted(blobs))}
    asked = verbs or field.algorithm.programs(field.state, WORK, digests)["closing"]
    key = field.algorithm.grouping.start(field.state.memory, "d0")
    plan = Plan("r", 1, 9, 0, "d0", "0" * 64, digests[key], asked, 7, 0.0)
    executor = Executor(field.bundle, field.executors["d0"]._graphs, windows)
    return executor.execute(plan, blobs[key], private or {}, lambda digest: {}), blobs[key]


def played(name: str, rounds: int = 1) -> Field:
    field = make_field(name, num_devices=2)
    field.play(rounds)
    return field
