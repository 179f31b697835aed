"""The registered ways in which a device chooses its personal model after the last round."""

from copy import copy
from dataclasses import replace as with_fields
from typing import ClassVar, Self

from msgspec.structs import replace

from algorithms.core.contract import ObjectiveMemory, Work
from algorithms.objectives.coordinator import DefaultCoordinator, Wrapper
from algorithms.objectives.supervised import Supervised
from algorithms.personalisation.answers import ANSWERS
from algorithms.personalisation.keeping import (
    GAUGED,
    GENERAL,
    GLANCED,
    TRAINED,
    TUNED,
    ByScores,
    Candidate,
    Keeping,
    Recipe,
)
from algorithms.personalisation.kept import CHOOSE
from algorithms.spec import WithOptions, option
from wire.arrays import names
from wire.errors import ConfigError
from wire.messages import MOST_EPOCHS, Apply, Evaluate, Train, Verb
from wire.tasks import CLASSIFICATION, TaskName


class KeepingServer(Wrapper[DefaultCoordinator]):
    """Server's half of an objective, with the verbs that devices run after the last round."""

    replaces = ("keeps", "closing")
    keeps: ClassVar[bool] = True

    def __init__(
        self,
        whole: DefaultCoordinator,
        recipe: Recipe,
        memory: int,
        holdout: float,
        epochs: int,
        reports: bool,
    ) -> None:
        """Wrap `whole`, whose devices make and choose candidates by `recipe`.

        A device remembers up to `memory` windows, judges candidates on the share `holdout` of its
        windows, and trains for `epochs` (0: as many as in a round). It reports its choice if
        `reports` is True.
        """
        super().__init__(whole)
        self.recipe, self.memory, self.holdout = recipe, memory, holdout
        self.epochs, self.reports = epochs, reports

    def closing(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        verbs = (verb for verb in self.inner.closing(context, work) if verb != Evaluate())
        holdout = (
            self.holdout if len(self.recipe.candidates) > 1 else 0.0
        )  # a single candidate needs no windows to be judged on
        before = tuple(
            replace(verb, holdout=holdout, least=TRAINED) if isinstance(verb, Train) else verb
            for verb in verbs
        )
        memorise = Evaluate("windows", "memorise", holdout=holdout, report=False, most=self.memory)
        gauge: tuple[Verb, ...] = ()
        if self.recipe.recalibrates:
            gauge = (
                Evaluate("windows", "gauge", report=False, most=GAUGED),
                Apply("recalibrate", report=False),
            )
        if self.recipe.glances:
            gauge = (Evaluate("unlabelled", "glance", report=False, most=GLANCED), *gauge)
        tune: tuple[Verb, ...] = ()
        if self.recipe.tunes:
            tune = (
                Apply("baseline", report=False),
                *self._tuning(context, work),
                Apply("blend", report=False),
                memorise,
            )
        return (
            *before,
            *gauge,
            memorise,
            *tune,
            Apply(CHOOSE, report=self.reports),
            Evaluate("test", names.ASSESS),
        )

    def _tuning(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        """Return the objective's training on the windows that are not held out, without reports."""
        usual, verbs = self.whole.training(context, work), list[Verb]()
        judges = any(
            isinstance(verb, Evaluate) and verb.split == "holdout" for verb in usual
        )  # the objective uses the windows on which candidates are judged
        for verb in usual:
            match verb:
                case Train():
                    epochs = self.epochs or verb.epochs
                    verbs.append(
                        replace(
                            verb, epochs=epochs, report=False, holdout=self.holdout, least=TRAINED
                        )
                    )
                case Apply() | Evaluate() if not judges:
                    verbs.append(replace(verb, report=False))
        return tuple(verbs)


class ByRecipe(WithOptions):
    """Choice of a personal model by a recipe; without one, the device uses its group's model."""

    name: ClassVar[str]
    citation: ClassVar[str]
    grouping: ClassVar[str] = ""
    """Name of the grouping used with it if no other is set; empty if any will do."""
    mean: ClassVar[str] = ""
    """Name of the mean used with it if no other is set; empty for that of the grouping's paper.

    A grouping that reads no single models keeps the mean of its paper, so that updates can be
    added one by one.
    """
    recipe: ClassVar[Recipe | None] = None
    memory: int = 256
    """Maximum number of windows that a device remembers."""
    holdout: float = 0.25
    """Share of a device's windows on which candidates are judged."""
    epochs: int = 0
    """Number of epochs of the device's training; 0 for as many as in a round."""
    task: TaskName = CLASSIFICATION

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the candidates, in the order of their reports; empty if devices do not choose.

        `algorithms.personalisation.kept` reads these reports.
        """
        return tuple(map(str, self.rule.candidates)) if self.rule else ()

    @property
    def rule(self) -> Recipe | None:
        """Recipe for the task, without neighbours if the task has none; None without a recipe."""
        if self.recipe is None:
            return None
        recipe = self.recipe if self.task in ANSWERS else self.recipe.alone
        return with_fields(recipe, glances=recipe.recalibrates and self.task == CLASSIFICATION)

    def in_task(self, task: TaskName) -> Self:
        """Return a copy for devices that learn this task.

        Raises:
            ConfigError: its candidates differ only in their neighbours, and the task has none.
        """
        recipe = self.recipe
        if (
            recipe
            and task not in ANSWERS
            and len(recipe.candidates) > len(recipe.alone.candidates) == 1
        ):
            raise ConfigError(
                f"{self.name} lets devices choose a weight for nearest neighbours, and the task "
                f"{task} cannot use them. Use personal, recalibrated or served."
            )
        clone = copy(self)
        clone.task = task
        return clone

    def wrap_device(self, objective: Supervised) -> None:
        """Wrap the device's half of an objective with the graphs of candidates and choice."""
        if self.rule:
            keeping = Keeping if self.task in ANSWERS else ByScores
            keeping(objective, self.rule, self.memory)

    def wrap_server(self, coordinator: DefaultCoordinator, reports: bool) -> None:
        """Wrap the server's half; `reports` is True if devices may report their choice."""
        if self.rule:
            of_all = self.memory, self.holdout, self.epochs
            KeepingServer(coordinator, self.rule, *of_all, reports)


class Served(ByRecipe):
    """The group's model, after the verbs of the objective itself for the end of training."""

    name: ClassVar[str] = "served"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017"


class Personal(ByRecipe):
    """The default: new BatchNorm statistics, neighbours, and a model tuned on the device's windows.

    The tuned model is most of the way from the group's model to the one after the device's
    training. Neighbours are used if the task has them. A group's mean is robust.
    """

    name: ClassVar[str] = "personal"
    citation: ClassVar[str] = (
        "after Marfoq et al., ICML 2022; Li et al., 2018; Wortsman et al., CVPR 2022; Zhou et "
        "al., NIPS 2003"
    )
    grouping: ClassVar[str] = "distfl"
    mean: ClassVar[str] = "robust"
    recipe: ClassVar[Recipe] = Recipe(
        (
            Candidate(TUNED, 0.5),
            Candidate(TUNED, 0.7),
            Candidate(GENERAL, 0.5),
            Candidate(GENERAL, 0.0),
        ),
        errors=3.0,
    )
    memory: int = option(256, "windows that a device remembers at most", low=8, high=4096)
    holdout: float = option(
        0.25, "share of its windows that candidates are judged on", above=0, high=0.5
    )
    epochs: int = option(
        0, "epochs of its training; 0 for as many as in a round", low=0, high=MOST_EPOCHS
    )


class Recalibrated(ByRecipe):
    """The group's model with BatchNorm statistics of the device's windows; needs no labels."""

    name: ClassVar[str] = "recalibrated"
    citation: ClassVar[str] = "Li et al., Pattern Recognition 2018"
    recipe: ClassVar[Recipe] = Recipe((Candidate(GENERAL, 0.0),), errors=0.0)
    memory: int = 8


class KnnPer(ByRecipe):
    """The model mixed with the nearest labelled windows of the device.

    Their share is the best one on the device's held-out windows, or a half if there are too few of
    them.
    """

    name: ClassVar[str] = "knn-per"
    citation: ClassVar[str] = "Marfoq et al., ICML 2022, section 3"
    recipe: ClassVar[Recipe] = Recipe(
        tuple(Candidate(GENERAL, step / 10) for step in range(11)),
        errors=0.0,
        recalibrates=False,
        unlabelled=False,
        unjudged=5,
    )
    memory: int = option(256, "windows that a device remembers at most", low=1, high=4096)
    holdout: float = option(
        0.25, "share of its windows that candidates are judged on", above=0, below=1
    )
