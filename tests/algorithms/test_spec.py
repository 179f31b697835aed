"""Names with options: every table is read by the same rules, what was read can be written and read
again, and errors are alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isinf, nextafter
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aggregator.core.policies import POLICIES, read_policy, with_cohort
from algorithms.composition import (
    AlgorithmSpec,
    make_algorithm,
    make_objective,
    read_algorithm,
    read_privacy,
)
from algorithms.core.contract import Work
from algorithms.groupings.ifca import Ifca
from algorithms.means.krum import MultiKrum
from algorithms.optimizers.adam import AdamW
from algorithms.optimizers.sgd import Sgd
from algorithms.registry import CHOICES as REGISTERED
from algorithms.registry import Known, options_of
from algorithms.server_optimizers.adaptive import FedAdam
from algorithms.spec import DEFAULT_ALGORITHM, Choice, Option, Options, Value, fields_of, read
from algorithms.spec import option as declared
from simulation.contract.fleet import tiny_model
from simulation.engine.workers.attacks import ATTACKS, read_attack
from simulation.partition import PARTITIONS, read_partition
from simulation.timing.profiles import DISTRIBUTIONS, read_profiles
from tests.support.objectives import OBJECTIVES
from wire.errors import ConfigError
from wire.messages import Verb


@dataclass(frozen=True)
class Table:
    """Kind of choice that users make by name: the word that begins its errors, its parser, and its
    names with their options."""

    what: str
    read: Callable[[str], Choice | AlgorithmSpec]
    names: Mapping[str, Options]


CHOICES = {
    kind: {name: options_of(made) for name, made in table.items()}
    for kind, table in REGISTERED.items()
}
TABLES = [
    Table(
        "algorithm",
        read_algorithm,
        dict(Known()),
    ),
    Table("privacy", read_privacy, CHOICES["privacy"]),
    Table("partition", read_partition, {name: entry.options for name, entry in PARTITIONS.items()}),
    Table("attack", read_attack, ATTACKS),
    Table("profiles", read_profiles, DISTRIBUTIONS),
    Table("policy", read_policy, POLICIES),
]
everywhere = pytest.mark.parametrize("table", TABLES, ids=[table.what for table in TABLES])


def values_of(option: Option) -> st.SearchStrategy[Value]:
    """Values that an option can have."""
    low, high, above, below = (
        None if isinf(bound) else bound
        for bound in (option.low, option.high, option.above, option.below)
    )
    if isinstance(option.default, bool):
        return st.booleans()
    if isinstance(option.default, str):
        if option.numbers:
            some = st.lists(st.floats(0, 1000), min_size=1, max_size=4).filter(any)
            return some.map(lambda drawn: "/".join(map(str, drawn))) | st.sampled_from(
                option.choices
            )
        return (
            st.sampled_from(option.choices)
            if option.choices
            else st.text("abz019-_./,= ", max_size=12).map(str.strip)
        )
    whole = option.default is None and (above, below) == (None, None)  # as in num_attackers
    if isinstance(option.default, int) or whole:
        return st.integers(None if low is None else int(low), None if high is None else int(high))
    least, most = (low if above is None else above), (high if below is None else below)
    numbers = st.floats(
        least,
        most,
        exclude_min=above is not None,
        exclude_max=below is not None,
        allow_nan=False,
        allow_infinity=False,
    )
    return numbers.map(lambda x: int(x) if option.default is None and x % 1 == 0 else x)


@st.composite
def choices(draw: st.DrawFn, names: Mapping[str, Options]) -> Choice:
    name = draw(st.sampled_from(sorted(names)))
    options = names[name]
    keys = draw(st.lists(st.sampled_from(sorted(options)), unique=True)) if options else []
    made = Choice(
        name,
        tuple((key, draw(values_of(options[key]))) for key in keys),
        tuple((k, o.default) for k, o in options.items()),
    )
    if name == "distfl":  # of groups by answers alone there are other cuts, and no surveys
        by_answers = made.options["signature"] in ("responses", "noise")
        assume(not made.options["resurvey"] if by_answers else made.options["cut"] == "test")
    if name == "hierarchical":
        assume(made.options["linkage"] != "ward" or made.options["metric"] != "manhattan")
    return made


@everywhere
@given(data=st.data())
def test_what_is_written_reads_as_the_same(table: Table, data: st.DataObject) -> None:
    choice = data.draw(choices(table.names))
    made = table.read(str(choice))
    assert table.read(str(made)) == made
    assert hash(table.read(str(made))) == hash(made)
    found = made if isinstance(made, Choice) else made.named[0]
    assert found == choice
    types, expected = ([type(value) for _, value in c.explicit] for c in (found, choice))
    assert types == expected
    assert found.options == {**dict(choice.usual), **dict(choice.explicit)}


@given(data=st.data())
def test_algorithms_of_several_choices_are_written_and_read_too(data: st.DataObject) -> None:
    alone = (
        "fedfomo",
        "apple",
    )  # with a grouping of their own; what has its own rule or loss takes no other
    taken = {
        n: o
        for n, o in CHOICES["objective"].items()
        if n not in alone and not OBJECTIVES[n].own_rule and OBJECTIVES[n].follows_task
    }
    plain = {
        name: {key: option for key, option in options.items() if key not in ("lr", "momentum")}
        for name, options in taken.items()
    }
    others: dict[str, Mapping[str, Options]] = {
        **CHOICES,
        "privacy": {n: o for n, o in CHOICES["privacy"].items() if n != "dp-sgd"},
    }  # not with balanced classes
    others["task"] = {
        n: o for n, o in others["task"].items() if n == "classification"
    }  # not with what devices choose by classes
    named = [
        data.draw(choices(table))
        for table in (
            plain,
            *(others[kind] for kind in others if kind not in ("objective", "memory", "bias")),
        )
    ]
    named = data.draw(
        st.lists(st.sampled_from(named), min_size=1, unique_by=lambda choice: choice.name)
    )
    spec = read_algorithm("+".join(map(str, named)))
    assert [(c.name, c.explicit) for c in spec.named] == [(c.name, c.explicit) for c in named]
    assert read_algorithm(str(spec)) == spec
    every = {
        spec.objective,
        spec.grouping,
        spec.mean,
        spec.privacy,
        spec.personalisation,
        spec.optimizer,
        spec.server_optimizer,
        spec.task,
    }
    assert set(spec.named) <= every


def test_a_mistyped_name_is_told_what_is_like_it() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^No algorithm 'fedavgg'\. Did you mean fedavg or "
        r".*\?$",
    ):
        read_algorithm("fedavgg")
    with pytest.raises(
        ConfigError,
        match=r"^No policy 'snyc'\. Did you mean sync\? Known policies: sync, over-select, "
        r"buffered\.$",
    ):
        read_policy("snyc")


@everywhere
def test_what_is_wrong_is_the_same_error_everywhere(table: Table) -> None:
    def error_of(text: str) -> str:
        with pytest.raises(ConfigError) as error:
            table.read(text)
        return str(error.value)

    kind = "privacy mechanism" if table.what == "privacy" else table.what
    kinds = {"policy": "policies", "profiles": "profiles"}.get(kind, f"{kind}s")
    names = f"Known {kinds}: {', '.join(table.names)}."
    assert error_of("") == f"No {kind} ''. {names}"
    assert error_of("nothing:a=1") == f"No {kind} 'nothing'. {names}"
    for name, options in table.names.items():
        assert error_of(f"{name}:gone=1").startswith(
            f"{table.what} '{name}:gone=1': 'gone' is not an option of {name}; it has "
        )
        for key, option in options.items():
            usual = (
                "1"
                if option.default is None
                else str(option.default).lower()
                if isinstance(option.default, bool)
                else option.default
            )
            assert (
                error_of(f"{name}:{key}")
                == f"{table.what} '{name}:{key}': '{key}' is not of the form key=value"
            )
            assert (
                error_of(twice := f"{name}:{key}={usual}:{key}={usual}")
                == f"{table.what} '{twice}': {key} is given twice"
            )
            if not isinstance(option.default, str):
                assert error_of(f"{name}:{key}=x").startswith(
                    f"{table.what} '{name}:{key}=x': {key} must be "
                )
                assert error_of(f"{name}:{key}=nan").startswith(
                    f"{table.what} '{name}:{key}=nan': {key} must be "
                )


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        (Option(1), "3", 3),
        (Option(1.0), "3", 3.0),
        (Option(1.0), "1e6", 1e6),
        (Option(None), "2", 2),
        (Option(None), "2.5", 2.5),
        (Option(True), "false", False),
        (Option(""), "a=b", "a=b"),
    ],
)
def test_the_default_says_the_type(option: Option, text: str, value: Value) -> None:
    choice = read(f"x:key={text}", {"x": {"key": option}}, "thing")
    assert choice.explicit == (("key", value),)
    assert type(choice.options["key"]) is type(value)


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        (Option(1), "2.5", "must be a whole number"),
        (Option(1, low=0, high=4), "5", "must be a whole number from 0 to 4"),
        (Option(1.0, low=0), "-1", "must be a number from 0"),
        (Option(1.0), "inf", "must be a number"),
        (Option(0.5, above=0, below=1), "0", "must be a number above 0 below 1"),
        (Option(0.5, low=0, below=1), "1", "must be a number from 0 below 1"),
        (Option(None), "x", "must be a number"),
        (Option(None, whole=True), "2.5", "must be a whole number"),
        (Option(True), "yes", "must be true or false"),
        (Option("a", choices=("a", "b")), "c", "must be a or b"),
    ],
)
def test_a_value_that_cannot_be_is_said_with_what_was_expected(
    option: Option, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(f"x:key={text}", {"x": {"key": option}}, "thing")
    assert str(error.value) == f"thing 'x:key={text}': key {expected}, got {text!r}"


def test_an_option_of_an_object_is_checked_like_one_in_the_text() -> None:
    assert (Ifca(k=3).k, Ifca(3).k, Ifca().k) == (3, 3, 2)
    assert MultiKrum(num_attackers=1).num_attackers == 1
    for make, error in (
        (lambda: Ifca(k=0), "ifca: k must be a whole number from 1 to 64.*, got '0'"),
        (lambda: MultiKrum(num_selected=1.5), "num_selected must be a whole number.*, got '1.5'"),
        (lambda: Ifca(groups=3), "ifca has no option 'groups'"),
        (lambda: Ifca(3, 4), r"ifca: values without a name: at most 1 \(k\), got 2"),
    ):
        with pytest.raises(ConfigError, match=error):
            make()


def test_a_value_without_a_name_is_that_of_the_first_option_of_the_class_itself() -> None:
    assert [*fields_of(Sgd)] == ["weight_decay", "nesterov", "max_norm"]
    assert Sgd(0.01).weight_decay == 0.01
    assert [*fields_of(AdamW)] == ["lr", "beta1", "beta2", "eps", "weight_decay", "max_norm"]
    assert [*fields_of(FedAdam)] == ["server_lr", "beta1", "beta2", "tau"]
    assert MultiKrum(2).num_attackers == 2


def test_an_option_has_one_home_which_a_derived_class_changes() -> None:
    class Threes(Ifca):
        k: int = declared(3, "groups", low=3)

    class Four(Ifca):
        k = 4

    assert options_of(Threes)["k"] == Option(3, "groups", low=3)
    assert (Threes().k, Four().k, dict(options_of(Four))) == (3, 4, {})
    assert options_of(Fours)["k"] == replace(options_of(Ifca)["k"], default=4)


class Fours(Ifca):
    """A grouping with an `__init__` of its own."""

    def __init__(self, k: int = 4) -> None:
        super().__init__(k)


def test_a_cohort_is_added_to_a_policy_that_has_rounds_and_says_no_other() -> None:
    assert with_cohort(read_policy("sync:wait=5"), 3).options["cohort"] == 3
    with pytest.raises(
        ConfigError, match=r"policy 'sync': cohort must be a whole number.*, got '-1'"
    ):
        with_cohort(read_policy("sync"), -1)
    with pytest.raises(ConfigError, match="cohort is given twice"):
        with_cohort(read_policy("sync:cohort=2"), 3)
    with pytest.raises(
        ConfigError,
        match="cohort must be 0 with policy 'buffered', got 3; the policy has concurrency= and "
        "buffer= instead",
    ):
        with_cohort(read_policy("buffered"), 3)


OPTIONS = [
    (kind, name, key, option)
    for kind in CHOICES
    for name, options in CHOICES[kind].items()
    for key, option in options.items()
]


@pytest.mark.representatives("fedavg:*", "distfl:*", "fedadam:*", "gaussian:*")
@pytest.mark.parametrize(
    ("kind", "name", "key", "option"), OPTIONS, ids=[f"{name}:{key}" for _, name, key, _ in OPTIONS]
)
class TestEveryOptionOfAnAlgorithm:
    """Each option has a limit; what lies on the limit can be made and planned with, what lies
    beyond is refused as it is read."""

    def test_is_made_at_its_limit(self, kind: str, name: str, key: str, option: Option) -> None:
        for value in _on_the_limits(option):
            text = f"{name}:{key}={value}" + (":signature=statistics" if key == "resurvey" else "")
            text = text + ":signature=noise" if key == "cut" else text
            text = f"{text}:linkage=average" if value == "manhattan" else text
            text = text if kind == "objective" else f"fedavg+{text}"
            spec = read_algorithm(text)
            coordinator, objective = (
                make_algorithm(spec).coordinator,
                make_objective(spec, tiny_model(name)),
            )
            initial = {k: v.numpy() for k, v in objective.initial().items()}
            context, work = coordinator.begin(initial, 0), Work(8, 1, spec.hyper)
            verbs = [
                verb for program in coordinator.programs(context, work).values() for verb in program
            ]
            for verb in (*verbs, *coordinator.closing(context, work)):
                msgspec.convert(msgspec.to_builtins(verb), Verb)

    def test_is_refused_beyond_it(self, kind: str, name: str, key: str, option: Option) -> None:
        assert _beyond_the_limits(option) or isinstance(option.default, bool), (
            "an option without a limit"
        )
        for value in _beyond_the_limits(option):
            with pytest.raises(ConfigError, match=rf"{key} must be .*, got '{value}'"):
                read_algorithm(f"{name}:{key}={value}")


def _on_the_limits(option: Option) -> Sequence[Value]:
    if isinstance(option.default, str | bool):
        return [*option.choices]
    inside = [nextafter(option.above, inf), nextafter(option.below, -inf)]
    return [
        int(b) if isinstance(option.default, int) else b
        for b in (option.low, option.high)
        if isfinite(b)
    ] + [b for b in inside if isfinite(b) and 1e-300 < abs(b) < 1e300]


def _beyond_the_limits(option: Option) -> Sequence[Value]:
    if isinstance(option.default, bool):
        return []
    if isinstance(option.default, str):
        return ["nothing"] if option.choices else []
    step = 1 if isinstance(option.default, int) else 0.5
    beyond = [
        b
        for b in (option.low - step, option.high + step, option.above, option.below)
        if isfinite(b)
    ]
    return [int(b) if isinstance(option.default, int) else b for b in beyond]


class TestAlgorithmSpec:
    def test_what_is_not_named_is_fedavgs_or_goes_with_what_is(self) -> None:
        spec = read_algorithm("distfl")
        assert [c.name for c in (spec.objective, spec.grouping, spec.mean, spec.privacy)] == [
            "fedavg",
            "distfl",
            "uniform",
            "no-privacy",
        ]
        assert spec.personalisation.name == "served"
        assert read_algorithm("fedfomo").grouping.name == "individual"
        assert read_algorithm("fedfomo+personal").grouping.name == "individual"
        assert [
            read_algorithm(f"fedprox+{name}").grouping.name
            for name in ("served", "personal", "recalibrated", "knn-per")
        ] == [
            "none",
            "distfl",
            "none",
            "none",
        ]

    def test_the_default_keeps_what_serves_the_device_best_in_groups_that_are_found(self) -> None:
        spec = read_algorithm(DEFAULT_ALGORITHM)
        named = [
            c.name
            for c in (spec.objective, spec.grouping, spec.mean, spec.privacy, spec.personalisation)
        ]
        assert named == ["fedavg", "distfl", "robust", "no-privacy", "personal"]
        assert make_algorithm(spec).objective == "fedavg+personal"

    def test_the_default_mean_is_robust_and_a_papers_name_has_its_papers(self) -> None:
        wanted = {
            "personal": "robust",
            "regression": "robust",
            "fedprox+personal": "robust",
            "personal+median": "median",
            "personal+cfl": "robust",
            "personal+none": "weighted",
            "personal+none+gaussian": "uniform",
            "fedavg": "weighted",
            "distfl": "uniform",
            "distfl+recalibrated": "uniform",
        }
        assert {name: read_algorithm(name).mean.name for name in wanted} == wanted
        assert make_algorithm(read_algorithm("personal+none")).streams

    def test_privacy_is_added_as_if_the_name_had_it(self) -> None:
        assert read_algorithm("fedavg").with_privacy("gaussian:clip_norm=2") == read_algorithm(
            "fedavg+gaussian:clip_norm=2"
        )
        assert read_algorithm("fedavg").with_privacy("gaussian").mean.name == "uniform"
        with pytest.raises(
            ConfigError, match="'fedavg\\+gaussian': gaussian and dp-sgd are of one kind, privacy"
        ):
            read_algorithm("fedavg+gaussian").with_privacy("dp-sgd")
        with pytest.raises(
            ConfigError,
            match=r"No privacy mechanism 'median'. Known privacy mechanisms: dp-sgd, gaussian",
        ):
            read_privacy("median")

    def test_separate_hyper_parameters_replace_those_in_the_name_and_are_checked_alike(
        self,
    ) -> None:
        spec = read_algorithm("fedprox:mu=0.1:lr=0.2")
        assert spec.hyper_with({"lr": 0.3, "momentum": 0.0}) == {
            "mu": 0.1,
            "lr": 0.3,
            "momentum": 0.0,
        }
        with pytest.raises(
            ConfigError,
            match=r"algorithm 'fedprox:mu=0.1:lr=0.2': mu must be a number from 0.*, got '-1'",
        ):
            spec.hyper_with({"mu": -1.0})

    def test_only_a_mechanism_in_the_step_changes_the_step(self) -> None:
        assert read_algorithm("fedavg+dp-sgd:clip_norm=2").parts.privacy.in_step() == {
            "clip_norm": 2.0,
            "noise_multiplier": 1.0,
        }
        assert read_algorithm("fedavg+local-gaussian").parts.privacy.in_step() == {}

    def test_options_reach_what_they_are_for(self) -> None:
        spec: Any = read_algorithm("fedfomo:lr=0.1:num_others=2:epsilon=0.5")
        assert spec.hyper == {"lr": 0.1}
        objective: Any = make_objective(spec, tiny_model("fedfomo"))
        assert (objective.hyper["lr"], objective.num_others) == (0.1, 2)
        coordinator: Any = make_algorithm(spec).coordinator
        assert (coordinator.epsilon, make_algorithm(spec).name) == (0.5, str(spec))
