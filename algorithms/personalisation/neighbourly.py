"""What a device remembers of its windows: by neighbours, where a window has one representation and
one label, and by scores alone, where it has not."""

from typing import ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.objectives.supervised import Pass
from algorithms.personalisation.answers import ANSWERS, Answers
from algorithms.personalisation.keeping import Keeping
from algorithms.personalisation.memory import SHARE, Memory, Scores, answer, empty, unit
from wire.arrays import names
from wire.tasks import NO_LABEL, RECONSTRUCTION


class ByNeighbours(Keeping):
    """Remembers the representation, the answer and the label of each window, and answers by
    neighbours among them too."""

    replaces = (*Keeping.replaces, "has_memory", "predict")
    has_memory: ClassVar[bool] = True

    @property
    def answers(self) -> Answers:
        """What answers and labels are in the task."""
        return ANSWERS[self.whole.task.of]

    def no_memory(self) -> TorchTensors:
        model = self.model
        return empty(self.memory_size, model.num_features, model.num_classes + self.answers.columns)

    def rows_of(self, made: Pass, batch: TorchTensors) -> TorchTensors:
        labels = self.label_rows(batch).to(made.logits.dtype)
        return {
            "keys": unit(made.features),
            "guess": self.answers.guess(made.logits),
            "labels": labels,
        }

    def known(self, batch: TorchTensors) -> Tensor:
        return self.answers.weight(self.label_rows(batch))

    def label_rows(self, batch: TorchTensors) -> Tensor:
        """The rows (batch, width) of the labels."""
        return self.answers.labels(self.whole.target(batch), self.model.num_classes)

    def memorised(self, tensors: TorchTensors) -> Memory:
        keys, guess, labels, held = (
            tensors[names.response("memorise", name)]
            for name in ("keys", "guess", "labels", "held")
        )
        return Memory(keys, guess, labels, held.squeeze(1), self.answers)

    def assess(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        return self.answers.metrics(
            self._mixed(tensors, batch["x"]), self.whole.task, self.whole.target(batch)
        )

    def predict(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        return self.answers.told(self._mixed(tensors, x), self.whole.task, self.model.scale(x))

    def _mixed(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        """The rows (batch, width) of what the device answers."""
        made = self.whole.answer(tensors, x)
        return answer(tensors, made.features, self.answers.guess(made.logits), self.answers)


class ByScores(Keeping):
    """Remembers how well a model does on each window, and keeps a model alone: steps of a window
    have a representation each, and a window that is given back has no label."""

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
