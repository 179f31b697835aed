"""The tensors of a device's own model; pure."""

from wire import names
from wire.bundle import Bundle
from wire.tensors import Tensors


def own_tensors(bundle: Bundle, model: Tensors, private: Tensors) -> Tensors:
    """What the device was given, and what it has kept of that model, as far as the bundle has room for it: another version may have other
    tensors."""
    layouts = {spec.key: (spec.dtype, spec.shape) for spec in bundle.manifest.tensors}
    own = names.of_role(private, names.PRIVATE) | names.part(private, names.KEPT)
    fitting = {key: value for key, value in own.items() if layouts.get(key) == (str(value.dtype), value.shape)}
    return {**bundle.initial, **names.of_role(fitting, names.PRIVATE), **model, **names.of_role(fitting, *names.OF_MODEL)}
