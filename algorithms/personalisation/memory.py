"""A device's memory of its windows, and the answers of neighbours among them. Pure torch.

Labels and answers are the rows of `algorithms.personalisation.answers`.

O. Marfoq, G. Neglia, R. Vidal, L. Kameni. Personalized Federated Learning through Local
Memorization. ICML 2022, section 3: a model's probabilities are mixed with those of the nearest
windows of the device in the model's representation. Three things differ here. A window's key is the
mean of its representation over time, with the model's outputs, each in units of its standard
deviation within a class on this device: the same movement a few samples later is near. Every window
has the weight ``exp(-d / SCALE)`` of its mean squared difference d, so that nothing is sorted:
phones have no fast graph for sorting. A window without a label takes part with the answers of the
model and its neighbours (label propagation: D. Zhou et al., NIPS 2003, Eq. 4), and counts less than
one with a label.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.personalisation.answers import CLASSES, Answers
from algorithms.personalisation.kept import WORST
from wire.arrays import names

SCALE = 0.1
"""Mean squared difference of two keys at which a neighbour has the weight 1 / e.

Two windows of one class, drawn at random, differ by 2 on average.
"""
FLOOR = 0.1
"""Share of the mean variance of a key's numbers that is added to the variance of each of them."""
NEAREST = 1e-12
"""Minimum sum of the neighbours' weights; below it, the answer tends to the model's alone."""
SPREAD, TIMES = 0.9, 10
"""Share of an unlabelled window's answer from its neighbours, and number of propagation steps."""
LABELLED = 30.0
"""Weight of a window with a label among neighbours; one without has the weight 1."""
KEYS, UNITS, LABELS, EVIDENCE, SHARE = (
    names.memory(name) for name in ("keys", "units", "labels", "evidence", "share")
)


@dataclass(frozen=True)
class Memory:
    """Windows of a device, in up to M rows; rows without a window are zero.

    `keys` (M, K) are pooled representations with the model's outputs. `guess` (M, width) are the
    model's answers and `labels` (M, width) the known ones, both as rows of `of`. `holdout` (M,) is
    1 for a window that is held out.
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

    @property
    def by_label(self) -> Tensor:
        """True (M,) for each window that has a label and is not held out."""
        return self.has_label & (self.holdout <= 0)

    def num_trained(self) -> Tensor:
        """Return the number () of windows that have labels and are not held out."""
        return self.by_label.to(self.keys.dtype).sum()

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
        filled = self.filled.to(self.keys.dtype).unsqueeze(1)
        others = (rows.unsqueeze(1) != rows).to(self.keys.dtype) * filled
        return neighbours(self.scaled, self.scaled, self.evidence) * others

    @property
    def evidence(self) -> Tensor:
        """Weight (M,) of each window among neighbours, besides its distance; 0 without a window."""
        dtype = self.keys.dtype
        return self.filled.to(dtype) + (LABELLED - 1) * self.has_label.to(dtype)

    @cached_property
    def units(self) -> Tensor:
        """Mean of the keys, and their standard deviation within a class, as two rows (2, K).

        A window without a label, or held out, is of each class in the model's probability. If
        labels are not single classes, all windows are of one.
        """
        filled = self.filled.to(self.keys.dtype).unsqueeze(1)
        shares = filled
        if self.of.by_class:
            by_label = self.by_label.to(filled.dtype).unsqueeze(1)
            shares = by_label * self.labels + (1 - by_label) * self.guess
        count = filled.sum().clamp(min=1.0)
        mean = (filled * self.keys).sum(0) / count
        keys = (self.keys - mean) * filled
        sums, sizes = shares.T @ keys, shares.sum(0).clamp(min=1e-6).unsqueeze(1)
        variance = (keys.square().sum(0) - (sums.square() / sizes).sum(0)).clamp(min=0.0) / count
        return torch.stack([mean, (variance + FLOOR * variance.mean() + 1e-12).sqrt()])

    @cached_property
    def scaled(self) -> Tensor:
        """Keys (M, K) in their units; zero in rows without a window."""
        return in_units(self.keys, self.units) * self.filled.to(self.keys.dtype).unsqueeze(1)

    def smoothed(self, weights: Tensor, has_label: Tensor) -> Tensor:
        """Return a label (M, width) for every window.

        It is the window's label where `has_label` (M,) is true, else a mix of the answers of the
        model and of the neighbours.
        """
        mask = has_label.to(self.keys.dtype).unsqueeze(1)
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
        soft = self.smoothed(weights, self.by_label)
        columns = []
        for share in shares:
            loss = self.of.losses(mixed(self.guess, weights, soft, share, self.of), self.labels)
            columns.append(torch.where(loss <= WORST, loss, WORST) * counted)
        return torch.stack(columns, 1), counted

    def answering(self) -> TorchTensors:
        """Return the tensors in which neighbours are looked up."""
        labels = self.smoothed(self.weights, self.has_label)
        return {KEYS: self.scaled, UNITS: self.units, LABELS: labels, EVIDENCE: self.evidence}


def in_units(keys: Tensor, units: Tensor) -> Tensor:
    """Return keys (n, K) minus their mean, divided by their deviation."""
    return (keys - units[0]) / units[1]


def neighbours(queries: Tensor, keys: Tensor, evidence: Tensor) -> Tensor:
    """Return the weights (n, M) of `keys` (M, K) for each of `queries` (n, K).

    Keys and queries are in units of `in_units`. A weight falls with the distance between query and
    key, and is multiplied by the key's `evidence` (M,).
    """
    sizes = queries.square().mean(1, keepdim=True) + keys.square().mean(1)
    distance = (sizes - 2.0 * (queries @ keys.T) / keys.shape[1]).clamp(min=0.0)
    return torch.exp(-distance / SCALE) * evidence


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


def answer(tensors: TorchTensors, keys: Tensor, guess: Tensor, of: Answers = CLASSES) -> Tensor:
    """Return the answers (n, width) of a device that has this memory.

    `keys` (n, K) and `guess` (n, width) are those of the windows to answer.
    """
    weights = neighbours(in_units(keys, tensors[UNITS]), tensors[KEYS], tensors[EVIDENCE])
    return mixed(guess, weights, tensors[LABELS], tensors[SHARE], of)


def empty(size: int, width: int, num_answers: int) -> TorchTensors:
    """Return an empty memory of `size` rows, with which the model answers alone."""
    return {
        KEYS: torch.zeros(size, width),
        UNITS: torch.stack([torch.zeros(width), torch.ones(width)]),
        LABELS: torch.zeros(size, num_answers),
        EVIDENCE: torch.zeros(size),
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
