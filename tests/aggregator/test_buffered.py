"""Buffered runs: plans outlive their rounds, and each update counts once, less the older it is."""

import math
from collections import Counter
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aggregator.aggregation.apply import weakened
from aggregator.aggregation.stored import check_fit
from aggregator.core import state as s
from aggregator.core.round.cohort import Buffer, policy_settings, read_policy
from aggregator.core.state import DeviceBarred, DeviceForgotten, Retuned, RolledBack
from aggregator.service.start import check_retuned
from aggregator.transfer.offered import needed, offered
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Programs
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from tests.aggregator.bench import Bench
from tests.aggregator.round_cases import MODEL, Run, kinds
from tests.aggregator.timed_fleet import TimedFleet
from tests.contracts.store import PROGRAMS, SETTINGS
from wire import messages as m
from wire.codec import digest, encode, encode_update
from wire.errors import ConfigError
from wire.links.port import Delivery
from wire.messages import Evaluate, Train

SIX = [f"d{i}" for i in range(6)]


def planned(commands: list[s.Command]) -> dict[str, int]:
    """By device, the round of the plan that it is sent."""
    return {c.plan.device_id: c.plan.round for c in commands if isinstance(c, s.SendPlan)}


def buffered(devices: list[str] = SIX, **changes: Any) -> Run:
    """A run in its first round; by default four devices of six are at work, and two updates make an
    aggregation."""
    run = Run(
        **{
            "rounds": 50,
            "min_devices": len(devices),
            "buffer": 2,
            "concurrency": 4,
            "deadline_s": 100.0,
            **changes,
        }
    )
    for device_id in devices:
        run.check_in(device_id)
    return run


def land(run: Run, device_id: str, at_s: float = 2.0) -> list[s.Command]:
    """The update of the plan that a device works on."""
    return run.update(device_id, run.state.flights[device_id].round, at_s)


def aggregated(run: Run, at_s: float = 3.0) -> dict[str, int]:
    return planned(run.aggregated(at_s))


class TestRounds:
    def test_so_many_are_at_work_and_another_is_asked_for_each_that_is_done(self) -> None:
        run = buffered()
        assert len(run.state.flights) == 4
        (waiting,) = [set(SIX) - set(run.state.flights)]
        first, second, *slow = sorted(run.state.flights)
        (asked,) = planned(land(run, first))
        assert asked in waiting
        assert kinds(land(run, second)) == ["Acknowledge", "Aggregate"]
        assert run.state.flights.keys() == {asked, *slow}
        assert aggregated(run).keys() <= set(SIX) - run.state.received.keys() - {asked, *slow}, (
            "those at work are left alone"
        )
        assert len(run.state.flights) == 4
        assert {run.state.flights[d].round for d in slow} == {1}

    def test_a_late_update_counts_in_the_open_round_with_its_staleness(self) -> None:
        run = buffered()
        slow = sorted(run.state.flights)[-1]
        for _ in range(3):
            for device_id in [d for d in sorted(run.state.flights) if d != slow][:2]:
                land(run, device_id)
            aggregated(run)
        assert (run.state.round, run.state.flights[slow].model) == (4, MODEL)
        assert {MODEL} <= offered(run.state) & needed(run.state)
        run.update(slow, 4)
        assert slow not in run.state.received, "of a round in which it was not asked"
        land(run, slow)
        assert run.state.received[slow].staleness == 3
        assert kinds(run.update(slow, 1)) == ["Acknowledge"]
        assert run.state.received.keys() == {slow}

    def test_devices_in_flight_change_the_model_of_their_group_of_today(self) -> None:
        run = buffered()
        slow = sorted(run.state.flights)[-1]
        for device_id in sorted(run.state.flights)[:2]:
            land(run, device_id)
        run.aggregated(starts={slow: "0", "": "initial"})
        assert run.state.flights[slow].start == "initial"
        assert run.state.cohort[slow] == "0"

    def test_a_newcomer_in_flight_is_placed_by_its_survey(self) -> None:
        survey: Programs = {"start:initial": (Evaluate("train", "survey"), Train(32))}
        run = buffered(programs={**PROGRAMS, **survey})
        slow = sorted(run.state.flights)[-1]
        for device_id in sorted(run.state.flights)[:2]:
            land(run, device_id)
        run.aggregated(starts={"": "0"})
        assert run.state.cohort[slow] == "initial"

    def test_a_plan_that_is_too_old_is_given_up_and_another_device_asked(self) -> None:
        run = buffered(deadline_s=10.0, buffer=6)
        old = sorted(run.state.flights)
        for device_id in old[:2]:
            land(run, device_id, 2.0)
        asked = sorted(set(run.state.flights) - set(old))
        commands = run.feed(s.DeadlinePassed(11.0, 1))
        assert run.state.phase == "aggregating", (
            "the round's own deadline: it is closed with what came"
        )
        assert sorted(run.state.flights) == asked
        assert [run.state.devices[d].failures for d in old[2:]] == [1, 1]
        assert "Aggregate" in kinds(commands)
        run.update(old[2], 1)
        assert old[2] not in run.state.received

    def test_an_update_of_a_plan_that_was_given_up_does_not_count_in_the_open_round_either(
        self,
    ) -> None:
        run = buffered(deadline_s=10.0, buffer=2)
        old = sorted(run.state.flights)
        for device_id in old[:2]:
            land(run, device_id, 5.0)
        run.aggregated(6.0)
        run.feed(s.DeadlinePassed(11.0, 2))
        assert (run.state.phase, run.state.flights.keys().isdisjoint(old[2:])) == ("training", True)
        for number in (1, 2):
            assert kinds(run.update(old[2], number))[0] == "Acknowledge"
        assert run.state.received == {}

    def test_one_device_at_a_time_fills_a_larger_buffer(self) -> None:
        run = buffered(concurrency=1, buffer=3)
        for _ in range(2):
            (device_id,) = run.state.flights
            assert kinds(land(run, device_id)) == ["Acknowledge", "SetDeadline", "SendPlan"]
        (device_id,) = run.state.flights
        assert "Aggregate" in kinds(land(run, device_id))

    def test_a_lost_device_keeps_its_plan_and_gives_up_its_place(self) -> None:
        run = buffered(grace_s=5.0)
        lost = sorted(run.state.flights)[0]
        assert planned(run.feed(s.DeviceLost(2.0, lost))) == {}
        assert len(planned(run.feed(s.DeadlinePassed(7.0, 1)))) == 1
        assert planned(run.check_in(lost, 8.0)) == {lost: 1}, "the plan that it had"
        land(run, lost)
        assert lost in run.state.received

    def test_fewer_devices_than_the_buffer_end_a_round_when_all_are_in(self) -> None:
        run = buffered(["a", "b"], buffer=10)
        for _ in range(2):
            device_id = next(iter(run.state.flights))
            commands = land(run, device_id)
        assert "Aggregate" in kinds(commands)

    def test_a_device_that_declines_is_not_asked_again_at_once(self) -> None:
        run = buffered(["a"], buffer=1)
        assert planned(run.feed(s.DeviceDeclined(2.0, "a", 1, failed=False))) == {}
        assert planned(run.feed(s.DeadlinePassed(101.0, 1))) == {"a": 1}
        assert run.state.attempt == 1

    def test_a_restart_sends_every_plan_again_as_it_was(self) -> None:
        run = buffered()
        for device_id in sorted(run.state.flights)[:2]:
            land(run, device_id)
        aggregated(run)
        before = {d: (f.round, f.attempt, f.model) for d, f in run.state.flights.items()}
        assert {f.round for f in run.state.flights.values()} == {1, 2}
        plans = [c.plan for c in run.resume(9.0) if isinstance(c, s.SendPlan)]
        assert {p.device_id: (p.round, p.attempt, p.model) for p in plans} == before
        assert {p.epoch for p in plans} == {2}

    @pytest.mark.parametrize("event", [DeviceBarred, DeviceForgotten])
    def test_a_device_that_is_banned_or_forgotten_is_not_in_flight(self, event: Any) -> None:
        run = buffered()
        gone = next(iter(run.state.flights))
        run.feed(event(2.0, gone, *([{}, ()] if event is DeviceForgotten else [])))
        assert gone not in run.state.flights
        assert gone not in run.state.cohort

    def test_the_evaluation_asks_everybody_anew(self) -> None:
        run = buffered(rounds=1)
        for device_id in sorted(run.state.flights)[:2]:
            land(run, device_id)
        assert aggregated(run) == dict.fromkeys(SIX, 2)
        assert run.state.flights == {}

    def test_a_smaller_buffer_closes_the_open_round(self) -> None:
        run = buffered(buffer=3)
        for device_id in sorted(run.state.flights)[:2]:
            land(run, device_id)
        changed = msgspec.structs.replace(run.state.settings, buffer=2)
        assert kinds(run.feed(Retuned(5.0, changed, PROGRAMS))) == ["Aggregate"]

    def test_a_round_without_its_quorum_is_looked_at_again_and_nobody_in_flight_is_disturbed(
        self,
    ) -> None:
        run = buffered(buffer=4, quorum=0.75, deadline_s=10.0)
        for device_id in sorted(run.state.flights)[:2]:
            land(run, device_id, 5.0)
        in_flight = {d for d, flight in run.state.flights.items() if flight.deadline_at_s > 11.0}
        commands = run.feed(s.DeadlinePassed(11.0, 1))
        assert (run.state.phase, run.state.attempt, len(run.state.received)) == ("training", 1, 2)
        assert in_flight
        assert in_flight <= run.state.flights.keys()
        assert in_flight.isdisjoint(planned(commands))

    def test_a_rollback_gives_up_what_is_in_flight(self) -> None:
        run = buffered(keep_models=3)
        for _ in range(2):
            for device_id in sorted(run.state.flights)[:2]:
                land(run, device_id)
            aggregated(run)
        run.feed(RolledBack(5.0, 0))
        assert {(f.round, f.attempt) for f in run.state.flights.values()} == {(3, 1)}


actions = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "update",
                "update",
                "update",
                "late",
                "lost",
                "check-in",
                "declined",
                "deadline",
                "resumed",
                "lose",
                "repeat",
                "bar",
            ]
        ),
        st.integers(0, 5),
    ),
    max_size=80,
)


@example([("update", 0), ("bar", 0), ("check-in", 0), ("deadline", 4), ("update", 0)], 2, 0)
@given(actions, st.integers(1, 4), st.integers(0, 6))
def test_whatever_happens_each_update_counts_once_with_its_staleness_and_the_run_ends(
    history: list[tuple[str, int]], buffer: int, concurrency: int
) -> None:
    run = Run(
        rounds=6,
        min_devices=2,
        buffer=buffer,
        concurrency=concurrency,
        deadline_s=20.0,
        grace_s=2.0,
    )
    asked: dict[str, int] = {}
    counted: list[tuple[str, int]] = []
    original = run.feed

    def feed(event: s.Event) -> list[s.Command]:
        before = run.state
        commands = original(event)
        asked.update(planned(commands))
        for device_id in run.state.received.keys() - (
            before.received.keys() if run.state.round == before.round else set()
        ):
            if run.state.phase in ("training", "aggregating"):
                number = event.round if isinstance(event, s.UpdateAdmitted) else -1
                assert run.state.received[device_id].staleness == run.state.round - number
                counted.append((device_id, number))
        return commands

    run.feed = feed  # type: ignore[method-assign]  # this run alone is watched
    for device_id in SIX[:3]:
        run.check_in(device_id)

    def uncount(device_id: str) -> None:
        """Its update is given up: another one for the same round may count."""
        counted.remove(next(c for c in reversed(counted) if c[0] == device_id))

    def act(kind: str, device_id: str, at_s: float) -> None:
        flight = run.state.flights.get(device_id)
        match kind:
            case "update" if flight is not None and run.state.phase == "training":
                land(run, device_id, at_s)
            case "update" if run.state.phase == "evaluating" and device_id in run.state.cohort:
                run.update(device_id, at_s=at_s)
            case "late" if run.state.phase == "training" and device_id in run.state.devices:
                run.update(device_id, max(1, asked.get(device_id, 1) - 1), at_s)
            case "repeat" if run.state.received:
                run.update(next(iter(run.state.received)), at_s=at_s)
            case "lost":
                run.feed(s.DeviceLost(at_s, device_id))
            case "check-in":
                run.check_in(device_id, at_s)
            case "declined":
                run.feed(s.DeviceDeclined(at_s, device_id, run.state.round))
            case "deadline":
                run.feed(s.DeadlinePassed(at_s + 5 * int(device_id[1:]), run.state.round))
            case "resumed":
                run.resume(at_s, run.state.epoch + 1)
            case "lose" if run.state.phase == "training" and device_id in run.state.received:
                run.feed(s.UpdatesLost(at_s, run.state.round, (device_id,)))
                uncount(device_id)
            case "bar":
                had_sent = run.state.phase == "training" and device_id in run.state.received
                run.feed(DeviceBarred(at_s, device_id))
                assert device_id not in run.state.received, (
                    "what a banned device has sent does not count"
                )
                if had_sent:
                    uncount(device_id)
        if run.state.phase == "aggregating":
            run.aggregated(at_s)

    for at_s, (kind, place) in enumerate(history, start=10):
        in_flight = set(run.state.flights)
        act(kind, SIX[place], at_s)
        state = run.state
        assert state.flights.keys() <= state.cohort.keys() <= set(state.devices)
        assert state.flights.keys().isdisjoint(state.received)
        if state.phase == "training" and state.flights.keys() - in_flight:
            at_work = sum(state.devices[d].online for d in state.flights)
            assert at_work <= Buffer(buffer, concurrency).at_work(state.num_online), (
                "more were asked than are to be at work"
            )
        assert all(f.round <= state.round for f in state.flights.values())
    assert max(Counter(counted).values(), default=0) <= 1, "an update counted twice"
    end_s = 1000.0
    for device_id in SIX:
        run.check_in(device_id, end_s)
    for turn in range(400):
        if run.state.phase == "finished":
            break
        ready = sorted(run.state.flights) or sorted(
            run.state.cohort.keys() - run.state.received.keys()
        )
        if ready and run.state.phase in ("training", "evaluating"):
            act("update", ready[turn % len(ready)], end_s)
        else:
            end_s += 30.0
            run.feed(s.DeadlinePassed(end_s, run.state.round))
        if run.state.phase == "aggregating":
            run.aggregated(end_s)
    assert run.state.phase == "finished"
    assert run.replayed() == run.state
    assert s.decode_state(s.encode_state(run.state)) == run.state


class TestService:
    """The runner: what is admitted, kept and averaged."""

    def plan(self, bench: Bench, device_id: str) -> m.Plan:
        return next(
            p for p in reversed(self.answers) if isinstance(p, m.Plan) and p.device_id == device_id
        )

    def update(self, bench: Bench, plan: m.Plan, value: float) -> bytes:
        tensors = {
            n: np.full_like(a, value) if n.startswith("delta/") else a
            for n, a in bench.tensors.items()
        }
        told = {
            "device_id": plan.device_id,
            "round": plan.round,
            "attempt": plan.attempt,
            "model": plan.model,
        }
        return encode_update(msgspec.structs.replace(bench.update, **told), tensors)

    def test_the_update_of_an_earlier_round_counts_less_and_its_model_is_kept_until_then(
        self, fleet: FleetData
    ) -> None:
        bench = Bench(fleet, settings={"buffer": 1, "concurrency": 2, "min_updates": 1})
        bench.send("a", "check-in", encode(m.CheckIn("a", 10, 4)))
        bench.send("b", "check-in", encode(m.CheckIn("b", 10, 4)))
        self.answers = bench.answers()
        slow = self.plan(bench, "b")
        model = bench.state.models["initial"]
        for _ in range(3):
            self.answers = []
            bench.send("a", "check-in", encode(m.CheckIn("a", 10, 4)))
            self.answers += bench.answers()
            assert isinstance(
                bench.verdict(self.update(bench, self.plan(bench, "a"), 0.1), "a"),
                m.Acknowledge | m.Plan,
            )
            assert bench.blobs.get(slow.model)
        assert bench.state.round == 4
        before = bench.state.models[bench.state.starts["a"]]
        again = self.restarted(bench)
        assert {p.device_id: p.round for p in again} == {"a": 4, "b": 1}
        payload = self.update(bench, slow, 0.8)
        bench.answers()
        bench.send("b", "update", payload)
        said = bench.answers()
        assert any(
            isinstance(answer, m.Acknowledge) and answer.update == digest(payload)
            for answer in said
        )
        notes = bench.store.rounds()[-1].notes
        assert notes["staleness"] == {"b": 3}
        moved = self.difference(bench, before, bench.state.models[bench.state.starts["a"]])
        assert moved == pytest.approx(0.8 / math.sqrt(4), rel=1e-4)
        bench.send("b", "update", payload)
        assert isinstance(bench.answers()[-1], m.Acknowledge), (
            "it is acknowledged again and counts once"
        )
        assert "b" not in bench.state.received
        assert model not in offered(bench.state) or model in bench.state.models.values()

    def test_what_is_read_together_counts_in_the_round_that_is_open_then(
        self, fleet: FleetData
    ) -> None:
        bench = Bench(fleet, settings={"buffer": 1, "concurrency": 2, "min_updates": 1})
        for device_id in ("a", "b"):
            bench.send(device_id, "check-in", encode(m.CheckIn(device_id, 10, 4)))
        self.answers = bench.answers()
        payloads = {d: self.update(bench, self.plan(bench, d), 0.1) for d in ("a", "b")}
        bench.runner.handle(
            *(
                Delivery(bench.topics.device(d, "update"), payload)
                for d, payload in payloads.items()
            )
        )
        assert [record.notes.get("staleness") for record in bench.store.rounds()] == [
            None,
            {"b": 1},
        ]
        assert bench.runner.refused == {}

    def restarted(self, bench: Bench) -> list[m.Plan]:
        bench.answers()
        bench.start(bench.state.next_settings, bench.store, bench.blobs, epoch=2)
        return [answer for answer in bench.answers() if isinstance(answer, m.Plan)]

    def difference(self, bench: Bench, one: str, two: str) -> float:
        from wire.arrays.tensors import OWN_FILES, decode_tensors

        first, second = (decode_tensors(bench.blobs.get(name), OWN_FILES)[0] for name in (one, two))
        name = next(n for n in first if n.startswith("shared/"))
        return float(np.mean(second[name] - first[name]))


class TestAgents:
    """Real agents, of which one needs twenty times as long as the others."""

    SPEEDS: ClassVar = {"d0": 100.0, "d1": 100.0, "d2": 100.0, "d3": 5.0}

    @pytest.mark.parametrize("algorithm", ["fedavg+fedavgm:beta=0.3", "distfl"])
    def test_fast_devices_do_not_wait_for_a_slow_one_whose_updates_count_all_the_same(
        self, fleet: FleetData, algorithm: str
    ) -> None:
        waiting = TimedFleet(fleet, self.SPEEDS, algorithm, rounds=6)
        waiting.run()
        going = TimedFleet(
            fleet, self.SPEEDS, algorithm, rounds=30, buffer=2, concurrency=4, min_updates=2
        )
        state = going.run()
        per_round = fleet.devices["d0"].num_train / 5.0
        assert waiting.clock.now_s >= 6 * per_round
        assert state.trained == 30
        assert going.clock.now_s < 30 * per_round / 4, (
            "four rounds and more in the time that the slow device needs for one"
        )
        late = [
            (r.round, r.notes["staleness"])
            for r in going.store.rounds()
            if "d3" in r.notes.get("staleness", {})
        ]
        assert late, "the slow device's updates are counted"
        asked = [number - staleness["d3"] for number, staleness in late]
        assert len(set(asked)) == len(asked), "each of them once"
        assert min(staleness["d3"] for _, staleness in late) > 5
        assert going.runner.refused.keys() <= {"wrong-round"}
        assert going.runner.refused["wrong-round"] <= 4, (
            "only what was in flight when the evaluation began"
        )


def test_an_update_is_weakened_towards_the_model_of_today() -> None:
    made = weakened(
        {
            "delta/w": np.ones(2, np.float32),
            "statistic/bn.mean": np.full(2, 5, np.float32),
            "response/survey.x": np.ones(1, np.float32),
        },
        0.5,
        {"shared/w": np.zeros(2, np.float32), "statistic/bn.mean": np.ones(2, np.float32)},
    )
    assert made["delta/w"].tolist() == [0.5, 0.5]
    assert made["statistic/bn.mean"].tolist() == [3, 3]
    assert made["response/survey.x"].tolist() == [1]


@pytest.mark.parametrize(
    ("algorithm", "part"),
    [
        ("scaffold", "objective 'scaffold'"),
        ("ifca:k=2", "grouping 'ifca'"),
        ("cfl", "grouping 'cfl'"),
    ],
)
def test_an_algorithm_that_needs_whole_rounds_is_refused_by_name(
    fleet: FleetData, algorithm: str, part: str
) -> None:
    spec = read_algorithm(algorithm)
    objective = objective_for_fleet(fleet, spec, 0)
    manifest = describe_bundle(
        objective, name="x", classes=fleet.classes, window=fleet.window
    ).manifest
    check_fit(SETTINGS, make_algorithm(spec), manifest)
    with pytest.raises(ConfigError, match=f"{part} needs whole rounds"):
        check_fit(msgspec.structs.replace(SETTINGS, buffer=3), make_algorithm(spec), manifest)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"buffer": 2, "cohort": 3}, "a buffered campaign has none"),
        ({"concurrency": 2}, "no concurrency without"),
        ({"buffer": 2, "min_updates": 3}, "a buffer of 2"),
        ({"buffer": 5}, "was started with other settings"),
    ],
)
def test_what_does_not_fit_a_buffered_campaign(
    tmp_path: Any, changes: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        check_retuned(SETTINGS, msgspec.structs.replace(SETTINGS, **changes), tmp_path)


def test_one_grammar_says_a_campaign_what_it_says_a_simulation() -> None:
    assert policy_settings(read_policy("buffered:buffer=5:deadline=60")) == {
        **{"cohort": 0, "over_select": 1.0, "buffer": 5, "concurrency": 0},
        "deadline_s": 60.0,
    }
    assert policy_settings(read_policy("over-select:cohort=20")) == {
        "cohort": 20,
        "over_select": 1.3,
        "buffer": 0,
        "concurrency": 0,
    }
    with pytest.raises(ConfigError, match="wait is for simulations"):
        policy_settings(read_policy("sync:wait=5"))
