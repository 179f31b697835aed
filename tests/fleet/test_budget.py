"""Length of a campaign: rounds, days, and improvement of its models."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aggregator.fleet.budget import DAY_S, improvement_of, why_ended
from aggregator.fleet.reconcile import REST_S
from tests.fleet.cases import all_work, configure, direct, run, world_of
from tests.fleet.world import World


def begun(**settings: Any) -> World:
    """A campaign of one device."""
    world = world_of("a")
    usual: dict[str, Any] = {"rounds": 100, "deadline_s": 10 * DAY_S}
    world.start("run", **usual | settings)
    return world


def train(world: World, accuracy: float | None = 0.5) -> None:
    """A round of training in which the device reports this accuracy of the model before."""
    before = run(world).trained
    world.clients["a"].accuracy = accuracy
    all_work(world)
    assert run(world).trained == before + 1


def phase_of(world: World) -> str:
    """The phase of the campaign."""
    return run(world).phase


class TestDays:
    def test_no_round_is_opened_after_them_and_the_open_one_counts(self) -> None:
        world = begun(days=2.0)
        world.pass_time(1.9 * DAY_S)
        train(world)
        assert phase_of(world) == "training"
        world.pass_time(0.2 * DAY_S)
        train(world)
        assert (phase_of(world), run(world).trained) == ("evaluating", 2)
        all_work(world)
        assert phase_of(world) == "finished"
        assert why_ended(run(world)) == "its 2 days are over"

    def test_a_round_that_nobody_answers_is_given_up_for_the_evaluation(self) -> None:
        world = begun(days=1.0, deadline_s=0.4 * DAY_S)
        for attempt in (1, 2):
            world.pass_time(0.4 * DAY_S + attempt * REST_S)
            assert (phase_of(world), run(world).attempt) == ("training", attempt)
        world.pass_time(0.4 * DAY_S)
        assert (phase_of(world), run(world).ended) == ("evaluating", "days")
        assert (run(world).round, run(world).attempt, run(world).trained) == (1, 3, 0)

    def test_a_round_that_waits_is_given_up_too(self) -> None:
        world = begun(days=1.0, pace_s=100 * DAY_S)
        train(world)
        assert phase_of(world) == "waiting"
        world.pass_time(DAY_S - 1)
        assert phase_of(world) == "waiting"
        world.pass_time(1)
        assert phase_of(world) == "evaluating"

    def test_more_of_them_let_a_finished_campaign_go_on_and_more_rounds_do_not(self) -> None:
        world = begun(days=1.0)
        world.pass_time(2 * DAY_S)
        train(world)
        all_work(world)
        assert phase_of(world) == "finished"
        configure(world, rounds=500)
        assert phase_of(world) == "finished"
        configure(world, days=3.0)
        assert (phase_of(world), run(world).ended) == ("training", "")


class TestPatience:
    def test_training_ends_when_the_accuracy_has_not_got_better_for_so_many_rounds(self) -> None:
        world = begun(patience=3, min_delta=0.02)
        for accuracy in (0.5, 0.6, 0.61, 0.62):
            train(world, accuracy)
            assert phase_of(world) == "training"
        train(world, 0.6)
        campaign = run(world)
        assert (campaign.phase, campaign.best, campaign.unimproved) == ("evaluating", 0.6, 3)
        assert why_ended(campaign) == (
            "the mean accuracy has not improved by more than 0.02 for 3 rounds (best: 0.6000)"
        )

    def test_more_patience_goes_on_and_a_better_round_ends_the_count(self) -> None:
        world = begun(patience=1)
        train(world)
        train(world)
        all_work(world)
        assert phase_of(world) == "finished"
        configure(world, patience=3)
        assert phase_of(world) == "training"
        train(world, 0.55)
        assert (phase_of(world), run(world).unimproved) == ("training", 0)

    def test_devices_that_report_no_accuracy_are_named_and_end_nothing(self) -> None:
        world = begun(patience=1)
        for _ in range(5):
            train(world, None)
        assert phase_of(world) == "training"
        assert why_ended(run(world)) == ("its devices report no accuracy: --patience cannot end it")

    @given(
        st.lists(st.one_of(st.none(), st.sampled_from([0.1, 0.3, 0.34, 0.36, 0.9])), max_size=30),
        st.integers(1, 5),
        st.sampled_from([0.0, 0.05]),
    )
    def test_whatever_devices_report_it_ends_where_the_definition_says(
        self, accuracies: list[float | None], patience: int, min_delta: float
    ) -> None:
        world = begun(patience=patience, min_delta=min_delta)
        for number, accuracy in enumerate(accuracies, start=1):
            train(world, accuracy)
            best, unimproved = improvement_of(accuracies[:number], min_delta)
            assert (run(world).best, run(world).unimproved) == (best, unimproved)
            assert (phase_of(world) == "evaluating") == (unimproved >= patience)
            if phase_of(world) == "evaluating":
                return


def test_rounds_and_an_order_are_named_too() -> None:
    world = begun(rounds=1)
    train(world)
    assert why_ended(run(world)) == "its 1 round is over"
    world = begun()
    direct(world, "abort")
    assert why_ended(run(world)) == "it was aborted"
