"""Finds the layers of a model that a runtime refuses, after it has refused a whole graph."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from algorithms.core.contract import TorchTensors
from algorithms.models.classifier import some_examples
from algorithms.objectives.supervised import Supervised
from export.capture import Trace, trace
from export.describe import TRACE_BATCH
from wire.arrays import names
from wire.errors import ConfigError

Write = Callable[[Trace], object]
"""Function that writes a trace for a runtime."""


def refused_layers(objective: Supervised, window: tuple[int, ...], write: Write) -> list[str]:
    """Return the innermost layers whose forward pass and gradients `write` refuses.

    A layer is named ``name (kind)``. If the list is empty, the cause is outside of the model.
    """
    seen: dict[str, tuple[Tensor, ...]] = {}
    model = objective.model

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _layer, given: (
            seen.update({name: given}) if all(isinstance(x, Tensor) for x in given) else None
        )

    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in model.named_modules()]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(some_examples(TRACE_BATCH, window, model.vocabulary))
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training)
    refusals: dict[str, bool] = {}

    def innermost(name: str, layer: nn.Module) -> list[str]:
        """Return the refused layers inside of a layer, or else the layer itself if refused."""
        inside = [
            layer_name
            for child_name, child in layer.named_children()
            for layer_name in innermost(f"{name}.{child_name}", child)
        ]
        if inside or name not in seen:
            return inside
        alike = f"{layer} of {[tuple(x.shape) for x in seen[name]]}"
        if alike not in refusals:
            refusals[alike] = _refuses(layer, seen[name], write)
        return [f"{name} ({type(layer).__name__})"] if refusals[alike] else []

    model.train()
    try:
        return [
            layer_name
            for child_name, child in model.named_children()
            for layer_name in innermost(child_name, child)
        ]
    finally:
        model.train(training)


def _refuses(layer: nn.Module, given: tuple[Tensor, ...], write: Write) -> bool:
    """Return True if a layer's training pass and gradients can be traced, but not written."""
    parameters = {names.shared(name): value.detach() for name, value in layer.named_parameters()}
    buffers = {names.statistic(name): value for name, value in layer.named_buffers()}
    examples = {names.batch(f"x{n}"): value.detach() for n, value in enumerate(given)}
    moving = [name for name, value in examples.items() if value.is_floating_point()]

    def passed(inputs: TorchTensors) -> TorchTensors:
        def power(varied: TorchTensors) -> Tensor:
            tensors = {name: varied[names.shared(name)] for name, _ in layer.named_parameters()}
            tensors |= {names.name_of(key): inputs[key].clone() for key in buffers}
            outputs = functional_call(
                layer, tensors, tuple({**inputs, **varied}[name] for name in examples)
            )
            first: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
            return first.square().sum()

        gradients = grad(power)({name: inputs[name] for name in (*parameters, *moving)})
        return {names.metric(name.replace("/", ".")): value for name, value in gradients.items()}

    if not parameters and not moving:
        return False
    try:
        traced = trace(passed, {**parameters, **buffers, **examples})
    except ConfigError:
        return False
    try:
        write(traced)
    except ConfigError:
        return True
    return False
