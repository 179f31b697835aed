"""The checks of a choice, by its kind, and running them one after the other."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from algorithms.composition import make_objective, read_algorithm
from algorithms.core.contract import Mean, ServerOptimizer
from algorithms.objectives.supervised import Supervised
from algorithms.personalisation.choices import ByRecipe
from algorithms.registry import Known, expand, find
from algorithms.spec import read
from host.threads import one_thread
from simulation.contract import declarations, devices, rounds
from simulation.contract.fleet import tiny_model
from simulation.contract.rounds import Broken, names_of
from wire.errors import printable


@dataclass(frozen=True)
class Check:
    """One thing that a choice has to hold to: `run` returns a remark, and raises `Broken` or
    whatever the choice raises."""

    title: str
    run: Callable[[], str]


@dataclass(frozen=True)
class Outcome:
    """What came of a check: a remark, or why it failed."""

    title: str
    remark: str = ""
    failure: str = ""


def checks_of(name: str, phones: bool = True) -> tuple[str, str, list[Check]]:
    """The kind of a choice that is written as in an algorithm's name, what it calls itself, and the
    checks that there are for it. `phones`: whether it is exported to ExecuTorch too, where it runs
    on devices.

    Raises:
        ConfigError: it cannot be read or loaded, or is of no kind.
    """
    choice = expand(read(name, Known(), "choice"))[0]
    kind, made, _ = find(choice.name)
    if choice.given and kind in ("mean", "personalisation", "server optimizer"):
        made = partial(made, **dict(choice.given))
    algorithm = {"objective": name, "personalisation": f"fedavg+none+{name}"}.get(
        kind, f"fedavg+{name}"
    )
    checks = [
        Check(
            "three rounds repeat to the bit, in any order of devices, and over a restart",
            partial(rounds.repeats, algorithm),
        ),
        Check(
            "every device has a group with a model, also one that comes late",
            partial(rounds.places, algorithm),
        ),
        *_OWN[kind](name, made),
    ]
    if kind in ("objective", "privacy", "personalisation", "optimizer", "task"):
        checks += [
            Check("simulations run it on", partial(devices.on_backends, algorithm)),
            Check(
                "boards (ONNX) train to the simulation's models",
                partial(devices.on_a_board, algorithm),
            ),
        ]
        if phones:
            on_a_phone = partial(devices.on_a_phone, algorithm)
            checks.append(Check("phones (ExecuTorch) step as torch does", on_a_phone))
    return kind, find(choice.name)[1].name, checks


def run_checks(checks: list[Check]) -> Iterator[Outcome]:
    """Run checks, on one thread, and say what came of each as soon as it is over."""
    with one_thread():
        for check in checks:
            try:
                yield Outcome(check.title, remark=check.run())
            except Broken as error:
                yield Outcome(check.title, failure=printable(str(error)))
            except Exception as error:  # the code that is checked may raise anything
                yield Outcome(check.title, failure=printable(_told(error)))


def _objective(name: str, made: type[Supervised]) -> list[Check]:
    groupings = [f"{name}+{grouping}" for grouping in names_of("grouping")]
    means = [f"{name}+{mean}" for mean in names_of("mean")]
    privacy = [f"{name}+{mechanism}" for mechanism in names_of("privacy", but=["no-privacy"])]
    return [
        Check(
            "its step is declared plain SGD where it is", partial(declarations.plain_steps, made)
        ),
        Check(
            "its answers are declared the model's where they are",
            partial(declarations.own_answers, made),
        ),
        Check(
            "its server's half reads rounds where it says so", partial(declarations.absorbing, made)
        ),
        Check(
            "it composes with every grouping, or is refused with a reason",
            partial(rounds.compose_with, groupings),
        ),
        Check(
            "it composes with every mean, or is refused with a reason",
            partial(rounds.compose_with, means),
        ),
        Check(
            "it composes with every privacy mechanism, or is refused with a reason",
            partial(rounds.compose_with_privacy, privacy),
        ),
        Check(
            "rounds are the same whatever devices keep",
            partial(rounds.keeps_rounds, name, names_of("personalisation")),
        ),
    ]


def _grouping(name: str, made: type) -> list[Check]:
    objectives = [f"{objective}+{name}" for objective in names_of("objective")]
    means = [f"fedavg+{name}+{mean}" for mean in names_of("mean")]
    kept = [f"fedavg+{name}+{keeps}" for keeps in names_of("personalisation")]
    return [
        Check(
            "it composes with every objective, or is refused with a reason",
            partial(rounds.compose_with, objectives),
        ),
        Check("it composes with every mean", partial(rounds.compose_with, means)),
        Check("it composes with what devices keep", partial(rounds.compose_with, kept)),
    ]


def _mean(name: str, made: Callable[[], Mean]) -> list[Check]:
    objectives = [f"{objective}+{name}" for objective in names_of("objective")]
    groupings = [f"fedavg+{grouping}+{name}" for grouping in names_of("grouping")]
    return [
        Check(
            "it is a mean of rows in any order, and what it declares of itself",
            partial(declarations.mean_of_models, made()),
        ),
        Check(
            "it works where devices keep a part of the model", partial(rounds.share_a_part, name)
        ),
        Check(
            "it composes with every objective, or is refused with a reason",
            partial(rounds.compose_with, objectives),
        ),
        Check("it composes with every grouping", partial(rounds.compose_with, groupings)),
    ]


def _privacy(name: str, made: type) -> list[Check]:
    objectives = [f"{objective}+{name}" for objective in names_of("objective")]
    return [
        Check("it says whether the server adds noise", partial(declarations.server_noise, made)),
        Check(
            "it says what has been spent, with every objective that it does not refuse",
            partial(rounds.compose_with_privacy, objectives),
        ),
    ]


def _personalisation(name: str, made: Callable[[], ByRecipe]) -> list[Check]:
    groupings = [f"fedavg+{grouping}+{name}" for grouping in names_of("grouping")]
    return [
        *(
            Check(
                f"on {objective} its declarations are the objective's",
                partial(
                    declarations.same_declarations,
                    made(),
                    make_objective(read_algorithm(objective), tiny_model(objective)),
                ),
            )
            for objective in ("fedavg", "ditto", "dbe")
        ),
        Check("rounds are the same without it", partial(rounds.keeps_rounds, "fedavg", [name])),
        Check("it composes with every grouping", partial(rounds.compose_with, groupings)),
    ]


def _trains_with_every_objective(name: str, made: type) -> list[Check]:
    objectives = [f"{objective}+{name}" for objective in names_of("objective")]
    kept = [f"fedavg+{name}+{keeps}" for keeps in names_of("personalisation")]
    return [
        Check(
            "it composes with every objective, or is refused with a reason",
            partial(rounds.compose_with, objectives),
        ),
        Check("it composes with what devices keep", partial(rounds.compose_with, kept)),
    ]


def _server_optimizer(name: str, made: Callable[[], ServerOptimizer]) -> list[Check]:
    objectives = [f"{objective}+{name}" for objective in names_of("objective")]
    others = [f"fedavg+{other}+{name}" for other in names_of("grouping", "mean")]
    return [
        Check(
            "it moves every parameter by itself, and what it declares of itself",
            partial(declarations.parameter_by_parameter, made()),
        ),
        Check(
            "it composes with every objective, or is refused with a reason",
            partial(rounds.compose_with, objectives),
        ),
        Check(
            "it composes with every grouping and every mean", partial(rounds.compose_with, others)
        ),
    ]


_OWN: dict[str, Callable[[str, Any], list[Check]]] = {
    "objective": _objective,
    "memory": _trains_with_every_objective,
    "bias": _trains_with_every_objective,
    "grouping": _grouping,
    "mean": _mean,
    "privacy": _privacy,
    "personalisation": _personalisation,
    "optimizer": _trains_with_every_objective,
    "server optimizer": _server_optimizer,
    "task": _trains_with_every_objective,
}


def _told(error: Exception) -> str:
    """An error of the code that is checked, and where it came from."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno}{notes})"
