"""A checkpoint: what is done of a plan, so that a device that ends in the midst of one goes on from
there (SPEC.md, 'A checkpoint'); pure.

It holds what cannot be made again: tensors that the plan has changed, the state of the random
numbers, what the verb in work has summed so far, and the place in the plan. The bundle's tensors
and the model's are read again, by their hashes. The generator of private noise is not in it: a
device draws noise anew.
"""

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec
import numpy as np

from edge_client.core.ports import Windows
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Array, Tensors, decode_tensors, encode_tensors
from wire.codec import digest, encode
from wire.errors import Malformed
from wire.messages import Count, Digest, Metrics, Plan

FORMAT = 1
MOST_BYTES = 256 * 2**20
"""A larger checkpoint is not written."""


class Basis(msgspec.Struct, frozen=True):
    """What a checkpoint was made of. Work goes on from it only where all of this is the same."""

    format: Count
    client: str
    """The client and its version: another one may make other batches."""
    runtime: str
    plan: Digest
    """`work_digest` of the plan, which names the bundle and the model by their hashes."""
    windows: Digest
    """`windows_digest` of the device's data."""


def work_digest(plan: Plan) -> str:
    """The hash of all that a plan asks for: its epoch and its deadline, which an aggregator that
    was started again says anew, are not in it."""
    return digest(encode(msgspec.structs.replace(plan, epoch=1, deadline_at_s=0.0)))


def windows_digest(windows: Windows) -> str:
    """The SHA-256 of the shapes, types and values of all windows and labels."""
    made = hashlib.sha256()
    for array in (
        windows.train_x,
        windows.train_y,
        windows.test_x,
        windows.test_y,
        windows.unlabelled_x,
    ):
        made.update(f"{array.dtype}{list(array.shape)};".encode())
        made.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return made.hexdigest()


def unusable(stored: Basis, now: Basis) -> str:
    """Why a checkpoint that was made of `stored` is not gone on from where there is `now`; empty if
    it is."""
    if stored.format != now.format:
        return f"it has format {stored.format}, this client has {now.format}"
    if (stored.client, stored.runtime) != (now.client, now.runtime):
        return f"{stored.client} on {stored.runtime} made it, this is {now.client} on {now.runtime}"
    if stored.plan != now.plan:
        return "it is of another plan"
    if stored.windows != now.windows:
        return "the device's windows have changed since"
    return ""


@dataclass(frozen=True)
class Pace:
    """How often checkpoints are written."""

    every_s: float = 30.0
    """So long, at least, from one to the next."""
    share: float = 0.05
    """Of a device's time, what writing them may take."""

    def pause_s(self, took_s: float) -> float:
        """Return how long work goes on before the next one, after one that took so long."""
        return max(self.every_s, took_s / self.share)


USUAL = Pace()


class Random(msgspec.Struct, frozen=True):
    """The state of numpy's PCG64, as far as its seed does not say it."""

    state: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    half: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None
    """The half of the last 64 bits that was not used yet."""

    @classmethod
    def of(cls, rng: "np.random.Generator") -> "Random":
        """The state of `rng`."""
        told: Any = rng.bit_generator.state
        return cls(
            f"{told['state']['state']:032x}", told["uinteger"] if told["has_uint32"] else None
        )

    def put(self, rng: "np.random.Generator") -> None:
        """Let `rng`, which was made of the same seed, go on from this state."""
        told: Any = rng.bit_generator.state
        told["state"]["state"] = int(self.state, 16)
        told["has_uint32"], told["uinteger"] = int(self.half is not None), self.half or 0
        rng.bit_generator.state = told


class Place(msgspec.Struct, frozen=True):
    """Where in the plan it was made, between two runs of a graph."""

    verb: Count
    """The number of the verb in work, from 0."""
    batches: Count
    """How many batches of it are done: of its training, of one evaluation, or of the candidate that
    is weighed."""
    runs: Count
    """How often a graph was run for the plan. It only grows."""
    num_steps: Count
    """Steps of training of the plan."""
    model: Digest
    """The model that the device started from, or has chosen."""
    random: Random
    seconds: float
    """How long the work took so far."""
    changed: tuple[str, ...] = ()
    """Tensors of the model that training with a report has changed."""
    tuned: tuple[str, ...] = ()
    """Those that the device changed for itself."""


@dataclass
class Within:
    """How far the verb in work is. All of it starts anew with the next verb."""

    batches: int = 0
    order: Array | None = None
    """The examples (n,) of the pass in work, int64."""
    num_examples: int = 0
    loss_sum: float = 0.0
    num_correct: float = 0.0
    """Sums of the training, with the two before it."""
    sums: Tensors = field(default_factory=dict)
    """Sums of an evaluation, float64, by the metric's name."""
    rows: list[Array] = field(default_factory=list)
    """What a graph gave for each batch."""
    losses: list[float] = field(default_factory=list)
    """Of the candidates that were weighed."""

    def copy(self) -> "Within":
        """The same, which goes on by itself."""
        return replace(self, sums=dict(self.sums), rows=list(self.rows), losses=list(self.losses))


@dataclass(frozen=True)
class Checkpoint:
    """What is done of a plan."""

    place: Place
    tensors: Tensors
    """Those that graphs may read and that are neither the bundle's nor the model's."""
    sent: Tensors
    """Those of the update."""
    protected: Tensors
    evaluated: Metrics
    trained: Metrics
    within: Within


_PARTS = ("tensors", "sent", "protected", "sums")


def encode_checkpoint(basis: Basis, made: Checkpoint) -> bytes:
    """A checkpoint as a tensor file whose message is its basis and its place.

    Raises:
        ValueError: a tensor has a type that tensor files do not have.
    """
    within = made.within
    numbers = [
        *msgspec.structs.astuple(made.evaluated),
        *msgspec.structs.astuple(made.trained),
        within.num_examples,
        within.loss_sum,
        within.num_correct,
    ]
    sums = {name: np.asarray(value, np.float64) for name, value in within.sums.items()}
    tensors: Tensors = {
        "numbers": _bits(np.array(numbers)),
        "losses": _bits(np.array(within.losses, np.float64)),
    }
    tensors |= {} if within.order is None else {"order": np.asarray(within.order, np.int64)}
    tensors |= {"rows": np.concatenate(within.rows)} if within.rows else {}
    parts = (
        made.tensors,
        made.sent,
        made.protected,
        {name: _bits(value) for name, value in sums.items()},
    )
    for part, held in zip(_PARTS, parts, strict=True):
        tensors |= {f"{part}/{name}": value for name, value in held.items()}
    return encode_tensors(tensors, msgspec.json.encode({"basis": basis, "place": made.place}))


def decode_checkpoint(payload: bytes) -> tuple[Basis, Checkpoint]:
    """Read what `encode_checkpoint` wrote.

    Raises:
        WireError: it is no checkpoint, or a number of it cannot be.
    """
    tensors, text = decode_tensors(payload, OWN_FILES)
    try:
        told = msgspec.json.decode(text, type=_Message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"checkpoint of {len(payload)} bytes: {error}") from None
    held: dict[str, Tensors] = {part: names.part(tensors, part) for part in _PARTS}
    taken = names.of_role(tensors, *_PARTS)
    tensors = {name: value for name, value in tensors.items() if name not in taken}
    numbers, losses = _floats(tensors, "numbers"), _floats(tensors, "losses")
    order, rows = tensors.pop("order", None), tensors.pop("rows", None)
    if tensors:
        raise Malformed(f"checkpoint: tensor {min(tensors)[:80]!r} was not expected")
    if numbers.shape != (9,) or losses.ndim != 1:
        raise Malformed(
            f"checkpoint: numbers of shape {list(numbers.shape)} and losses {list(losses.shape)}, "
            "expected [9] and [n]"
        )
    if order is not None and (order.dtype != np.int64 or order.ndim != 1):
        raise Malformed(f"checkpoint: order is {order.dtype}{list(order.shape)}, expected int64[n]")
    if rows is not None and not rows.ndim:
        raise Malformed("checkpoint: rows without a dimension")
    if not 0 <= told.place.seconds < math.inf:
        raise Malformed(f"checkpoint: {told.place.seconds} seconds of work")
    sums = {name: _floats(held["sums"], name) for name in list(held["sums"])}
    within = Within(
        told.place.batches, order, _count(numbers[6]), float(numbers[7]), float(numbers[8]), sums
    )
    within.rows, within.losses = [] if rows is None else [rows], losses.tolist()
    measured = _metrics(numbers[0:3]), _metrics(numbers[3:6])
    return told.basis, Checkpoint(
        told.place, held["tensors"], held["sent"], held["protected"], *measured, within
    )


class _Message(msgspec.Struct, frozen=True):
    basis: Basis
    place: Place


def _metrics(numbers: Array) -> Metrics:
    return Metrics(_count(numbers[0]), float(numbers[1]), _count(numbers[2]))


def _count(number: float) -> int:
    if not 0 <= number <= 2**53:
        raise Malformed(f"checkpoint: a count of {number}")
    return int(number)


def _bits(numbers: Array) -> Array:
    """float64 numbers as int64 with the same bits: tensor files have no float64."""
    return np.array(numbers, np.float64, order="C").view(np.int64)


def _floats(tensors: dict[str, Array], name: str) -> Array:
    bits = tensors.pop(name, None)
    if bits is None or bits.dtype != np.int64:
        raise Malformed(
            f"checkpoint: tensor {name[:80]!r} is {'missing' if bits is None else bits.dtype}, "
            "expected int64"
        )
    return bits.view(np.float64)
