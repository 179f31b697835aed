"""The only place that lists the choices an algorithm is made of, and reads the names that users write.

A name is one choice or several joined by ``+``, each with options: ``dbe+distfl+irls``, ``ifca:k=4``, ``fedprox:mu=0.1+krum``. What is not
named is FedAvg's: its objective, no grouping, no privacy, and the mean that the grouping's paper uses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import torch

from algorithms.algorithm import Algorithm
from algorithms.contract import Coordinator, Grouping, Mean, Objective, Privacy
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
from algorithms.objectives.coordinator import Plain
from algorithms.objectives.dbe import coordinate_domain_bias, with_domain_bias
from algorithms.objectives.ditto import Ditto, DittoServer
from algorithms.objectives.dpsgd import with_clipped_examples
from algorithms.objectives.fedavg import FedAvg
from algorithms.objectives.fedbabu import FedBABU, FedBabuServer
from algorithms.objectives.fedbn import FedBN
from algorithms.objectives.feddisk import DensityRatioServer, FedDisk, FedDiskAb, FedDiskServer
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
from algorithms.privacy.dp_sgd import DpSgd
from algorithms.privacy.gaussian import CentralGaussian, LocalGaussian
from algorithms.privacy.none import NoPrivacy
from wire.errors import ConfigError

Options = dict[str, Any]
Kind = Literal["objective", "grouping", "mean", "privacy"]
KINDS: tuple[Kind, ...] = ("objective", "grouping", "mean", "privacy")


@dataclass(frozen=True)
class TwoHalves:
    """An objective: what runs on the device, and what the server does for it."""

    device: type[Supervised]
    server: type[Plain] = Plain


_PLAIN = {
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
    **_PLAIN,
    "dbe": _with_bias("dbe", _PLAIN["fedavg"]),
    "mr": _with_bias("mr", _PLAIN["fedavg"], memory=False),
    "prbm": _with_bias("prbm", _PLAIN["fedavg"], regularised=False),
    **{f"dbe-{n}": _with_bias(f"dbe-{n}", _PLAIN[n]) for n in ("fedprox", "scaffold", "moon", "fedgen")},
    **{f"mr-{n}": _with_bias(f"mr-{n}", _PLAIN[n], memory=False) for n in ("fedper", "fedrep", "fedrod", "fedbabu", "ditto", "apfl")},
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


def listing() -> list[dict[str, Any]]:
    """Every name with its choice, citation and options with their defaults."""
    rows: list[dict[str, Any]] = []
    for name, halves in OBJECTIVES.items():
        options = _known("objective", name)
        rows.append({"name": name, "choice": "objective", "citation": halves.device.citation, "options": options})
    for choice, table in (("grouping", GROUPINGS), ("mean", MEANS), ("privacy", PRIVACY)):
        for name, made in table.items():
            rows.append({"name": name, "choice": choice, "citation": made.citation, "options": _options(made)})
    return rows


@dataclass(frozen=True)
class Choices:
    """A name, read: each choice with its options."""

    objective: tuple[str, Options]
    grouping: tuple[str, Options]
    mean: tuple[str, Options]
    privacy: tuple[str, Options]
    hyper: dict[str, float]
    """Hyper-parameters of the objective's step that take the place of its own."""


def parse(name: str) -> Choices:
    """Read a name.

    Raises:
        ConfigError: a part is no choice, a choice is made twice, or an option does not exist or has another type.
    """
    chosen: dict[Kind, tuple[str, Options]] = {}
    for part in name.split("+"):
        choice, *settings = part.split(":")
        kind = _kind(name, choice)
        if kind in chosen:
            raise ConfigError(f"algorithm {name!r}: {chosen[kind][0]} and {choice} are both a {kind}")
        chosen[kind] = choice, _read_options(name, choice, _known(kind, choice), settings)
    objective = chosen.get("objective", ("fedavg", {}))
    fixed = OBJECTIVES[objective[0]].server.grouping
    grouping = chosen.get("grouping", (fixed or "none", {}))
    if fixed and grouping[0] != fixed:
        raise ConfigError(f"algorithm {name!r}: {objective[0]} works with the grouping {fixed!r} alone, not with {grouping[0]!r}")
    privacy = chosen.get("privacy", ("no-privacy", {}))
    usual = "uniform" if privacy[0] == "gaussian" else GROUPINGS[grouping[0]].mean
    hyper = {k: float(v) for k, v in objective[1].items() if k in OBJECTIVES[objective[0]].device.hyper}
    objective = objective[0], {k: v for k, v in objective[1].items() if k not in hyper}
    return Choices(objective, grouping, chosen.get("mean", (usual, {})), privacy, hyper)


def make_algorithm(name: str, device: str = "cpu") -> Algorithm:
    """The server's side of the algorithm of this name, which combines models on the processor or on a device such as ``cuda``.

    Raises:
        ConfigError: no such name or device, or its parts do not fit together; the text says why.
    """
    if device != "cpu" and not (device.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        raise ConfigError(f"device {device!r}: expected cpu, or cuda where torch finds one")
    choices = parse(name)
    server = OBJECTIVES[choices.objective[0]].server
    coordinator = server(**_only(server, choices.objective[1]))
    grouping = GROUPINGS[choices.grouping[0]](**choices.grouping[1])
    privacy = PRIVACY[choices.privacy[0]](**choices.privacy[1])
    _check_privacy(name, choices, coordinator, grouping)
    return Algorithm(name, choices.objective[0], coordinator, grouping, MEANS[choices.mean[0]](**choices.mean[1]), privacy, device=device)


def make_objective(name: str, model: Classifier) -> Objective:
    """The device's half of the algorithm of this name, on a model.

    Raises:
        ConfigError: no such name.
    """
    choices = parse(name)
    objective, options = choices.objective
    device = OBJECTIVES[objective].device
    if choices.privacy[0] == "dp-sgd":
        mechanism = DpSgd(**choices.privacy[1])
        device = with_clipped_examples(device, objective, mechanism.clip_norm, mechanism.noise_multiplier)
    made = device(model, **_only(device, options))
    made.hyper = {**made.hyper, **choices.hyper}
    return made


def _check_privacy(name: str, choices: Choices, coordinator: Coordinator, grouping: Grouping) -> None:
    if choices.privacy[0] == "no-privacy":
        return
    if choices.privacy[0] == "gaussian" and choices.mean[0] != "uniform":
        raise ConfigError(f"algorithm {name!r}: the noise of 'gaussian' is measured for the uniform mean, not for {choices.mean[0]!r}")
    if coordinator.responds:
        raise ConfigError(f"algorithm {name!r}: devices report measurements to {choices.objective[0]}, which no privacy mechanism covers")
    if grouping.surveys:
        raise ConfigError(
            f"algorithm {name!r}: devices survey their data, which no privacy mechanism covers; use distfl:signature=responses"
        )


def _kind(name: str, choice: str) -> Kind:
    for kind in KINDS:
        if choice in _table(kind):
            return kind
    known = (n for kind in KINDS for n in sorted(_table(kind)))
    raise ConfigError(f"algorithm {name!r}: {choice!r} is none of {', '.join(known)}")


def _table(kind: Kind) -> Mapping[str, Any]:
    tables: dict[Kind, Mapping[str, Any]] = {"objective": OBJECTIVES, "grouping": GROUPINGS, "mean": MEANS, "privacy": PRIVACY}
    return tables[kind]


def _known(kind: Kind, choice: str) -> Options:
    if kind == "objective":
        return _options(OBJECTIVES[choice].device) | _options(OBJECTIVES[choice].server) | dict(OBJECTIVES[choice].device.hyper)
    return _options(_table(kind)[choice])


def _options(made: Callable[..., Any]) -> Options:
    """The options of a choice, with their defaults: the keyword arguments it is made with."""
    return {p.name: p.default for p in signature(made).parameters.values() if p.default is not p.empty}


def _only(made: Callable[..., Any], options: Options) -> Options:
    return {k: v for k, v in options.items() if k in _options(made)}


def _read_options(name: str, choice: str, known: Options, settings: list[str]) -> Options:
    options: Options = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in known:
            has = ", ".join(f"{k}={v}" for k, v in known.items()) or "no options"
            raise ConfigError(f"algorithm {name!r}: {setting!r} is no option of {choice}; it has {has}")
        options[key] = _read_value(name, key, text, known[key])
    return options


def _read_value(name: str, key: str, text: str, like: Any) -> Any:
    if isinstance(like, bool):
        if text not in ("true", "false"):
            raise ConfigError(f"algorithm {name!r}: {key}={text!r}, expected true or false")
        return text == "true"
    try:
        if isinstance(like, int | float | str):
            return type(like)(text)
        number = float(text)
        return int(number) if number.is_integer() else number
    except ValueError:
        raise ConfigError(f"algorithm {name!r}: {key}={text!r}, expected {'a number' if like is None else type(like).__name__}") from None
