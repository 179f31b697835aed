"""Which model devices are left with: when a run is aborted, is over, or is one of several."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import state as s
from aggregator.core.record import RoundRecord, record_of
from aggregator.core.round.dismissal import by_end, opened
from aggregator.core.state import Aborted, Retuned, RolledBack
from aggregator.releases.orders import ORDERS, refuse
from aggregator.service.devices import Devices
from aggregator.storage.engine import sqlite_url
from aggregator.storage.memory import MemoryStore
from aggregator.storage.registry_table import RegistryTable
from simulation.datasets.windows import FleetData
from tests.aggregator.campaign_cases import Campaigns
from tests.aggregator.full_disk import Disk, FullStore
from tests.aggregator.kept_cases import CHOICE, KEPT
from tests.aggregator.round_cases import RECEIVED, Run
from tests.contracts.store import PROGRAMS
from tests.support.known import known
from wire import messages as m
from wire.codec import encode
from wire.errors import ConfigError


def finishes(commands: list[s.Command]) -> dict[str, bool]:
    """By device that is told that the run is over, whether it is given a model."""
    return {c.device_id: c.gives for c in commands if isinstance(c, s.FinishRun)}


class TestAbort:
    @pytest.mark.parametrize("devices", [1, 2], ids=["waiting", "training"])
    def test_an_aborted_run_gives_no_device_a_model_then_or_later(self, devices: int) -> None:
        run = Run(min_devices=2, rounds=3, keep_models=2)
        for device in "ab"[:devices]:
            run.check_in(device)
        assert finishes(run.feed(Aborted(2.0))) == dict.fromkeys("ab"[:devices], False)
        assert finishes(run.check_in("late")) == {"late": False}
        assert not any(finishes(run.resume(4.0)).values())

    def test_a_rollback_of_an_aborted_run_gives_none_either(self) -> None:
        run = Run(rounds=3, keep_models=2)
        run.check_in("a")
        run.update("a")
        run.aggregated()
        run.feed(Aborted(4.0))
        assert run.feed(RolledBack(5.0, 0)) == []
        assert run.state.made_in == 0

    def test_an_aborted_run_stays_so_whose_budget_is_changed_to_a_spent_one(self) -> None:
        run = Run(rounds=3)
        run.check_in("a")
        run.update("a")
        run.aggregated()
        run.feed(Aborted(4.0))
        run.feed(Retuned(5.0, msgspec.structs.replace(run.state.settings, rounds=1), PROGRAMS))
        assert (run.state.phase, run.state.ended) == ("finished", "order")
        assert finishes(run.check_in("a")) == {"a": False}

    def test_devices_are_told_to_stop_work_and_no_model_is_offered(self, fleet: FleetData) -> None:
        bench = Campaigns(fleet)
        bench.answers()
        assert bench.campaign.abort()
        assert [(f.device_id, f.releases) for f in bench.answers() if isinstance(f, m.Finish)] == [
            ("a", True),
            ("b", True),
        ]


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_about_releases_says_that_a_service_without_them_is_to_be_started_with_them(
    order: str,
) -> None:
    with pytest.raises(ConfigError, match=r"makes no releases.*--release manual"):
        dict.fromkeys(ORDERS, refuse)[order](campaign="run-1", step=0)


def state_of(phase: s.Phase, ended: str, ended_at_s: float | None, where: str) -> s.RunState:
    settings = msgspec.structs.replace(Run().state.settings, where=where)
    return msgspec.structs.replace(
        Run().state, settings=settings, phase=phase, ended=ended, ended_at_s=ended_at_s
    )


states = st.builds(
    state_of,
    st.sampled_from(("training", "finished")),
    st.sampled_from(("rounds", "order")),
    st.one_of(st.none(), st.integers(1, 9).map(float)),
    st.sampled_from(("", "tag = a")),
)


class TestSuccession:
    def test_a_run_comes_to_its_end_by_its_evaluation_and_not_by_an_abort(self) -> None:
        run = Run(rounds=1)
        run.check_in("a")
        run.update("a")
        run.aggregated()
        assert run.state.ended_at_s is None
        run.update("a", at_s=7.0)
        assert run.state.ended_at_s == 7.0
        run.feed(Retuned(8.0, msgspec.structs.replace(run.state.settings, rounds=3), PROGRAMS))
        run.feed(Aborted(9.0))
        assert run.state.ended_at_s == 7.0, "what devices have of it, they keep"

    @given(st.dictionaries(st.sampled_from("abcdef"), states))
    def test_what_is_opened_has_the_models_of_every_device_and_what_is_not_over(
        self, known: dict[str, s.RunState]
    ) -> None:
        order, names = by_end(known), opened(dict(known))
        assert sorted(order) == sorted(
            name for name, state in known.items() if state.ended_at_s is not None
        )
        times = [known[name].ended_at_s or 0.0 for name in order]
        assert times == sorted(times, reverse=True)
        assert names >= {name for name, state in known.items() if state.phase != "finished"}
        first = next(
            (i for i, name in enumerate(order) if not known[name].settings.where), len(order)
        )
        assert names >= set(order[: first + 1])


class TestSeveralCampaigns:
    """Two campaigns that have trained; `a` and `b` are their devices."""

    def ended(self, bench: Campaigns, *names: str) -> None:
        """Let campaigns come to their end, in this order, as their last devices would."""
        for name in names:
            bench.clock.now_s += 1
            campaign = bench.runner.campaigns[name]
            over = msgspec.structs.replace(
                campaign.state, phase="finished", ended="rounds", ended_at_s=bench.clock.now_s
            )
            campaign.store.commit([], [], over)
            campaign.state = over
        bench.answers()

    def given(self, bench: Campaigns) -> list[tuple[str, str]]:
        """The device and the run of every model that was given."""
        return [
            (f.device_id, f.run_id)
            for f in bench.answers()
            if isinstance(f, m.Finish) and not f.releases
        ]

    def test_a_device_gets_the_models_of_the_campaign_that_ended_last(
        self, fleet: FleetData
    ) -> None:
        bench = Campaigns(fleet)
        second = bench.second()
        self.ended(bench, "run-2", "run-1")
        bench.runner.tick()
        bench.answers()
        bench.check_in("a", "c")
        assert self.given(bench) == [("a", "r"), ("c", "r")], "c was away for all of it"
        assert bench.runner.campaign_of("a") is bench.campaign
        self.ended(bench, "run-2")
        bench.check_in("a")
        assert self.given(bench) == [("a", "r2")]
        assert bench.runner.giver_of("a") is second

    def test_a_service_that_starts_gives_each_device_one_model(self, fleet: FleetData) -> None:
        bench = Campaigns(fleet)
        store = MemoryStore()
        second = bench.second(store=store)
        self.ended(bench, "run-2", "run-1")
        bench.start(bench.state.settings, bench.store, bench.blobs)
        bench.runner.add(second.state.settings, *bench.parts, store, second.blobs)
        bench.check_in("a", "b")
        assert set(self.given(bench)) == {("a", "r"), ("b", "r")}

    def test_what_the_registry_of_a_service_that_was_killed_lacks_is_taken_from_the_run(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        bench, registry = Campaigns(fleet), RegistryTable(sqlite_url(tmp_path / "shoal.db"))
        self.ended(bench, "run-1")
        received = {"a": msgspec.structs.replace(RECEIVED, kept=KEPT)}
        bench.store.commit([], [], msgspec.structs.replace(bench.state, received=received))
        bench.start(
            bench.state.settings,
            bench.store,
            bench.blobs,
            devices=Devices(registry, bench.clock),
        )
        assert bench.runner.devices.entry("a").kept is None, "nobody of this name is in it"
        devices = Devices(registry, bench.clock)
        devices.on_check_in(m.CheckIn("a", 10, 4))
        bench.start(bench.state.settings, bench.store, bench.blobs, devices=devices)
        kept = known(bench.runner.devices.entry("a").kept)
        assert (kept.campaign, kept.kept) == ("run-1", KEPT)

    def test_an_aborted_campaign_leaves_devices_with_what_the_one_before_gave_them(
        self, fleet: FleetData
    ) -> None:
        bench = Campaigns(fleet)
        self.ended(bench, "run-1")
        second = bench.second()
        assert second.abort()
        bench.runner.tick()
        assert {run for _, run in self.given(bench)} <= {"r"}
        bench.check_in("a")
        assert self.given(bench) == [("a", "r")]

    def test_a_campaign_that_was_resumed_and_aborted_leaves_devices_with_what_it_gave_them(
        self, fleet: FleetData
    ) -> None:
        bench = Campaigns(fleet)
        second = bench.second()
        self.ended(bench, "run-1", "run-2")
        assert second.dispatch(
            Retuned(
                bench.clock(),
                msgspec.structs.replace(second.state.settings, rounds=9),
                second.state.programs,
            )
        )
        assert second.state.phase == "training"
        assert second.abort()
        bench.runner.tick()
        bench.answers()
        bench.check_in("a")
        assert self.given(bench) == [], "not even those of the campaign before"

    def test_a_device_that_a_campaign_does_not_take_is_given_those_of_the_one_before(
        self, fleet: FleetData
    ) -> None:
        bench = Campaigns(fleet)
        bench.second(takes=lambda device_id: device_id == "b")
        self.ended(bench, "run-1", "run-2")
        bench.runner.tick()
        bench.answers()
        bench.check_in("a", "b")
        assert self.given(bench) == [("a", "r"), ("b", "r2")]

    def test_a_campaign_that_goes_on_asks_by_what_devices_have_said_last(
        self, fleet: FleetData
    ) -> None:
        bench = Campaigns(fleet, settings={"min_batch": 5})
        bench.second()
        self.ended(bench, "run-1", "run-2")
        bench.send("a", "check-in", encode(m.CheckIn("a", 0, 4)))
        bench.answers()
        assert bench.state.devices["a"].num_train == 10, "it has said so to the other campaign"
        bench.runner.bring(bench.campaign)
        assert self.given(bench) == [], "that is all that follows"
        bench.campaign.dispatch(
            Retuned(
                bench.clock(),
                msgspec.structs.replace(bench.state.settings, rounds=9),
                bench.state.programs,
            )
        )
        bench.runner.reassign()
        assert bench.plans() == [("r", "b")]


class TestSaidToAnother:
    """A campaign that is over and whose device `a` has chosen what it keeps; another one that asks
    the devices now."""

    STRICT = m.Policy(min_windows=99)

    @pytest.fixture
    def disk(self) -> Disk:
        return Disk()

    @pytest.fixture
    def bench(self, fleet: FleetData, disk: Disk) -> Campaigns:
        bench = Campaigns(
            fleet,
            store=FullStore(disk),
            settings={**CHOICE, "responses": {**CHOICE["responses"], "evaluate": ()}},
        )
        state = bench.state
        key = next(iter(state.models))
        received = {"a": msgspec.structs.replace(RECEIVED, kept=KEPT, start=key)}
        over = msgspec.structs.replace(
            state, phase="finished", ended="rounds", ended_at_s=bench.clock.now_s, received=received
        )
        record = known(last_record(over))
        bench.store.commit([], [record], over)
        self.go_on(bench)
        bench.runner.devices.on_kept("a", "run-1", over.round, KEPT)
        return bench

    def go_on(self, bench: Campaigns) -> None:
        """Start a service that has what is stored, and another campaign."""
        bench.start(bench.state.settings, bench.store, bench.blobs, devices=bench.runner.devices)
        bench.second()
        bench.check_in("a", "b")

    def say(
        self, bench: Campaigns, policy: m.Policy | None = None, kept: tuple[str, ...] | None = None
    ) -> None:
        bench.clock.now_s += 1
        bench.send("a", "check-in", encode(m.CheckIn("a", 10, 4, policy=policy, kept=kept)))
        bench.runner.tick()

    def kept(self, bench: Campaigns) -> tuple[bool, bool, bool]:
        """Whether `a` keeps something by the run's last record, and is tested by it; and whether it
        keeps something by the registry."""
        record, entry = bench.store.rounds()[-1], bench.runner.devices.entry("a")
        tested = record.evaluated.get("a", m.Metrics())
        return "a" in record.kept, tested.num_examples > 0, entry.kept is not None

    def test_a_stricter_policy_reaches_the_one_that_is_over(self, bench: Campaigns) -> None:
        assert self.kept(bench) == (True, True, True)
        self.say(bench, policy=m.Policy())
        assert self.kept(bench) == (True, True, True)
        self.say(bench, policy=self.STRICT)
        assert self.kept(bench) == (False, False, False)
        assert "a" in bench.state.received, "it has chosen all the same"

    def test_so_does_a_loss(self, bench: Campaigns) -> None:
        self.say(bench, kept=())
        assert (self.kept(bench), bench.state.received) == ((False, False, False), {})

    def test_what_it_holds_and_keeps_stays_unless_it_holds_nothing_at_all(
        self, bench: Campaigns
    ) -> None:
        self.say(bench, kept=tuple(bench.state.models.values()))
        assert self.kept(bench) == (True, True, True)
        bench.runner.devices.on_kept("a", "run-0", 3, KEPT)
        self.say(bench, kept=("e" * 64,))
        assert self.kept(bench) == (False, False, True)
        self.say(bench, kept=())
        assert self.kept(bench) == (False, False, False)

    def test_a_loss_counts_although_an_update_of_training_came_since(
        self, bench: Campaigns
    ) -> None:
        bench.campaign.hold()
        self.say(bench, kept=())
        bench.send("a", "update", bench.of(bench.runner.campaigns["run-2"], "a"))
        bench.campaign.try_to_go_on(told=True)
        assert self.kept(bench) == (False, False, False)

    def test_it_does_not_count_once_the_device_has_chosen(self, bench: Campaigns) -> None:
        bench.campaign.hold()
        self.say(bench, kept=())
        bench.runner.devices.on_update(bench.update, 100, chooses=True)
        bench.campaign.try_to_go_on(told=True)
        assert self.kept(bench)[:2] == (True, True), (
            "it may hold it again by now, and says so when it checks in"
        )

    def test_nor_by_a_registry_that_was_killed_before_it_wrote_that_the_device_has_chosen(
        self, bench: Campaigns, tmp_path: Path
    ) -> None:
        registry = RegistryTable(sqlite_url(tmp_path / "shoal.db"))
        devices = Devices(registry, bench.clock)
        devices.on_check_in(m.CheckIn("a", 10, 4, kept=()))
        devices.save()
        bench.start(
            bench.state.settings, bench.store, bench.blobs, devices=Devices(registry, bench.clock)
        )
        assert self.kept(bench) == (True, True, True), (
            "the run has saved it, and the registry takes it from there"
        )

    def test_a_loss_in_the_evaluation_counts_when_that_is_over(self, bench: Campaigns) -> None:
        open_yet = msgspec.structs.replace(
            bench.state, phase="evaluating", ended_at_s=None, trained=bench.state.settings.rounds
        )
        bench.store.commit([], [], open_yet)
        bench.campaign.state = open_yet
        self.say(bench, kept=())
        assert "a" in bench.state.received
        bench.campaign.dispatch(s.DeadlinePassed(bench.clock.now_s + 999.0, open_yet.round))
        bench.runner.tick()
        assert (bench.state.phase, self.kept(bench)) == ("finished", (False, False, False))

    def test_what_a_device_keeps_is_not_lost_when_it_holds_a_later_campaigns_model(
        self, bench: Campaigns
    ) -> None:
        second = bench.runner.campaigns["run-2"]
        over = msgspec.structs.replace(
            second.state,
            phase="finished",
            ended="rounds",
            ended_at_s=bench.clock.now_s + 5.0,
            received={},
        )
        second.store.commit([], [], over)
        second.state = over
        self.say(bench, kept=("e" * 64,))
        assert self.kept(bench) == (True, True, True), (
            "it has the models of the other one, and keeps something of the last three"
        )

    def test_a_commit_whose_answer_was_lost_is_known_when_the_campaign_goes_on(
        self, bench: Campaigns, disk: Disk
    ) -> None:
        (record,) = bench.store.rounds()
        bench.campaign._kept_in = {}
        disk.full = True
        bench.clock.now_s += 1
        assert not bench.campaign.dispatch(s.DeviceLost(bench.clock.now_s, "b"))
        disk.full = False
        bench.campaign.try_to_go_on(told=True)
        assert set().union(*bench.campaign._kept_in.values()) == set(record.kept) == {"a"}

    @pytest.mark.parametrize("cause", ["open", "operator", "disk", "down"])
    def test_a_campaign_that_was_resumed_takes_it_out_of_its_earlier_evaluation(
        self, bench: Campaigns, disk: Disk, cause: str
    ) -> None:
        resumed = msgspec.structs.replace(
            bench.state, phase="training", round=bench.state.round + 1, received={}, cohort={}
        )
        bench.store.commit([], [], resumed)
        self.go_on(bench)
        assert self.kept(bench)[0]
        self.strictly(bench, disk, cause)
        assert (self.kept(bench)[0], bench.campaign.paused, bench.state.phase) == (
            False,
            "",
            "training",
        )

    @pytest.mark.parametrize("cause", ["operator", "disk", "disk again", "down"])
    def test_one_that_is_paused_takes_it_in_when_it_goes_on(
        self, bench: Campaigns, disk: Disk, cause: str
    ) -> None:
        self.strictly(bench, disk, cause)
        assert (self.kept(bench), bench.campaign.paused) == ((False, False, False), "")

    def strictly(self, bench: Campaigns, disk: Disk, cause: str) -> None:
        """The device checks in with a stricter policy while the campaign is open, or paused or down
        for this cause, and goes on then."""
        if cause == "open":
            self.say(bench, policy=self.STRICT)
        elif cause == "operator":
            bench.campaign.hold()
            self.say(bench, policy=self.STRICT)
            bench.campaign.try_to_go_on(told=True)
        elif cause == "down":
            bench.runner.devices.on_check_in(m.CheckIn("a", 10, 4, policy=self.STRICT))
            bench.start(
                bench.state.settings, bench.store, bench.blobs, devices=bench.runner.devices
            )
        else:
            disk.full = True
            self.say(bench, policy=self.STRICT)
            assert bench.campaign.paused
            if cause == "disk again":
                bench.campaign.try_to_go_on(told=True)
                assert bench.campaign.paused
            disk.full = False
            bench.campaign.try_to_go_on(told=True)


def test_late_devices_cost_a_campaign_no_more_looks_than_there_are_of_them(
    fleet: FleetData,
) -> None:
    looks = list[s.Event]()

    def observe(_state: s.RunState, event: s.Event) -> None:
        looks.extend([event] if isinstance(event, s.DeadlinePassed) else [])

    asked = {**CHOICE, "responses": {**CHOICE["responses"], "evaluate": ()}}
    bench = Campaigns(fleet, settings=asked, observe=observe)
    over = msgspec.structs.replace(
        bench.state,
        phase="finished",
        ended="rounds",
        ended_at_s=bench.clock.now_s,
        cohort={},
        received={},
    )
    bench.campaign.state = over
    for number in range(12):
        bench.clock.now_s += 1
        bench.check_in(f"late-{number}")
    assert len(bench.state.closings) == 12
    for _ in range(130):
        bench.clock.now_s += 1
        bench.runner.tick()
    assert (bench.state.closings, 0 < len(looks) <= 13) == ({}, True), "and one that was set before"


def last_record(over: s.RunState) -> RoundRecord | None:
    """The record of the last round of a run that is over."""
    before = msgspec.structs.replace(over, phase="evaluating")
    return record_of(before, s.DeadlinePassed(1.0, over.round), over)
