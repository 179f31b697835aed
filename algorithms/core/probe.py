"""Probes: the response of a model to inputs that the server chooses.

A response is the class probabilities (or the task's answers) and the statistics at each BatchNorm
layer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import pairwise

import msgspec
import torch
from torch import Tensor, nn

from algorithms.core.contract import Probe, TorchTensors
from algorithms.core.functional import functional
from algorithms.models.adoption.frozen import NORMS, frozen_tensors
from algorithms.models.classifier import Classifier, some_examples
from algorithms.models.reading.network import Network, Unsupported, network_of
from wire.arrays import names

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


PROBE_FILE = "probe.json"
"""Name of the `ProbeDescription` inside the file of an exported probe."""


class ProbeDescription(msgspec.Struct, frozen=True):
    """Description of an exported probe; its fields are those of `Probe`, and the bundle's digest.

    The exported function takes the tensors `needs`, in this order, then x.
    """

    needs: tuple[str, ...]
    norm_layers: tuple[str, ...]
    input_shape: tuple[int, ...]
    network: Network | None
    bundle: str
    """Digest of the bundle that the probe was exported with."""
    of_ids: bool = False


def norm_layers(model: nn.Module) -> tuple[str, ...]:
    """Return the names of a model's BatchNorm layers, in order."""
    return tuple(name for name, module in model.named_modules() if isinstance(module, NORMS))


@contextmanager
def watch_norms(model: nn.Module) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Yield the mean and variance (channels,) at the input of each BatchNorm layer, by layer name.

    Every call of `model` in the context updates them. For a layer that it calls several times they
    are the means over these calls, as the running statistics are.
    """
    met: dict[str, tuple[Tensor, Tensor]] = {}
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def note(name: str) -> "torch.utils.hooks.RemovableHandle":
        def look(_module: nn.Module, inputs: tuple[Tensor, ...], more: dict[str, Tensor]) -> None:
            (x,) = (*inputs, *more.values())
            dims = [d for d in range(x.dim()) if d != 1]
            calls.setdefault(name, []).append((x.mean(dims), x.var(dims, correction=0)))
            means, variances = zip(*calls[name], strict=True)
            met[name] = (_mean(means), _mean(variances))

        return model.get_submodule(name).register_forward_pre_hook(look, with_kwargs=True)

    hooks = [note(name) for name in norm_layers(model)]
    hooks.append(model.register_forward_pre_hook(lambda _model, _inputs: calls.clear()))
    try:
        yield met
    finally:
        for hook in hooks:
            hook.remove()


def _mean(values: Sequence[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(tuple(values)).mean(0)


def named_norms(met: Mapping[str, tuple[Tensor, Tensor]]) -> TorchTensors:
    """Return the statistics from `watch_norms` by ``mean.LAYER`` and ``variance.LAYER``."""
    kinds = (names.MEAN_OF, names.VARIANCE_OF)
    return {
        kind + layer: value
        for layer, pair in met.items()
        for kind, value in zip(kinds, pair, strict=True)
    }


def _softmax(logits: Tensor, _x: Tensor) -> Tensor:
    return torch.softmax(logits, dim=1)


def make_probe(
    model: nn.Module,
    input_shape: tuple[int, ...],
    answer: Callable[[Tensor, Tensor], Tensor] = _softmax,
) -> Probe:
    """Return the probe of a model, whose BatchNorm layers use running statistics.

    `answer` maps logits and examples to the answer of the probe.
    """

    layers = norm_layers(model)

    def run(tensors: TorchTensors, x: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        with watch_norms(model) as met:
            logits, _ = functional(model, tensors, x, training=False)
        return answer(logits, x), [met[layer] for layer in layers]

    def predict(tensors: TorchTensors, x: Tensor) -> Tensor:
        return answer(functional(model, tensors, x, training=False)[0], x)

    of_ids = isinstance(model, Classifier) and bool(model.vocabulary)
    folded, pairs = fold_norms(model)
    if pairs and not _same(model, folded, pairs, input_shape, of_ids):
        folded, pairs = model, {}

    def predict_folded(tensors: TorchTensors, x: Tensor) -> Tensor:
        return answer(
            functional(folded, tensors | _folded_weights(pairs, tensors), x, training=False)[0], x
        )

    network = _network_of(model, input_shape)
    return Probe(
        run,
        input_shape,
        layers,
        tuple(whole_model(model)),
        predict,
        predict_folded,
        network,
        of_ids,
    )


def _network_of(model: nn.Module, input_shape: tuple[int, ...]) -> Network | None:
    try:
        return network_of(model, input_shape) if isinstance(model, Classifier) else None
    except Unsupported:
        return None


def fold_norms(model: nn.Module) -> tuple[nn.Module, dict[str, tuple[str, float]]]:
    """Return a copy of `model` with BatchNorm layers replaced by identities, and their pairs.

    A BatchNorm layer is replaced if it directly follows a convolution in a sequence: with running
    statistics it is one more scale and bias per channel. The pairs map the convolution's name to
    the layer's name and epsilon.
    """
    folded = deepcopy(model)
    pairs: dict[str, tuple[str, float]] = {}
    for prefix, sequence in list(folded.named_modules()):
        if not isinstance(sequence, nn.Sequential):
            continue
        for (before, layer), (name, norm) in pairwise(list(sequence.named_children())):
            if any(not p.requires_grad for part in (layer, norm) for p in part.parameters()):
                continue
            if (
                isinstance(layer, _CONVOLUTIONS)
                and isinstance(norm, NORMS)
                and norm.affine
                and norm.track_running_stats
            ):
                at = f"{prefix}." if prefix else ""
                pairs[at + before] = at + name, norm.eps
                layer.bias = (
                    nn.Parameter(torch.zeros(layer.out_channels))
                    if layer.bias is None
                    else layer.bias
                )
                setattr(sequence, name, nn.Identity())
    return folded, pairs


def _same(
    model: nn.Module,
    folded: nn.Module,
    pairs: dict[str, tuple[str, float]],
    input_shape: tuple[int, ...],
    of_ids: bool,
) -> bool:
    """Return True if a model with folded BatchNorm layers answers as it does without folding.

    It does not if a forward pass takes other ways than from a layer to the next in a sequence.
    """
    drawing = torch.Generator().manual_seed(0)
    tensors = {
        key: value + (value.abs() + 0.1) * torch.rand(value.shape, generator=drawing)
        for key, value in whole_model(model).items()
    }
    x = some_examples(2, input_shape, 2 if of_ids else 0)
    with torch.no_grad():
        whole, other = (
            functional(network, values, x, training=False)[0]
            for network, values in (
                (model, tensors),
                (folded, tensors | _folded_weights(pairs, tensors)),
            )
        )
    return torch.allclose(whole, other, rtol=1e-3, atol=1e-4 * float(whole.abs().max()))


def _folded_weights(pairs: dict[str, tuple[str, float]], tensors: TorchTensors) -> TorchTensors:
    """Return weight and bias of each convolution that a BatchNorm layer is folded into."""
    conv_tensors: TorchTensors = {}
    for conv, (norm, eps) in pairs.items():
        mean, variance = (
            tensors[names.statistic(f"{norm}.{n}")] for n in (names.RUNNING_MEAN, names.RUNNING_VAR)
        )
        scale = tensors[names.shared(f"{norm}.weight")] * (variance + eps).rsqrt()
        weight = tensors[names.shared(f"{conv}.weight")]
        conv_tensors[names.shared(f"{conv}.weight")] = weight * scale.reshape(
            -1, *[1] * (weight.dim() - 1)
        )
        bias = tensors.get(names.shared(f"{conv}.bias"), torch.zeros(()))
        conv_tensors[names.shared(f"{conv}.bias")] = (bias - mean) * scale + tensors[
            names.shared(f"{norm}.bias")
        ]
    return conv_tensors


def whole_model(model: nn.Module) -> TorchTensors:
    """Return all parameters as ``shared/NAME`` and running statistics as ``statistic/NAME``.

    Frozen tensors are left out. It does not matter which of the tensors an objective exchanges.
    """
    frozen = frozen_tensors(model)
    parameters = {
        names.shared(n): p.detach() for n, p in model.named_parameters() if n not in frozen
    }
    statistics = [
        (n, b)
        for n, b in model.named_buffers()
        if names.is_running_statistic(n) and n not in frozen
    ]
    return parameters | {names.statistic(n): b for n, b in statistics}
