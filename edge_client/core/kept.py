"""What a device keeps of models that it made its own, and of which model each is (SPEC.md, 'What a
device keeps'); pure.

Rules: what was kept is of one model of one bundle, and is used with that model alone. A model of
which nothing is kept answers as it was given. Of each model the last that was kept counts, and of
models the last few.
"""

from collections.abc import Sequence

import msgspec

from wire.arrays import names
from wire.arrays.tensors import Tensors, TensorSpec
from wire.bundle import Bundle
from wire.messages import Digest, Name

MOST_KEPT = 3
"""Of so many models something is kept: those of which it was kept last."""


class Kept(msgspec.Struct, frozen=True):
    """What was kept of a model: its tensors are a blob of the state folder."""

    run_id: Name
    bundle: Digest
    model: Digest
    tensors: Digest


def with_kept(held: Sequence[Kept], made: Kept) -> tuple[Kept, ...]:
    """What is held once this was kept as well, the last one at the end."""
    others = (kept for kept in held if (kept.bundle, kept.model) != (made.bundle, made.model))
    return (*others, made)[-MOST_KEPT:]


def kept_of(held: Sequence[Kept], bundle: str, model: str) -> Kept | None:
    """What is held of this model of this bundle."""
    return next((kept for kept in held if (kept.bundle, kept.model) == (bundle, model)), None)


def why_alone(held: Sequence[Kept], bundle: str, model: str) -> str:
    """Why a model answers as it was given, although something was kept, in whatever run; empty
    where nothing was, or of this model."""
    if not held or kept_of(held, bundle, model) is not None:
        return ""
    return (
        f"what is kept of run {held[-1].run_id} was made of model {held[-1].model[:12]}, not of "
        "this one"
    )


def usable(private: Sequence[TensorSpec], stored: Tensors, num_train: int) -> Tensors:
    """Return the stored tensors of the device's own that a plan goes on from.

    These are tensors that the manifest calls `private`, in its dtypes and shapes, since another
    version of the bundle may have others, and columns of as many windows as the device trains
    on."""
    layouts = {spec.key: (spec.dtype, spec.shape) for spec in private}
    own = {
        key: value
        for key, value in stored.items()
        if layouts.get(key) == (str(value.dtype), value.shape)
    }
    columns = names.of_role(stored, names.COLUMN).items()
    return own | {key: value for key, value in columns if value.shape[:1] == (num_train,)}


def own_tensors(bundle: Bundle, model: Tensors, private: Tensors) -> Tensors:
    """Return the tensors that the device was given, and what it has kept of that model, as far as
    the bundle has room for them: another version may have other tensors."""
    layouts = {spec.key: (spec.dtype, spec.shape) for spec in bundle.manifest.tensors}
    own = names.of_role(private, names.PRIVATE) | names.part(private, names.KEPT)
    fitting = {
        key: value
        for key, value in own.items()
        if layouts.get(key) == (str(value.dtype), value.shape)
    }
    return {
        **bundle.initial,
        **names.of_role(fitting, names.PRIVATE),
        **model,
        **names.of_role(fitting, *names.OF_MODEL),
    }
