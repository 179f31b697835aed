"""The tensors of a device's own model; pure."""

from collections.abc import Sequence

from wire.arrays import names
from wire.arrays.tensors import Tensors, TensorSpec
from wire.bundle import Bundle


def usable(private: Sequence[TensorSpec], stored: Tensors, num_train: int) -> Tensors:
    """Of what the device has stored of its own in a run, what a plan goes on from: the tensors that
    the manifest calls `private`, as it says them, since another version of the bundle may have
    others, and columns of as many windows as the device trains on."""
    layouts = {spec.key: (spec.dtype, spec.shape) for spec in private}
    own = {
        key: value
        for key, value in stored.items()
        if layouts.get(key) == (str(value.dtype), value.shape)
    }
    columns = names.of_role(stored, names.COLUMN).items()
    return own | {key: value for key, value in columns if value.shape[:1] == (num_train,)}


def own_tensors(bundle: Bundle, model: Tensors, private: Tensors) -> Tensors:
    """What the device was given, and what it has kept of that model, as far as the bundle has room
    for it: another version may have other tensors."""
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
