"""Recurrent layers as loops: one node of a graph for all steps of a window, and one for gradients.

Torch's own decomposition has a part for every step, so that the graph of a long window takes
minutes and gigabytes. A loop (`torch.ops.higher_order.scan`) is Scan in ONNX, and jumps in
ExecuTorch.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan_op

from algorithms.models.reading.plain import PlainOperators, linear
from wire.errors import ConfigError

LOOP_FROM = 32
"""Minimum number of steps of a window for which a layer becomes a loop.

For fewer steps, a part for each step is exported as fast, and runs faster.
"""

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _step(mode: str, state: list[Tensor], x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Return the next state, and the activations that the gradients of the step need.

    `x` are the gates' parts of the input (batch, gates * units).
    """
    h = state[0]
    hidden = torch.addmm(bias, h, weight.t())
    if mode == "lstm":
        i, f, g, o = (x + hidden).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        cell = f * state[1] + i * g
        return [o * cell.tanh(), cell, torch.cat([i, f, g, o], 1)]
    if mode == "gru":
        (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, 1), hidden.chunk(3, 1)
        r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        n = (x_n + r * h_n).tanh()
        return [n + z * (h - n), torch.cat([r, z, n], 1), h_n.clone()]
    return [(x + hidden).tanh() if mode == "rnn_tanh" else (x + hidden).relu()]


def _step_back(
    mode: str,
    gradient: list[Tensor],
    before: list[Tensor],
    after: list[Tensor],
    weight: Tensor,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return the gradients of a step by its state, by `x`, and by the hidden part of the gates.

    `before` and `after` are the states, with the activations of the step after these.
    """
    by_h = gradient[0]
    if mode == "lstm":
        cell, activations = after[1:]
        i, f, g, o = activations.chunk(4, 1)
        output = cell.tanh()
        by_cell = gradient[1] + by_h * o * (1 - output * output)
        gates = torch.cat(
            [
                by_cell * g * i * (1 - i),
                by_cell * before[1] * f * (1 - f),
                by_cell * i * (1 - g * g),
                by_h * output * o * (1 - o),
            ],
            1,
        )
        return [gates @ weight, by_cell * f], gates, gates
    if mode == "gru":
        (r, z, n), h_n = after[1].chunk(3, 1), after[2]
        by_n = by_h * (1 - z) * (1 - n * n)
        by_r = by_n * h_n * r * (1 - r)
        by_z = by_h * (before[0] - n) * z * (1 - z)
        hidden = torch.cat([by_r, by_z, by_n * r], 1)
        return [by_h * z + hidden @ weight], torch.cat([by_r, by_z, by_n], 1), hidden
    h = after[0]
    gates = by_h * (1 - h * h) if mode == "rnn_tanh" else by_h * (h > 0).to(h.dtype)
    return [gates @ weight], gates, gates


class _Loop(torch.autograd.Function):
    """All steps of one layer in one direction, with gradients."""

    generate_vmap_rule = False

    @staticmethod
    def forward(
        mode: str, x: Tensor, weight: Tensor, bias: Tensor, *start: Tensor
    ) -> tuple[Tensor, ...]:
        count = len(start)

        def step(*parts: Tensor) -> list[Tensor]:
            *state, x_now, w, b = parts
            results = _step(mode, state, x_now, w, b)
            return [*(r.clone() for r in results[:count]), *results]

        return tuple(scan_op(step, list(start), [x], (weight, bias))[count:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mode, _, weight, bias, *start = inputs
        ctx.count = len(start)
        ctx.save_for_backward(weight, bias, *start, *output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, _, *saved = ctx.saved_tensors
        start, after = saved[: ctx.count], saved[ctx.count :]
        before = [torch.cat([s.unsqueeze(0), a[:-1]]) for s, a in zip(start, after, strict=False)]
        by_x, by_hidden, *by_start = _LoopBack.apply(
            ctx.mode, ctx.count, weight, *gradients[: ctx.count], *before, *after
        )
        rows = by_hidden.flatten(0, 1)
        return (None, by_x, rows.t() @ before[0].flatten(0, 1), rows.sum(0), *by_start)


class _LoopBack(torch.autograd.Function):
    """Gradients of all steps, from the last one to the first."""

    generate_vmap_rule = False

    @staticmethod
    def forward(mode: str, count: int, weight: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        def step(*parts: Tensor) -> list[Tensor]:
            *values, w = parts
            carried, now, before, after = (
                values[:count],
                values[count : 2 * count],
                values[2 * count : 3 * count],
                values[3 * count :],
            )
            arriving = [c + n for c, n in zip(carried, now, strict=True)]
            by_state, by_x, by_hidden = _step_back(mode, arriving, before, after, w)
            return [*by_state, by_x.clone(), by_hidden.clone()]

        start = [torch.zeros_like(gradient[0]) for gradient in tensors[:count]]
        results = scan_op(step, start, [t.flip(0) for t in tensors], (weight,))
        return (results[count].flip(0), results[count + 1].flip(0), *results[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        raise ConfigError(
            f"A recurrent layer over {LOOP_FROM} steps or more has no second derivatives on "
            "devices. Use an objective without them, or fewer steps."
        )


def _layer(mode: str, x: Tensor, start: list[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the states of all steps (steps, batch, units) of a layer in one direction."""
    w_input, w_hidden = weights[:2]
    b_input, b_hidden = weights[2:] or (None, w_hidden.new_zeros(len(w_hidden)))
    gates = linear(x, w_input, b_input)
    return list(_Loop.apply(mode, gates, w_hidden, b_hidden, *start)[: len(start)])


def _recurrent(
    mode: str,
    plain: Any,
    x: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Return the result of torch's function, which is `plain` for inputs without a loop."""
    each = (4 if has_biases else 2) * (1 + bidirectional) * num_layers
    if x.dim() != 3 or len(weights) != each or x.shape[int(batch_first)] < LOOP_FROM:
        options = (has_biases, num_layers, dropout, training, bidirectional, batch_first)
        answer: tuple[Tensor, ...] = plain(x, states, weights, *options)
        return answer
    x = x.transpose(0, 1) if batch_first else x
    starts, per = (list(states) if mode == "lstm" else [states]), 4 if has_biases else 2
    last = []
    for number in range(num_layers):
        sides = []
        for direction in range(1 + bidirectional):
            at = number * (1 + bidirectional) + direction
            results = _layer(
                mode,
                x.flip(0) if direction else x,
                [state[at] for state in starts],
                weights[at * per : (at + 1) * per],
            )
            last.append([values[-1] for values in results])
            sides.append(results[0].flip(0) if direction else results[0])
        x = torch.cat(sides, 2) if bidirectional else sides[0]
    ended = [torch.stack(values) for values in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *ended)


def _looped(mode: str, plain: Any) -> Any:
    return lambda *args: _recurrent(mode, plain, *args)


class ExportedOperators(PlainOperators):
    """Mode of a capture: plain operators, and recurrent layers as loops."""

    operators: ClassVar[dict[Any, Callable[..., Any]]] = {
        **PlainOperators.operators,
        **{getattr(torch, mode): _looped(mode, getattr(torch, mode)) for mode in GATES},
    }
