"""Events of an operator's orders that need an algorithm: a start, other settings, and forgetting a
device."""

from typing import Any

import msgspec
import numpy as np
import pytest

from aggregator.aggregation.forgetting import forgotten, records_without
from aggregator.aggregation.inherit import TrainedModels
from aggregator.aggregation.orders import configured, rolled_back
from aggregator.fleet.plan import plan_of, round_seed
from aggregator.fleet.records import Assignment
from aggregator.storage.memory import MemoryBlobs
from aggregator.view.round_record import RoundRecord
from algorithms.algorithm import decode_memory
from algorithms.core.contract import exchanged
from simulation.datasets.windows import FleetData
from tests.aggregator.training import Training
from tests.support.settings import SETTINGS
from wire.arrays.tensors import OWN_FILES, decode_tensors, encode_tensors
from wire.messages import Evaluate, Metrics, Train

RECORD = RoundRecord(1, "training", 0.0, 1.0, {}, Metrics(), {"d": "0"}, 10, 20)


def forget(bench: Training, device_id: str) -> None:
    event = forgotten(
        bench.fleet, device_id, lambda _: bench.algorithm, lambda _: bench.blobs, bench.now_s
    )
    bench.feed(event)


class TestStart:
    def test_groups_of_a_source_become_members_whose_devices_start_from_their_models(
        self, fleet: FleetData
    ) -> None:
        initial = exchanged(Training(fleet).bundle.initial)
        models = {
            group: {name: np.full_like(array, value) for name, array in initial.items()}
            for group, value in (("0", 1), ("1", 2))
        }
        source = TrainedModels("campaign old, round 3", models, {"a": "0", "b": "1", "gone": "2"})
        bench = Training(fleet, algorithm="cfl", settings={"keep_models": 2}, source=source)
        campaign = bench.campaign
        groups = {d: member.group for d, member in campaign.members.items()}
        assert groups == {"a": "released-0", "b": "released-1"}
        works = {d: bench.fleet.devices[d].assignment for d in "ab"}
        starts = {d: work.start for d, work in works.items() if work is not None}
        assert starts == groups
        for device_id, group in (("a", "0"), ("b", "1")):
            work = works[device_id]
            assert work is not None
            model = decode_tensors(bench.blobs.get(work.model), OWN_FILES)[0]
            assert all((model[name] == array).all() for name, array in models[group].items())
        bench.close(a=(1.0, 2), b=(1.0, 2))
        assert {member.group for member in bench.campaign.members.values()} == {"0"}
        bench.feed(rolled_back(bench.campaign, 0, bench.algorithm, bench.blobs, 9.0))
        members = bench.campaign.members
        assert {d: members[d].group for d in "ab"} == groups, "as it began"
        forget(bench, "a")
        state = decode_memory(bench.blobs.get(bench.campaign.version.memory), {})
        assert state.starts == {"b": "released-1"}

    def test_the_same_start_has_the_same_models_memory_and_verbs(self, fleet: FleetData) -> None:
        one, other = (Training(fleet, algorithm="distfl") for _ in range(2))
        assert one.campaign.version == other.campaign.version


class TestConfigured:
    def test_verbs_follow_the_new_settings(self, fleet: FleetData) -> None:
        bench = Training(fleet, settings={"local_epochs": 1})
        bench.close(a=(1.0, 2), b=(1.0, 2))
        settings = msgspec.structs.replace(bench.campaign.settings, local_epochs=3)
        event = configured(bench.campaign, settings, bench.algorithm, bench.blobs, 5.0)
        assert event.settings == settings
        assert [v.epochs for v in event.programs[""] if isinstance(v, Train)] == [3]

    def test_a_campaign_in_its_evaluation_trains_on_by_them(self, fleet: FleetData) -> None:
        bench = Training(fleet, settings={"local_epochs": 1, "rounds": 1})
        bench.close(a=(1.0, 2), b=(1.0, 2))
        assert bench.campaign.phase == "evaluating"
        closing = bench.campaign.version.programs["closing"]
        settings = msgspec.structs.replace(bench.campaign.settings, local_epochs=3, rounds=2)
        bench.feed(configured(bench.campaign, settings, bench.algorithm, bench.blobs, 5.0))
        assert bench.campaign.version.programs["closing"] == closing
        bench.update("a")
        bench.update("b")
        bench.ring()
        work = bench.fleet.devices["a"].assignment
        assert work is not None
        assert [v.epochs for v in work.verbs if isinstance(v, Train)] == [3]


class TestAggregated:
    def test_only_groups_that_change_are_named(self, fleet: FleetData) -> None:
        bench = Training(fleet)
        bench.close(a=(1.0, 2), b=(1.0, 2))
        bench.update("a")
        event = bench.aggregated()
        assert event.groups == {}
        bench.check_in("c")
        bench.update("b")
        bench.ring()
        bench.update("c")
        event = bench.aggregated()
        assert event.groups == {"c": "0"}


class TestForgotten:
    def test_memories_and_versions_do_not_name_the_device(self, fleet: FleetData) -> None:
        settings = {"keep_models": 3, "min_updates": 1}
        bench = Training(fleet, algorithm="fedavg+individual", settings=settings)
        for _ in range(2):
            bench.close(a=(1.0, 2), b=(2.0, 2))
        own = [v.models.get("0") for v in (bench.campaign.version, *bench.campaign.history)]
        forget(bench, "a")
        campaign = bench.campaign
        for version in (campaign.version, *campaign.history):
            memory = decode_memory(bench.blobs.get(version.memory), {}).memory
            assert "a" not in memory.membership
            assert not {*own} - {None} & {*version.models.values()}
            assert "a" not in version.evaluated
        assert "a" not in campaign.members
        assert campaign.made_by == ("b",)
        assert "1" in campaign.models, "the other device has its model"

    def test_a_model_that_others_start_from_stays(self, fleet: FleetData) -> None:
        bench = Training(fleet)
        bench.close(a=(1.0, 2), b=(1.0, 2))
        models = bench.campaign.models
        forget(bench, "a")
        assert bench.campaign.models == models

    @pytest.mark.parametrize("device_id", ["a", "left_out", "from", "0", "reason"])
    def test_records_lose_what_is_said_of_it_and_no_name_that_a_note_always_has(
        self, device_id: str
    ) -> None:
        rolled_back = {"from": 3, "to": 1, "reason": "", "made_by": [device_id, "z"]}
        notes: dict[str, Any] = {
            "left_out": {device_id: "too loud", "z": "too loud"},
            "staleness": {device_id: 1},
            "shares": {device_id: 0.5, "z": 0.5},
            "rolled_back": rolled_back,
            "too_small": {"0": 1},
            "groups": {"0": {"mean": 1.0}},
            "tests": [{"view": "mean", "p": 0.1}],
            "mine": {"chosen": [device_id, "z"], "scores": {device_id: 1.0, "z": 2.0}},
            "epsilon": 1.0,
        }
        before = msgspec.structs.replace(RECORD, notes=notes, groups={device_id: "0", "z": "0"})
        (after,) = records_without([before], device_id, {"z"}, MemoryBlobs())
        assert after.groups == {"z": "0"}
        assert after.notes == {
            "left_out": {"z": "too loud"},
            "staleness": {},
            "shares": {"z": 0.5},
            "rolled_back": {**rolled_back, "made_by": ["z"]},
            "too_small": {"0": 1},
            "groups": {"0": {"mean": 1.0}},
            "tests": [{"view": "mean", "p": 0.1}],
            "mine": {"chosen": ["z"], "scores": {"z": 2.0}},
            "epsilon": 1.0,
        }

    def test_distances_of_a_round_lose_its_row_and_column(self) -> None:
        blobs = MemoryBlobs()
        matrix = np.arange(9, dtype=np.float32).reshape(3, 3)
        ids = msgspec.json.encode({"device_ids": ["a", "b", "c"]})
        (views,) = blobs.put(encode_tensors({"cosine": matrix}, ids))
        before = msgspec.structs.replace(RECORD, views=views)
        (after,) = records_without([before], "b", (), blobs)
        arrays, text = decode_tensors(blobs.get(after.views), OWN_FILES)
        assert msgspec.json.decode(text) == {"device_ids": ["a", "c"]}
        assert arrays["cosine"].tolist() == [[0, 2], [6, 8]]


class TestPlan:
    WORK = Assignment(
        serial=7,
        kind="train",
        campaign="run-1",
        round=3,
        start="0",
        model="1" * 64,
        verbs=(Evaluate(), Train(32)),
        deadline_s=50.0,
    )

    def test_a_plan_says_what_its_assignment_is(self) -> None:
        plan = plan_of(SETTINGS, self.WORK, "a", 2, ())
        assert (plan.epoch, plan.round, plan.attempt, plan.device_id) == (2, 3, 7, "a")
        assert (plan.model, plan.verbs, plan.deadline_at_s) == ("1" * 64, self.WORK.verbs, 50.0)
        assert (plan.seed, plan.bundle) == (round_seed(SETTINGS.seed, 3), SETTINGS.bundle)
        assert plan_of(SETTINGS, self.WORK, "a", 2, ()) == plan

    def test_an_encoding_is_named_only_to_a_device_that_can_make_it(self) -> None:
        settings = msgspec.structs.replace(SETTINGS, update_encoding="int8")
        encodings = [plan_of(settings, self.WORK, "a", 1, can).encoding for can in ((), ("int8",))]
        assert encodings == ["float32", "int8"]
        assert plan_of(SETTINGS, self.WORK, "a", 1, ("int8",)).encoding == "float32"

    def test_seeds_of_rounds_differ_between_rounds_and_runs(self) -> None:
        runs = [msgspec.structs.replace(SETTINGS, seed=seed) for seed in range(3)]
        assert len({round_seed(run.seed, number) for run in runs for number in range(100)}) == 300
