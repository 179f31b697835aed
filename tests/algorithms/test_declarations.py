"""What the choices declare of themselves is what their methods do."""

import pytest

from algorithms.core.contract import Sgd
from algorithms.groupings.single import SingleGroup
from algorithms.means.weighted import UniformMean, WeightedMean
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.supervised import Supervised
from algorithms.registry import GROUPINGS, MEANS, OBJECTIVES

TRAINING = ("step", "loss", "correct", "forward", "trained")
ANSWERS = ("evaluate", "predict", "forward")


@pytest.mark.parametrize("name", OBJECTIVES)
class TestObjectives:
    def test_a_step_is_declared_plain_where_nothing_of_it_was_replaced(self, name: str) -> None:
        device = OBJECTIVES[name].device
        plain = all(getattr(device, method) is getattr(Supervised, method) for method in TRAINING)
        declared = device.sgd_graphs.get("step") == Sgd()
        assert declared == plain or device.columns

    def test_answers_are_declared_the_models_where_nothing_of_them_was_replaced(self, name: str) -> None:
        device = OBJECTIVES[name].device
        assert device.model_answers == all(getattr(device, method) is getattr(Supervised, method) for method in ANSWERS)

    def test_a_server_absorbs_where_it_says_so(self, name: str) -> None:
        server = OBJECTIVES[name].server
        assert server.absorbs == (server.absorb is not DefaultCoordinator.absorb)


def test_only_the_single_group_reads_no_models() -> None:
    assert [made for made in GROUPINGS.values() if not made().reads_models] == [SingleGroup]


def test_only_the_averages_leave_nobody_out() -> None:
    assert {made for made in MEANS.values() if made.averages} == {WeightedMean, UniformMean}
    assert [made for made in MEANS.values() if made.by_examples] == [WeightedMean]
