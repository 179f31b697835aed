"""Checks of torch layers that are replaced by others.

The replacements draw no random numbers themselves, or are supported by every runtime of devices.
"""

from torch import nn

from wire.errors import ConfigError


def has_hooks(module: nn.Module) -> bool:
    """Return True if a layer has forward or backward hooks."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def check_replaceable(name: str, layer: nn.Module, *kinds: type[nn.Module]) -> None:
    """Check that a layer does exactly what these `kinds` of torch do, as its replacement will.

    Raises:
        ConfigError: it is of a derived class, or has hooks.
    """
    hooked = has_hooks(layer)
    if type(layer) not in kinds or hooked:
        trait = "hooks" if hooked else "a class of its own"
        kind_names = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(
            f"layer {name!r} is {type(layer).__name__} with {trait}, which would be lost. Use "
            f"torch's own {kind_names}."
        )


def replace_layer(model: nn.Module, layer: nn.Module, replacement: nn.Module) -> None:
    """Replace a layer of a model under all of its names."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is layer:
            parent, _, last = path.rpartition(".")
            setattr(model.get_submodule(parent), last, replacement)
