"""Checkpoint of a plan: a client that ends in the middle of a plan resumes from it. Pure.

Format: SPEC.md, 'A checkpoint'. A checkpoint holds what cannot be made again: the tensors that the
plan has changed, the state of the random numbers, the sums of the current verb, and the place in
the plan. The tensors of the bundle and the model are read again, by their hashes. The generator of
private noise is not saved: a resumed device draws new noise.
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
"""Largest checkpoint that is written."""


class Basis(msgspec.Struct, frozen=True):
    """Inputs of the work. A checkpoint is resumed only if all of them are unchanged."""

    format: Count
    client: str
    """Client and its version: another client may make other batches."""
    runtime: str
    plan: Digest
    """`work_digest` of the plan, which names the bundle and the model by their hashes."""
    windows: Digest
    """`windows_digest` of the device's data."""


def work_digest(plan: Plan) -> str:
    """Return the hash of a plan without its epoch and its deadline.

    An aggregator that restarts sends the same work with another epoch and deadline.
    """
    return digest(encode(msgspec.structs.replace(plan, epoch=1, deadline_at_s=0.0)))


def windows_digest(windows: Windows) -> str:
    """Return the SHA-256 of the shapes, dtypes and values of all windows and labels."""
    sha256 = hashlib.sha256()
    for array in (
        windows.train_x,
        windows.train_y,
        windows.test_x,
        windows.test_y,
        windows.unlabelled_x,
    ):
        sha256.update(f"{array.dtype}{list(array.shape)};".encode())
        sha256.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


def unusable(stored: Basis, now: Basis) -> str:
    """Return the reason why a checkpoint with the basis `stored` cannot be resumed, or ""."""
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
    """Interval between checkpoints."""

    every_s: float = 30.0
    """Minimum interval (seconds)."""
    share: float = 0.05
    """Maximum share of a device's time that writing checkpoints may take."""

    def pause_s(self, took_s: float) -> float:
        """Return the pause before the next checkpoint, after one that took `took_s` to write."""
        return max(self.every_s, took_s / self.share)


USUAL = Pace()


class Random(msgspec.Struct, frozen=True):
    """State of numpy's PCG64, except what its seed determines."""

    state: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    half: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None
    """Unused half of the last 64 bits, None if both halves are used."""

    @classmethod
    def of(cls, rng: "np.random.Generator") -> "Random":
        """Return the state of `rng`."""
        state: Any = rng.bit_generator.state
        return cls(
            f"{state['state']['state']:032x}", state["uinteger"] if state["has_uint32"] else None
        )

    def put(self, rng: "np.random.Generator") -> None:
        """Set `rng`, which was created from the same seed, to this state."""
        state: Any = rng.bit_generator.state
        state["state"]["state"] = int(self.state, 16)
        state["has_uint32"], state["uinteger"] = int(self.half is not None), self.half or 0
        rng.bit_generator.state = state


class Place(msgspec.Struct, frozen=True):
    """Place in the plan where the checkpoint was made, between two runs of a graph."""

    verb: Count
    """Index of the current verb, from 0."""
    batches: Count
    """Number of finished batches of the verb: of its training, evaluation or current candidate."""
    runs: Count
    """Number of runs of graphs for the plan so far. It only grows."""
    num_steps: Count
    """Number of training steps of the plan so far."""
    model: Digest
    """Model that the device started from, or has chosen."""
    random: Random
    seconds: float
    """Duration of the work so far."""
    changed: tuple[str, ...] = ()
    """Tensors of the model that a reported training has changed."""
    tuned: tuple[str, ...] = ()
    """Tensors of the model that the device changed for itself."""


@dataclass
class Within:
    """Progress inside the current verb. The next verb starts with a new one."""

    batches: int = 0
    order: Array | None = None
    """Examples (n,) of the current pass, int64."""
    num_examples: int = 0
    loss_sum: float = 0.0
    num_correct: float = 0.0
    """Sum over the training, like `num_examples` and `loss_sum`."""
    sums: Tensors = field(default_factory=dict)
    """Sums of an evaluation, float64, by the metric's name."""
    rows: list[Array] = field(default_factory=list)
    """Output of a graph for each batch."""
    losses: list[float] = field(default_factory=list)
    """Losses of the candidates that were compared so far."""

    def copy(self) -> "Within":
        """Return a copy that does not change with this one."""
        return replace(self, sums=dict(self.sums), rows=list(self.rows), losses=list(self.losses))


@dataclass(frozen=True)
class Checkpoint:
    """Everything that is done of a plan."""

    place: Place
    tensors: Tensors
    """Tensors that graphs may read and that are neither the bundle's nor the model's."""
    sent: Tensors
    """Tensors of the update."""
    protected: Tensors
    evaluated: Metrics
    trained: Metrics
    within: Within


_PARTS = ("tensors", "sent", "protected", "sums")


def encode_checkpoint(basis: Basis, checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as a tensor file; the file's message has the basis and the place.

    Raises:
        ValueError: a tensor has a dtype that tensor files do not have.
    """
    within = checkpoint.within
    numbers = [
        *msgspec.structs.astuple(checkpoint.evaluated),
        *msgspec.structs.astuple(checkpoint.trained),
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
        checkpoint.tensors,
        checkpoint.sent,
        checkpoint.protected,
        {name: _bits(value) for name, value in sums.items()},
    )
    for part, part_tensors in zip(_PARTS, parts, strict=True):
        tensors |= {f"{part}/{name}": value for name, value in part_tensors.items()}
    return encode_tensors(tensors, msgspec.json.encode({"basis": basis, "place": checkpoint.place}))


def decode_checkpoint(payload: bytes) -> tuple[Basis, Checkpoint]:
    """Return the basis and the checkpoint that `encode_checkpoint` wrote.

    Raises:
        WireError: the bytes are not a checkpoint, or a number in it is impossible.
    """
    tensors, text = decode_tensors(payload, OWN_FILES)
    try:
        message = msgspec.json.decode(text, type=_Message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"checkpoint of {len(payload)} bytes: {error}") from None
    parts: dict[str, Tensors] = {part: names.part(tensors, part) for part in _PARTS}
    part_tensors = names.of_role(tensors, *_PARTS)
    tensors = {name: value for name, value in tensors.items() if name not in part_tensors}
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
        raise Malformed("checkpoint: rows must have at least one dimension")
    if not 0 <= message.place.seconds < math.inf:
        raise Malformed(f"checkpoint: seconds must be at least 0, got {message.place.seconds}")
    sums = {name: _floats(parts["sums"], name) for name in list(parts["sums"])}
    within = Within(
        message.place.batches, order, _count(numbers[6]), float(numbers[7]), float(numbers[8]), sums
    )
    within.rows, within.losses = [] if rows is None else [rows], losses.tolist()
    measured = _metrics(numbers[0:3]), _metrics(numbers[3:6])
    return message.basis, Checkpoint(
        message.place, parts["tensors"], parts["sent"], parts["protected"], *measured, within
    )


class _Message(msgspec.Struct, frozen=True):
    basis: Basis
    place: Place


def _metrics(numbers: Array) -> Metrics:
    return Metrics(_count(numbers[0]), float(numbers[1]), _count(numbers[2]))


def _count(number: float) -> int:
    if not 0 <= number <= 2**53:
        raise Malformed(f"checkpoint: a count must be between 0 and 2^53, got {number}")
    return int(number)


def _bits(numbers: Array) -> Array:
    """Return float64 numbers as int64 with the same bits: tensor files have no float64."""
    return np.array(numbers, np.float64, order="C").view(np.int64)


def _floats(tensors: dict[str, Array], name: str) -> Array:
    bits = tensors.pop(name, None)
    if bits is None or bits.dtype != np.int64:
        raise Malformed(
            f"checkpoint: tensor {name[:80]!r} is {'missing' if bits is None else bits.dtype}, "
            "expected int64"
        )
    return bits.view(np.float64)
