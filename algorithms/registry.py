"""The only place that lists the choices an algorithm is made of, and what a name such as
``dbe+distfl+irls`` stands for.

A name makes at most one choice of each kind, in any order, written as `algorithms.spec` says. What
it does not say is FedAvg's: its objective, no grouping, no privacy, and the mean that the
grouping's paper uses. A name that says a task alone names no algorithm, which is then the default.
Choices that are not listed here come from outside: `algorithms.outside` finds them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from algorithms import outside
from algorithms.algorithm import Algorithm
from algorithms.core.arithmetic import NUMPY, Arithmetic
from algorithms.core.contract import (
    Coordinator,
    Grouping,
    Mean,
    Objective,
    Optimizer,
    Privacy,
    ServerOptimizer,
    Task,
)
from algorithms.core.units import Units
from algorithms.groupings.autocfl import AutoCFL
from algorithms.groupings.cfl import Cfl
from algorithms.groupings.distfl import DistFL
from algorithms.groupings.hierarchical import Hierarchical
from algorithms.groupings.ifca import Ifca
from algorithms.groupings.individual import Individual
from algorithms.groupings.single import SingleGroup
from algorithms.kinds import KINDS as KINDS
from algorithms.kinds import Kind
from algorithms.lookup import Lookup, called
from algorithms.means.credit import Credit
from algorithms.means.gra import GroupwiseRobust
from algorithms.means.irls import ResidualReweighting
from algorithms.means.krum import Krum, MultiKrum
from algorithms.means.median import Median, TrimmedMean
from algorithms.means.weighted import UniformMean, WeightedMean
from algorithms.models.classifier import Classifier
from algorithms.objectives.apfl import Apfl
from algorithms.objectives.apple import Apple, AppleServer
from algorithms.objectives.cgau import Cgau
from algorithms.objectives.dbe import coordinate_domain_bias, with_domain_bias
from algorithms.objectives.ditto import Ditto, DittoServer
from algorithms.objectives.dpsgd import with_clipped_examples
from algorithms.objectives.fedala import FedAla, FedAlaServer
from algorithms.objectives.fedavg import FedAvg
from algorithms.objectives.fedbabu import FedBABU, FedBabuServer
from algorithms.objectives.fedbn import FedBN
from algorithms.objectives.feddisk import FedDisk, FedDiskServer
from algorithms.objectives.feddisk_ab import DensityRatioServer, FedDiskAb
from algorithms.objectives.fedfomo import FedFomo, FedFomoServer
from algorithms.objectives.fedgen import FedGen, FedGenServer
from algorithms.objectives.fedpcl import FedPCL, FedPclServer
from algorithms.objectives.fedper import FedPer
from algorithms.objectives.fedprox import FedProx
from algorithms.objectives.fedrep import FedRep, FedRepServer
from algorithms.objectives.fedrod import FedRod, FedRodServer
from algorithms.objectives.halves import TwoHalves as TwoHalves
from algorithms.objectives.lgnet import LgNet, LgNetServer
from algorithms.objectives.local import Local
from algorithms.objectives.moon import Moon, MoonServer
from algorithms.objectives.perfedavg import PerFedAvg, PerFedAvgServer
from algorithms.objectives.pfedme import PFedMe, PFedMeServer
from algorithms.objectives.scaffold import Scaffold, ScaffoldServer
from algorithms.objectives.supervised import Supervised
from algorithms.optimizers.adam import Adam, AdamW
from algorithms.optimizers.sgd import Sgd
from algorithms.options import given_to
from algorithms.options import options_of as options_of_class
from algorithms.personalisation.choices import (
    ByRecipe,
    KnnPer,
    Personal,
    Personalisation,
    Recalibrated,
    Served,
)
from algorithms.personalisation.keeping import Recipe
from algorithms.privacy.dp_sgd import DpSgd
from algorithms.privacy.gaussian import CentralGaussian, LocalGaussian
from algorithms.privacy.none import NoPrivacy
from algorithms.server_optimizers.adaptive import FedAdagrad, FedAdam, FedYogi
from algorithms.server_optimizers.momentum import FedAvgM
from algorithms.server_optimizers.none import NoServerOptimizer
from algorithms.spec import DEFAULT_ALGORITHM, Choice, Option, check, read, read_joined
from algorithms.tasks.balanced import ask_to_count, with_balanced_classes
from algorithms.tasks.classification import Classification
from algorithms.tasks.multi_label import MultiLabel
from algorithms.tasks.reconstruction import Reconstruction
from algorithms.tasks.regression import Regression
from algorithms.tasks.sequence import Sequence
from wire.errors import ConfigError
from wire.tasks import CLASSIFICATION

_BASE = {
    "fedavg": TwoHalves(FedAvg),
    "local": TwoHalves(Local),
    "fedprox": TwoHalves(FedProx),
    "scaffold": TwoHalves(Scaffold, ScaffoldServer),
    "moon": TwoHalves(Moon, MoonServer),
    "fedgen": TwoHalves(FedGen, FedGenServer),
    "fedbn": TwoHalves(FedBN),
    "fedper": TwoHalves(FedPer),
    "fedrep": TwoHalves(FedRep, FedRepServer),
    "fedbabu": TwoHalves(FedBABU, FedBabuServer),
    "fedrod": TwoHalves(FedRod, FedRodServer),
    "lg-net": TwoHalves(LgNet, LgNetServer),
    "ditto": TwoHalves(Ditto, DittoServer),
    "pfedme": TwoHalves(PFedMe, PFedMeServer),
    "per-fedavg": TwoHalves(PerFedAvg, PerFedAvgServer),
    "apfl": TwoHalves(Apfl),
    "fedfomo": TwoHalves(FedFomo, FedFomoServer),
    "apple": TwoHalves(Apple, AppleServer),
    "fedala": TwoHalves(FedAla, FedAlaServer),
    "fedpcl": TwoHalves(FedPCL, FedPclServer),
    "feddisk": TwoHalves(FedDisk, FedDiskServer),
    "feddisk-ab": TwoHalves(FedDiskAb, DensityRatioServer),
    "cgau": TwoHalves(Cgau),
}


def _with_bias(
    name: str, base: TwoHalves, memory: bool = True, regularised: bool = True
) -> TwoHalves:
    device = with_domain_bias(base.device, name, memory=memory, regularised=regularised)
    return TwoHalves(device, coordinate_domain_bias(base.server) if regularised else base.server)


OBJECTIVES: dict[str, TwoHalves] = {
    **_BASE,
    "dbe": _with_bias("dbe", _BASE["fedavg"]),
    "mr": _with_bias("mr", _BASE["fedavg"], memory=False),
    "prbm": _with_bias("prbm", _BASE["fedavg"], regularised=False),
    **{
        f"dbe-{n}": _with_bias(f"dbe-{n}", _BASE[n])
        for n in ("fedprox", "scaffold", "moon", "fedgen")
    },
    **{
        f"mr-{n}": _with_bias(f"mr-{n}", _BASE[n], memory=False)
        for n in ("fedper", "fedrep", "fedrod", "fedbabu", "ditto", "apfl")
    },
}
GROUPINGS: dict[str, type[Grouping]] = {
    "none": SingleGroup,
    "distfl": DistFL,
    "autocfl": AutoCFL,
    "ifca": Ifca,
    "cfl": Cfl,
    "hierarchical": Hierarchical,
    "individual": Individual,
}
MEANS: dict[str, type[Mean]] = {
    "weighted": WeightedMean,
    "uniform": UniformMean,
    "median": Median,
    "trimmed": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "credit": Credit,
    "irls": ResidualReweighting,
    "gra": GroupwiseRobust,
}
PRIVACY: dict[str, type[Privacy]] = {
    "no-privacy": NoPrivacy,
    "gaussian": CentralGaussian,
    "local-gaussian": LocalGaussian,
    "dp-sgd": DpSgd,
}
PERSONALISATION: dict[str, type[Personalisation]] = {
    "served": Served,
    "personal": Personal,
    "recalibrated": Recalibrated,
    "knn-per": KnnPer,
}
OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "no-server-optimizer": NoServerOptimizer,
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
}
TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "sequence": Sequence,
    "multi-label": MultiLabel,
    "regression": Regression,
    "reconstruction": Reconstruction,
}
LOOKUP = Lookup(
    {
        "objective": OBJECTIVES,
        "grouping": GROUPINGS,
        "mean": MEANS,
        "privacy": PRIVACY,
        "personalisation": PERSONALISATION,
        "optimizer": OPTIMIZERS,
        "server optimizer": SERVER_OPTIMIZERS,
        "task": TASKS,
    }
)
"""What names stand for, in these tables or outside of them."""


def listing() -> list[dict[str, Any]]:
    """Every name with its choice, citation and options with their defaults; those of installed
    packages last of their choice."""
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        for name in LOOKUP.names(kind):
            made = LOOKUP.find(name).made
            citation = made.device.citation if isinstance(made, TwoHalves) else made.citation
            options = {key: option.default for key, option in options_of_class(made).items()}
            rows.append({"name": name, "choice": kind, "citation": citation, "options": options})
    return rows


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm's name, read: the choices that it makes (`named`), and all eight of them.
    ``str(spec)`` is the name."""

    named: tuple[Choice, ...]
    objective: Choice
    grouping: Choice
    mean: Choice
    privacy: Choice
    personalisation: Choice
    optimizer: Choice
    server_optimizer: Choice
    task: Choice

    def __str__(self) -> str:
        return "+".join(map(str, self.named))

    @property
    def hyper(self) -> dict[str, float]:
        """Hyper-parameters of the step that take the place of the objective's own, and of the
        optimizer's usual ones."""
        own = LOOKUP.made("objective", self.objective).device.hyper
        of_optimizer = _make_optimizer(self).hyper
        return {key: float(value) for key, value in self.objective.given if key in own} | (
            {key: float(value) for key, value in self.optimizer.given if key in of_optimizer}
        )

    def hyper_with(self, given: Mapping[str, float]) -> dict[str, float]:
        """The hyper-parameters of a run: those in the name, and those that were given besides,
        which take their place.

        Raises:
            ConfigError: a value that the objective's option of this name cannot have, or that no
            learning rate can.
        """
        options = options_of_class(LOOKUP.made("objective", self.objective)) | options_of_class(
            LOOKUP.made("optimizer", self.optimizer)
        )
        if not 0 <= given.get("lr", 0.0) < math.inf:
            raise ConfigError(f"lr {given['lr']:g}: expected a learning rate from 0")
        for key, value in given.items():
            if key in options:
                check(key, value, options[key], f"algorithm {str(self)!r}")
        return {**self.hyper, **given}

    @property
    def private_step(self) -> dict[str, float]:
        """What the privacy mechanism changes about the step that devices train by: its
        hyper-parameters there; empty if nothing."""
        return _make_privacy(self).in_step()

    def anchored(self) -> "AlgorithmSpec":
        """This algorithm with the whole paths of its files in its name, so that a service finds
        them from wherever it is started."""
        named = tuple(replace(choice, name=outside.anchored(choice.name)) for choice in self.named)
        return compose(named, str(self)) if named != self.named else self

    @property
    def sources(self) -> dict[str, str]:
        """Of the choices from outside, by name: which state of its source each one is."""
        return {choice.name: choice.source for choice in self.named if choice.source}

    @property
    def has_classes(self) -> bool:
        """Whether its task is about classes: each window has one, and models answer by them."""
        return task_of(self).of == CLASSIFICATION

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of what devices choose from when a run is over; empty where they do not
        choose."""
        return _make_personalisation(self).candidates

    @property
    def recipe(self) -> Recipe | None:
        """How devices make and choose what they keep; None where they do not choose by a recipe."""
        made = _make_personalisation(self)
        return made.rule if isinstance(made, ByRecipe) else None

    @property
    def trains_as_fedavg(self) -> bool:
        """Whether devices train by FedAvg's own step as it is, so that one bundle serves FedAvg and
        this algorithm."""
        named = self.objective.name, self.personalisation.name
        plain = _make_optimizer(self).plain and task_of(self).plain
        return (
            named == ("fedavg", "served")
            and not self.objective.given
            and not self.private_step
            and plain
        )

    def with_privacy(self, privacy: Choice) -> "AlgorithmSpec":
        """This algorithm with a privacy mechanism, which the name must not have yet.

        Raises:
            ConfigError: it has one.
        """
        return compose((*self.named, privacy), str(self))


def read_algorithm(text: str) -> AlgorithmSpec:
    """Read an algorithm's name.

    Raises:
        ConfigError: a part is no choice, a choice is made twice, or an option does not exist or
        cannot have its value; a part from outside
            cannot be loaded, is of no known kind, or is called as a registered one is.
    """
    return compose(read_joined(text, LOOKUP.known(*KINDS), "algorithm"), text)


def read_privacy(text: str) -> Choice:
    """Read the name of a privacy mechanism, for `AlgorithmSpec.with_privacy`.

    Raises:
        ConfigError: no such mechanism or option, or a value it cannot have.
    """
    choice = LOOKUP.with_source(read(text, LOOKUP.known("privacy"), "privacy"))
    if (kind := LOOKUP.find(choice.name).kind) != "privacy":
        raise ConfigError(f"privacy {text!r}: {choice.name} is a {kind}")
    return choice


def compose(named: tuple[Choice, ...], text: str) -> AlgorithmSpec:
    """The algorithm that makes these choices: what they leave open is FedAvg's, or goes with them.
    `text` says what came, for errors.

    Raises:
        ConfigError: two of them are of one kind, or they do not fit together.
    """
    named = tuple(map(LOOKUP.with_source, named))
    chosen: dict[Kind, Choice] = {}
    for choice in named:
        kind = LOOKUP.find(choice.name, choice.source).kind
        if kind in chosen:
            raise ConfigError(
                f"algorithm {text!r}: {chosen[kind].name} and {choice.name} are both a {kind}"
            )
        chosen[kind] = choice

    def usual(kind: Kind, name: str) -> Choice:
        return chosen.get(kind) or LOOKUP.with_source(read(name, LOOKUP.known(kind), kind))

    objective = usual("objective", "fedavg")
    fixed = LOOKUP.made("objective", objective).server.grouping
    personalisation = usual(
        "personalisation", DEFAULT_ALGORITHM if chosen.keys() == {"task"} else "served"
    )
    grouping = usual(
        "grouping", fixed or LOOKUP.made("personalisation", personalisation).grouping or "none"
    )
    if fixed and LOOKUP.made("grouping", grouping).name != fixed:
        raise ConfigError(
            f"algorithm {text!r}: {objective.name} works with the grouping {fixed!r} alone, not "
            f"with {grouping.name!r}"
        )
    privacy = usual("privacy", "no-privacy")
    mean = usual(
        "mean", LOOKUP.made("privacy", privacy).mean or LOOKUP.made("grouping", grouping).mean
    )
    optimizer = usual("optimizer", "sgd")
    server_optimizer = usual("server optimizer", "no-server-optimizer")
    task = usual("task", "classification")
    spec = AlgorithmSpec(
        named,
        objective,
        grouping,
        mean,
        privacy,
        personalisation,
        optimizer,
        server_optimizer,
        task,
    )
    made, device = _make_optimizer(spec), LOOKUP.made("objective", objective).device
    _check_task(spec, task_of(spec), device, text)
    if not made.plain and device.own_rule:
        raise ConfigError(
            f"algorithm {text!r}: {objective.name} moves models by a rule of its own, in which "
            f"{optimizer.name} has no place"
        )
    if _make_server_optimizer(spec).moves and LOOKUP.made("objective", objective).server.own_rule:
        raise ConfigError(
            f"algorithm {text!r}: the server moves models by a rule of {objective.name}'s own, in "
            f"which {server_optimizer.name} has no "
            "place"
        )
    if twice := [key for key in made.hyper if key in device.hyper and key not in Supervised.hyper]:
        raise ConfigError(
            f"algorithm {text!r}: {objective.name} and {optimizer.name} both have a "
            f"hyper-parameter {twice[0]!r}: "
            "expected another name for the objective's"
        )
    if lost := [key for key, _ in objective.given if key in (*made.replaces, *made.hyper)]:
        raise ConfigError(
            f"algorithm {text!r}: {lost[0]!r} of {objective.name} means nothing to {optimizer.name}"
        )
    return spec


def make_algorithm(
    spec: AlgorithmSpec, *, arithmetic: Arithmetic = NUMPY, secret: bytes = b""
) -> Algorithm:
    """The server's side of an algorithm. `arithmetic` carries out what is heaviest, `secret` is
    what the noise of its privacy mechanism is drawn from.

    Raises:
        ConfigError: its parts do not fit together; the text says why.
    """
    privacy = _make_privacy(spec)
    half = LOOKUP.made("objective", spec.objective).server
    server = _make_personalisation(spec).server(half, reports=not privacy.protects)
    server = ask_to_count(server) if task_of(spec).balanced else server
    coordinator = server(**given_to(half, spec.objective))
    grouping = LOOKUP.make("grouping", spec.grouping)
    mean = LOOKUP.make("mean", spec.mean)
    if privacy.protects:
        _check_privacy(spec, privacy, coordinator, grouping)
    server_optimizer = _make_server_optimizer(spec)
    return Algorithm(
        str(spec),
        objective_name(spec),
        coordinator,
        grouping,
        mean,
        privacy,
        server_optimizer,
        secret=secret,
        arithmetic=arithmetic,
        has_classes=spec.has_classes,
    )


def make_objective(spec: AlgorithmSpec, model: Classifier, units: Units | None = None) -> Objective:
    """The device's half of an algorithm, on a model; `units` are those of the quantities that it
    learns, their own where there are none.

    Raises:
        ConfigError: an option has a value that the objective cannot have, or the model does not fit
        it.
    """
    device: type[Supervised] = LOOKUP.made("objective", spec.objective).device
    name = device.name
    if spec.private_step:
        device = with_clipped_examples(device, name, **spec.private_step)
    if (task := task_of(spec).in_units(units)).balanced:
        device = with_balanced_classes(device)
    whole = _make_personalisation(spec).device(device, name)
    whole = type(whole.__name__, (whole,), {"name": objective_name(spec), "task": task})
    made: Supervised = whole(model, **given_to(device, spec.objective))
    made.optimizer = _make_optimizer(spec)
    own = {key: value for key, value in made.hyper.items() if key not in made.optimizer.replaces}
    made.hyper = {**own, **made.optimizer.hyper, **spec.hyper}
    return made


def objective_name(spec: AlgorithmSpec) -> str:
    """What the bundles of an algorithm say of its device's half: the objective's name, what devices
    keep where that is not what they are served, and the task with its options where it is not the
    plain one."""
    parts = [called(LOOKUP.made("objective", spec.objective))]
    if spec.personalisation.name != "served":
        parts.append(_make_personalisation(spec).name)
    if not task_of(spec).plain:
        parts.append(str(replace(spec.task, given=tuple(sorted(spec.task.given)))))
    return "+".join(parts)


def _make_personalisation(spec: AlgorithmSpec) -> Personalisation:
    made: Personalisation = LOOKUP.make("personalisation", spec.personalisation)
    return made.in_task(task_of(spec).of)


def _make_optimizer(spec: AlgorithmSpec) -> Optimizer:
    made: Optimizer = LOOKUP.make("optimizer", spec.optimizer)
    return made


def _make_server_optimizer(spec: AlgorithmSpec) -> ServerOptimizer:
    made: ServerOptimizer = LOOKUP.make("server optimizer", spec.server_optimizer)
    return made


def task_of(spec: AlgorithmSpec) -> Task:
    """What an algorithm's models are to learn."""
    made: Task = LOOKUP.make("task", spec.task)
    return made


def _check_task(spec: AlgorithmSpec, task: Task, device: type[Supervised], text: str) -> None:
    if not task.plain and not device.follows_task:
        raise ConfigError(
            f"algorithm {text!r}: {device.name} trains by a loss of its own, in which "
            f"{str(spec.task)!r} has no place"
        )
    try:
        _make_personalisation(spec)
    except ConfigError as error:
        raise ConfigError(f"algorithm {text!r}: {error}") from error
    if task.balanced and spec.private_step:
        raise ConfigError(
            f"algorithm {text!r}: {spec.privacy.name} bounds what a single window changes, and "
            "with class_weights=balanced each window "
            "changes what others count: give the weights as numbers"
        )


def _make_privacy(spec: AlgorithmSpec) -> Privacy:
    made: Privacy = LOOKUP.make("privacy", spec.privacy)
    return made


def _check_privacy(
    spec: AlgorithmSpec, privacy: Privacy, coordinator: Coordinator, grouping: Grouping
) -> None:
    where = f"algorithm {str(spec)!r}"
    if privacy.mean and LOOKUP.made("mean", spec.mean).name != privacy.mean:
        raise ConfigError(
            f"{where}: the noise of {privacy.name!r} is measured for the {privacy.mean} mean, not "
            f"for {spec.mean.name!r}"
        )
    if coordinator.responds:
        raise ConfigError(
            f"{where}: devices report measurements to {spec.objective.name}, which no privacy "
            "mechanism covers"
        )
    if grouping.surveys:
        raise ConfigError(
            f"{where}: devices survey their data for {spec.grouping.name}, which no privacy "
            "mechanism covers; a grouping that compares "
            "nothing of that, such as none, goes with one"
        )


def is_known(name: str) -> bool:
    """Whether this is the name of a registered choice, or of one of an installed package."""
    return any(name in LOOKUP.names(kind) for kind in KINDS)


def options_of(kind: Kind, name: str) -> dict[str, Option]:
    """The options of a registered choice, with their limits. An objective's are those of its two
    halves and the hyper-parameters of its step."""
    return options_of_class(LOOKUP.tables[kind][name])
