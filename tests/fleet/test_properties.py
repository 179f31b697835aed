"""Properties over random histories: whatever happens in whatever order, nothing is lost, counted
twice, or left undone.

`World.feed` checks after every event that an update counts at most once and is acknowledged, that
none is lost, that a device has one assignment at a time, and that pools and counts are what they
should be.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.fleet import rounds
from aggregator.fleet import step as machine
from tests.fleet.histories import (
    COUNT,
    MANY,
    RANDOM,
    check_again,
    check_replay,
    check_rest,
    history,
    lived,
)


@MANY
@given(RANDOM, COUNT, st.integers(1, 7))
def test_any_history_keeps_the_invariants_and_the_same_events_give_the_same_fleet(
    rng: random.Random, count: int, size: int
) -> None:
    check_replay(lived(history(rng, count)), size)


@MANY
@given(RANDOM, COUNT)
def test_everything_comes_to_rest_and_every_device_holds_what_is_wanted(
    rng: random.Random, count: int
) -> None:
    check_rest(lived(history(rng, count)))


@MANY
@given(RANDOM, COUNT)
def test_having_everything_commanded_again_changes_nothing(rng: random.Random, count: int) -> None:
    check_again(lived(history(rng, count)))


@pytest.mark.parametrize("chunk", [2, 500])
@pytest.mark.parametrize("seed", range(40))
def test_long_histories_do_all_of_this_too(
    seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "CHUNK", chunk)
    monkeypatch.setattr(machine, "SWEPT", chunk)
    world = lived(history(random.Random(seed), 300))
    check_replay(world, 5)
    check_again(world)
    check_rest(world)
