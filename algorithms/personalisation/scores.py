"""What a device keeps where it has no neighbours to look up: steps of a window have a
representation each, and a window that is given back has no label. It remembers how well a model
does on each of its windows, and keeps a model alone."""

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.objectives.supervised import Pass
from algorithms.personalisation.keeping import Keeping
from algorithms.personalisation.memory import SHARE, Scores
from wire.arrays import names
from wire.tasks import NO_LABEL, RECONSTRUCTION


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
