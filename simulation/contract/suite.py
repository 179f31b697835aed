"""The checks for each kind of choice, and a runner for them."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from algorithms.composition import make_objective, read_algorithm
from algorithms.registry import Known, expand, find
from algorithms.spec import read
from host.threads import one_thread
from simulation.contract import declarations, devices, rounds
from simulation.contract.fleet import tiny_model
from simulation.contract.rounds import Broken, names_of
from wire.errors import printable


@dataclass(frozen=True)
class Check:
    """One check of a choice.

    `run` returns a remark. It raises `Broken`, or any exception of the choice itself.
    """

    title: str
    run: Callable[[], str]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a check: a remark, or the reason for its failure."""

    title: str
    remark: str = ""
    failure: str = ""


def checks_of(name: str, phones: bool = True) -> tuple[str, str, list[Check]]:
    """Return the kind of a choice, its name for itself, and its checks.

    `name` is written as in an algorithm's name. `phones`: True if a choice that runs on devices is
    exported to ExecuTorch too.

    Raises:
        ConfigError: the choice cannot be read or loaded, or has no known kind.
    """
    choice = expand(read(name, Known(), "choice"))[0]
    kind, factory, _ = find(choice.name)
    if choice.explicit and kind in ("mean", "personalisation", "server optimizer"):
        factory = partial(factory, **dict(choice.explicit))
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
        *_declarations(kind, name, factory),
    ]
    for one in COMPOSITIONS[kind]:
        others = names_of(*one.kinds, but=["no-privacy"])
        algorithms = [one.pattern.format(name=name, other=other) for other in others]
        checks.append(Check(one.title, partial(one.run, algorithms)))
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


def check(
    choice: str,
    *,
    phones: bool = True,
    on_progress: Callable[[Outcome | str], object] = lambda _outcome: None,
) -> list[Outcome]:
    """Check that your own choice keeps the contract of every choice of an algorithm, on one thread.

    The options are those of `shoal check`.

    Args:
        choice: written as in an algorithm's name: ``FILE.py:CLASS`` or ``PACKAGE.MODULE:CLASS``
            with options, or a registered name.
        phones: True if it is also exported to ExecuTorch, where that is installed.
        on_progress: called with a line about the choice, and with the outcome of each check as soon
            as it is over.

    Raises:
        ConfigError: the choice cannot be read or loaded, or has no known kind.
    """
    kind, name, checks = checks_of(choice, phones and find_spec("executorch") is not None)
    on_progress(f"{choice}: the {kind} {name}, {len(checks)} checks")
    outcomes = []
    with one_thread():
        for each in checks:
            outcomes.append(run_check(each))
            on_progress(outcomes[-1])
    return outcomes


def run_check(check: Check) -> Outcome:
    """Run a check, and return its outcome."""
    try:
        return Outcome(check.title, remark=check.run())
    except Broken as error:
        return Outcome(check.title, failure=printable(str(error)))
    except Exception as error:  # the checked code may raise anything
        at = traceback.extract_tb(error.__traceback__)[-1]
        notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
        text = f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno}{notes})"
        return Outcome(check.title, failure=printable(text))


class Composition(NamedTuple):
    """A check that a choice can be combined with every choice of other kinds.

    In `pattern`, ``{name}`` is the checked choice and ``{other}`` each of the others.
    """

    title: str
    pattern: str
    kinds: tuple[str, ...]
    run: Callable[[Iterable[str]], str] = rounds.compose_with


WITH_OBJECTIVES = Composition(
    "it composes with every objective, or is refused with a reason",
    "{other}+{name}",
    ("objective",),
)
WITH_KEPT = Composition(
    "it composes with what devices keep", "fedavg+{name}+{other}", ("personalisation",)
)
WITH_GROUPINGS = Composition(
    "it composes with every grouping", "fedavg+{other}+{name}", ("grouping",)
)
COMPOSITIONS: Mapping[str, Sequence[Composition]] = {
    "objective": (
        Composition(
            "it composes with every grouping, or is refused with a reason",
            "{name}+{other}",
            ("grouping",),
        ),
        Composition(
            "it composes with every mean, or is refused with a reason", "{name}+{other}", ("mean",)
        ),
        Composition(
            "it composes with every privacy mechanism, or is refused with a reason",
            "{name}+{other}",
            ("privacy",),
            rounds.compose_with_privacy,
        ),
    ),
    "grouping": (
        WITH_OBJECTIVES,
        Composition("it composes with every mean", "fedavg+{name}+{other}", ("mean",)),
        WITH_KEPT,
    ),
    "mean": (WITH_OBJECTIVES, WITH_GROUPINGS),
    "privacy": (
        Composition(
            "it says what has been spent, with every objective that it does not refuse",
            "{other}+{name}",
            ("objective",),
            rounds.compose_with_privacy,
        ),
    ),
    "personalisation": (WITH_GROUPINGS,),
    **dict.fromkeys(("memory", "bias", "optimizer", "task"), (WITH_OBJECTIVES, WITH_KEPT)),
    "server optimizer": (
        WITH_OBJECTIVES,
        Composition(
            "it composes with every grouping and every mean",
            "fedavg+{other}+{name}",
            ("grouping", "mean"),
        ),
    ),
}
"""Compositions that are checked for a choice of each kind."""


def _declarations(kind: str, name: str, factory: Any) -> list[Check]:
    """Return the checks that only a choice of this kind has; `factory` makes it."""
    keeps_rounds = "rounds are the same whatever devices keep"
    checks: dict[str, Callable[[], str]] = {}
    if kind == "objective":
        checks = {
            "its step is declared plain SGD where it is": partial(
                declarations.plain_steps, factory
            ),
            "its answers are declared the model's where they are": partial(
                declarations.own_answers, factory
            ),
            "its server's half reads rounds where it says so": partial(
                declarations.absorbing, factory
            ),
            keeps_rounds: partial(rounds.keeps_rounds, name, names_of("personalisation")),
        }
    elif kind == "mean":
        checks = {
            "it is a mean of rows in any order, and what it declares of itself": partial(
                declarations.mean_of_models, factory()
            ),
            "it works where devices keep a part of the model": partial(rounds.share_a_part, name),
        }
    elif kind == "privacy":
        title = "it says whether the server adds noise"
        checks = {title: partial(declarations.server_noise, factory)}
    elif kind == "personalisation":
        for other in ("fedavg", "ditto", "dbe"):
            objective = make_objective(read_algorithm(other), tiny_model(other))
            checks[f"on {other} its declarations are the objective's"] = partial(
                declarations.same_declarations, factory(), objective
            )
        checks["rounds are the same without it"] = partial(rounds.keeps_rounds, "fedavg", [name])
    elif kind == "server optimizer":
        title = "it moves every parameter by itself, and what it declares of itself"
        checks = {title: partial(declarations.parameter_by_parameter, factory())}
    return [Check(title, run) for title, run in checks.items()]
