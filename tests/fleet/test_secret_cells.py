"""Rounds of a robust mean in secret mode: sums over cells, which count whole or not at all."""

from typing import Any

from algorithms.core.cells import cells_of
from tests.fleet.cases import run
from tests.fleet.secret_world import PARTS, Secret
from tests.fleet.world import Client

FLEET = tuple(f"d{number:02}" for number in range(17))
CELLS = {frozenset(cell) for cell in cells_of(FLEET, 5)}


class Celled(Secret):
    """A service in secret mode whose mean compares sums over cells."""

    def begin(self, settings: dict[str, Any]) -> None:
        self.start("run", parts=PARTS, has_cells=True, **settings)


def cells(world: Celled) -> set[frozenset[str]]:
    """The parts into which all sums have cut the devices."""
    return set(map(frozenset, run(world).cells))


def test_each_cell_has_a_sum_of_its_own_and_stays_the_same_in_every_round() -> None:
    world = Celled(*FLEET, min_devices=17)
    world.do_all()
    assert run(world).phase == "finished"
    rounds = [{question.group for question in world.asked[at : at + 3]} for at in (0, 3, 6)]
    assert rounds == [{f"{start}.{n}" for n in range(3)} for start in ("initial", "0", "0")]
    assert sorted(question.most for question in world.asked[:3]) == [5, 6, 6]
    assert cells(world) == CELLS


def test_too_few_whole_cells_are_waited_for() -> None:
    world = Celled(*FLEET[:14], min_devices=15)
    world.do_all()
    assert world.asked == []
    assert world.lack == "1 more: 14 of 15 devices are there"


def test_two_cells_are_too_few_to_compare() -> None:
    world = Celled(*FLEET[:12], min_devices=10)
    world.do_all()
    assert world.asked == []
    assert world.lack == "more whole cells of devices: there are 2, and the mean compares 3 or more"


def test_a_cell_that_has_not_answered_whole_at_the_deadline_is_in_no_sum() -> None:
    many = tuple(f"d{number:02}" for number in range(22))
    world = Celled(*many, min_devices=15, rounds=4)
    late = min(d for devices in run(world).cohorts.values() for d in devices)
    (cell,) = [set(devices) for devices in run(world).cohorts.values() if late in devices]
    world.do_all(*(d for d in many if d != late))
    world.pass_time(101)
    world.do_all(*(d for d in many if d != late))
    assert late not in set().union(*cells(world))
    assert run(world).round > 1
    assert {frozenset(cell)}.isdisjoint(cells(world))
    world.do_all()
    world.pass_time(200)
    world.do_all()
    assert run(world).phase == "finished"
    assert min(map(len, cells(world))) >= 5


def test_new_devices_are_a_cell_once_they_are_enough() -> None:
    world = Celled(*FLEET, min_devices=17, rounds=6)
    world.do_all(*FLEET[:16])  # the first round is open, and waits for one
    for number in range(5):
        world.clients[f"n{number}"] = Client()
        world.check_in(f"n{number}")
    world.do_all()
    assert cells(world) == CELLS | {frozenset(f"n{number}" for number in range(5))}
