"""What models respond to the same inputs, and how far their responses are apart (DistFL, section
4.3, Eq. 5 and 6)."""

from collections.abc import Sequence

import numpy as np
import torch

from algorithms.core.contract import LocalModel, Matrix, Probe
from algorithms.groupings.knowledge import as_torch
from wire.arrays.tensors import Array

FEW = 256
"""Up to so many models answer as they are, without any rearrangement of their arithmetic."""
SMALLEST = 1e-7
"""Probabilities below this count as this: the divergence stays finite when a float32 softmax gives
0."""


def respond(models: Sequence[LocalModel], probe: Probe, inputs: Array) -> Array:
    """V (Eq. 5): the class probabilities of each model for each input, (N, z, classes) float32. A
    model whose numbers overflow answers nothing: every class alike.

    More than FEW models are asked by the probe's arithmetic where it can, else with their BatchNorm
    layers folded, where the probe can: ten and four times as fast, the same within rounding. With
    torch one model at a time: on a CPU neither grouped convolutions nor `torch.vmap` over models
    are faster.
    """
    answers = None
    if len(models) > FEW and probe.network:
        answers = probe.arithmetic.probabilities(
            probe.network, [model.tensors for model in models], inputs
        )
    if answers is None:
        answers = _ask_each(models, probe, inputs)
    return np.where(np.isfinite(answers), answers, np.float32(1.0 / answers.shape[2]))


def _ask_each(models: Sequence[LocalModel], probe: Probe, inputs: Array) -> Array:
    x = torch.from_numpy(inputs)
    ask = (probe.predict_folded if len(models) > FEW else probe.predict) or (
        lambda tensors, x: probe.run(tensors, x)[0]
    )
    with torch.inference_mode():
        first = ask(as_torch(models[0].tensors), x).numpy()
        answers = np.empty((len(models), *first.shape), np.float32)
        for row, model in zip(answers, models, strict=True):
            row[:] = ask(as_torch(model.tensors), x).numpy()
    return answers


def divergence(responses: Array) -> Matrix:
    """SIM (Eq. 6): D_KL(V_p || V_q), averaged over inputs, (N, N). One matrix product instead of a
    double loop.

    D_KL(p || q) = sum p log p - sum p log q: the first term needs each model alone, the second is a
    product of two matrices.
    """
    p, log_p = _with_log(responses)
    own = (p * log_p).sum(1)
    return np.asarray(np.maximum((own[:, None] - p @ log_p.T) / responses.shape[1], 0.0))


def divergence_to(responses: Array, centres: Array) -> Matrix:
    """D_KL(V_p || C_q) + D_KL(C_q || V_p), averaged over inputs, for responses (N, z, classes) and
    centres (k, z, classes): (N, k)."""
    (p, log_p), (c, log_c) = _with_log(responses), _with_log(centres)
    own = (p * log_p).sum(1)[:, None] + (c * log_c).sum(1)
    return np.asarray(np.maximum((own - p @ log_c.T - log_p @ c.T) / responses.shape[1], 0.0))


def _with_log(responses: Array) -> tuple[Matrix, Matrix]:
    p = np.maximum(responses.reshape(len(responses), -1).astype(np.float64), SMALLEST)
    return p, np.log(p)
