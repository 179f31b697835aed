"""Bad days of an operator, devices that lie, and what a round says that waits."""

from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.core.steps import Gate
from aggregator.fleet import events as e
from aggregator.fleet import rounds
from aggregator.fleet.gate import StepAnswers, judge
from aggregator.fleet.reconcile import REST_S, Turn
from tests.fleet.cases import all_work, asked, configure, direct, run, world_of
from tests.support.known import known
from wire.messages import InUse


def test_a_round_whose_devices_failed_once_closes_within_one_back_off() -> None:
    world = world_of(*"abcd")
    world.start("run", min_devices=3, deadline_s=3600.0)
    world.carry_out()
    for device_id in "cd":
        world.decline(device_id)
    all_work(world, "a", "b")
    began_s = world.now_s
    assert (world.rounds, run(world).round) == ([], 1)
    while not world.rounds and world.now_s < began_s + 2 * REST_S:
        all_work(world)
        world.pass_time(1)
    assert world.now_s - began_s <= REST_S + 1
    assert world.rounds[0][2] >= 3


def test_a_silent_device_costs_one_deadline_and_then_nothing() -> None:
    world = world_of(*"abcd")
    world.start("run", rounds=1000, min_devices=1, deadline_s=100.0)
    took_s = list[float]()
    for _ in range(40):
        before, began_s = len(world.rounds), world.now_s
        while len(world.rounds) == before:
            all_work(world, *"abc")
            world.pass_time(0.5)
        took_s.append(world.now_s - began_s)
    assert took_s[0] >= 100.0, "its first miss"
    assert max(took_s[1:]) <= 1.0, "no round waits for it again"
    assert world.fleet.devices["d"].failures >= 1


def test_a_silent_device_is_asked_beside_the_cohort_and_never_in_place_of_another() -> None:
    world = world_of(*"abcd")
    world.start("run", rounds=1000, min_devices=1, cohort=3, deadline_s=100.0)
    while world.fleet.devices["d"].failures == 0:
        all_work(world, *"abc")
        world.pass_time(1)
    for _ in range(300):
        all_work(world, *"abc")
        world.pass_time(1)
        if "d" in asked(world) and run(world).phase == "training" and not run(world).updates:
            assert set(asked(world)) == set("abcd")
            return
    raise AssertionError("it is asked again")


@pytest.mark.parametrize("seed", range(4))
def test_a_short_round_finds_the_one_that_is_back_among_many_that_are_silent(seed: int) -> None:
    silent = [f"s{number:02}" for number in range(40)]
    world = world_of("a", "b", "z", *silent)
    world.start("run", rounds=1000, min_devices=2, deadline_s=8.0, seed=seed)
    while not world.fleet.devices["z"].failures or any(
        device.rests_until_s > world.now_s for device in world.fleet.devices.values()
    ):
        all_work(world, "a", "b")
        world.pass_time(1)
    world.pass_time(1)
    before, began_s = len(world.rounds), world.now_s
    while len(world.rounds) == before:
        all_work(world, "a", "z")  # and `b` is gone without a word
        world.pass_time(1)
    assert world.now_s - began_s <= 6 * 8.0, "not one deadline for each that is silent"


@pytest.mark.parametrize(
    ("free", "ends"),
    [(10 * 2**30, True), (2 * 2**20, True), (2**20, False), (0, False), (None, False)],
)
def test_a_rest_ends_when_a_full_disk_has_room_again(free: int | None, ends: bool) -> None:
    world = world_of("a", "b")
    facts = replace(known(world.fleet.devices["a"].facts), free_bytes=2**19)
    world.feed(e.CheckedIn(at_s=world.now_s, device_id="a", facts=facts))
    world.start("run", min_devices=1, rounds=9)
    world.carry_out()
    world.decline("a")
    assert world.fleet.devices["a"].rests_until_s > world.now_s
    checked_in = e.CheckedIn(at_s=world.now_s, device_id="a", facts=replace(facts, free_bytes=free))
    world.feed(checked_in)
    device = world.fleet.devices["a"]
    assert (device.rests_until_s == 0.0) is ends
    assert device.failures == 1, "no round waits for it before it has carried out an assignment"
    world.feed(checked_in)
    assert world.fleet.devices["a"] == device, "a second look finds the same"


@pytest.mark.parametrize("change", [{"hyper": {"lr": 0.01}}, {"deadline_s": 900.0}])
def test_other_settings_end_the_rests_of_those_that_failed_under_the_old_ones(
    change: dict[str, Any],
) -> None:
    world = world_of(*"abc")
    world.start("run", rounds=9, min_devices=3, deadline_s=100.0)
    for _ in range(6):
        world.carry_out()
        for device_id in "abc":
            world.decline(device_id)
        world.pass_time(7200)
    world.carry_out()
    for device_id in "abc":
        world.decline(device_id)
    world.pass_time(101)
    assert run(world).phase == "waiting"
    assert asked(world) == []
    configure(world, **change)
    assert asked(world) == [*"abc"], "at once"
    world.carry_out()
    world.decline("a")
    all_work(world, "b", "c")
    world.pass_time(300)
    assert "a" not in asked(world), "it failed under the new settings as well"


def test_a_rest_goes_on_until_other_settings_apply() -> None:
    world = world_of("a", "b")
    world.start("run", rounds=9, min_devices=1, deadline_s=100.0)
    world.carry_out()
    world.decline("a")
    configure(world, hyper={"lr": 0.01})
    assert asked(world) == ["b"], "the open round has the old settings"
    all_work(world, "b")
    assert run(world).round == 2
    assert asked(world) == ["a", "b"]


def test_a_rest_ends_with_the_models_at_which_its_device_failed() -> None:
    world = world_of("a", "b")
    world.start("run", rounds=9, min_devices=1, keep_models=9)
    all_work(world)
    world.carry_out()
    world.decline("a")
    all_work(world, "b")
    assert asked(world) == ["b"]
    world.feed(e.RolledBack(at_s=world.now_s, campaign="run", to=0))
    world.ring()
    assert asked(world) == ["a", "b"]


def test_a_rest_is_over_for_good_once_its_device_has_another_assignment() -> None:
    world = world_of("a", "b")
    world.start("run", rounds=3, min_devices=1)
    world.carry_out()
    for _ in range(8):
        world.decline("a")
        world.pass_time(7200)
    world.carry_out()
    world.decline("a")
    configure(world, hyper={"lr": 0.01})
    all_work(world, "b")
    assert asked(world) == ["a", "b"]
    direct(world, "abort")
    world.start("next", rounds=3, min_devices=1)
    assert asked(world) == ["a", "b"], "it did not fail what was cancelled"


def test_a_round_that_nobody_can_serve_says_what_it_lacks() -> None:
    world = world_of("a", "b")
    world.start("run", min_devices=3)
    turn = Turn(world.fleet)
    assert rounds.lacking(turn, run(world)).text == "1 more device: 2 of 3 ready"
    world.check_in("c")
    world.carry_out()
    for device_id in "abc":
        world.decline(device_id)
    turn = Turn(world.fleet)
    lacks = "3 more updates: 0 devices can still send one"
    assert rounds.lacking(turn, run(world)).text == lacks


def test_a_time_without_the_service_is_no_failure_of_its_devices() -> None:
    world = world_of(*"abcd")
    world.start("run", rounds=9, min_devices=2, deadline_s=100.0)
    world.carry_out()
    world.pass_time(40)
    world.now_s += 500
    world.feed(e.Resumed(at_s=world.now_s, epoch=2))
    world.ring()
    devices = world.fleet.devices.values()
    assert [device.failures for device in devices] == [0, 0, 0, 0]
    assert asked(world) == list("abcd"), "they are asked again at once"
    world.pass_time(101)
    assert all(device.failures for device in world.fleet.devices.values()), "now it was there"


def test_a_time_without_the_service_goes_on_over_a_start_that_looked_at_nobody() -> None:
    world = world_of(*"abc")
    world.start("run", rounds=5, min_devices=2, deadline_s=100.0)
    world.carry_out()
    world.timers.clear()
    world.now_s += 500
    world.crash()
    world.now_s += 1
    world.crash()
    world.pass_time(5)
    assert {d: device.failures for d, device in world.fleet.devices.items()} == dict.fromkeys(
        "abc", 0
    )


def test_a_device_that_answers_after_its_deadline_or_says_it_is_another_stays_beside() -> None:
    world = world_of(*"abcd")
    world.start("run", rounds=1000, min_devices=1, deadline_s=100.0)
    while world.fleet.devices["d"].failures == 0:
        all_work(world, *"abc")
        world.pass_time(1)
    world.work("d")
    late = world.fleet.devices["d"]
    assert (late.failures, late.rests_until_s) == (1, 0.0)
    facts = late.facts
    assert facts is not None
    world.feed(e.CheckedIn(at_s=world.now_s, device_id="d", facts=replace(facts, client="another")))
    assert world.fleet.devices["d"].failures == 1
    all_work(world)
    world.pass_time(1)
    all_work(world)
    assert world.fleet.devices["d"].failures == 0, "it is in time again"


def test_a_device_that_reports_an_absurd_offer_changes_no_number_of_others() -> None:
    world = world_of("a", "b", "evil")
    world.start("run", rounds=1, min_devices=2)
    world.settle()
    before = world.fleet.serial
    for offered in (2**31 - 2, 2**53):
        said = InUse("evil", offered=offered)
        world.feed(e.UsesRelease(at_s=world.now_s, device_id="evil", in_use=said))
    assert world.fleet.serial <= before + 2
    assert world.fleet.devices["evil"].last_offer.serial <= 2**31
    world.settle()


def test_one_of_nine_devices_has_no_release_withdrawn() -> None:
    one, two = StepAnswers(failed=1, confirmed=8), StepAnswers(failed=2, confirmed=7)
    assert [judge(Gate(), tally, 10.0)[0] for tally in (one, two)] == ["pass", "fail"]
    assert judge(Gate(), StepAnswers(failed=1, confirmed=1), 10.0)[0] == "wait", "who lies?"
