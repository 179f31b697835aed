"""One contract for every registered choice: deterministic for a seed, blind to the order of
devices, serialisable to the same bits, composing with every other choice or refusing with a reason.
"""

import numpy as np
import pytest

from algorithms.composition import listing, make_algorithm, read_algorithm
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe
from algorithms.registry import CHOICES
from simulation.contract import rounds
from simulation.contract.fleet import CHANNELS, LENGTH, WORK, make_field
from simulation.contract.rounds import small
from tests.support.objectives import OBJECTIVES
from wire.errors import ConfigError

RESPONSES = ("responses", "responses:cut=gap", "responses:cut=fixed:after=2")
NAMES = [
    *(small(name) for name in OBJECTIVES),
    *(f"fedavg+{small(name)}" for name in CHOICES["grouping"]),
    *(
        f"distfl:num_inputs=10:iterations=3:signature={s}"
        for s in (*RESPONSES, "noise", "statistics", "labels")
    ),
    *(f"fedavg+{name}" for name in CHOICES["mean"]),
    *(f"fedavg+{name}" for name in CHOICES["privacy"]),
    *(f"fedavg+none+{name}" for name in CHOICES["personalisation"]),
    "dbe+distfl:num_inputs=10:iterations=3+irls",
    "scaffold+ifca:k=2+trimmed",
    "distfl:signature=statistics+fedyogi",
    "ditto+cfl+fedadam+local-gaussian",
]


@pytest.mark.representatives(
    "fedavg",
    "scaffold",
    "ditto",
    "fedavg+ifca*",
    "distfl:*responses",
    "fedavg+trimmed",
    "fedavg+gaussian",
    "fedavg+none+personal",
)
@pytest.mark.parametrize("name", NAMES)
class TestEveryChoice:
    def test_same_seed_same_bits_whatever_the_order_and_over_bytes(self, name: str) -> None:
        rounds.repeats(name)

    def test_every_device_has_a_group_with_a_model_also_one_that_comes_late(
        self, name: str
    ) -> None:
        rounds.places(name)


@pytest.mark.representatives("ifca-scaffold", "distfl-ditto")
@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "fedavg"])
@pytest.mark.parametrize("grouping", [name for name in CHOICES["grouping"] if name != "none"])
def test_objectives_compose_with_groupings_or_refuse_with_a_reason(
    objective: str, grouping: str
) -> None:
    rounds.compose_with([f"{small(objective)}+{small(grouping)}"])


@pytest.mark.representatives("fedavg-*")
@pytest.mark.parametrize("privacy", [name for name in CHOICES["privacy"] if name != "no-privacy"])
@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_objectives_compose_with_privacy_or_refuse_with_a_reason(
    objective: str, privacy: str
) -> None:
    rounds.compose_with_privacy([f"{small(objective)}+{privacy}"])


@pytest.mark.representatives("fedavg", "ditto")
@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_objectives_compose_with_what_devices_keep_and_the_rounds_are_those_without(
    objective: str,
) -> None:
    rounds.keeps_rounds(small(objective), CHOICES["personalisation"])


@pytest.mark.representatives("personal-*")
@pytest.mark.parametrize("grouping", list(CHOICES["grouping"]))
@pytest.mark.parametrize("name", list(CHOICES["personalisation"]))
def test_groupings_compose_with_what_devices_keep(grouping: str, name: str) -> None:
    assert not rounds.compose_with([f"fedavg+{small(grouping)}+{name}"])


@pytest.mark.parametrize("mean", list(CHOICES["mean"]))
def test_means_compose_with_a_model_of_which_devices_keep_a_part(mean: str) -> None:
    rounds.share_a_part(mean)


def test_the_listing_names_every_choice_once_with_its_source() -> None:
    rows = listing()
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    assert {row["choice"] for row in rows} == {
        "objective",
        "memory",
        "bias",
        "memory and bias",
        "grouping",
        "mean",
        "privacy",
        "personalisation",
        "optimizer",
        "server optimizer",
        "task",
    }
    assert [
        row["name"] for row in rows if not row["citation"] and row["name"] != "no-privacy"
    ] == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "No algorithm 'nothing'"),
        ("fedavg+fedprox", "are of one kind, objective"),
        ("dbe+mr", "are of one kind, memory"),
        ("dbe+ditto", "prbm works with .*, not with ditto"),
        ("ifca:k=x", "k must be a whole number.*, got 'x'"),
        ("ifca:n=2", "not an option of ifca; it has k=2"),
        ("fedavg:mu=1", "not an option of fedavg"),
        ("distfl:signature=x", "signature must be responses or noise.*, got 'x'"),
        (
            "distfl:cut=gap",
            "cut must be test with signature 'both', got 'gap'; gap and fixed need signature "
            "responses or noise",
        ),
        ("fedavg+gaussian+median", "not for .median.. Use mean=uniform"),
        ("distfl+gaussian", "survey"),
        ("dbe+gaussian", "no privacy mechanism covers"),
        ("fedfomo+distfl", "works only with the grouping 'individual'"),
        ("fedfomo+distfl+personal", "works only with the grouping 'individual'"),
        ("personal+knn-per", "are of one kind, personalisation"),
        ("personal+gaussian", "survey"),
        ("scaffold+adam", "has an update rule of its own, and cannot use the optimizer adam"),
        ("fedavg:momentum=0.5+adam", "'momentum' of fedavg has no effect with the optimizer adam"),
        ("sgd+adam", "are of one kind, optimizer"),
        ("fedadam+fedyogi", "are of one kind, server optimizer"),
        ("fedadam:tau=0", "tau must be a number above 0.*, got '0'"),
        ("fedavgm:beta=1", "beta must be a number from 0 below 1.*, got '1'"),
        (
            "scaffold+dbe+fedavgm",
            "scaffold has .* on the server, and cannot use the server optimizer fedavgm",
        ),
        ("sgd:nesterov=yes", "nesterov must be true or false.*, got 'yes'"),
        ("adam:beta2=1", "beta2 must be a number from 0 below 1.*, got '1'|beta2"),
        ("personal:memory=4", "memory must be a whole number from 8 to 4096.*, got '4'"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_algorithm(read_algorithm(name))


def test_hyper_parameters_in_a_name_take_the_place_of_the_objectives_own() -> None:
    quiet = make_field("fedavg:lr=0", num_devices=2)
    before = {
        k: v.copy() for k, v in quiet.state.models[NEWCOMER].items() if k.startswith("shared/")
    }
    after = quiet.play(1).models["0"]
    assert all(np.allclose(before[k], after[k]) for k in before)


class TestNewGroups:
    """Ten devices, of which the odd ones see a shifted world, by the statistics of their data."""

    NAME = "distfl:signature=statistics"

    def test_a_late_device_is_placed_by_its_survey_and_does_not_disturb_the_mean(self) -> None:
        late = make_field(self.NAME, num_devices=10)
        membership = late.play(2, late="d9").memory.membership
        assert membership["d9"] == membership["d1"] != membership["d0"]
        without = make_field(self.NAME, num_devices=10)
        del without.executors["d9"]
        state = without.play(2)
        for key, value in state.models[membership["d1"]].items():
            np.testing.assert_array_equal(value, late.state.models[membership["d1"]][key])

    def test_a_new_group_of_absent_devices_keeps_the_model_they_had(self) -> None:
        """Seven devices are too few to test; with the others they split, while one side is away."""
        field = make_field(self.NAME, num_devices=10)
        probe = make_probe(field.model, (CHANNELS, LENGTH))
        first = field.contributions(["d0", "d1", "d2", "d3", "d4", "d5", "d6"], 1)
        field.state, _ = field.algorithm.apply(field.state, first, probe, 1, WORK)
        assert set(field.state.memory.membership.values()) == {"0"}
        second = field.contributions(["d0", "d2", "d4", "d6", "d8"], 2)
        field.state, _ = field.algorithm.apply(field.state, second, probe, 2, WORK)
        membership = field.state.memory.membership
        assert membership["d1"] != membership["d0"]
        assert set(membership.values()) <= field.state.models.keys()
