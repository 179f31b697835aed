"""The only place that lists the choices an algorithm is made of, and what a name such as ``dbe+distfl+irls`` stands for.

A name makes at most one choice of each kind, in any order, written as `algorithms.spec` says. What it does not say is FedAvg's: its
objective, no grouping, no privacy, and the mean that the grouping's paper uses.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any, Literal

from algorithms.algorithm import Algorithm
from algorithms.core.arithmetic import NUMPY, Arithmetic
from algorithms.core.contract import Coordinator, Grouping, Mean, Objective, Privacy
from algorithms.core.limits import Limits
from algorithms.groupings.autocfl import AutoCFL
from algorithms.groupings.cfl import Cfl
from algorithms.groupings.distfl import DistFL
from algorithms.groupings.hierarchical import Hierarchical
from algorithms.groupings.ifca import Ifca
from algorithms.groupings.individual import Individual
from algorithms.groupings.single import SingleGroup
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
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.dbe import coordinate_domain_bias, with_domain_bias
from algorithms.objectives.ditto import Ditto, DittoServer
from algorithms.objectives.dpsgd import with_clipped_examples
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
from algorithms.objectives.lgnet import LgNet, LgNetServer
from algorithms.objectives.local import Local
from algorithms.objectives.moon import Moon, MoonServer
from algorithms.objectives.perfedavg import PerFedAvg, PerFedAvgServer
from algorithms.objectives.pfedme import PFedMe, PFedMeServer
from algorithms.objectives.scaffold import Scaffold, ScaffoldServer
from algorithms.objectives.supervised import Supervised
from algorithms.personalisation.choices import KnnPer, Personal, Personalisation, Recalibrated, Served
from algorithms.privacy.dp_sgd import DpSgd
from algorithms.privacy.gaussian import CentralGaussian, LocalGaussian
from algorithms.privacy.none import NoPrivacy
from algorithms.spec import Choice, Option, Value, check, read, read_joined
from wire.errors import ConfigError

Kind = Literal["objective", "grouping", "mean", "privacy", "personalisation"]
KINDS: tuple[Kind, ...] = ("objective", "grouping", "mean", "privacy", "personalisation")


@dataclass(frozen=True)
class TwoHalves:
    """An objective: what runs on the device, and what the server does for it. Both derive from the bases named here, not only from the
    protocols: other classes are mixed in before them (`algorithms.objectives.dbe`, `algorithms.objectives.dpsgd`)."""

    device: type[Supervised]
    server: type[DefaultCoordinator] = DefaultCoordinator


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
    "fedpcl": TwoHalves(FedPCL, FedPclServer),
    "feddisk": TwoHalves(FedDisk, FedDiskServer),
    "feddisk-ab": TwoHalves(FedDiskAb, DensityRatioServer),
    "cgau": TwoHalves(Cgau),
}


def _with_bias(name: str, base: TwoHalves, memory: bool = True, regularised: bool = True) -> TwoHalves:
    device = with_domain_bias(base.device, name, memory=memory, regularised=regularised)
    return TwoHalves(device, coordinate_domain_bias(base.server) if regularised else base.server)


OBJECTIVES: dict[str, TwoHalves] = {
    **_BASE,
    "dbe": _with_bias("dbe", _BASE["fedavg"]),
    "mr": _with_bias("mr", _BASE["fedavg"], memory=False),
    "prbm": _with_bias("prbm", _BASE["fedavg"], regularised=False),
    **{f"dbe-{n}": _with_bias(f"dbe-{n}", _BASE[n]) for n in ("fedprox", "scaffold", "moon", "fedgen")},
    **{f"mr-{n}": _with_bias(f"mr-{n}", _BASE[n], memory=False) for n in ("fedper", "fedrep", "fedrod", "fedbabu", "ditto", "apfl")},
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
PRIVACY: dict[str, type[Privacy]] = {"no-privacy": NoPrivacy, "gaussian": CentralGaussian, "local-gaussian": LocalGaussian, "dp-sgd": DpSgd}
PERSONALISATION: dict[str, type[Personalisation]] = {
    "served": Served,
    "personal": Personal,
    "recalibrated": Recalibrated,
    "knn-per": KnnPer,
}


def listing() -> list[dict[str, Any]]:
    """Every name with its choice, citation and options with their defaults."""
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        for name, made in _table(kind).items():
            citation = made.device.citation if kind == "objective" else made.citation
            options = {key: option.default for key, option in options_of(kind, name).items()}
            rows.append({"name": name, "choice": kind, "citation": citation, "options": options})
    return rows


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm's name, read: the choices that it makes (`named`), and all five of them. ``str(spec)`` is the name."""

    named: tuple[Choice, ...]
    objective: Choice
    grouping: Choice
    mean: Choice
    privacy: Choice
    personalisation: Choice

    def __str__(self) -> str:
        return "+".join(map(str, self.named))

    @property
    def hyper(self) -> dict[str, float]:
        """Hyper-parameters of the objective's step that take the place of its own."""
        own = OBJECTIVES[self.objective.name].device.hyper
        return {key: float(value) for key, value in self.objective.given if key in own}

    def hyper_with(self, given: Mapping[str, float]) -> dict[str, float]:
        """The hyper-parameters of a run: those in the name, and those that were given besides, which take their place.

        Raises:
            ConfigError: a value that the objective's option of this name cannot have, or that no learning rate can.
        """
        options = options_of("objective", self.objective.name)
        if not 0 <= given.get("lr", 0.0) < math.inf:
            raise ConfigError(f"lr {given['lr']:g}: expected a learning rate from 0")
        for key, value in given.items():
            if key in options:
                check(key, value, options[key], f"algorithm {str(self)!r}")
        return {**self.hyper, **given}

    @property
    def private_step(self) -> dict[str, float]:
        """What the privacy mechanism changes about the step that devices train by: its hyper-parameters there; empty if nothing."""
        return _make_privacy(self).in_step()

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of what devices choose from when a run is over; empty where they do not choose."""
        return _make_personalisation(self).candidates

    @property
    def trains_as_fedavg(self) -> bool:
        """Whether devices train by FedAvg's own step as it is, so that one bundle serves FedAvg and this algorithm."""
        named = self.objective.name, self.personalisation.name
        return named == ("fedavg", "served") and not self.objective.given and not self.private_step

    def with_privacy(self, privacy: Choice) -> "AlgorithmSpec":
        """This algorithm with a privacy mechanism, which the name must not have yet.

        Raises:
            ConfigError: it has one.
        """
        return _complete((*self.named, privacy), str(self))


def read_algorithm(text: str) -> AlgorithmSpec:
    """Read an algorithm's name.

    Raises:
        ConfigError: a part is no choice, a choice is made twice, or an option does not exist or cannot have its value.
    """
    known = {name: options_of(kind, name) for kind in KINDS for name in _table(kind)}
    return _complete(read_joined(text, known, "algorithm"), text)


def read_privacy(text: str) -> Choice:
    """Read the name of a privacy mechanism, for `AlgorithmSpec.with_privacy`.

    Raises:
        ConfigError: no such mechanism or option, or a value it cannot have.
    """
    return read(text, {name: options_of("privacy", name) for name in PRIVACY}, "privacy")


def _complete(named: tuple[Choice, ...], text: str) -> AlgorithmSpec:
    """What the named choices leave open is FedAvg's, or goes with them."""
    chosen: dict[Kind, Choice] = {}
    for choice in named:
        kind = next(kind for kind in KINDS if choice.name in _table(kind))
        if kind in chosen:
            raise ConfigError(f"algorithm {text!r}: {chosen[kind].name} and {choice.name} are both a {kind}")
        chosen[kind] = choice

    def usual(kind: Kind, name: str) -> Choice:
        return chosen.get(kind) or read(name, {name: options_of(kind, name)}, kind)

    objective = usual("objective", "fedavg")
    fixed = OBJECTIVES[objective.name].server.grouping
    personalisation = usual("personalisation", "served")
    grouping = usual("grouping", fixed or PERSONALISATION[personalisation.name].grouping or "none")
    if fixed and grouping.name != fixed:
        raise ConfigError(f"algorithm {text!r}: {objective.name} works with the grouping {fixed!r} alone, not with {grouping.name!r}")
    privacy = usual("privacy", "no-privacy")
    mean = usual("mean", PRIVACY[privacy.name].mean or GROUPINGS[grouping.name].mean)
    return AlgorithmSpec(named, objective, grouping, mean, privacy, personalisation)


def make_algorithm(spec: AlgorithmSpec, *, arithmetic: Arithmetic = NUMPY, secret: bytes = b"") -> Algorithm:
    """The server's side of an algorithm. `arithmetic` carries out what is heaviest, `secret` is what the noise of its privacy mechanism
    is drawn from.

    Raises:
        ConfigError: its parts do not fit together; the text says why.
    """
    privacy = _make_privacy(spec)
    half = OBJECTIVES[spec.objective.name].server
    server = _make_personalisation(spec).server(half, reports=not privacy.protects)
    coordinator = server(**_only(half, spec.objective))
    grouping = GROUPINGS[spec.grouping.name](**dict(spec.grouping.given))
    mean = MEANS[spec.mean.name](**dict(spec.mean.given))
    if privacy.protects:
        _check_privacy(spec, privacy, coordinator, grouping)
    return Algorithm(str(spec), objective_name(spec), coordinator, grouping, mean, privacy, secret=secret, arithmetic=arithmetic)


def make_objective(spec: AlgorithmSpec, model: Classifier) -> Objective:
    """The device's half of an algorithm, on a model.

    Raises:
        ConfigError: an option has a value that the objective cannot have, or the model does not fit it.
    """
    name = spec.objective.name
    device = OBJECTIVES[name].device
    if spec.private_step:
        device = with_clipped_examples(device, name, **spec.private_step)
    made = _make_personalisation(spec).device(device, name)(model, **_only(device, spec.objective))
    made.hyper = {**made.hyper, **spec.hyper}
    return made


def objective_name(spec: AlgorithmSpec) -> str:
    """What the bundles of an algorithm say of its device's half: the objective's name, and what devices keep where that is not what they
    are served."""
    name = spec.objective.name
    return name if spec.personalisation.name == "served" else f"{name}+{spec.personalisation.name}"


def _make_personalisation(spec: AlgorithmSpec) -> Personalisation:
    return PERSONALISATION[spec.personalisation.name](**dict(spec.personalisation.given))


def _make_privacy(spec: AlgorithmSpec) -> Privacy:
    return PRIVACY[spec.privacy.name](**dict(spec.privacy.given))


def _check_privacy(spec: AlgorithmSpec, privacy: Privacy, coordinator: Coordinator, grouping: Grouping) -> None:
    where = f"algorithm {str(spec)!r}"
    if privacy.mean and spec.mean.name != privacy.mean:
        raise ConfigError(f"{where}: the noise of {privacy.name!r} is measured for the {privacy.mean} mean, not for {spec.mean.name!r}")
    if coordinator.responds:
        raise ConfigError(f"{where}: devices report measurements to {spec.objective.name}, which no privacy mechanism covers")
    if grouping.surveys:
        raise ConfigError(f"{where}: devices survey their data for {spec.grouping.name}, which no privacy mechanism covers")


def _table(kind: Kind) -> Mapping[str, Any]:
    tables: dict[Kind, Mapping[str, Any]] = {
        "objective": OBJECTIVES,
        "grouping": GROUPINGS,
        "mean": MEANS,
        "privacy": PRIVACY,
        "personalisation": PERSONALISATION,
    }
    return tables[kind]


def options_of(kind: Kind, name: str) -> dict[str, Option]:
    """The options of a choice, with their limits. An objective's are those of its two halves and the hyper-parameters of its step."""
    made = _table(kind)[name]
    parts = (made.device, made.server) if kind == "objective" else (made,)
    defaults = {key: default for part in parts for key, default in _keywords(part).items()}
    if kind == "objective":
        defaults |= made.device.hyper
    limits = {key: limit for part in parts for key, limit in _limits(part).items()}
    return {key: Option(default, **vars(limits.get(key, Limits()))) for key, default in defaults.items()}


def _limits(made: type) -> dict[str, Limits]:
    """The limits of a class's options: each class of its ancestry declares, in `limits`, those of the options that it adds."""
    return {key: limit for part in reversed(made.__mro__) for key, limit in vars(part).get("limits", {}).items()}


@cache
def _keywords(made: Any) -> Mapping[str, Any]:
    """The keyword arguments with defaults that a choice is made with: these are its options."""
    return {p.name: p.default for p in signature(made).parameters.values() if p.default is not p.empty}


def _only(made: Any, choice: Choice) -> dict[str, Value]:
    return {key: value for key, value in choice.given if key in _keywords(made)}
