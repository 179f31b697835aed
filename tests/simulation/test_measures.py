"""Macro F1, and that the summary has it of the models that devices keep."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from aggregator.view.summary import spread
from algorithms.composition import read_algorithm
from simulation.measures import macro_f1
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.support.fleets import synthetic_fleet
from tests.support.known import known

pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40)


@given(pairs)
def test_it_is_that_of_scikit_learn_over_the_classes_that_occur(
    drawn: list[tuple[int, int]],
) -> None:
    labels, predicted = np.array(drawn).T
    assert macro_f1(labels, predicted) == pytest.approx(
        f1_score(labels, predicted, average="macro", zero_division=0)
    )


def test_a_class_that_nobody_names_does_not_count_and_one_that_is_made_up_counts_as_nought() -> (
    None
):
    assert macro_f1(np.array([0, 0, 4]), np.array([0, 0, 4])) == 1.0
    assert macro_f1(np.array([0, 0]), np.array([0, 3])) == pytest.approx((2 / 3 + 0) / 2)


@pytest.mark.parametrize(("labels", "predicted"), [([], []), ([1], [1, 2])])
def test_nothing_to_measure_is_an_error(labels: list[int], predicted: list[int]) -> None:
    with pytest.raises(ValueError, match="must have the same shape and at least one value"):
        macro_f1(np.array(labels), np.array(predicted))


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "lg-net:fine_tune_epochs=1", "distfl"])
def test_the_summary_has_it_of_the_models_that_devices_keep(algorithm: str) -> None:
    data = synthetic_fleet(4, shift=1.0)
    outcome = simulate(data, SimulationSettings(read_algorithm(algorithm), 3, hyper={"lr": 0.02}))
    for device in outcome.summary.devices.values():
        f1, accuracy = known(device.macro_f1), known(device.accuracy)
        assert 0 <= f1 <= 1
        assert (f1 == 1) == (accuracy == 1)
        assert abs(f1 - accuracy) < 0.25  # the test parts are balanced
    measured = [known(d.macro_f1) for d in outcome.summary.devices.values()]
    assert known(outcome.summary.macro_f1).mean == pytest.approx(np.mean(measured), abs=1e-5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=45))
def test_the_worst_tenth_is_the_mean_of_the_lowest(values: list[float]) -> None:
    count = -(-len(values) // 10)
    found = spread(values)
    assert found.worst_tenth == pytest.approx(np.mean(sorted(values)[:count]), abs=1e-6)
    assert known(found.worst) <= known(found.worst_tenth) + 1e-6
