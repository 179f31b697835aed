"""What a device keeps where it has no neighbours to look up: steps of a window have a
representation each, and a window that is given back has no label. It remembers how well a model
does on each of its windows, and keeps a model alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.objectives.supervised import Pass
from algorithms.personalisation.keeping import Keeping
from algorithms.personalisation.kept import WORST
from algorithms.personalisation.memory import SHARE
from wire.arrays import names
from wire.tasks import NO_LABEL, RECONSTRUCTION


@dataclass(frozen=True)
class Scores:
    """`loss` (M,) of each window by the task, `known` (M,) 1 for one that has a label or needs
    none, `held` (M,) 1 for one that is held out. Rows that hold no window are zero."""

    loss: Tensor
    known: Tensor
    held: Tensor

    @property
    def finite(self) -> Tensor:
        """() whether the model's losses are numbers."""
        total = self.loss.sum()
        return (total - total) == 0

    def num_trained(self) -> Tensor:
        """() how many windows are known and not held out."""
        return ((self.known > 0) & (self.held <= 0)).to(self.loss.dtype).sum()

    def num_held(self) -> Tensor:
        """() how many windows are held out."""
        return self.held.sum()

    def elsewhere(self) -> Tensor:
        """0: labels are not one class of each window."""
        return torch.zeros(())

    def losses(self, shares: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """The losses (M, len(shares)) of the windows held out, the same for each share, and (M,) 1
        for each of these windows. Losses are cut off at `WORST`, which one that is no number has
        too."""
        counted = ((self.held > 0) & (self.known > 0)).to(self.loss.dtype)
        loss = torch.where(self.loss <= WORST, self.loss, WORST) * counted
        return torch.stack([loss] * len(shares), 1), counted

    def answering(self) -> TorchTensors:
        """Nothing: the model answers alone."""
        return {}


class ByScores(Keeping):
    """Remembers the loss of each window."""

    def no_memory(self) -> TorchTensors:
        return {SHARE: torch.zeros(())}

    def rows_of(self, made: Pass, batch: TorchTensors) -> TorchTensors:
        loss = self.whole.task.measured(made.logits, self.whole.target(batch))
        return {"loss": loss.unsqueeze(1), "known": self.known(batch).unsqueeze(1)}

    def known(self, batch: TorchTensors) -> Tensor:
        if self.whole.task.of == RECONSTRUCTION:
            return torch.ones_like(batch["count"])
        return (self.whole.target(batch) != NO_LABEL).any(1).to(batch["count"].dtype)

    def memorised(self, tensors: TorchTensors) -> Scores:
        return Scores(
            *(
                tensors[names.response("memorise", name)].squeeze(1)
                for name in ("loss", "known", "held")
            )
        )

    def assess(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        return self.whole.evaluate(tensors, batch)
