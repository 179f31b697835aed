"""A device's graphs that make candidates of its group's model and choose the personal model.

The candidates are made one after the other, by verbs that every client has:

1. ``glance``, ``gauge`` and ``recalibrate``: BatchNorm's statistics are estimated on the device's
   windows, with or without labels (Y. Li et al., Adaptive Batch Normalization, Pattern Recognition
   2018). Their weight grows with the number of windows and the variety of their classes: the
   statistics of one activity do not represent all that the device will meet. The class of a window
   without a label is the model's guess (``glance``).
2. ``memorise`` and ``baseline``: the device remembers its windows, see
   `algorithms.personalisation.memory`.
3. The objective's own training, on the windows that are not held out, and ``blend``: the model
   three quarters of the way from the one before training to the one after it (M. Wortsman et al.,
   Robust Fine-Tuning of Zero-Shot Models, CVPR 2022). If no windows are held out to judge it by,
   it is half of the way at most, and less the fewer labels there are.
4. ``memorise`` again, and ``choose``.

The content of the memory depends on the task (`ByScores` if the task has no neighbours).

A candidate is a model, and a share of the device's neighbours in its answer. The choice is the
first candidate that is worse than the best by at most `errors` standard errors of the difference
and by at most `BEYOND`, over the windows held out. The fleet has trained on these windows in
earlier rounds, which flatters candidates that trust the model; three standard errors are required
for that reason. With too few windows to judge by, the recipe names the candidate. If the tuned
model's outputs are not finite, its candidates are not usable.
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
from algorithms.personalisation.kept import CHOICE, CHOOSE, ERROR, LOSS, USABLE, WINDOWS, WORST
from algorithms.personalisation.memory import SHARE, Memory, Scores, answer, empty
from algorithms.personalisation.pooling import grid_of, pooled
from wire.arrays import names
from wire.held import FEWEST
from wire.tasks import NO_LABEL, RECONSTRUCTION

PRIOR, PRIOR_OF_TRAINED = 16.0, 128.0
"""Weight of the group's statistics, as a number of windows of the device.

PRIOR is for windows without labels, which have no part in these statistics; PRIOR_OF_TRAINED for
those with labels. A device with both has a mean of the two, by their numbers.
"""
WAY, UNJUDGED_WAY = 0.75, 0.5
"""Position of the tuned model between the models before (0) and after (1) the device's training.

The second value is for a device without held-out windows that has `ENOUGH` labels, and less in
proportion for fewer: a few labels are little evidence.
"""
ENOUGH = 32.0
"""Number of labels from which a device holds windows out, with the usual share of them."""
TRAINED = 2
"""Minimum number of windows with labels for a training."""
GENERAL, TUNED = "general", "fine-tuned"
ABSENT = 0.25
"""Share of unlabelled windows in classes without a label from which tuning is not usable.

The group's model guesses their classes. The device's training and labels do not represent them.
"""
BEYOND = 0.5
"""Maximum mean loss above the least for a chosen candidate, whatever the standard error."""
GAUGED, GLANCED = 256, 64
"""Maximum numbers of windows for the statistics (``gauge``) and their variety (``glance``)."""
LOSSES, ELSEWHERE = names.slot("memory.losses"), names.slot("memory.elsewhere")


@dataclass(frozen=True)
class Candidate:
    """A model before (`GENERAL`) or after (`TUNED`) the device's training, with neighbours.

    `share` is the neighbours' share in the answer.
    """

    model: str
    share: float

    def __str__(self) -> str:
        neighbours = f" + nearest neighbours (weight {self.share:g})" if self.share else ""
        return self.model + neighbours


@dataclass(frozen=True)
class Recipe:
    """Rules by which candidates are made and chosen."""

    candidates: tuple[Candidate, ...]
    errors: float
    """Number of standard errors of the difference by which a rejected candidate must be worse."""
    recalibrates: bool = True
    glances: bool = False
    """True if windows have classes, whose variety sets the weight of the windows' statistics."""
    unlabelled: bool = True
    """True if windows without labels are remembered."""
    unjudged: int = 0
    """Position of the candidate that is chosen if there are too few windows to judge by."""

    def of(self, model: str) -> tuple[float, ...]:
        """Return the shares of neighbours of the candidates with this model."""
        return tuple(c.share for c in self.candidates if c.model == model)

    @property
    def tunes(self) -> bool:
        """True if the device trains."""
        return bool(self.of(TUNED))

    @property
    def alone(self) -> "Recipe":
        """Recipe without neighbours: each model of this recipe once."""
        models = list(dict.fromkeys(candidate.model for candidate in self.candidates))
        unjudged = models.index(self.candidates[self.unjudged].model)
        return with_fields(
            self, candidates=tuple(Candidate(model, 0.0) for model in models), unjudged=unjudged
        )


class Keeping(Wrapper[Supervised]):
    """An objective with the graphs that make candidates and choose one.

    The device remembers the representation, the model's answer and the label of each window, and
    mixes the answers of neighbours among them with the model's.
    """

    replaces: tuple[str, ...] = ("initial", "graphs", "has_memory", "predict")
    has_memory: ClassVar[bool] = True

    def __init__(self, whole: Supervised, recipe: Recipe, memory_size: int) -> None:
        super().__init__(whole)
        self.recipe, self.memory_size, self.model = recipe, memory_size, whole.model
        model = whole.model
        self.grid = grid_of(model)
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
        loss_tensors = {LOSSES: losses, ELSEWHERE: torch.zeros(())} if self.recipe.tunes else {}
        return tensors | memory | before | loss_tensors

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
        """Return the keys of tensors that training may change and that stay on the device.

        All of them are restored if the tuned model is not chosen.
        """
        keys = names.of_role(tensors, *names.EXCHANGED, names.PRIVATE)
        return [key for key, value in keys.items() if value.is_floating_point()]

    # Statistics of the device's own windows

    def gauge(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return sums over a batch of windows, for ``recalibrate``.

        They are ``mean.LAYER`` and ``variance.LAYER`` at the input of each BatchNorm layer,
        ``count`` (windows), ``known`` (windows that can be trained on) and, for the variety of
        windows, ``labels``.
        """
        with watch_norms(self.model) as met:
            functional(self.model, tensors, plausible(self.model, batch["x"]), training=True)
        size = batch["x"].shape[0]
        sums = {name: value * size for name, value in named_norms(met).items()}
        sums |= {"count": batch["count"].sum(), "known": self.has_label(batch).sum()}
        if self.recipe.glances:
            sums["labels"] = self.label_rows(batch).sum(0)
        return {names.metric(name): value for name, value in sums.items()}

    def glance(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return ``guess`` (outputs,), the model's class probabilities summed over windows."""
        return {
            names.metric("guess"): torch.softmax(
                self.whole.answer(tensors, plausible(self.model, batch["x"])).logits, dim=1
            ).sum(0)
        }

    def recalibrate(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Move the running statistics towards those of the device's windows.

        The step grows with the number and the variety of the windows.
        """
        count, coverage = (tensors[names.response("gauge", name)] for name in ("count", "known"))
        prior = PRIOR + (PRIOR_OF_TRAINED - PRIOR) * coverage
        if self.recipe.glances:
            labels, guess = (
                tensors[names.response("gauge", "labels")],
                tensors[names.response("glance", "guess")],
            )
            count = count * variety(labels + (1 - labels.sum()) * guess).square()
        share, moved = (
            count / (count + prior),
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
        }  # a statistic that is not finite is not replaced
        return following_values(finite)

    # Memory

    def memorise(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return the memory of a batch's windows, each in the row of its rank, as a sum.

        Glitches of the sensor are scaled down, so that one does not widen the units of all keys.

        Windows of higher ranks than the memory has rows are left out.
        """
        forward_pass = self.whole.answer(tensors, plausible(self.model, batch["x"]))
        rows = self.rows_of(forward_pass, batch)
        dtype = forward_pass.logits.dtype
        weights = batch["count"]  # the device divides sums by the number of windows
        if not self.recipe.unlabelled:
            weights = weights * self.has_label(batch)
        place = (batch["rank"].unsqueeze(1) == torch.arange(self.memory_size)).to(
            dtype
        ) * weights.unsqueeze(1)
        sums = {**rows, "holdout": batch["holdout"].unsqueeze(1)}
        return {names.metric(name): place.T @ value for name, value in sums.items()}

    def baseline(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Store the state before training: the memory, its held-out losses, and the model.

        The share of unlabelled windows in classes without labels (`ELSEWHERE`) is stored too.
        """
        memory = self.memorised(tensors)
        losses, _ = memory.losses(self.recipe.of(GENERAL))
        memory_tensors = {**memory.answering(), LOSSES: losses, ELSEWHERE: memory.elsewhere()}
        before = {slot_of(key, "before"): torch.clone(tensors[key]) for key in self.moving(tensors)}
        return following_values({**memory_tensors, **before})

    # The choice

    def blend(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return a model between the one before training and the one after it."""
        memory = self.memorised(tensors)
        unjudged = UNJUDGED_WAY * (memory.num_trained() / ENOUGH).clamp(max=1.0)
        way = torch.where(memory.holdout.sum() > 0, WAY, unjudged)
        before = {key: tensors[slot_of(key, "before")] for key in self.moving(tensors)}
        return following_values(
            {key: way * tensors[key] + (1 - way) * value for key, value in before.items()}
        )

    def choose(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Make one candidate the personal model: its tensors, memory and share of neighbours."""
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
        # a tuned candidate is unusable if its guesses are not finite, if the device has not
        # trained, or if its labels cover only a part of the classes
        if recipe.tunes:
            distance = torch.stack(
                [
                    (tensors[key] - tensors[slot_of(key, "before")]).abs().sum()
                    for key in self.moving(tensors)
                ]
            ).sum()
            trained = (distance > 0) & (memory.num_trained() >= TRAINED)
            whole = (judged.sum() >= FEWEST) | (
                memory.holdout.sum() <= 0
            )  # with few windows, those held out are missing from the training
            good = memory.finite & trained & whole & (tensors[ELSEWHERE] < ABSENT)
            usable = 1 - is_tuned * (1 - good.to(every.dtype))
        choice = first_good(every, judged, recipe.errors, usable, recipe.unjudged)
        _, error = margins(every, judged, usable)
        shares = torch.tensor(
            [candidate.share for candidate in recipe.candidates], dtype=choice.dtype
        )
        answering = memory.answering()
        following = {**answering, SHARE: (choice * shares).sum()}
        if recipe.tunes:
            tuned = (choice * is_tuned).sum() > 0
            following |= {
                key: torch.where(tuned, value, tensors[key]) for key, value in answering.items()
            }
            following |= {
                key: torch.where(tuned, tensors[key], tensors[slot_of(key, "before")])
                for key in self.moving(tensors)
            }
        count = judged.sum()
        metrics = {
            CHOICE: choice,
            LOSS: every.sum(0) / count.clamp(min=1.0),
            ERROR: error,
            USABLE: usable,
            WINDOWS: count,
        }
        return following_values(following) | {
            names.metric(name): value for name, value in metrics.items()
        }

    # Memory of windows, and answers by it

    @property
    def answers(self) -> Answers:
        """Rule of the task's answers and labels."""
        return ANSWERS[self.whole.task.of]

    def no_memory(self) -> TorchTensors:
        """Return an empty memory, with the share 0 of neighbours."""
        model = self.model
        width = self.grid[1] + model.num_classes
        return empty(self.memory_size, width, model.num_classes + self.answers.columns)

    def rows_of(self, forward: Pass, batch: TorchTensors) -> TorchTensors:
        """Return the rows to remember of a batch's windows, by name, (batch, width) each."""
        labels = self.label_rows(batch).to(forward.logits.dtype)
        return {
            "keys": self.keys_of(forward),
            "guess": self.answers.guess(forward.logits),
            "labels": labels,
        }

    def keys_of(self, forward: Pass) -> Tensor:
        """Return the keys (batch, channels + outputs) by which neighbours are found."""
        return torch.cat([pooled(forward.features, self.grid), forward.logits], dim=1)

    def has_label(self, batch: TorchTensors) -> Tensor:
        """Return 1 (batch,) for each window that has a label or needs none, else 0."""
        return self.answers.weight(self.label_rows(batch))

    def label_rows(self, batch: TorchTensors) -> Tensor:
        """Return the rows (batch, width) of the labels."""
        return self.answers.labels(self.whole.target(batch), self.model.num_classes)

    def memorised(self, tensors: TorchTensors) -> Memory | Scores:
        """Return the memory that ``memorise`` computed."""
        keys, guess, labels, holdout = (
            tensors[names.response("memorise", name)]
            for name in ("keys", "guess", "labels", "holdout")
        )
        return Memory(keys, guess, labels, holdout.squeeze(1), self.answers)

    def assess(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        """Return ``metric/loss_sum`` and ``metric/num_correct`` of the personal model's answers."""
        return self.answers.metrics(
            self._mixed(tensors, batch["x"]), self.whole.task, self.whole.target(batch)
        )

    def predict(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        return self.answers.told(self._mixed(tensors, x), self.whole.task, self.model.scale(x))

    def _mixed(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        """Return the rows (batch, width) of the personal model's answers."""
        forward_pass = self.whole.answer(tensors, x)
        return answer(
            tensors,
            self.keys_of(forward_pass),
            self.answers.guess(forward_pass.logits),
            self.answers,
        )


def variety(shares: Tensor) -> Tensor:
    """Return the variety () of windows from the `shares` (classes,) of their classes.

    It is 0 if all windows are of one class, 1 if all classes are equally frequent. The exponential
    of the entropy is the number of equally frequent classes that would be as various.
    """
    entropy = -(shares * shares.clamp(min=1e-9).log()).sum()
    return ((entropy.exp() - 1) / max(1, shares.shape[0] - 1)).clamp(min=0.0, max=1.0)


def first_good(
    losses: Tensor, judged: Tensor, errors: float, usable: Tensor, unjudged: int
) -> Tensor:
    """Return 1 (candidates,) for the first candidate that is good enough, 0 for all others.

    Its mean of `losses` (M, candidates), over the rows that are `judged` (M,), is above the least
    mean by at most `errors` standard errors of the difference, and by at most `BEYOND`. If fewer
    than `FEWEST` rows are judged, it is the first usable candidate from the position `unjudged` on.
    `usable` is (candidates,). Losses are at most `WORST`; at least one candidate from that position
    on must be usable.
    """
    above, error = margins(losses, judged, usable)
    good = (above <= (errors * error).clamp(max=BEYOND)).to(losses.dtype)
    from_there = (torch.arange(losses.shape[1]) >= unjudged).to(losses.dtype)
    return _first(torch.where(judged.sum() < FEWEST, from_there, good) * usable)


def margins(losses: Tensor, judged: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """Return each candidate's mean loss above the least usable one, and its standard error.

    Both are (candidates,), over the rows that are `judged`; arguments as in `first_good`.
    """
    count = judged.sum()
    means = losses.sum(0) / count.clamp(min=1.0) + (1 - usable) * 2 * WORST
    best = _first((means <= means.amin(0)).to(losses.dtype))
    apart = (losses - (losses * best).sum(1, keepdim=True)) * judged.unsqueeze(1)
    above = apart.sum(0) / count.clamp(min=1.0)
    spread = ((apart - above) * judged.unsqueeze(1)).square().sum(0) / (count - 1).clamp(min=1.0)
    return above, (spread / count.clamp(min=1.0)).sqrt()


def _first(flags: Tensor) -> Tensor:
    """Return 1 for the first 1 of `flags` (n,), 0 for all others."""
    firsts, none_before = [], torch.ones((), dtype=flags.dtype)
    for flag in flags.unbind():
        firsts.append(flag * none_before)
        none_before = none_before * (1 - flag)
    return torch.stack(firsts)


class ByScores(Keeping):
    """Keeping for tasks without neighbours: the memory holds the loss of each window.

    Tasks per step have a representation for each step of a window, and reconstruction has no label,
    so that the candidates are models alone.
    """

    replaces = ("initial", "graphs")

    def no_memory(self) -> TorchTensors:
        return {SHARE: torch.zeros(())}

    def rows_of(self, forward: Pass, batch: TorchTensors) -> TorchTensors:
        loss = self.whole.task.measured(forward.logits, self.whole.target(batch))
        return {"loss": loss.unsqueeze(1), "has_label": self.has_label(batch).unsqueeze(1)}

    def has_label(self, batch: TorchTensors) -> Tensor:
        if self.whole.task.of == RECONSTRUCTION:
            return torch.ones_like(batch["count"])
        return (self.whole.target(batch) != NO_LABEL).any(1).to(batch["count"].dtype)

    def memorised(self, tensors: TorchTensors) -> Scores:
        return Scores(
            *(
                tensors[names.response("memorise", name)].squeeze(1)
                for name in ("loss", "has_label", "holdout")
            )
        )

    def assess(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        return self.whole.evaluate(tensors, batch)
