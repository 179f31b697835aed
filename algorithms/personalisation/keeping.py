"""What a device keeps when a run is over: it makes candidates of its group's model, and keeps the
one that serves its own windows best.

The candidates are made one after the other, by verbs that every client has:

1. ``glance``, ``gauge`` and ``recalibrate``: BatchNorm's statistics are estimated anew on the
   windows of the device, labelled or not (Y. Li et al., Adaptive Batch Normalization, Pattern
   Recognition 2018), as far as there are enough of them, and of various classes: the statistics of
   one activity alone are not those of all that the device will meet. What a window without a label
   is of, the model says (``glance``).
2. ``memorise`` and ``baseline``: the device remembers its windows, see
   `algorithms.personalisation.memory`.
3. The objective's own training, on the windows that are not held out, and ``blend``: the model
   three quarters of the way from the one before training to the one after it (M. Wortsman et al.,
   Robust Fine-Tuning of Zero-Shot Models, CVPR 2022), or half of the way where nothing is held out
   to judge it by.
4. ``memorise`` again, and ``choose``.

What is remembered of a window goes by the task (`ByScores` where it has no neighbours).

A candidate is a model, and a share of the device's neighbours in its answer. The choice goes
through the candidates in their order, and takes the first one that is not worse than the best by
more than so many standard errors of the difference, and by no more than `BEYOND`, over the windows
held out. These have been trained on in earlier rounds and flatter candidates that trust the model,
which is why three standard errors are asked for. With too few windows to judge by, the recipe names
the candidate that is kept. A training whose model no longer answers with numbers has no candidate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import GraphFunction, TorchTensors
from algorithms.core.functional import functional
from algorithms.core.probe import named_norms, norm_layers, watch_norms
from algorithms.models.adoption.frozen import fixed_norms
from algorithms.models.classifier import plausible
from algorithms.objectives.coordinator import Wrapper
from algorithms.objectives.supervised import Pass, Supervised, following_values
from algorithms.optimizers.base import slot_of
from algorithms.personalisation.answers import ANSWERS, Answers
from algorithms.personalisation.kept import CHOOSE, ERROR, KEPT, LOSS, USABLE, WINDOWS, WORST
from algorithms.personalisation.memory import SHARE, Memory, Scores, answer, empty, unit
from wire.arrays import names
from wire.held import FEWEST
from wire.tasks import NO_LABEL, RECONSTRUCTION

PRIOR, PRIOR_OF_TRAINED = 16.0, 128.0
"""The statistics of the group count as much as so many windows of the device: as fewer where the
device could not train, and its windows have no part in them."""
WAY, UNJUDGED_WAY = 0.75, 0.5
"""How far the tuned model is on the way from the model before the device's own training to the one
after it; and so far where no window is held out."""
TRAINED = 2
"""Windows with labels, at least, for a training."""
GENERAL, TUNED = "general", "tuned"
ABSENT = 0.25
"""A device whose windows without labels are, by its group's model, in this share or more of classes
that it has no label of, does not go by its own training and its own labels: they know nothing of
these classes."""
BEYOND = 0.5
"""A candidate whose mean loss is so far above the least is passed over, however few windows say
so."""
GAUGED, GLANCED = 256, 64
"""Windows, at most, that BatchNorm's statistics are estimated on, and whose first ones say how
various they are."""
LOSSES, ELSEWHERE = names.slot("memory.losses"), names.slot("memory.elsewhere")


@dataclass(frozen=True)
class Candidate:
    """A model, before (`GENERAL`) or after (`TUNED`) the device's own training, with a share of its
    neighbours in the answer."""

    model: str
    share: float

    def __str__(self) -> str:
        return f"{self.model}, neighbours {self.share:g}"


@dataclass(frozen=True)
class Recipe:
    """How candidates are made and chosen."""

    candidates: tuple[Candidate, ...]
    errors: float
    """Standard errors of the difference that a candidate must be worse by to be passed over."""
    recalibrates: bool = True
    glances: bool = False
    """Whether windows have classes, so that the device looks how various its windows are before it
    goes by their statistics."""
    unlabelled: bool = True
    """Whether windows without labels are remembered."""
    unjudged: int = 0
    """The place of the candidate that is kept where there are too few windows to judge by."""

    def of(self, model: str) -> tuple[float, ...]:
        """The shares of the candidates with this model."""
        return tuple(c.share for c in self.candidates if c.model == model)

    @property
    def tunes(self) -> bool:
        """Whether the device trains."""
        return bool(self.of(TUNED))

    @property
    def alone(self) -> "Recipe":
        """The same recipe without neighbours: each of its models, once."""
        models = list(dict.fromkeys(candidate.model for candidate in self.candidates))
        unjudged = models.index(self.candidates[self.unjudged].model)
        return with_fields(
            self, candidates=tuple(Candidate(model, 0.0) for model in models), unjudged=unjudged
        )


class Keeping(Wrapper[Supervised]):
    """Wraps an objective: the graphs that make candidates and choose. The device remembers the
    representation, the answer and the label of each window, and answers by neighbours among them
    too."""

    replaces: tuple[str, ...] = ("initial", "graphs", "has_memory", "predict")
    has_memory: ClassVar[bool] = True

    def __init__(self, whole: Supervised, recipe: Recipe, memory_size: int) -> None:
        super().__init__(whole)
        self.recipe, self.memory_size, self.model = recipe, memory_size, whole.model
        model = whole.model
        self._norms = tuple(
            layer for layer in norm_layers(model) if layer not in fixed_norms(model)
        )

    def initial(self) -> TorchTensors:
        tensors = self.inner.initial()
        memory = self.no_memory()
        before = (
            {slot_of(key, "before"): torch.zeros_like(tensors[key]) for key in self.moving(tensors)}
            if self.recipe.tunes
            else {}
        )
        losses = torch.zeros(self.memory_size, len(self.recipe.of(GENERAL)))
        said = {LOSSES: losses, ELSEWHERE: torch.zeros(())} if self.recipe.tunes else {}
        return tensors | memory | before | said

    def graphs(self) -> Mapping[str, GraphFunction]:
        graphs: dict[str, GraphFunction] = {"memorise": self.memorise, CHOOSE: self.choose}
        if self.recipe.recalibrates:
            graphs = {"gauge": self.gauge, "recalibrate": self.recalibrate} | graphs
        if self.recipe.glances:
            graphs = {"glance": self.glance} | graphs
        if self.recipe.tunes:
            graphs |= {"baseline": self.baseline, "blend": self.blend}
        return {
            **self.inner.graphs(),
            **graphs,
            names.ASSESS: lambda tensors, batch, hyper: self.assess(tensors, batch),
        }

    def moving(self, tensors: TorchTensors) -> list[str]:
        """What training may change and the device keeps: all of it is as it was where the tuned
        model is not taken."""
        keys = names.of_role(tensors, *names.EXCHANGED, names.PRIVATE)
        return [key for key, value in keys.items() if value.is_floating_point()]

    # Statistics of the device's own windows

    def gauge(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """``mean.LAYER`` and ``variance.LAYER`` at the input of each BatchNorm layer, how many
        windows there are, and which of them can be trained on, as sums; and the ``labels``, where
        they say how various windows are."""
        with watch_norms(self.model) as met:
            functional(self.model, tensors, plausible(self.model, batch["x"]), training=True)
        size = batch["x"].shape[0]
        sums = {name: value * size for name, value in named_norms(met).items()}
        sums |= {"count": batch["count"].sum(), "known": self.known(batch).sum()}
        if self.recipe.glances:
            sums["labels"] = self.label_rows(batch).sum(0)
        return {names.metric(name): value for name, value in sums.items()}

    def glance(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """``guess`` (outputs,), what the model answers of the windows, as a sum."""
        return {
            names.metric("guess"): torch.softmax(
                self.whole.answer(tensors, plausible(self.model, batch["x"])).logits, dim=1
            ).sum(0)
        }

    def recalibrate(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Move the running statistics towards those of the device's own windows, of which as many
        count as are various."""
        count, known = (tensors[names.response("gauge", name)] for name in ("count", "known"))
        if self.recipe.glances:
            labels, guess = (
                tensors[names.response("gauge", "labels")],
                tensors[names.response("glance", "guess")],
            )
            count = count * variety(labels + (1 - labels.sum()) * guess).square()
        share, moved = (
            count / (count + torch.where(known > 0, PRIOR_OF_TRAINED, PRIOR)),
            {SHARE: torch.zeros(())},
        )
        for layer in self._norms:
            for kind, statistic in (
                (names.MEAN_OF, names.RUNNING_MEAN),
                (names.VARIANCE_OF, names.RUNNING_VAR),
            ):
                name = f"{layer}.{statistic}"
                key = names.key_of(self.whole.role(name), name)
                moved[key] = (
                    share * tensors[names.response("gauge", kind + layer)]
                    + (1 - share) * tensors[key]
                )
        finite = {
            key: torch.where((value - value) == 0, value, tensors[key])
            for key, value in moved.items()
        }  # not what is no number
        return following_values(finite)

    # Memory

    def memorise(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """The memory of the windows of a batch, each in the row of its rank, as a sum; those of
        higher ranks are left out."""
        made = self.whole.answer(tensors, batch["x"])
        rows = self.rows_of(made, batch)
        kind = made.logits.dtype
        taken = batch["count"]  # the device divides sums by the number of windows
        if not self.recipe.unlabelled:
            taken = taken * self.known(batch)
        place = (batch["rank"].unsqueeze(1) == torch.arange(self.memory_size)).to(
            kind
        ) * taken.unsqueeze(1)
        sums = {**rows, "held": batch["held"].unsqueeze(1)}
        return {names.metric(name): place.T @ value for name, value in sums.items()}

    def baseline(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Keep the memory of the model before training, its losses over the windows held out, how
        much it says of classes without labels, and the model itself."""
        memory = self.memorised(tensors)
        losses, _ = memory.losses(self.recipe.of(GENERAL))
        kept = {**memory.answering(), LOSSES: losses, ELSEWHERE: memory.elsewhere()}
        before = {slot_of(key, "before"): torch.clone(tensors[key]) for key in self.moving(tensors)}
        return following_values({**kept, **before})

    # The choice

    def blend(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """The model on the way from the one before training to the one after it."""
        way = torch.where(self.memorised(tensors).held.sum() > 0, WAY, UNJUDGED_WAY)
        before = {key: tensors[slot_of(key, "before")] for key in self.moving(tensors)}
        return following_values(
            {key: way * tensors[key] + (1 - way) * value for key, value in before.items()}
        )

    def choose(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Keep a candidate: its model, its memory, and its share."""
        memory, recipe = self.memorised(tensors), self.recipe
        losses, judged = memory.losses(recipe.of(TUNED if recipe.tunes else GENERAL))
        by_model = {TUNED: losses, GENERAL: tensors[LOSSES]} if recipe.tunes else {GENERAL: losses}
        every = torch.stack(
            [by_model[c.model][:, recipe.of(c.model).index(c.share)] for c in recipe.candidates], 1
        )
        is_tuned = torch.tensor(
            [float(candidate.model == TUNED) for candidate in recipe.candidates], dtype=every.dtype
        )
        usable = torch.ones_like(is_tuned)
        # not where a guess is no number, nobody has trained, or the labels are of a part of the
        # classes
        if recipe.tunes:
            apart = torch.stack(
                [
                    (tensors[key] - tensors[slot_of(key, "before")]).abs().sum()
                    for key in self.moving(tensors)
                ]
            ).sum()
            trained = (apart > 0) & (memory.num_trained() >= TRAINED)
            whole = (judged.sum() >= FEWEST) | (
                memory.held.sum() <= 0
            )  # what is held out of too few is missed in the training
            good = memory.finite & trained & whole & (tensors[ELSEWHERE] < ABSENT)
            usable = 1 - is_tuned * (1 - good.to(every.dtype))
        kept = first_good(every, judged, recipe.errors, usable, recipe.unjudged)
        _, error = margins(every, judged, usable)
        shares = torch.tensor(
            [candidate.share for candidate in recipe.candidates], dtype=kept.dtype
        )
        answering = memory.answering()
        following = {**answering, SHARE: (kept * shares).sum()}
        if recipe.tunes:
            tuned = (kept * is_tuned).sum() > 0
            following |= {
                key: torch.where(tuned, value, tensors[key]) for key, value in answering.items()
            }
            following |= {
                key: torch.where(tuned, tensors[key], tensors[slot_of(key, "before")])
                for key in self.moving(tensors)
            }
        count = judged.sum()
        said = {
            KEPT: kept,
            LOSS: every.sum(0) / count.clamp(min=1.0),
            ERROR: error,
            USABLE: usable,
            WINDOWS: count,
        }
        return following_values(following) | {
            names.metric(name): value for name, value in said.items()
        }

    # Memory of windows, and answers by it

    @property
    def answers(self) -> Answers:
        """Rule of the task's answers and labels."""
        return ANSWERS[self.whole.task.of]

    def no_memory(self) -> TorchTensors:
        """Return the memory of a device that has none, with its share."""
        model = self.model
        return empty(self.memory_size, model.num_features, model.num_classes + self.answers.columns)

    def rows_of(self, made: Pass, batch: TorchTensors) -> TorchTensors:
        """Return what is remembered of each window of a batch, by name (batch, width)."""
        labels = self.label_rows(batch).to(made.logits.dtype)
        return {
            "keys": unit(made.features),
            "guess": self.answers.guess(made.logits),
            "labels": labels,
        }

    def known(self, batch: TorchTensors) -> Tensor:
        """Return (batch,) 1 for each window that has a label, or needs none."""
        return self.answers.weight(self.label_rows(batch))

    def label_rows(self, batch: TorchTensors) -> Tensor:
        """The rows (batch, width) of the labels."""
        return self.answers.labels(self.whole.target(batch), self.model.num_classes)

    def memorised(self, tensors: TorchTensors) -> Memory | Scores:
        """Return what ``memorise`` gave."""
        keys, guess, labels, held = (
            tensors[names.response("memorise", name)]
            for name in ("keys", "guess", "labels", "held")
        )
        return Memory(keys, guess, labels, held.squeeze(1), self.answers)

    def assess(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        """Return ``metric/loss_sum`` and ``metric/num_correct`` of what the device answers with
        what it has kept."""
        return self.answers.metrics(
            self._mixed(tensors, batch["x"]), self.whole.task, self.whole.target(batch)
        )

    def predict(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        return self.answers.told(self._mixed(tensors, x), self.whole.task, self.model.scale(x))

    def _mixed(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        """The rows (batch, width) of what the device answers."""
        made = self.whole.answer(tensors, x)
        return answer(tensors, made.features, self.answers.guess(made.logits), self.answers)


def variety(shares: Tensor) -> Tensor:
    """() how various windows are that are of classes in these `shares` (classes,): from 0, all of
    one, to 1, of all alike. The exponential of the entropy is the number of classes that would be
    as various, each of the same share."""
    entropy = -(shares * shares.clamp(min=1e-9).log()).sum()
    return ((entropy.exp() - 1) / max(1, shares.shape[0] - 1)).clamp(min=0.0, max=1.0)


def first_good(
    losses: Tensor, judged: Tensor, errors: float, usable: Tensor, unjudged: int
) -> Tensor:
    """1 for the first of the candidates that are `usable` (candidates,) whose mean of `losses` (M,
    candidates), over the rows that are `judged` (M,), is not above the least mean by more than so
    many standard errors of the difference, and `BEYOND`; 1 for the first usable one from the place
    `unjudged` on where fewer than `FEWEST` rows are judged. Losses are at most `WORST`; one
    candidate from that place on must be usable."""
    above, error = margins(losses, judged, usable)
    good = (above <= (errors * error).clamp(max=BEYOND)).to(losses.dtype)
    from_there = (torch.arange(losses.shape[1]) >= unjudged).to(losses.dtype)
    return _first(torch.where(judged.sum() < FEWEST, from_there, good) * usable)


def margins(losses: Tensor, judged: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """How far the mean loss of each candidate (candidates,) is above the least of those that are
    `usable`, and the standard error of this difference (candidates,), over the rows that are
    `judged`; arguments as those of `first_good`."""
    count = judged.sum()
    means = losses.sum(0) / count.clamp(min=1.0) + (1 - usable) * 2 * WORST
    best = _first((means <= means.amin(0)).to(losses.dtype))
    apart = (losses - (losses * best).sum(1, keepdim=True)) * judged.unsqueeze(1)
    above = apart.sum(0) / count.clamp(min=1.0)
    spread = ((apart - above) * judged.unsqueeze(1)).square().sum(0) / (count - 1).clamp(min=1.0)
    return above, (spread / count.clamp(min=1.0)).sqrt()


def _first(flags: Tensor) -> Tensor:
    """1 for the first 1 of `flags` (n,), 0 for all others."""
    firsts, left = [], torch.ones((), dtype=flags.dtype)
    for flag in flags.unbind():
        firsts.append(flag * left)
        left = left * (1 - flag)
    return torch.stack(firsts)


class ByScores(Keeping):
    """Remembers how well a model does on each window, and keeps a model alone: steps of a window
    have a representation each, and a window that is given back has no label."""

    replaces = ("initial", "graphs")

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
