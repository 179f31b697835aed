"""What every objective for classification shares: initial tensors, evaluation, prediction."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.contract import TorchTensors, functional
from algorithms.probe import watch_norms


def initial_tensors(model: nn.Module) -> TorchTensors:
    """Parameters as ``shared/NAME`` and BatchNorm's running statistics as ``statistic/NAME``.

    Buffers that training does not change (a fixed input scaling) are no tensors of the bundle: they are constants of its graphs.
    """
    shared = {f"shared/{name}": p.detach().clone() for name, p in model.named_parameters()}
    return shared | {f"statistic/{name}": b.clone() for name, b in model.named_buffers() if name.endswith(("running_mean", "running_var"))}


def batch_metrics(logits: Tensor, y: Tensor, loss_sum: Tensor) -> TorchTensors:
    """``loss_sum`` and ``num_correct`` of a batch, float32 scalars."""
    return {"loss_sum": loss_sum, "num_correct": (logits.argmax(1) == y).to(torch.float32).sum()}


class Supervised:
    """Evaluation and prediction of a plain classifier; objectives add the step."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def initial(self) -> TorchTensors:
        return initial_tensors(self.model)

    def evaluate(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        logits, _ = functional(self.model, tensors, batch["x"], training=False)
        return batch_metrics(logits, batch["y"], F.cross_entropy(logits, batch["y"], reduction="sum"))

    def predict(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        logits, _ = functional(self.model, tensors, x, training=False)
        return torch.softmax(logits, dim=1)

    def survey(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        last = [k for k, v in tensors.items() if k.startswith("shared/") and v.dim() == 2][-1]

        def loss_of(weight: Tensor) -> tuple[Tensor, TorchTensors]:
            with watch_norms(self.model) as met:
                logits, _ = functional(self.model, {**tensors, last: weight}, batch["x"], training=True)
            seen = {f"{kind}.{layer}": value for layer, pair in met.items() for kind, value in zip(("mean", "variance"), pair, strict=True)}
            return F.cross_entropy(logits, batch["y"], reduction="sum"), seen

        gradient, seen = torch.func.grad(loss_of, has_aux=True)(tensors[last])
        size = batch["x"].shape[0]
        return {name: value * size for name, value in seen.items()} | {"gradient": gradient}
