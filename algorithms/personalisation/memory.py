"""A device's memory of its windows, and the answers of neighbours among them. Pure torch.

Labels and answers are the rows of `algorithms.personalisation.answers`.

O. Marfoq, G. Neglia, R. Vidal, L. Kameni. Personalized Federated Learning through Local
Memorization. ICML 2022, section 3: a model's probabilities are mixed with those of the nearest
windows of the device in the model's representation. Two things differ here. Representations have
length 1, and every window has the weight ``exp(-d / SCALE)`` of its squared distance d, so that
nothing is sorted: phones have no fast graph for sorting. A window without a label takes part with
the answers of the model and its neighbours (label propagation: D. Zhou et al., NIPS 2003, Eq. 4).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.personalisation.answers import CLASSES, Answers
from algorithms.personalisation.kept import WORST
from wire.arrays import names

SCALE = 0.03
"""Squared distance at which a neighbour has the weight 1 / e, for representations of length 1."""
NEAREST = 1e-12
"""Minimum sum of the neighbours' weights; below it, the answer tends to the model's alone."""
SPREAD, TIMES = 0.5, 10
"""Share of an unlabelled window's answer from its neighbours, and number of propagation steps."""
KEYS, LABELS, SHARE = (names.memory(name) for name in ("keys", "labels", "share"))


@dataclass(frozen=True)
class Memory:
    """Windows of a device, in up to M rows; rows without a window are zero.

    `keys` (M, K) are representations of length 1. `guess` (M, width) are the model's answers and
    `labels` (M, width) the known ones, both as rows of `of`. `holdout` (M,) is 1 for a window that
    is held out.
    """

    keys: Tensor
    guess: Tensor
    labels: Tensor
    holdout: Tensor
    of: Answers = CLASSES

    @property
    def filled(self) -> Tensor:
        """True (M,) for each row that holds a window."""
        return self.of.weight(self.guess) > 0

    @property
    def has_label(self) -> Tensor:
        """True (M,) for each window that has a label."""
        return self.of.weight(self.labels) > 0

    @property
    def finite(self) -> Tensor:
        """True () if the model's answers are finite."""
        total = self.guess.sum()
        return (total - total) == 0

    def num_trained(self) -> Tensor:
        """Return the number () of windows that have labels and are not held out."""
        return (self.has_label & (self.holdout <= 0)).to(self.keys.dtype).sum()

    def elsewhere(self) -> Tensor:
        """Return the share () of the unlabelled windows in classes of which no window has a label.

        The model guesses their classes. The share is 0 if all windows have labels, if none has, or
        if labels are not single classes. It is 1 if all labels are of one class: they cannot tell a
        good training from one that always answers with this class.
        """
        if not self.of.by_class:
            return torch.zeros(())
        without = (self.filled & ~self.has_label).to(self.keys.dtype)
        absent = (self.labels.sum(0) <= 0).to(self.keys.dtype)
        share = (without * (self.guess @ absent)).sum() / without.sum().clamp(min=1.0)
        present = (1 - absent).sum()
        return torch.where(
            present == 1, torch.ones_like(share), share * (present > 0).to(share.dtype)
        )

    @cached_property
    def weights(self) -> Tensor:
        """Weights (M, M) of each window (column) for each other one (row); 0 for itself."""
        rows = torch.arange(self.keys.shape[0])
        filled = self.filled.to(self.keys.dtype)
        others = (rows.unsqueeze(1) != rows).to(self.keys.dtype) * filled.unsqueeze(1)
        return neighbours(self.keys, self.keys, filled) * others

    def smoothed(self, weights: Tensor, known: Tensor) -> Tensor:
        """Return a label (M, width) for every window.

        It is the window's label if it is `known` (M,), or else a mix of the answers of the model
        and of the neighbours.
        """
        mask = known.to(self.keys.dtype).unsqueeze(1)
        shares = (1 - mask) * SPREAD * normalised(weights)
        fixed = mask * self.labels + (1 - mask) * (1 - SPREAD) * self.guess
        soft = mask * self.labels + (1 - mask) * self.guess
        for _ in range(TIMES):
            soft = fixed + shares @ soft
        return soft

    def losses(self, shares: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """Return the losses (M, len(shares)) of labelled held-out windows, and 1 (M,) for each.

        There is a loss for each share of the neighbours in the answer, computed as if these labels
        were not known. Other rows are zero. Losses are limited to `WORST`, which is also the loss
        of an answer that is not finite.
        """
        has_label = self.has_label
        counted = ((self.holdout > 0) & has_label).to(self.keys.dtype)
        weights = self.weights * (1 - counted)  # held-out windows are not used as neighbours
        soft = self.smoothed(weights, has_label & (self.holdout <= 0))
        columns = []
        for share in shares:
            loss = self.of.losses(mixed(self.guess, weights, soft, share, self.of), self.labels)
            columns.append(torch.where(loss <= WORST, loss, WORST) * counted)
        return torch.stack(columns, 1), counted

    def answering(self) -> TorchTensors:
        """Return the tensors in which neighbours are looked up: representations and labels."""
        return {KEYS: torch.clone(self.keys), LABELS: self.smoothed(self.weights, self.has_label)}


def unit(features: Tensor) -> Tensor:
    """Return representations (n, K) scaled to length 1."""
    return features / features.square().sum(1, keepdim=True).clamp(min=1e-12).sqrt()


def neighbours(queries: Tensor, keys: Tensor, filled: Tensor) -> Tensor:
    """Return the weights (n, M) of `keys` (M, K) for each of `queries` (n, K).

    Rows that are not `filled` (M,) have the weight 0.
    """
    distance = (2.0 - 2.0 * (queries @ keys.T)).clamp(min=0.0)
    return torch.exp(-distance / SCALE) * filled


def normalised(weights: Tensor) -> Tensor:
    """Return weights (n, M) that add up to 1, or to less if they are very small."""
    return weights / weights.sum(1, keepdim=True).clamp(min=NEAREST)


def mixed(
    guess: Tensor, weights: Tensor, labels: Tensor, share: Tensor | float, of: Answers = CLASSES
) -> Tensor:
    """Return the answers (n, width): `share` by the neighbours, the rest by the model.

    The model also gets the weight that neighbours do not use.
    """
    near = normalised(weights) @ labels
    part = share * of.weight(near).unsqueeze(1)
    return share * near + (1 - part) * guess


def answer(tensors: TorchTensors, features: Tensor, guess: Tensor, of: Answers = CLASSES) -> Tensor:
    """Return the answers (n, width) of a device that has this memory.

    `features` (n, K) are the model's representations and `guess` (n, width) its answers.
    """
    labels = tensors[LABELS]
    weights = neighbours(unit(features), tensors[KEYS], (of.weight(labels) > 0).to(features.dtype))
    return mixed(guess, weights, labels, tensors[SHARE], of)


def empty(size: int, width: int, num_answers: int) -> TorchTensors:
    """Return an empty memory of `size` rows, with which the model answers alone."""
    return {
        KEYS: torch.zeros(size, width),
        LABELS: torch.zeros(size, num_answers),
        SHARE: torch.zeros(()),
    }


@dataclass(frozen=True)
class Scores:
    """Losses of a device's windows, for tasks without neighbours; rows without a window are zero.

    `loss` (M,) is by the task, `has_label` (M,) is 1 for a window that has a label or needs none,
    `holdout` (M,) is 1 for a window that is held out.
    """

    loss: Tensor
    has_label: Tensor
    holdout: Tensor

    @property
    def finite(self) -> Tensor:
        """True () if the model's losses are finite."""
        total = self.loss.sum()
        return (total - total) == 0

    def num_trained(self) -> Tensor:
        """Return the number () of windows that count in `has_label` and are not held out."""
        return ((self.has_label > 0) & (self.holdout <= 0)).to(self.loss.dtype).sum()

    def elsewhere(self) -> Tensor:
        """Return 0, because labels are not single classes of windows."""
        return torch.zeros(())

    def losses(self, shares: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """Return the losses (M, len(shares)) of held-out windows, and 1 (M,) for each of them.

        Losses are the same for each share. They are limited to `WORST`, which is also the loss of a
        window whose loss is not finite.
        """
        counted = ((self.holdout > 0) & (self.has_label > 0)).to(self.loss.dtype)
        loss = torch.where(self.loss <= WORST, self.loss, WORST) * counted
        return torch.stack([loss] * len(shares), 1), counted

    def answering(self) -> TorchTensors:
        """Return no tensors: the model answers alone."""
        return {}
