"""Obstacles to the export of a model, found in a fraction of a second.

An export takes up to minutes. So every graph runs once on a small batch, forward and backward, and
its operators are compared with those that the runtimes of devices have in training.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from algorithms.models.classifier import Classifier, some_examples
from algorithms.models.reading.plain import OperatorMode, PlainOperators
from algorithms.objectives.supervised import Supervised
from export.describe import DEPENDS_ON_BATCH, USE_SHAPE, run_once
from export.lowering import shared
from host.threads import one_thread
from wire.errors import ConfigError

_aten = torch.ops.aten

OPERATORS = frozenset(
    """
    _adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default _fft_r2c.default
    _log_softmax.default _log_softmax_backward_data.default _prelu_kernel.default
    _prelu_kernel_backward.default _softmax.default _softmax_backward_data.default _to_copy.default
    _unsafe_view.default _weight_norm_interface.default _weight_norm_interface_backward.default
    abs.default acos.default adaptive_max_pool2d.default adaptive_max_pool2d_backward.default
    add.Scalar add.Tensor alias.default add_.Scalar add_.Tensor addcdiv.default addcmul.default
    addmm.default all.dim amax.default amin.default any.dim arange.default argmax.default
    asin.default atan.default atan2.default avg_pool2d.default avg_pool2d_backward.default
    baddbmm.default bitwise_and.Tensor bitwise_not.default bitwise_or.Tensor bmm.default cat.default
    ceil.default celu.default channel_shuffle.default clamp.Tensor clamp.default clamp_min.default
    clamp_min_.Tensor clone.default col2im.default constant_pad_nd.default convolution.default
    convolution_backward.default copy_.default cos.default cosh.default cumsum.default
    detach.default diag_embed.default diagonal.default div.Scalar div.Tensor div.Tensor_mode
    div_.Tensor elu.default elu_backward.default embedding.default embedding_dense_backward.default
    empty.memory_format empty_like.default eq.Scalar eq.Tensor erf.default exp.default
    expand.default expm1.default eye.default fill_.Scalar flip.default floor.default
    floor_divide.default full.default gather.default ge.Scalar ge.Tensor gelu.default
    gelu_backward.default glu.default glu_backward.default gt.Scalar gt.Tensor hann_window.default
    hardshrink.default hardshrink_backward.default hardsigmoid.default hardsigmoid_backward.default
    hardswish.default hardswish_backward.default hardtanh.default hardtanh_backward.default
    im2col.default index.Tensor index_add.default index_put.default index_select.default le.Scalar
    le.Tensor leaky_relu.default leaky_relu_backward.default lerp.Scalar lift_fresh.default
    linalg_vector_norm.default linspace.default log.default log10.default log1p.default log2.default
    log_sigmoid_backward.default log_sigmoid_forward.default logical_and.default
    logical_and_.default logical_not.default logical_or.default logit.default logit_backward.default
    logsumexp.default lt.Scalar lt.Tensor masked_fill.Scalar masked_fill_.Scalar max.dim
    max_pool2d_with_indices.default max_pool2d_with_indices_backward.default maximum.default
    mean.default mean.dim min.dim minimum.default mish.default mish_backward.default
    mkldnn_rnn_layer.default mkldnn_rnn_layer_backward.default mm.default mul.Scalar mul.Tensor
    mul_.Tensor mv.default nan_to_num.default native_batch_norm.default
    native_batch_norm_backward.default native_group_norm.default native_group_norm_backward.default
    native_layer_norm.default native_layer_norm_backward.default ne.Scalar ne.Tensor neg.default
    new_full.default new_ones.default new_zeros.default nll_loss_backward.default
    nll_loss_forward.default norm.ScalarOpt_dim ones.default ones_like.default permute.default
    pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal.default reflection_pad1d.default
    reflection_pad1d_backward.default reflection_pad2d.default reflection_pad2d_backward.default
    reflection_pad3d.default reflection_pad3d_backward.default relu.default relu_.default
    remainder.Scalar repeat.default replication_pad1d.default replication_pad1d_backward.default
    replication_pad2d.default replication_pad2d_backward.default replication_pad3d.default
    replication_pad3d_backward.default roll.default rot90.default round.default rsqrt.default
    rsub.Scalar scalar_tensor.default scatter.src scatter.value scatter_add.default select.int
    select_backward.default sgn.default sigmoid.default sigmoid_.default sigmoid_backward.default
    sign.default silu.default silu_backward.default sin.default sinc.default sinh.default
    slice.Tensor slice_backward.default smooth_l1_loss.default smooth_l1_loss_backward.default
    softplus.default softplus_backward.default softshrink.default softshrink_backward.default
    split.Tensor split_with_sizes.default sqrt.default squeeze.default squeeze.dim stack.default
    std.correction sub.Scalar sub.Tensor sub_.Tensor sum.default sum.dim_IntList t.default
    tan.default tanh.default tanh_.default tanh_backward.default threshold.default
    threshold_backward.default topk.default transpose.int transpose_.default tril.default
    triu.default trunc.default unbind.int unfold.default unfold_backward.default unsafe_split.Tensor
    unsqueeze.default upsample_linear1d.default upsample_linear1d_backward.default
    upsample_nearest1d.default upsample_nearest1d_backward.default var.correction
    var_mean.correction view.default where.self zeros.default zeros_like.default
    """.split()  # noqa: SIM905  # a list of strings would fill two hundred lines
)
"""Operators of a training step, gradients included, that are exported for ONNX and ExecuTorch.

They were recorded in graphs that were exported for both (`tests.export.sample_calls`).
"""

WITHOUT_GRADIENT = frozenset(
    """
    _fft_c2r.default as_strided.default fill_.Tensor grid_sampler_2d.default
    prod.dim_int upsample_bicubic2d.default upsample_bilinear2d.default view_as_real.default
    """.split()  # noqa: SIM905  # as above
)
"""Operators that are exported for both in a forward pass whose gradient nothing needs.

They transform the input of the model. Their gradients have operators that devices lack.
"""

ASSIGNMENT = "use torch.cat or torch.where in place of assignments to slices"
"""Code to write where a gradient needs strides that the forward pass of its layer does not."""

SUBSTITUTES: Mapping[str, str] = {
    "_local_scalar_dense": "compute with tensors (torch.where), not with .item(), float(x) or if",
    "nonzero": "use torch.where(condition, x, 0.0)",
    "masked_select": "use torch.where(condition, x, 0.0)",
    "index.": "use slices, index_select or torch.where",
    "index_put": "use torch.where or torch.cat",
    "sort": "use amax, amin or topk",
    "kthvalue": "use amax, amin or topk",
    "median": "use a mean, amax or amin",
    "mode": "use a mean, amax or amin",
    "cummax": "use amax over slices",
    "cummin": "use amin over slices",
    "cumprod": "use torch.exp of the cumsum of logarithms",
    "prod": "use torch.exp of a sum of logarithms",
    "exp2": "use torch.exp(0.6931472 * x)",
    "hypot": "use (x * x + y * y).sqrt()",
    "linalg_": "use a constant matrix that is computed before training",
    "_linalg_": "use a constant matrix that is computed before training",
    "as_strided": "use unfold, or transform the input",
    "_fft_": "use a Conv1d whose weights are sines and cosines, or transform the input",
    "view_as": "use a Conv1d whose weights are sines and cosines, or transform the input",
    "_cdist": "use (a.unsqueeze(2) - b.unsqueeze(1)).square().sum(3)",
    "diagonal": "use (x * torch.eye(n)).sum(1)",
    "bucketize": "use sums of comparisons",
    "searchsorted": "use sums of comparisons",
    "lerp": "use a + weight * (b - a)",
    "aminmax": "use (ids.unsqueeze(-1) == torch.arange(n)).float() for one_hot",
    "adaptive_max_pool": "use MaxPool with a kernel size, or amax",
    "max_pool3d": "use MaxPool2d",
    "avg_pool3d": "use AvgPool2d",
    "upsample": "use repeat_interleave",
    "grid_sampler": "use slices",
    "_trilinear": "use a Linear of each input and their product",
}
"""Code to write in place of an operator, by the beginning of the operator's name."""

CHECKS: Mapping[Any, Callable[..., object]] = {
    _aten.convolution.default: lambda x, weight, bias, *geometry: shared.convolution_geometry(
        weight, *geometry[:4]
    ),
    _aten._adaptive_avg_pool2d.default: shared.adaptive_average_pool,
    _aten.adaptive_max_pool2d.default: shared.adaptive_max_pool,
    _aten.avg_pool2d_backward.default: shared.average_pool_backward,
} | {
    getattr(_aten, f"replication_pad{count}d_backward").default: shared.replication_pad_backward
    for count in (1, 2, 3)
}
"""Functions of an export that refuse arguments of an operator, by the operator."""

BATCHES = (2, 3)
"""Numbers of examples for which the model answers by the same operators."""


@one_thread()
def obstacles(objective: Supervised, window: tuple[int, ...]) -> list[str]:
    """Return the reasons for which devices cannot train an objective's model: layer and operator.

    An empty list means that its graphs can be exported for ONNX and ExecuTorch.

    Args:
        objective: the objective with its model.
        window: shape of an example.
    """
    run = _Run(objective.model)
    with _without_fast_paths(), run.naming_layers(), run:
        for _ in run_once(objective, window, BATCHES[0]):
            pass
    if run.refusals:
        return list(run.refusals)
    first, second = (_answer(objective.model, window, size) for size in BATCHES)
    others = [layer for layer, _ in (first.calls - second.calls) + (second.calls - first.calls)]
    return [f"{_place(layer)}: {DEPENDS_ON_BATCH}. {USE_SHAPE}" for layer in others[:1]]


def _answer(model: Classifier, window: tuple[int, ...], size: int) -> "_Run":
    """Return the record of a model's answer to `size` examples."""
    run = _Run(model)
    x = some_examples(size, window, model.vocabulary)
    plainly = _without_fast_paths(), PlainOperators(), _Lengths(run), run.naming_layers(), run
    with ExitStack() as stack:
        for context in (torch.no_grad(), *plainly):
            stack.enter_context(context)
        model(x)
    return run


@contextmanager
def _without_fast_paths() -> Iterator[None]:
    """Keep torch from the operators that attention has for answers alone, as a trace does."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


class _Run(OperatorMode):
    """Record of a run of graphs: calls of operators by layer, and the refusals of an export."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.calls: Counter[tuple[str, str]] = Counter()
        """Number of forward calls by layer and operator. Layers are named ``name (kind)``."""
        self.refusals: dict[str, None] = {}
        """Texts in order; a dict without values."""
        self._layers = [""]
        self._layer_of_gradient: dict[int, str] = {}
        """Layers by autograd's numbers of their operators, which the gradients' have too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node: Any = torch._C._current_autograd_node()
        if node is None:
            layer = self._layers[-1]
            number = torch._C._autograd._get_sequence_nr() - 1
            self._layer_of_gradient.setdefault(number, layer)
        else:
            layer = self._layer_of(node._sequence_nr())
        name = str(func).removeprefix("aten.")
        draws = torch.Tag.nondeterministic_seeded in func.tags  # `run_once` refuses it
        trains = name in OPERATORS or (node is None and name in WITHOUT_GRADIENT)
        if not trains and not draws:
            assigned = "_strided" in name and not self.calls[layer, "as_strided.default"]
            way = ASSIGNMENT if assigned else _substitute(name)
            self._refuse(layer, f"devices cannot train with the operator {name}; {way}")
        self.calls[layer, name] += node is None
        if check := CHECKS.get(func):
            try:
                with torch.utils._python_dispatch._disable_current_modes():
                    check(*args, **(kwargs or {}))
            except ConfigError as error:
                self._refuse(layer, str(error))
        return func(*args, **(kwargs or {}))

    def _layer_of(self, number: int) -> str:
        """Return the layer of a gradient; that of an assignment is the layer just before it."""
        while number > 0 and number not in self._layer_of_gradient:
            number -= 1
        return self._layer_of_gradient.get(number, "")

    @contextmanager
    def naming_layers(self) -> Iterator[None]:
        """Follow which layer of the model runs."""

        def enter(title: str) -> Callable[..., None]:
            return lambda *_: self._layers.append(title)

        def leave(*_: object) -> None:
            self._layers.pop()

        hooks = []
        for name, layer in self.model.named_modules():
            if name:
                hooks.append(
                    layer.register_forward_pre_hook(enter(f"{name} ({type(layer).__name__})"))
                )
                hooks.append(layer.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def count(self, call: str) -> None:
        """Count a call of the layer that runs."""
        self.calls[self._layers[-1], call] += 1

    def _refuse(self, layer: str, reason: str) -> None:
        self.refusals.setdefault(f"{_place(layer)}: {reason}")


class _Lengths(TorchFunctionMode):
    """Mode that counts ``len(tensor)`` with its value, which is a number and no operator."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is Tensor.__len__:
            self.run.count(f"len {result}")
        return result


def _place(layer: str) -> str:
    return f"layer {layer}" if layer else "the algorithm's objective"


def _substitute(name: str) -> str:
    """Return the code to write instead of an operator."""
    for beginning, code in SUBSTITUTES.items():
        if name.startswith(beginning):
            return code
    return "use another function (docs/models.md says which layers train)"
