"""One contract for every registered choice: deterministic for a seed, blind to the order of devices, serialisable to the same bits,
composing with every other choice or refusing with a reason."""

import numpy as np
import pytest

from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe
from algorithms.registry import GROUPINGS, MEANS, OBJECTIVES, PERSONALISATION, PRIVACY, listing, make_algorithm, read_algorithm
from tests.contracts.algorithm import CHANNELS, LENGTH, WORK, Field, finite, make_field, same_bits
from wire.errors import ConfigError

FAST = {"distfl": "distfl:num_inputs=10:iterations=3", "autocfl": "autocfl:earliest=2", "hierarchical": "hierarchical:rounds=2"}
SMALL = {
    "fedgen": "fedgen:generator_steps=2:bank_size=32",
    "feddisk-ab": "feddisk-ab:ratio_epochs=1",
    "feddisk": "feddisk:preparations=2:local_checks=1:local_epochs=1:ratio_epochs=1:density_units=4",
}


def spelled(name: str) -> str:
    return SMALL.get(name, FAST.get(name, name))


def made_or_reason(name: str) -> Field | str:
    """A fleet of three with these choices, or why they do not go together."""
    try:
        return make_field(name, num_devices=3)
    except ConfigError as error:
        return str(error)


RESPONSES = ("responses", "responses:cut=gap", "responses:cut=fixed:after=2")
NAMES = [
    *(spelled(name) for name in OBJECTIVES),
    *(f"fedavg+{spelled(name)}" for name in GROUPINGS),
    *(f"distfl:num_inputs=10:iterations=3:signature={s}" for s in (*RESPONSES, "noise", "statistics", "labels")),
    *(f"fedavg+{name}" for name in MEANS),
    *(f"fedavg+{name}" for name in PRIVACY),
    *(f"fedavg+none+{name}" for name in PERSONALISATION),
    "dbe+distfl:num_inputs=10:iterations=3+irls",
    "scaffold+ifca:k=2+trimmed",
]


@pytest.mark.parametrize("name", NAMES)
class TestEveryChoice:
    def test_same_seed_same_bits_whatever_the_order_and_over_bytes(self, name: str) -> None:
        plain = make_field(name).play(3)
        same_bits(plain, make_field(name).play(3, reverse=True, through_bytes=True))
        assert finite(plain.models)

    def test_every_device_has_a_group_with_a_model_also_one_that_comes_late(self, name: str) -> None:
        field = make_field(name)
        state = field.play(3, late="d7")
        assert set(state.memory.membership) == set(field.executors)
        starts = {field.algorithm.start(state.memory, d) for d in field.executors}
        assert starts <= state.models.keys()
        assert all(key == NEWCOMER or key.isdigit() for key in state.models)


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "fedavg"])
@pytest.mark.parametrize("grouping", [name for name in GROUPINGS if name != "none"])
def test_objectives_compose_with_groupings_or_refuse_with_a_reason(objective: str, grouping: str) -> None:
    name = f"{spelled(objective)}+{spelled(grouping)}"
    field = made_or_reason(name)
    assert finite(field.play(1).models) if isinstance(field, Field) else len(field) > 20


@pytest.mark.parametrize("privacy", [name for name in PRIVACY if name != "no-privacy"])
@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_objectives_compose_with_privacy_or_refuse_with_a_reason(objective: str, privacy: str) -> None:
    name = f"{spelled(objective)}+{privacy}"
    field = made_or_reason(name)
    if not isinstance(field, Field):
        assert privacy in field or "privacy" in field
        return
    state = field.play(2)
    assert finite(state.models)
    assert state.epsilon is not None
    assert state.epsilon > 0


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_objectives_compose_with_what_devices_keep_and_the_rounds_are_those_without(objective: str) -> None:
    """What a device keeps is decided after the last round: rounds of training have the same bits whatever it is."""
    grouping = OBJECTIVES[objective].server.grouping or "none"
    plain = make_field(f"{spelled(objective)}+{grouping}", num_devices=2).play(1)
    for name in PERSONALISATION:
        same_bits(plain, make_field(f"{spelled(objective)}+{grouping}+{name}", num_devices=2).play(1))


@pytest.mark.parametrize("grouping", list(GROUPINGS))
@pytest.mark.parametrize("name", list(PERSONALISATION))
def test_groupings_compose_with_what_devices_keep(grouping: str, name: str) -> None:
    assert finite(make_field(f"fedavg+{spelled(grouping)}+{name}", num_devices=3).play(1).models)


@pytest.mark.parametrize("mean", list(MEANS))
def test_means_compose_with_a_model_of_which_devices_keep_a_part(mean: str) -> None:
    state = make_field(f"fedper+{mean}", num_devices=4).play(2)
    assert finite(state.models)
    assert not any("head" in key for key in state.models["0"])


def test_the_listing_names_every_choice_once_with_its_source() -> None:
    rows = listing()
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    assert {row["choice"] for row in rows} == {"objective", "grouping", "mean", "privacy", "personalisation"}
    assert [row["name"] for row in rows if not row["citation"] and row["name"] != "no-privacy"] == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "'nothing' is none of"),
        ("dbe+fedprox", "are both a objective"),
        ("ifca:k=x", "k is 'x', expected a whole number"),
        ("ifca:n=2", "no option of ifca; it has k=2"),
        ("fedavg:mu=1", "no option of fedavg"),
        ("distfl:signature=x", "signature is 'x', expected responses or noise"),
        ("distfl:cut=gap", "cut 'gap' with signature 'both': expected test, or gap or fixed with signature responses or noise"),
        ("fedavg+gaussian+median", "uniform mean"),
        ("distfl+gaussian", "survey"),
        ("dbe+gaussian", "no privacy mechanism covers"),
        ("fedfomo+distfl", "works with the grouping 'individual' alone"),
        ("fedfomo+distfl+personal", "works with the grouping 'individual' alone"),
        ("personal+knn-per", "are both a personalisation"),
        ("personal+gaussian", "survey"),
        ("personal:memory=4", "memory is '4', expected a whole number from 8 to 4096"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_algorithm(read_algorithm(name))


def test_hyper_parameters_in_a_name_take_the_place_of_the_objectives_own() -> None:
    quiet = make_field("fedavg:lr=0", num_devices=2)
    before = {k: v.copy() for k, v in quiet.state.models[NEWCOMER].items() if k.startswith("shared/")}
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
