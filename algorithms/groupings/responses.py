"""What models respond to the same inputs, and how far their responses are apart (DistFL, section 4.3, Eq. 5 and 6)."""

from collections.abc import Sequence

import numpy as np
import torch

from algorithms.contract import LocalModel, Matrix, Probe
from algorithms.groupings.knowledge import as_torch
from wire.tensors import Array

SMALLEST = 1e-7
"""Probabilities below this count as this: the divergence stays finite when a float32 softmax gives 0."""


def respond(models: Sequence[LocalModel], probe: Probe, inputs: Array) -> Array:
    """V (Eq. 5): the class probabilities of each model for each input, (N, z, classes) float32. A model whose
    numbers overflow answers nothing: every class alike."""
    x = torch.from_numpy(inputs)
    with torch.inference_mode():
        answers = np.stack([probe.run(as_torch(model.tensors), x)[0].numpy() for model in models])
    return np.where(np.isfinite(answers), answers, np.float32(1.0 / answers.shape[2]))


def divergence(responses: Array) -> Matrix:
    """SIM (Eq. 6): D_KL(V_p || V_q), averaged over inputs, (N, N). One matrix product instead of a double loop.

    D_KL(p || q) = sum p log p - sum p log q: the first term needs each model alone, the second is a product of two matrices.
    """
    p = np.maximum(responses.reshape(len(responses), -1).astype(np.float64), SMALLEST)
    log_p = np.log(p)
    own = (p * log_p).sum(1)
    return np.asarray(np.maximum((own[:, None] - p @ log_p.T) / responses.shape[1], 0.0))
