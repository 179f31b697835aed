"""Composition of algorithms from names such as ``fedprox+dbe+distfl+irls``.

A name has at most one choice of each kind, in any order, in the syntax of `algorithms.spec`. The
defaults are FedAvg's: its objective, no grouping, no privacy, and the mean of the grouping's paper.
A name of a paper thus is that paper's method. The default algorithm, `personal`, has DistFL's
grouping and the mean `robust`. A name with a task alone selects it. In Python, classes stand beside
names::

    algorithm_of("fedavg", BySize)
    algorithm_of(choice(Shrinking, decay=0.1), "distfl")
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from algorithms import outside, registry
from algorithms.algorithm import Algorithm
from algorithms.core.contract import Mean, ServerOptimizer, Work
from algorithms.core.keys import Units
from algorithms.core.stack import NUMPY, Arithmetic
from algorithms.groupings.base import Defaults
from algorithms.models.classifier import Classifier
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.dbe import MeanRegulariserServer
from algorithms.objectives.dpsgd import ClippedExamples
from algorithms.objectives.supervised import Supervised
from algorithms.optimizers.base import Optimizer
from algorithms.personalisation.choices import ByRecipe
from algorithms.personalisation.keeping import Recipe
from algorithms.privacy.base import DefaultPrivacy
from algorithms.spec import DEFAULT_ALGORITHM, Choice, Value, hyper_of, options_of, read, write
from algorithms.tasks.balanced import Balanced, BalancedServer
from algorithms.tasks.base import Task
from wire.errors import ConfigError
from wire.tasks import CLASSIFICATION


class Parts(NamedTuple):
    """The components of an algorithm, constructed with their options."""

    objective: type[Supervised]
    """A class, because its two halves take different options."""
    grouping: Defaults
    mean: Mean
    privacy: DefaultPrivacy
    personalisation: ByRecipe
    optimizer: Optimizer
    server_optimizer: ServerOptimizer
    task: Task


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm's name after parsing: the explicit choices (`named`), and one of every kind.

    ``str(spec)`` is the name.
    """

    named: tuple[Choice, ...]
    objective: Choice
    grouping: Choice
    mean: Choice
    privacy: Choice
    personalisation: Choice
    optimizer: Choice
    server_optimizer: Choice
    task: Choice
    memory: Choice | None = None
    bias: Choice | None = None

    def __str__(self) -> str:
        return "+".join(map(str, self.named))

    @property
    def wrappers(self) -> tuple[Choice, ...]:
        """Wrappers of the objective, innermost first."""
        return tuple(choice for choice in (self.bias, self.memory) if choice)

    @property
    def parts(self) -> Parts:
        """The components, constructed anew."""
        task = registry.make(self.task)
        return Parts(
            registry.class_of(self.objective),
            registry.make(self.grouping),
            registry.make(self.mean),
            registry.make(self.privacy),
            registry.make(self.personalisation).in_task(task.of),
            registry.make(self.optimizer),
            registry.make(self.server_optimizer),
            task,
        )

    @property
    def hyper(self) -> dict[str, float]:
        """Hyper-parameters of the step that override those of the objective and the optimizer."""
        names = {*registry.class_of(self.objective).hyper, *registry.make(self.optimizer).hyper}
        options = [*self.objective.explicit, *self.optimizer.explicit]
        overrides = {key: float(value) for key, value in options if key in names}
        for wrapper in self.wrappers:
            overrides |= {key: float(value) for key, value in wrapper.explicit}
        private: dict[str, float] = registry.make(self.privacy).in_step()
        return overrides | private

    def hyper_with(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the hyper-parameters of a campaign: those of the name, overridden by `values`.

        Raises:
            ConfigError: a value is out of range for the option of this name, or for a learning
                rate.
        """
        if not 0 <= values.get("lr", 0.0) < math.inf:
            raise ConfigError(f"lr must be a number of at least 0, got {values['lr']:g}")
        for choice in (self.objective, *self.wrappers, self.optimizer):
            options = registry.options_of(registry.class_of(choice))
            for key in values.keys() & options:
                options[key].read(key, write(values[key]), f"algorithm {str(self)!r}")
        return {**self.hyper, **values}

    def anchored(self) -> "AlgorithmSpec":
        """Return this algorithm with absolute paths in its name.

        A service then finds its files from any working directory.
        """
        named = tuple(replace(choice, name=outside.anchored(choice.name)) for choice in self.named)
        return compose(named, str(self)) if named != self.named else self

    @property
    def sources(self) -> dict[str, str]:
        """State of the source of each external choice, by name."""
        return {choice.name: choice.source for choice in self.named if choice.source}

    @property
    def has_classes(self) -> bool:
        """True if each window has a class, and models answer with classes."""
        return self.parts.task.of == CLASSIFICATION

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the candidates that devices choose from after training; empty if none."""
        return self.parts.personalisation.candidates

    @property
    def recipe(self) -> Recipe | None:
        """Recipe by which devices choose their personal model; None if there is none."""
        return self.parts.personalisation.rule

    def with_noise(self, rounds: int, counts: Sequence[int], work: Work) -> "AlgorithmSpec":
        """Return this algorithm with the noise of its privacy budget; itself without a budget.

        `counts`: numbers of training windows of the devices that take part.

        Raises:
            ConfigError: no noise is enough, or the explicit noise is too small.
        """
        noise = self.parts.privacy.noise_for(rounds, counts, work)
        if noise is None or "noise_multiplier" in dict(self.privacy.explicit):
            return self
        explicit = (*self.privacy.explicit, ("noise_multiplier", noise))
        named = tuple(
            replace(each, explicit=explicit) if each.name == self.privacy.name else each
            for each in self.named
        )
        return compose(named, str(self))

    def with_privacy(self, privacy: str) -> "AlgorithmSpec":
        """Return this algorithm with the mechanism of this name; itself if the name is empty.

        Raises:
            ConfigError: the algorithm has a mechanism, or the name is invalid.
        """
        return compose((*self.named, read_privacy(privacy)), str(self)) if privacy else self


Part = str | type | Choice
"""A part of an algorithm: names joined by ``+``, a class, or a result of `choice`."""
Given = Part | AlgorithmSpec
"""An algorithm in Python code: one such part, or a result of `algorithm_of`."""


def choice(factory: type, **options: Value) -> Choice:
    """Return the choice of a class with these options.

    Raises:
        ConfigError: the class is not a component, or has no such option, or the value is invalid.
    """
    table = (each for choices in registry.CHOICES.values() for each in choices.items())
    name, source = next(((name, "") for name, each in table if each is factory), ("", ""))
    if not name:
        name, source = outside.give(factory)
    options_by_name = {name: registry.options_of(registry.find(name, source)[1])}
    text = str(Choice(name, tuple(options.items())))
    return replace(read(text, options_by_name, "algorithm"), source=source)


def algorithm_of(*parts: Given) -> AlgorithmSpec:
    """Return the algorithm of these parts, at most one of each kind, in any order.

    A single composed algorithm is returned unchanged.

    Raises:
        ConfigError: a part is not a choice, two parts are of one kind, an option is unknown or has
            an invalid value, or an external part cannot be loaded, is of no known kind, or has the
            name of a registered one.
    """
    if len(parts) == 1 and isinstance(parts[0], AlgorithmSpec):
        return parts[0]
    named: list[Choice] = []
    for part in parts:
        if isinstance(part, AlgorithmSpec):
            named += part.named
        elif isinstance(part, str):
            where, options_by_name = f"algorithm {part!r}", registry.Known()
            named += (read(name, options_by_name, "algorithm", where) for name in part.split("+"))
        else:
            named.append(part if isinstance(part, Choice) else choice(part))
    alone = parts[0] if len(parts) == 1 else None
    return compose(tuple(named), alone if isinstance(alone, str) else "+".join(map(str, named)))


def read_algorithm(text: str) -> AlgorithmSpec:
    """Return the algorithm of this name; errors are those of `algorithm_of`."""
    return algorithm_of(text)


def read_privacy(text: str) -> Choice:
    """Return the privacy mechanism of this name, for `AlgorithmSpec.with_privacy`.

    Raises:
        ConfigError: no such mechanism or option, or an invalid value.
    """
    where, options_by_name = f"privacy {text!r}", registry.Known("privacy")
    choice = registry.with_source(read(text, options_by_name, "privacy mechanism", where))
    if (kind := registry.find(choice.name)[0]) != "privacy":
        raise ConfigError(f"privacy {text!r}: {choice.name} is a {kind}, not a privacy mechanism")
    return choice


def compose(named: tuple[Choice, ...], text: str) -> AlgorithmSpec:
    """Return the algorithm with these choices; other kinds get FedAvg's choice or a matching one.

    `text` is the user's text, for errors.

    Raises:
        ConfigError: two choices are of one kind, or they do not fit together.
    """
    named = tuple(map(registry.with_source, named))
    chosen: dict[str, Choice] = {}
    for one in (part for choice in named for part in registry.expand(choice)):
        kind, *_ = registry.find(one.name, one.source)
        if kind in chosen:
            raise ConfigError(
                f"algorithm {text!r}: {chosen[kind].name} and {one.name} are of one kind, "
                f"{kind}; name one of them"
            )
        chosen[kind] = one

    def usual(kind: str, name: str) -> Any:
        """Return the class of the choice of a kind; choose `name` first if there is no choice."""
        if kind not in chosen:
            chosen[kind] = registry.with_source(read(name, registry.Known(kind), kind))
        return registry.class_of(chosen[kind])

    alone = chosen.keys() == {"task"}
    fixed = usual("objective", "fedavg").server.grouping
    keeps = usual("personalisation", DEFAULT_ALGORITHM if alone else "served")
    grouping = usual("grouping", fixed or keeps.grouping or "none")
    if fixed and grouping.name != fixed:
        raise ConfigError(
            f"algorithm {text!r}: {chosen['objective'].name} works only with the grouping "
            f"{fixed!r}, not with {chosen['grouping'].name!r}"
        )
    suited = (grouping.reads_models and keeps.mean) or grouping.mean
    usual("mean", usual("privacy", "no-privacy").mean or suited)
    usual("optimizer", "sgd")
    usual("server optimizer", "no-server-optimizer")
    usual("task", "classification")
    spec = AlgorithmSpec(named, **{kind.replace(" ", "_"): one for kind, one in chosen.items()})
    try:
        parts = spec.parts
    except ConfigError as error:
        raise ConfigError(f"algorithm {text!r}: {error}") from error
    _check_objective(spec, parts, f"algorithm {text!r}")
    return spec


def _check_objective(spec: AlgorithmSpec, parts: Parts, where: str) -> None:
    """Raise ConfigError if a component cannot be used in the steps of the objective."""
    name, objective, optimizer = parts.objective.name, parts.objective, parts.optimizer
    for wrapper in spec.wrappers:
        if wrapper.name not in objective.wrapped_by:
            table = registry.CHOICES["objective"].items()
            which = ", ".join(
                key for key, candidate in table if wrapper.name in candidate.wrapped_by
            )
            raise ConfigError(f"{where}: {wrapper.name} works with {which}, not with {name}")
    if not parts.task.plain and not objective.follows_task:
        raise ConfigError(
            f"{where}: {name} has a loss of its own, and cannot use the task {str(spec.task)!r}"
        )
    if parts.task.balanced and parts.privacy.in_step():
        raise ConfigError(
            f"{where}: {spec.privacy.name} limits the influence of a single window, and with "
            "class_weights=balanced each window changes the weights of others. Give the weights "
            "as numbers."
        )
    if not optimizer.plain and objective.own_rule:
        raise ConfigError(
            f"{where}: {name} has an update rule of its own, and cannot use the optimizer "
            f"{spec.optimizer.name}"
        )
    if parts.server_optimizer.moves and objective.server.own_rule:
        raise ConfigError(
            f"{where}: {name} has an update rule of its own on the server, and cannot use the "
            f"server optimizer {spec.server_optimizer.name}"
        )
    for key in optimizer.hyper:
        if key in hyper_of(objective) and key not in hyper_of(Supervised):
            raise ConfigError(
                f"{where}: {name} and {spec.optimizer.name} both have a hyper-parameter {key!r}; "
                f"rename that of {name}"
            )
    for key, _ in spec.objective.explicit:
        if key in (*optimizer.replaces, *optimizer.hyper):
            raise ConfigError(
                f"{where}: {key!r} of {name} has no effect with the optimizer "
                f"{spec.optimizer.name}; leave it out"
            )


def make_algorithm(
    spec: AlgorithmSpec, *, arithmetic: Arithmetic = NUMPY, secret: bytes = b""
) -> Algorithm:
    """Return the server's side of an algorithm.

    Args:
        arithmetic: implementation of the heaviest computations.
        secret: seed of the privacy mechanism's noise.

    Raises:
        ConfigError: its components do not fit together; the text gives the reason.
    """
    parts = spec.parts
    server = parts.objective.server
    coordinator = server(**_options(server, spec.objective))
    if spec.memory:
        MeanRegulariserServer(coordinator)
    parts.personalisation.wrap_server(coordinator, reports=not parts.privacy.protects)
    if parts.task.balanced:
        BalancedServer(coordinator)
    if parts.privacy.protects:
        _check_privacy(spec, parts, coordinator)
    return Algorithm(
        str(spec),
        objective_name(spec),
        coordinator,
        parts.grouping,
        parts.mean,
        parts.privacy,
        parts.server_optimizer,
        secret=secret,
        arithmetic=arithmetic,
        has_classes=spec.has_classes,
    )


def make_objective(
    spec: AlgorithmSpec, model: Classifier, units: Units | None = None
) -> Supervised:
    """Return the device's side of an algorithm, on a model.

    `units` are those of the quantities to learn; None for the user's own units.

    Raises:
        ConfigError: an option has an invalid value, or the model does not fit the objective.
    """
    parts = spec.parts
    task, private = parts.task.in_units(units), parts.privacy.in_step()
    task.check(model.num_classes, model.steps)
    objective = parts.objective(model, **_options(parts.objective, spec.objective))
    objective.task, objective.optimizer = task, parts.optimizer
    for wrapper in spec.wrappers:
        registry.class_of(wrapper)(objective, **dict(wrapper.explicit))
    if private:
        ClippedExamples(objective, **private)
    if task.balanced:
        Balanced(objective)
    parts.personalisation.wrap_device(objective)
    objective_hyper = {
        key: value
        for key, value in objective.hyper.items()
        if key not in objective.optimizer.replaces
    }
    objective.hyper = {**objective_hyper, **objective.optimizer.hyper, **spec.hyper}
    vars(objective)["name"] = objective_name(spec)
    return objective


def _options(half: type, objective: Choice) -> dict[str, Any]:
    """Return the options of an objective that this half of it takes."""
    half_options = options_of(half)
    return {key: value for key, value in objective.explicit if key in half_options}


def _names(spec: AlgorithmSpec) -> list[str]:
    """Return the names of the objective and its wrappers.

    The wrappers' short name stands for them if there is one.
    """
    wrappers = [wrapper.name for wrapper in spec.wrappers]
    short = [name for name, parts in registry.SHORT.items() if {*parts} == {*wrappers}]
    return [spec.parts.objective.name, *(short or wrappers)]


def objective_name(spec: AlgorithmSpec) -> str:
    """Return the name of an algorithm's device side, as in its bundles.

    It consists of the objective, its wrappers, the personalisation unless it is ``served``, and the
    task with its options unless it is the plain one.
    """
    parts, names = spec.parts, _names(spec)
    if spec.personalisation.name != "served":
        names.append(parts.personalisation.name)
    if not parts.task.plain:
        names.append(str(replace(spec.task, explicit=tuple(sorted(spec.task.explicit)))))
    return "+".join(names)


def _check_privacy(spec: AlgorithmSpec, parts: Parts, coordinator: DefaultCoordinator) -> None:
    """Raise ConfigError if devices would report measurements that the mechanism does not cover."""
    where, privacy = f"algorithm {str(spec)!r}", parts.privacy
    if privacy.mean and parts.mean.name != privacy.mean:
        raise ConfigError(
            f"{where}: the noise of {privacy.name!r} is computed for the mean {privacy.mean!r}, "
            f"not for {spec.mean.name!r}. Use mean={privacy.mean}."
        )
    if coordinator.responds:
        names = "+".join(_names(spec))
        raise ConfigError(
            f"{where}: devices report measurements to {names}, which no privacy mechanism "
            "covers. Leave out the privacy mechanism, or use parts without measurements."
        )
    if parts.grouping.surveys:
        raise ConfigError(
            f"{where}: devices survey their data for {spec.grouping.name}, which no privacy "
            "mechanism covers. Use a grouping without a survey, such as none."
        )


def listing() -> list[dict[str, Any]]:
    """Return every name with its kind, citation and options with their defaults."""
    rows: list[dict[str, Any]] = []
    for name, options in registry.Known().items():
        entries = [registry.find(part) for part in registry.SHORT.get(name, (name,))]
        row = {
            "name": name,
            "choice": " and ".join(kind for kind, *_ in entries),
            "citation": entries[0][1].citation,
            "options": {key: option.default for key, option in options.items()},
        }
        rows.append(row)
    return rows
