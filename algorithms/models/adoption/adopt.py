"""Adoption of a user's torch module as a `Classifier`, without wrapping or registration.

The module can be any that ends in one linear layer.
"""

import inspect
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from algorithms.models.adoption.attention import replace_attention
from algorithms.models.adoption.draws import no_draws
from algorithms.models.adoption.dropout import DROPOUTS
from algorithms.models.adoption.passes import (
    Call,
    Module,
    check_norms,
    copy_of,
    remove_unused,
    trace_pass,
)
from algorithms.models.adoption.replaced import replace_layer
from algorithms.models.adoption.stacked import replace_recurrent
from algorithms.models.classifier import Classifier, some_examples
from wire.arrays import names
from wire.errors import ConfigError

SAME = 1e-5
"""Maximum difference between two answers that count as equal."""
ALIKE = 1e-4
"""Maximum difference between answers to an example in batches of different size."""
Made = TypeVar("Made")
EXPECTED = "A model must be a torch.nn.Module whose last layer is torch.nn.Linear."


def adopt(
    name: str,
    module: object,
    shape: tuple[int, ...],
    num_classes: int,
    scale: nn.Module,
    vocabulary: int = 0,
    steps: int = 0,
) -> Classifier:
    """Return a user's module as a classifier of examples of this shape.

    The linear layer that gives the answer of a pass becomes the head, and everything before it the
    extractor. Layers that no pass uses are left out. The module itself is not changed, except that
    lazy layers get their parameters. A `Classifier` is returned itself, with its shape, vocabulary
    and steps set.

    Args:
        name: name of the model, the start of errors.
        shape: (channels, time) or (channels, height, width).
        scale: module in front of the first layer.
        vocabulary: number of ids if examples are int64 ids.
        steps: number of steps if the model answers each step: (batch, steps, classes).

    Raises:
        ConfigError: it is not a classifier of these examples, or it does what no graph can do: it
            draws random numbers outside of torch's dropout layers, has floats that are not float32,
            changes a buffer that is not a running statistic, or answers an example by the others of
            its batch.
    """
    x = some_examples(3, shape, vocabulary)
    if isinstance(module, Classifier):
        whole: nn.Module = module
    elif isinstance(module, nn.Module):
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            _asked(name, module, x)
        whole = copy_of(name, module)
    else:
        raise ConfigError(f"model {name} is of type {type(module).__name__}. {EXPECTED}")
    _check_types(name, whole)
    for training in (False, True):
        _asked(name, whole, x, training)
    remove_unused(whole, x)
    _check_training(name, whole, x)
    _check_batch(name, whole, x)
    check_norms(name, whole, x)
    model = whole if whole is module else _divided(name, copy_of(name, whole), x, scale, steps)
    assert isinstance(model, Classifier)
    answer_shape = tuple(_asked(name, model, x[:2]).shape)
    if answer_shape != (2, *_of_steps(steps), num_classes):
        expected = (
            f"{[2, *_of_steps(steps), num_classes]}, one logit per "
            f"class{' for each step, classes last' if steps else ''}"
        )
        raise ConfigError(
            f"model {name} must answer two examples with {expected}, got {list(answer_shape)}"
        )
    if (one_shape := tuple(_asked(name, model, x[:1]).shape)) != (1, *answer_shape[1:]):
        raise ConfigError(
            f"model {name} must answer one example with {[1, *answer_shape[1:]]}, got "
            f"{list(one_shape)}. A squeeze() without a dimension takes the batch away too: write "
            "squeeze(-1)."
        )
    model.shape, model.vocabulary, model.steps = shape, vocabulary, steps
    _check_head(name, model)
    _check_embeddings(name, model)
    if whole is not module:
        _check_same(name, whole, model)
    return model.eval()


def _of_steps(steps: int) -> tuple[int, ...]:
    return (steps,) if steps else ()


def _divided(name: str, module: nn.Module, x: Tensor, scale: nn.Module, steps: int) -> Classifier:
    """Return a module split before the layer that gives its answer; `x` are three examples."""
    if (
        type(module) is nn.Sequential
        and len(module) > 1
        and isinstance(module[-1], nn.Linear)
        and not (module._forward_hooks or module._forward_pre_hooks)
    ):
        return Classifier(scale, module[:-1], module[-1])
    if isinstance(module, nn.Linear):
        return Classifier(scale, nn.Identity(), module)
    path, in_training = (_head_of(name, module, x, training) for training in (False, True))
    if in_training != path:
        raise ConfigError(
            f"model {name} answers by its layer {in_training!r} in training, and by {path!r} "
            "outside of it. Answer by the same layer in both modes."
        )
    head = module.get_submodule(path)
    assert isinstance(head, nn.Linear)
    replace_layer(module, head, nn.Identity())
    if _asked(name, module, x).shape != (3, *_of_steps(steps), head.in_features):
        fault = (
            f"is not called once for all {steps} steps of an example"
            if steps
            else "is called more than once, or for parts of an example"
        )
        raise ConfigError(f"model {name}: its layer {path!r} {fault}. {EXPECTED}")
    return Classifier(scale, module, head)


def _head_of(name: str, module: nn.Module, x: Tensor, training: bool) -> str:
    """Return the name of the linear layer whose output is a module's answer to examples x.

    Raises:
        ConfigError: there is none.
    """
    answer, calls = _passed(name, module, x, training)
    linear = [
        call
        for call in calls
        if isinstance(module.get_submodule(call.layer), nn.Linear)
        and isinstance(call.output, Tensor)
    ]
    heads = [call.layer for call in linear if _is_same(call.output, answer)]
    if len(heads) == 1:
        return heads[0]
    behind = (
        f" What it does behind its layer {linear[-1].layer!r} must move before that layer, "
        "or be left out: Shoal applies softmax itself."
        if linear and not heads
        else ""
    )
    raise ConfigError(
        f"model {name} ({type(module).__name__}) does not return the output of one of its "
        f"linear layers{' in training' if training else ''}. {EXPECTED}{behind}"
    )


def _is_same(output: object, answer: Tensor) -> bool:
    """Return True if an answer is a layer's output, or a view of all of it in the same shape."""
    return output is answer or (
        isinstance(output, Tensor)
        and output.shape == answer.shape
        and output.data_ptr() == answer.data_ptr()
        and output.stride() == answer.stride()
    )


def _check_same(name: str, module: nn.Module, model: Classifier) -> None:
    """Raise ConfigError if extractor and head do not answer as the module does, in both modes."""
    x = some_examples(3, model.shape, model.vocabulary)
    parts = nn.Sequential(model.extractor, model.head)
    for training in (False, True):
        whole, divided = (
            _asked(name, _without_draws(name, one) if training else copy_of(name, one), x, training)
            for one in (module, parts)
        )
        if not torch.allclose(whole, divided, rtol=SAME, atol=SAME, equal_nan=True):
            raise ConfigError(
                f"model {name} does not answer as its layers in sequence do"
                f"{' in training' if training else ''}. {EXPECTED}"
            )


def _without_draws(name: str, model: Module) -> Module:
    """Return a copy of a model that draws no random numbers of dropout in training."""
    copy = copy_of(name, model)
    replace_attention(copy)
    replace_recurrent(copy)
    for path, layer in list(copy.named_modules()):
        if isinstance(layer, DROPOUTS) and path:
            replace_layer(copy, layer, nn.Identity())
    return copy


def _check_head(name: str, model: Classifier) -> None:
    """Raise ConfigError if the weight of the last layer is not a parameter of its own."""
    path, parameters = model.last_layer, dict(model.named_parameters(remove_duplicate=False))
    shared = [n for n, p in parameters.items() if p is parameters.get(f"{path}.weight")]
    if len(shared) != 1:
        fault = (
            f"shares its weight with {shared[0]!r}"
            if shared
            else "has a parametrisation, such as weight norm"
        )
        raise ConfigError(
            f"model {name}: its last layer, {path!r}, {fault}. Use torch.nn.Linear with a weight "
            "of its own."
        )


def _check_batch(name: str, model: nn.Module, x: Tensor) -> None:
    """Raise ConfigError if the answer to an example depends on the others of the batch."""
    (all_of, calls), (one, calls_of_one) = (
        _passed(name, model, part, False) for part in (x, x[:2])
    )
    if torch.allclose(all_of[:2], one, rtol=ALIKE, atol=ALIKE, equal_nan=True):
        return
    place, way = "", "Take means over other dimensions than the first, the batch, or use BatchNorm."
    for call, of_one in zip(calls, calls_of_one, strict=False):
        if not _differ(call.output, of_one.output):
            continue
        layer = model.get_submodule(call.layer)
        if any(map(_differ, call.inputs, of_one.inputs)):
            place = f": its forward, before layer {call.layer!r} ({type(layer).__name__}),"
        elif any(layer.children()):
            place = f": the forward of {f'layer {call.layer!r}' if call.layer else 'the model'}"
        else:
            place = f": layer {call.layer!r} ({type(layer).__name__})"
            way = (
                "BatchNorm needs track_running_stats=True; GroupNorm and LayerNorm need no "
                "statistics."
            )
        break
    raise ConfigError(
        f"model {name}{place} answers an example by the other examples of its batch in evaluation. "
        f"{way}"
    )


def _differ(of_three: object, of_two: object) -> bool:
    """Return True if a tensor has other values for the first two examples without the third."""
    return (
        isinstance(of_three, Tensor)
        and isinstance(of_two, Tensor)
        and bool(of_three.dim())
        and of_three[:2].shape == of_two.shape
        and not torch.allclose(of_three[:2], of_two, rtol=ALIKE, atol=ALIKE, equal_nan=True)
    )


def _check_types(name: str, model: nn.Module) -> None:
    """Raise ConfigError if a tensor of a model has a type that devices do not have."""
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype != torch.float32:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ConfigError(
                f"model {name}: {path!r} is {kind}, and devices train in float32. Call "
                "model.float(), and convert nothing in forward."
            )


def call_model(name: str, model: Callable[..., Made], *arguments: object) -> Made:
    """Return a model from a function or class, given the shape of an example and the classes.

    Raises:
        ConfigError: it cannot be called with these arguments. An error of its own, of any type, has
            a note with the call.
    """
    called = (
        f"{name} is called as {name}({', '.join(map(str, arguments))}), with the shape of an "
        "example and the number of classes"
    )
    way = (
        f"Give the model itself, or a function of both, such as lambda shape, classes: {name}(...)."
    )
    with suppress(TypeError, ValueError):  # functions in C have no signature
        signature = inspect.signature(model)
        try:
            signature.bind(*arguments)
        except TypeError as error:
            raise ConfigError(
                f"model {called}: {error}. Its parameters are {signature}. {way}"
            ) from None
    try:
        return model(*arguments)
    except Exception as error:  # the user's code may raise anything
        error.add_note(f"{called}. {way}")
        raise


def _check_embeddings(name: str, model: nn.Module) -> None:
    """Raise ConfigError if an embedding is not a plain table, moved only by its rows' gradients."""
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Embedding) and (
            layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
        ):
            raise ConfigError(
                f"model {name}: {path!r} is an Embedding with max_norm, scale_grad_by_freq or "
                "sparse, which are not supported"
            )


def _asked(name: str, model: nn.Module, x: Tensor, training: bool = False) -> Tensor:
    return _passed(name, model, x, training)[0]


def _passed(name: str, model: nn.Module, x: Tensor, training: bool) -> tuple[Tensor, list[Call]]:
    """Return a model's answer to examples, and the calls of layers in that pass."""
    try:
        answer, calls = trace_pass(model, x, training)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = _at_layer(model, error) + next(iter(str(error).splitlines()), type(error).__name__)
        inputs = (
            "examples"
            if x.is_floating_point()
            else f"ids from 0 to {int(x.max())}, as the data's vocabulary has them, in examples"
        )
        if x.is_floating_point() and any(
            isinstance(layer, nn.Embedding) for layer in model.modules()
        ):
            reason = (
                "it has an nn.Embedding, and these are measurements; data of ids need a "
                "`vocabulary`"
            )
        raise ConfigError(
            f"model {name} cannot take {inputs} of {list(x.shape[1:])}"
            f"{' in training' if training else ''}: {reason}"
        ) from error
    if not isinstance(answer, Tensor):
        raise ConfigError(
            f"model {name} must return a tensor of logits, got {type(answer).__name__}"
            f"{' in training. Return the logits alone' if training else ''}"
        )
    return answer, calls


def _at_layer(model: nn.Module, error: Exception) -> str:
    """Return the innermost layer in which a pass failed, with the input's shape, or ""."""
    layers = {layer: path for path, layer in model.named_modules() if path}
    text = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        layer, inputs = frame.f_locals.get("self"), frame.f_locals.get("args")
        if not (isinstance(layer, nn.Module) and layer in layers and isinstance(inputs, tuple)):
            continue
        if shapes := ", ".join(str([*x.shape]) for x in inputs if isinstance(x, Tensor)):
            kind = f"{type(layer).__name__}({layer.extra_repr()})"
            text = f"layer {layers[layer]!r}, {kind}, cannot take {shapes}, batch first: "
    return text


def _check_training(name: str, model: nn.Module, x: Tensor) -> None:
    """Raise ConfigError if a pass depends on more than the tensors and the examples."""
    draws = f"model {name} draws random numbers in its forward pass"
    for training in (True, False):
        tried = _without_draws(name, model).train(training)
        before = {n: b.clone() for n, b in tried.named_buffers()}
        buffers = [
            (layer, {n: b if b is None else b.clone() for n, b in layer._buffers.items()})
            for layer in tried.modules()
        ]
        with torch.no_grad(), no_draws(draws, "Use torch.nn.Dropout layers."):
            first = tried(x)
            after = dict(tried.named_buffers())
            for layer, values in buffers:
                layer._buffers.update(values)
            second = tried(x)
        mode = "training" if training else "evaluation"
        for changed, value in before.items():
            same = changed in after and torch.equal(value, after[changed])
            if not same and not (training and _moves(changed)):
                raise ConfigError(_moved(name, changed, mode))
        if not torch.allclose(first, second, rtol=SAME, atol=SAME, equal_nan=True):
            raise ConfigError(
                f"model {name} gives two different answers to the same examples in {mode}. Its "
                "answer must depend only on its tensors and the examples."
            )


def _moved(name: str, changed: str, mode: str) -> str:
    """Return the text about a buffer that a pass changes."""
    spectral = ".parametrizations." in changed or changed.endswith(("_u", "_v"))
    return (
        f"model {name} changes its buffer {changed!r} in {mode}. Only BatchNorm's running "
        "statistics may change, in training."
        + (" Spectral norm does; weight norm does not." if spectral else "")
    )


def _moves(name: str) -> bool:
    return names.is_running_statistic(name) or name.endswith("num_batches_tracked")
