"""What a device remembers of its own windows: their representations and labels, and how neighbours
among them answer; pure torch.

Labels and answers are rows, as `algorithms.personalisation.answers` has them for each task.

O. Marfoq, G. Neglia, R. Vidal, L. Kameni. Personalized Federated Learning through Local
Memorization. ICML 2022, section 3: a model's probabilities are mixed with those of the nearest
windows of the device in the model's own representation. Two things differ here. Representations
have length 1, and every window counts by ``exp(-d / SCALE)`` of its squared distance d, which
leaves out sorting: graphs of phones have no fast one. A window without a label takes part with what
the model and its neighbours say of it (label propagation: D. Zhou et al., NIPS 2003, Eq. 4).
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
"""The squared distance, between representations of length 1, at which a neighbour counts 1 / e as
much as one at distance 0."""
NEAREST = 1e-12
"""Where all neighbours together count less than this, there are none: the model answers alone."""
SPREAD, TIMES = 0.5, 10
"""How much a window without a label takes from its neighbours, and how many times it asks them."""
KEYS, LABELS, SHARE = (names.memory(name) for name in ("keys", "labels", "share"))


@dataclass(frozen=True)
class Memory:
    """`keys` (M, K) of length 1, `guess` (M, width) what the model answers, `labels` (M, width)
    what is known, both as rows of `of`, `held` (M,) 1 for a window that is held out. Rows that hold
    no window are zero."""

    keys: Tensor
    guess: Tensor
    labels: Tensor
    held: Tensor
    of: Answers = CLASSES

    @property
    def filled(self) -> Tensor:
        """(M,) whether the row holds a window."""
        return self.of.weight(self.guess) > 0

    @property
    def known(self) -> Tensor:
        """(M,) whether the window has a label."""
        return self.of.weight(self.labels) > 0

    @property
    def finite(self) -> Tensor:
        """() whether the model answers with numbers."""
        total = self.guess.sum()
        return (total - total) == 0

    def num_trained(self) -> Tensor:
        """() how many windows have labels and are not held out."""
        return (self.known & (self.held <= 0)).to(self.keys.dtype).sum()

    def elsewhere(self) -> Tensor:
        """() the share of the windows without labels that is, by the model, of classes of which no
        window has a label; 0 where all windows have labels, or none has, and where a label is not
        one of the classes. 1 where all labels are of one class: they cannot tell a good training
        from one that always answers with it."""
        if not self.of.by_class:
            return torch.zeros(())
        without = (self.filled & ~self.known).to(self.keys.dtype)
        absent = (self.labels.sum(0) <= 0).to(self.keys.dtype)
        share = (without * (self.guess @ absent)).sum() / without.sum().clamp(min=1.0)
        present = (1 - absent).sum()
        return torch.where(
            present == 1, torch.ones_like(share), share * (present > 0).to(share.dtype)
        )

    @cached_property
    def weights(self) -> Tensor:
        """How much each window (column) counts for each other one (row), (M, M); a window does not
        count for itself."""
        rows = torch.arange(self.keys.shape[0])
        filled = self.filled.to(self.keys.dtype)
        others = (rows.unsqueeze(1) != rows).to(self.keys.dtype) * filled.unsqueeze(1)
        return neighbours(self.keys, self.keys, filled) * others

    def smoothed(self, weights: Tensor, known: Tensor) -> Tensor:
        """A label (M, width) for every window: its own where it is `known` (M,), else what the
        model and its neighbours say."""
        own = known.to(self.keys.dtype).unsqueeze(1)
        shares = (1 - own) * SPREAD * normalised(weights)
        fixed = own * self.labels + (1 - own) * (1 - SPREAD) * self.guess
        soft = own * self.labels + (1 - own) * self.guess
        for _ in range(TIMES):
            soft = fixed + shares @ soft
        return soft

    def losses(self, shares: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """The loss (M, len(shares)) of the held-out windows with labels, as if these labels were
        not known, for each share of the neighbours in the answer; and (M,) 1 for each of these
        windows. Other rows are zero. Losses are cut off at `WORST`, which an answer that is no
        number has."""
        known = self.known
        counted = ((self.held > 0) & known).to(self.keys.dtype)
        weights = self.weights * (1 - counted)  # they do not help each other
        soft = self.smoothed(weights, known & (self.held <= 0))
        columns = []
        for share in shares:
            loss = self.of.losses(mixed(self.guess, weights, soft, share, self.of), self.labels)
            columns.append(torch.where(loss <= WORST, loss, WORST) * counted)
        return torch.stack(columns, 1), counted

    def answering(self) -> TorchTensors:
        """What neighbours are looked up in: the representations, and a label for each window."""
        return {KEYS: torch.clone(self.keys), LABELS: self.smoothed(self.weights, self.known)}


def unit(features: Tensor) -> Tensor:
    """Representations (n, K) with length 1."""
    return features / features.square().sum(1, keepdim=True).clamp(min=1e-12).sqrt()


def neighbours(queries: Tensor, keys: Tensor, filled: Tensor) -> Tensor:
    """How much each of `keys` (M, K) counts for each of `queries` (n, K), (n, M); a row that is not
    `filled` (M,) does not."""
    distance = (2.0 - 2.0 * (queries @ keys.T)).clamp(min=0.0)
    return torch.exp(-distance / SCALE) * filled


def normalised(weights: Tensor) -> Tensor:
    """Weights (n, M) that add up to 1, or to less where they are very small."""
    return weights / weights.sum(1, keepdim=True).clamp(min=NEAREST)


def mixed(
    guess: Tensor, weights: Tensor, labels: Tensor, share: Tensor | float, of: Answers = CLASSES
) -> Tensor:
    """The answer (n, width): `share` of it by the neighbours, the rest, and what they leave, by the
    model."""
    near = normalised(weights) @ labels
    part = share * of.weight(near).unsqueeze(1)
    return share * near + (1 - part) * guess


def answer(tensors: TorchTensors, features: Tensor, guess: Tensor, of: Answers = CLASSES) -> Tensor:
    """What a device answers that has this memory: rows (n, width) from the model's representations
    (n, K) and its answers (n, width)."""
    labels = tensors[LABELS]
    weights = neighbours(unit(features), tensors[KEYS], (of.weight(labels) > 0).to(features.dtype))
    return mixed(guess, weights, labels, tensors[SHARE], of)


def empty(size: int, width: int, num_answers: int) -> TorchTensors:
    """The memory of a device that has none, of rows of so many numbers: with it, the model answers
    alone."""
    return {
        KEYS: torch.zeros(size, width),
        LABELS: torch.zeros(size, num_answers),
        SHARE: torch.zeros(()),
    }


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
