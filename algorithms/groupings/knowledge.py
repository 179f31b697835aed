"""Distribution knowledge: inputs that reproduce the statistics of a model's BatchNorm layers.

B. Liu, Y. Cai, Z. Zhang, Y. Li, L. Wang, D. Li, Y. Guo, X. Chen. DistFL: Distribution-aware
Federated Learning for Mobile Scenarios. IMWUT 5(4), 2021, section 4.2. Legend: z inputs
(`num_inputs`), E % of the channels of each BatchNorm layer with the largest scaling factor
(`channel_share`), mu_i and sigma_i^2 the mean and variance at the input of layer i (Eq. 2, 4).
"""

from collections.abc import Collection

import numpy as np
import torch

from algorithms.core.contract import Probe, TorchTensors
from algorithms.optimizers.adam import Adam
from algorithms.spec import WithOptions, option
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors


class Extraction(WithOptions):
    """Settings of the extraction.

    z and E are the paper's (section 5.1.5). The paper names no optimizer: Adam and its rate are
    this code's choice.
    """

    num_inputs: int = option(200, "inputs that are made", low=1)
    channel_share: float = option(0.5, "channels of each BatchNorm layer that count", low=0, high=1)
    iterations: int = option(60, "steps from noise to the inputs", low=0)
    lr: float = option(0.1, "learning rate of these steps", low=0)


def as_torch(tensors: Tensors) -> TorchTensors:
    """Return server tensors as torch tensors that share their memory."""
    return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in tensors.items()}


def plain_noise(probe: Probe, num_inputs: int, seed: int) -> Array:
    """Return standard normal inputs (z, \\*input_shape) float32.

    They are the start of the extraction, and the paper's ablation (Fig. 6, left).
    """
    rng = np.random.default_rng(seed)
    return rng.standard_normal((num_inputs, *probe.input_shape)).astype(np.float32)


def fitted_layers(model: Collection[str], probe: Probe) -> list[str]:
    """Return the BatchNorm layers (``ROLE/NAME``) with running statistics in a model's tensors.

    Frozen layers have none there.
    """
    return [
        layer
        for layer in probe.norm_layers
        if names.statistic(f"{layer}.{names.RUNNING_MEAN}") in model
    ]


def extract_knowledge(
    model: Tensors, probe: Probe, settings: Extraction, seed: int
) -> tuple[Array, list[float]]:
    """Descend Eq. 4 from noise, and return the inputs and the objective after each iteration.

    The inputs are (z, \\*input_shape) float32.

    Raises:
        ValueError: the model has no BatchNorm layer, so that there is nothing to fit.
    """
    if not (layers := fitted_layers(model, probe)):
        raise ValueError(
            "the model has no BatchNorm layer: DistFL's knowledge cannot be extracted from it"
        )
    tensors = as_torch(model)
    targets = []
    for layer in layers:
        mean, variance = (
            tensors[names.statistic(f"{layer}.{n}")]
            for n in (names.RUNNING_MEAN, names.RUNNING_VAR)
        )
        scale = tensors.get(names.shared(f"{layer}.weight"), torch.ones_like(mean)).abs()
        chosen = torch.topk(scale, max(1, round(settings.channel_share * len(scale)))).indices
        targets.append((probe.norm_layers.index(layer), chosen, mean[chosen], variance[chosen]))
    adam = Adam(lr=settings.lr)  # importing torch.optim would load torch's compiler, 1.6 s
    hyper = {name: torch.tensor(value) for name, value in adam.hyper.items()}
    inputs = torch.from_numpy(plain_noise(probe, settings.num_inputs, seed))
    state = {names.X: inputs} | adam.slots(names.X, inputs)
    losses: list[float] = []
    for _ in range(settings.iterations):
        inputs = state[names.X].requires_grad_()
        _, statistics = probe.run(tensors, inputs)
        loss = torch.zeros(())
        for position, chosen, running_mean, running_var in targets:
            mean, variance = statistics[position]
            loss = (
                loss
                + (mean[chosen] - running_mean).norm()
                + (variance[chosen] - running_var).norm()
            )
        (gradient,) = torch.autograd.grad(loss, inputs)
        with torch.no_grad():
            state |= adam.move(names.X, gradient, state, hyper, hyper["lr"])
        losses.append(float(loss.detach()))
    return state[names.X].numpy(), losses
