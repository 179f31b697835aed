"""Adoption of a user's torch module as a `Classifier`, without wrapping or registration.

The module can be any that ends in one linear layer.
"""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from algorithms.models.adoption.attention import replace_attention
from algorithms.models.adoption.draws import no_draws
from algorithms.models.adoption.dropout import DROPOUTS
from algorithms.models.adoption.stacked import replace_recurrent
from algorithms.models.classifier import Classifier, some_examples
from wire.arrays import names
from wire.errors import ConfigError

SAME = 1e-5
"""Maximum difference between two answers that count as equal."""
EXPECTED = "A model must be a torch.nn.Module whose last layer is torch.nn.Linear."


def adopt(
    name: str,
    made: object,
    shape: tuple[int, ...],
    num_classes: int,
    scale: nn.Module,
    vocabulary: int = 0,
    steps: int = 0,
) -> Classifier:
    """Return a user's module as a classifier of examples of this shape.

    The module's last linear layer becomes the head, and everything before it the extractor. The
    module itself is not changed. A `Classifier` is returned itself, with its shape, vocabulary and
    steps set.

    Args:
        name: name of the model, the start of errors.
        shape: (channels, time) or (channels, height, width).
        scale: module in front of the first layer.
        vocabulary: number of ids if examples are int64 ids.
        steps: number of steps if the model answers each step: (batch, steps, classes).

    Raises:
        ConfigError: it is not a classifier of these examples, or it does what no graph can do: it
            draws random numbers outside of torch's dropout layers, or changes a buffer that is not
            a running statistic.
    """
    if isinstance(made, Classifier):
        model = made
    elif isinstance(made, nn.Module):
        model = _divided(name, made, some_examples(3, shape, vocabulary), scale, steps)
    else:
        raise ConfigError(f"model {name} is of type {type(made).__name__}. {EXPECTED}")
    _check_names(name, model)
    _check_embeddings(name, model)
    model.shape, model.vocabulary, model.steps = shape, vocabulary, steps
    answer_shape = tuple(_asked(name, model.eval(), some_examples(2, shape, vocabulary)).shape)
    if answer_shape != (2, *_of_steps(steps), num_classes):
        expected = (
            f"{[2, *_of_steps(steps), num_classes]}, one logit per "
            f"class{' for each step, classes last' if steps else ''}"
        )
        raise ConfigError(
            f"model {name} must answer two examples with {expected}, got {list(answer_shape)}"
        )
    _check_training(name, model)
    if isinstance(made, nn.Module) and not isinstance(made, Classifier):
        _check_same(name, made, model)
    return model


def _of_steps(steps: int) -> tuple[int, ...]:
    return (steps,) if steps else ()


def _divided(name: str, module: nn.Module, x: Tensor, scale: nn.Module, steps: int) -> Classifier:
    """Return a module split before its last layer; `x` are three examples."""
    if (
        type(module) is nn.Sequential
        and len(module) > 1
        and isinstance(module[-1], nn.Linear)
        and not (module._forward_hooks or module._forward_pre_hooks)
    ):
        return Classifier(scale, module[:-1], module[-1])
    if isinstance(module, nn.Linear):
        return Classifier(scale, nn.Identity(), module)
    module = deepcopy(module)
    seen: list[tuple[str, Tensor]] = []

    def note(layer: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _module, _inputs, output: seen.append((layer, output))

    hooks = [
        layer.register_forward_hook(note(n))
        for n, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        answer = _asked(name, module.eval(), x)
    finally:
        for hook in hooks:
            hook.remove()
    last = [layer for layer, output in seen if output is answer]
    if len(last) != 1:
        raise ConfigError(
            f"model {name} ({type(module).__name__}) does not return the output of one of its "
            f"linear layers. {EXPECTED}"
        )
    head = module.get_submodule(last[0])
    assert isinstance(head, nn.Linear)
    parent, _, attribute = last[0].rpartition(".")
    setattr(module.get_submodule(parent), attribute, nn.Identity())
    if _asked(name, module, x).shape != (3, *_of_steps(steps), head.in_features):
        fault = (
            f"is not called once for all {steps} steps of an example"
            if steps
            else "is called more than once, or for parts of an example"
        )
        raise ConfigError(f"model {name}: its layer {last[0]!r} {fault}. {EXPECTED}")
    return Classifier(scale, module, head)


def _check_same(name: str, module: nn.Module, model: Classifier) -> None:
    """Raise ConfigError if extractor and head do not answer as the module does."""
    x = some_examples(3, model.shape, model.vocabulary)
    whole, divided = (
        _asked(name, deepcopy(module).eval(), x),
        _asked(name, nn.Sequential(model.extractor, model.head).eval(), x),
    )
    if not torch.allclose(whole, divided, rtol=SAME, atol=SAME, equal_nan=True):
        raise ConfigError(f"model {name} does not answer as its layers in sequence do. {EXPECTED}")


def _check_names(name: str, model: nn.Module) -> None:
    """Raise ConfigError if a layer with tensors has several names; each tensor must occur once."""
    first: dict[int, str] = {}
    for path, layer in model.named_modules(remove_duplicate=False):
        if first.setdefault(id(layer), path) != path and any(
            True for _ in (*layer.parameters(), *layer.buffers())
        ):
            raise ConfigError(
                f"model {name}: {first[id(layer)]!r} and {path!r} are the same layer. Use one name "
                "for it."
            )


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


def _asked(name: str, model: nn.Module, x: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            answer = model(x)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
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
            f"model {name} cannot take {inputs} of {list(x.shape[1:])}: {reason}"
        ) from error
    if not isinstance(answer, Tensor):
        raise ConfigError(
            f"model {name} must return a tensor of logits, got {type(answer).__name__}"
        )
    return answer


def _check_training(name: str, model: Classifier) -> None:
    """Raise ConfigError if a training pass depends on more than the tensors and the examples."""
    tried = deepcopy(model).train()
    replace_attention(tried)
    replace_recurrent(tried)
    for layer in tried.modules():
        if isinstance(layer, DROPOUTS):
            layer.eval()
    before = {n: b.clone() for n, b in tried.named_buffers() if not _moves(n)}
    x = some_examples(4, model.shape, model.vocabulary)
    with no_draws(
        f"model {name} draws random numbers in its forward pass", "Use torch.nn.Dropout layers."
    ):
        first, second = _asked(name, tried, x), _asked(name, tried, x)
    if not torch.allclose(first, second, rtol=SAME, atol=SAME, equal_nan=True):
        raise ConfigError(
            f"model {name} gives two different answers to the same examples in training. Its "
            "answer must depend only on its tensors and the examples."
        )
    after = dict(tried.named_buffers())
    if changed := [
        n for n, value in before.items() if n not in after or not torch.equal(value, after[n])
    ]:
        raise ConfigError(
            f"model {name} changes its buffer {changed[0]!r} in training. Only BatchNorm's "
            "running statistics may change."
        )


def _moves(name: str) -> bool:
    return names.is_running_statistic(name) or name.endswith("num_batches_tracked")
