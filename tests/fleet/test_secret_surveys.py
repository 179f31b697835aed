"""Groups from secret sums: exchanges by rounds, sides told outside of them, newcomers told later.

The tree is real, and what sums say about it is made up: devices are in populations by their names.
"""

import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.records import Assignment
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from algorithms.algorithm import State
from algorithms.core.contract import GroupingMemory
from algorithms.groupings.sums.tree import (
    Tree,
    TreeNode,
    ViewAxes,
    next_exchanges,
    untold,
    with_places,
    with_tree,
)
from algorithms.sums import exchange_of, exchanges_in, survey_programs
from tests.fleet.cases import all_work, asked, direct, run
from tests.fleet.secret_world import PARTS, Secret
from tests.fleet.world import TRAIN, Client, digest_of
from wire.messages import Evaluate, Mask, TellGroup
from wire.secret.coordinates import node_of
from wire.secret.survey import WIDTH, Axis, Plane, SurveyScale, SurveySum, parts_of

SCALE = SurveyScale((), (), (0.0,) * WIDTH, (1.0,))
AXES = tuple((0.0,) * i + (1.0,) + (0.0,) * (WIDTH - 1 - i) for i in range(WIDTH))


def memory_of(tree: Tree) -> State:
    return State({}, GroupingMemory({}, {}, with_tree({}, tree)))


def question_of(work: Assignment) -> str | None:
    """Digest of the question of an assignment."""
    last = work.verbs[-1]
    return last.question.digest if isinstance(last, Mask) else None


def named(side: str, count: int) -> list[str]:
    """Devices of a population; those of ``01`` are on side 0 of the first split, on 1 of the next
    one."""
    return [f"{side}-{number}" for number in range(count)]


class Survey(Secret):
    """A service that finds the populations of its devices, the first part of their names."""

    def __init__(self, *device_ids: str, **settings: Any) -> None:
        self.trees = {"": Tree()}
        super().__init__(*device_ids, **settings)

    def begin(self, settings: dict[str, Any]) -> None:
        self.start("run", preparing=True, **self.following(Tree()), **settings)

    @staticmethod
    def following(tree: Tree) -> dict[str, Any]:
        """The parts and the verbs of the next questions, as in a `Version`."""
        state = memory_of(tree)
        parts = {n: parts_of(each, 0) for n, each in exchanges_in(state, 5).items()}
        if not parts and not untold(tree):
            parts = dict.fromkeys(tree.numbers.values(), PARTS["0"])
        return {"parts": parts, "programs": survey_programs(state, 5)}

    def aggregate(self, command: e.Aggregate, *_: Any, **__: Any) -> None:
        campaign = self.fleet.campaigns["run"]
        tree = self.trees[campaign.version.memory]
        nodes = {d: m.node for d, m in campaign.members.items() if m.node is not None}
        tree = with_places(tree, nodes, 5)
        for key, secret in campaign.sums.items() if campaign.preparing else ():
            tree = self.after(tree, exchange_of(campaign.version.programs[f"node:{key}"]), secret)
        is_preparing = bool(untold(tree) or next_exchanges(tree, 5))
        groups = {} if is_preparing else tree.groups
        memory = digest_of(f"memory{command.round}")
        self.trees[memory] = tree
        following, keys = self.following(tree), set(groups.values())
        models = {"initial": digest_of("first")}
        models |= {key: digest_of(f"model{command.round}{key}") for key in keys}
        version = replace(
            campaign.version,
            round=command.round,
            models=models,
            memory=memory,
            newcomers="0" if keys == {"0"} else "initial",
            parts=following["parts"],
            programs={"": (TRAIN,), "closing": (), **following["programs"]},
            leaves=tree.numbers,
        )
        self.feed(
            e.Aggregated(
                at_s=self.now_s,
                campaign="run",
                round=command.round,
                version=version,
                groups={d: g for d, g in groups.items() if self.group(campaign, d) != g},
                nodes={d: n for d, n in tree.places.items() if nodes.get(d) != n},
                preparing=is_preparing,
            )
        )

    @staticmethod
    def after(tree: Tree, exchange: SurveySum, secret: Any) -> Tree:
        """The tree after an exchange: a node is split if its devices are of two populations."""
        if exchange.kind == "scale":
            return Tree(SCALE, {}, dict.fromkeys(secret.devices, ""))
        assert all(tree.places[d] == exchange.node for d in secret.devices)
        depth, plane = len(exchange.node), None
        views = (ViewAxes((Axis(AXES[depth], 0.0, 1.0),), (1.0,)),)
        if len({d.partition("-")[0][depth : depth + 1] for d in secret.devices}) == 2:
            plane = Plane(exchange.node, AXES[depth], 0.0)
        is_tested = exchange.kind == "density"
        node = TreeNode(views, is_tested, plane if is_tested else None)
        return Tree(tree.scale, {**tree.nodes, exchange.node: node}, tree.places)

    def node(self, device_id: str, work: Assignment) -> str:
        if not isinstance(tell := work.verbs[-1], TellGroup):
            return ""
        side = device_id.partition("-")[0].ljust(WIDTH, "0")
        return node_of(np.array([1.0 if digit == "1" else -1.0 for digit in side]), tell.planes)

    def join(self, *device_ids: str) -> None:
        """Further devices come."""
        for device_id in device_ids:
            self.clients[device_id] = Client()
            self.check_in(device_id)

    @property
    def groups(self) -> dict[str, set[str]]:
        """The populations in each group."""
        found: dict[str, set[str]] = {}
        for device_id, member in run(self).members.items():
            if member.group:
                found.setdefault(member.group, set()).add(device_id.partition("-")[0])
        return found

    @property
    def kinds(self) -> list[tuple[str, str, int]]:
        """Kind, key and number of devices of each question, in the order of the plans."""
        devices = Counter(q for _, _, work in self.plans if (q := question_of(work)) is not None)
        verbs = {q: work.verbs for _, _, work in self.plans if (q := question_of(work)) is not None}
        return [
            (
                exchange_of(verbs[q]).kind if isinstance(verbs[q][0], Evaluate) else "train",
                question.group,
                devices[q],
            )
            for question in self.asked
            for q in [question.digest]
        ]


TWENTY = (*named("0", 10), *named("1", 10))


class TestFindingGroups:
    def test_each_exchange_is_a_round_and_each_node_has_a_question(self) -> None:
        world = Survey(*TWENTY)
        world.do_all()
        assert run(world).phase == "finished"
        of_sides = [(kind, side, 10) for kind in ("moments", "density") for side in "01"]
        training = [("train", group, 10) for _ in range(3) for group in "01"]
        whole = [(kind, "", 20) for kind in ("scale", "moments", "density")]
        assert world.kinds[:3] == whole
        assert sorted(world.kinds[3:7]) == sorted(of_sides), "both sides are asked in one round"
        assert sorted(world.kinds[7:]) == sorted(training)
        assert world.groups == {"0": {"0"}, "1": {"1"}}
        assert run(world).cells == (tuple(named("0", 10)), tuple(named("1", 10)))
        assert [phase for *_, phase in world.rounds] == ["preparing"] * 6 + ["training"] * 3
        assert run(world).trained == 3

    def test_a_device_tells_one_side_of_each_split(self) -> None:
        world = Survey(*named("00", 10), *named("01", 10), *named("1", 10))
        world.do_all()
        assert run(world).phase == "finished"
        assert world.groups == {"0": {"00"}, "1": {"01"}, "2": {"1"}}
        tellers = [d for _, d, work in world.plans if work.kind == "survey"]
        assert {d: tellers.count(d) for d in tellers} == {
            d: 2 if d.startswith("0") else 1 for d in world.clients
        }

    def test_devices_of_one_population_tell_nothing(self) -> None:
        world = Survey(*named("0", 12))
        world.do_all()
        assert run(world).phase == "finished"
        assert world.groups == {"0": {"0"}}
        assert {work.kind for _, _, work in world.plans} == {"train"}

    def test_too_few_devices_for_two_sums_are_one_group(self) -> None:
        world = Survey(*named("0", 4), *named("1", 4))
        world.do_all()
        assert world.groups == {"0": {"0", "1"}}

    def test_a_split_with_too_few_devices_on_a_side_is_given_up(self) -> None:
        world = Survey(*named("0", 10), *named("1", 4))
        world.do_all()
        assert run(world).phase == "finished"
        assert world.groups == {"0": {"0", "1"}}
        assert {member.node for member in run(world).members.values()} == {""}

    def test_more_devices_than_a_survey_can_sum_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aggregator.fleet.sums.SURVEY_MOST", 15)
        world = Survey(*TWENTY)
        assert world.lack == "fewer devices: 20 are there, at most 15 can be grouped by sums"
        assert world.asked == []


class TestDevicesThatDie:
    def test_the_first_exchange_is_over_those_that_answer_until_its_deadline(self) -> None:
        world = Survey(*TWENTY, "1-x")
        all_work(world, *TWENTY)
        world.leave("1-x")
        world.pass_time(150)
        world.do_all(*TWENTY)
        assert run(world).phase == "finished"
        assert "1-x" not in run(world).members
        world.check_in("1-x")
        world.do_all()
        assert run(world).members["1-x"].group == "1", "it is told its group when it comes back"
        assert all("1-x" not in cell for cell in run(world).cells)

    def test_the_others_wait_for_one_that_has_to_tell_its_side(self) -> None:
        world = Survey(*TWENTY)
        while not asked(world, "survey"):
            all_work(world)
        world.leave("0-3")
        world.do_all()
        assert run(world).phase == "waiting"
        assert world.lack == "devices to tell their groups: 0-3"
        world.check_in("0-3")
        world.do_all()
        assert run(world).phase == "finished"
        assert world.groups == {"0": {"0"}, "1": {"1"}}

    def test_one_that_is_gone_for_good_is_waited_for_by_its_name(self) -> None:
        world = Survey(*TWENTY)
        while not asked(world, "survey"):
            all_work(world)
        world.feed(e.Excluded(at_s=world.now_s, campaign="run", device_id="0-3"))
        world.do_all()
        assert "1 that helpers open no sum without" in world.lack
        assert world.lack.endswith(": 0-3")
        world.feed(e.Excluded(at_s=world.now_s, campaign="run", device_id="0-3", excluded=False))
        world.do_all()
        assert run(world).phase == "finished"
        assert run(world).members["0-3"].group == "0"

    def test_as_many_as_a_sum_needs_can_leave_before_they_tell(self) -> None:
        world = Survey(*TWENTY)
        while not asked(world, "survey"):
            all_work(world)
        for device_id in named("0", 5):
            world.feed(e.Excluded(at_s=world.now_s, campaign="run", device_id=device_id))
        world.do_all()
        assert run(world).phase == "finished"
        assert world.groups == {"0": {"0"}, "1": {"1"}}
        assert not any(run(world).members[d].group for d in named("0", 5))

    def test_an_exchange_that_a_device_missed_asks_all_of_its_node_again(self) -> None:
        world = Survey(*TWENTY)
        all_work(world)
        world.leave("0-3")
        world.do_all()
        world.pass_time(200)
        world.do_all()
        assert world.lack == "devices that are in every secret sum: 0-3"
        world.check_in("0-3")
        world.pass_time(100)
        world.do_all()
        assert run(world).phase == "finished"
        assert world.groups == {"0": {"0"}, "1": {"1"}}


class TestNewcomers:
    def test_they_are_told_their_group_and_wait_until_they_hide_each_other(self) -> None:
        world = Survey(*TWENTY, rounds=6)
        while run(world).trained < 1:
            all_work(world)
        world.join(*named("1n", 4))
        all_work(world)
        assert {run(world).members[d].group for d in named("1n", 4)} == {"1"}
        while run(world).trained < 3:
            all_work(world)
        assert all(not cell[0].startswith("1n") for cell in run(world).cells)
        world.join("1n-9")
        world.do_all()
        assert run(world).phase == "finished"
        assert ("train", "1", 15) in world.kinds[-2:]
        assert len(run(world).cells) == 3

    def test_they_wait_while_groups_are_found(self) -> None:
        world = Survey(*TWENTY)
        while not asked(world, "survey"):
            all_work(world)
        world.join("1-x")
        world.carry_out()
        assert "1-x" not in asked(world, "survey")
        world.do_all()
        assert run(world).members["1-x"].group == "1"

    def test_they_are_told_after_the_last_round_as_well(self) -> None:
        world = Survey(*TWENTY)
        world.do_all()
        world.join("1-x")
        world.do_all()
        assert run(world).members["1-x"].group == "1"
        assert not world.clients["1-x"].plan
        assert world.clients["1-x"].model == run(world).models["1"]

    def test_they_need_not_tell_anything_if_there_is_one_group(self) -> None:
        world = Survey(*named("0", 12), rounds=4)
        while run(world).trained < 1:
            all_work(world)
        world.join(*named("0n", 5))
        world.do_all()
        assert world.kinds[-1] == ("train", "0", 17)
        assert {work.kind for _, _, work in world.plans} == {"train"}


@pytest.mark.parametrize("seed", range(10))
def test_groups_are_found_whatever_is_lost_or_killed(seed: int) -> None:
    rng, world = random.Random(seed), Survey(*TWENTY, min_devices=20)
    for _ in range(250):
        device_id = rng.choice(TWENTY)
        match rng.randrange(9):
            case 0:
                world.leave(device_id)
            case 1 | 2:
                world.check_in(device_id)
            case 3:
                world.crash()
            case 4:
                world.carry_out(rng.randrange(4), lose=True)
            case 5:
                world.pass_time(rng.choice([1.0, 15.0, 120.0]))
            case _:
                world.carry_out(rng.randrange(9))
                world.work(device_id)
        assert not run(world).paused, run(world).sums
    for device_id in TWENTY:
        world.check_in(device_id)
    for _ in range(40):
        world.pass_time(400)
        world.do_all()
    assert run(world).phase == "finished", (run(world).phase, world.lack)
    assert world.groups == {"0": {"0"}, "1": {"1"}}
    world.check_settled()


def test_a_service_that_is_killed_after_every_step_goes_on_from_what_it_has_stored(
    tmp_path: Path,
) -> None:
    with closing(FleetStore(sqlite_url(tmp_path / "shoal.db"))) as store:
        world = Survey(*TWENTY, store=store)
        for _ in range(60):
            world.carry_out(12)
            for device_id in TWENTY:
                world.work(device_id)
            world.crash()
            world.pass_time(11)
        world.do_all()
    assert run(world).phase == "finished"
    assert world.groups == {"0": {"0"}, "1": {"1"}}
    assert [phase for *_, phase in world.rounds] == ["preparing"] * 6 + ["training"] * 3


def test_a_refused_sum_of_one_group_pauses_all_until_a_person_resumes() -> None:
    world = Survey(*TWENTY)
    while run(world).trained < 1:
        all_work(world)
    world.refusal = "unknown-device: 0-7 is not in the roster"
    world.do_all()
    assert run(world).paused
    assert world.lack.count("unknown-device") == 3, "each helper says it once"
    world.refusal = ""
    world.now_s += 1.0
    direct(world, "resume")
    world.do_all()
    assert run(world).phase == "finished"
