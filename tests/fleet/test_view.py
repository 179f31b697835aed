"""Readers' view of a fleet: campaigns that wait, devices that do not answer, steps of rollouts."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.core.steps import Step
from aggregator.core.telemetry import DeviceTelemetry, LastDecline
from aggregator.fleet import events as e
from aggregator.fleet.reconcile import REST_S
from aggregator.fleet.records import AdmittedUpdate, Ban, Device
from aggregator.fleet.step import step
from aggregator.http.dashboard.alerts import standing_alerts
from aggregator.service.conditions import Conditions, ServiceCounters
from aggregator.view.fleet import PACED, FleetView, devices_of
from aggregator.view.progress import needed_releases, offered_releases, release_states
from algorithms.personalisation.kept import PersonalChoice
from tests.fleet.cases import all_work, asked, ban, configure, direct, forget, world_of
from tests.fleet.world import World, metrics_of
from tests.support.known import known
from wire.messages import HEARTBEAT_S, Policy

WELL = Conditions({}, True, "", "", ServiceCounters(), {})


def view_of(
    world: World, telemetry: Mapping[str, DeviceTelemetry] = MappingProxyType({}), **paused: str
) -> FleetView:
    """The fleet of a world as readers see it."""
    return FleetView(world.fleet, telemetry, paused, world.now_s)


def set_clock(ahead_s: float) -> Conditions:
    """A service whose time is ahead of its machine's clock."""
    return dataclasses.replace(WELL, ahead_s=ahead_s)


class TestWaiting:
    def test_a_campaign_that_waits_says_what_for_since_when_and_who_could_serve(self) -> None:
        world = world_of("a", "b", "c", "d", "few", "banned")
        world.leave("b")
        world.clients["few"].num_train = 0
        world.check_in("few")
        ban(world, "banned")
        world.pass_time(10)
        began_s = world.now_s
        world.start("other", min_devices=1, where="id = c")
        world.start("run", min_devices=4, where="id != c")
        world.pass_time(50)
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert (waiting.lacks, waiting.since_s) == ("2 more devices: 2 of 4 ready", began_s)
        assert waiting.could == {"free": 2, "offline": 1}
        assert [(d, why) for d, why, _ in waiting.servers] == [
            ("a", "free"),
            ("d", "free"),
            ("b", "offline"),
        ]

    def test_devices_that_rest_or_work_for_another_campaign_could_serve_later(self) -> None:
        world = world_of("a", "b", "c", "d")
        world.start("other", min_devices=1, deadline_s=5000.0, where="id = c")
        world.start("run", min_devices=3, deadline_s=50.0)
        all_work(world, "a")
        forget(world, "d")
        world.pass_time(50)
        view, devices = view_of(world), world.fleet.devices
        waiting, work = view.campaigns["run"].waiting, devices["c"].assignment
        assert waiting is not None
        assert work is not None
        assert waiting.lacks == "2 more devices: 1 of 3 ready"
        assert waiting.servers == (
            ("b", "resting after a failure", devices["b"].rests_until_s),
            ("c", "at work for other", work.deadline_s),
        ), "the update of a counts already"

    def test_a_campaign_outside_of_its_hours_waits_for_them(self) -> None:
        world = world_of("a")
        world.now_s = 12 * 3600.0
        world.start("run", hours="22:00-06:00")
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert waiting.lacks == "its hours, 22:00-06:00"
        world.pass_time(10 * 3600.0)
        assert view_of(world).campaigns["run"].waiting is None

    def test_a_campaign_that_is_paused_stopped_or_at_work_waits_for_nothing(self) -> None:
        world = world_of("a")
        world.start("run", min_devices=2)
        assert view_of(world, run="the disk is full").campaigns["run"].waiting is None
        assert view_of(world, run="the disk is full").campaigns["run"].paused == "the disk is full"
        direct(world, "pause")
        view = view_of(world).campaigns["run"]
        assert (view.waiting, view.paused) == (None, "the operator has paused it")
        direct(world, "resume")
        assert view_of(world).campaigns["run"].waiting is not None
        world.check_in("b")
        assert view_of(world).campaigns["run"].waiting is None

    def test_devices_that_cannot_serve_are_counted_by_what_they_lack(self) -> None:
        world = world_of("a", "b", "few", "banned", "gone", "low", "low2", "rests")
        for device_id, changes in (
            ("few", {"num_train": 0}),
            ("low", {"battery": 5}),
            ("low2", {"battery": 19}),
        ):
            vars(world.clients[device_id]).update(changes)
            world.check_in(device_id)
        ban(world, "banned")
        world.feed(e.Tagged(at_s=world.now_s, device_id="named", tags=("lab",)))
        world.now_s = 86_400.0 + 14 * 3600
        world.leave("gone")
        resting = replace(world.fleet.devices["rests"], failures=1, rests_until_s=world.now_s + 300)
        world.fleet = replace(world.fleet, devices=world.fleet.devices.set("rests", resting))
        world.start("run", min_devices=4, where='battery >= 20 and id != "x or y" and online')
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert waiting.lacks == "2 more devices: 2 of 4 ready"
        assert waiting.could == {"free": 2, "resting after a failure": 1}
        assert waiting.cannot == {
            'excluded by "battery >= 20"': 2,
            "banned": 1,
            'excluded by "online"': 1,
            "never checked in": 1,
            "without training windows": 1,
        }
        assert waiting.reasons == (
            "2 free, 1 resting after a failure until 14:05 UTC, "
            '2 excluded by "battery >= 20" (low: 5, low2: 19), '
            '1 banned, 1 excluded by "online", 1 never checked in, '
            "1 without training windows"
        )
        configure(world, where="battery >= 20")
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert "1 offline since 14:00 UTC" in waiting.reasons
        world.now_s += 86_400
        world.leave("a")
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert "2 offline, the last since 14:00 UTC" in waiting.reasons
        world.now_s += 86_400
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert "2 offline, the last since 1970-01-03 14:00 UTC" in waiting.reasons

    @pytest.mark.parametrize(
        ("where", "condition"),
        [
            ("battery >= 101", "battery >= 101"),
            ("online and (charging or battery > 100)", "(charging or battery > 100)"),
            ("charging or battery > 100", "charging or battery > 100"),
            ("not online and battery > 1", "not online"),
        ],
    )
    def test_a_condition_that_takes_nobody_is_named(self, where: str, condition: str) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2, where=where)
        view = view_of(world)
        (alert,) = standing_alerts(WELL, view)
        assert alert.title == "Campaign run waits for 2 more devices: 0 of 2 ready"
        values = " (a: 80, b: 80)" if condition == "battery >= 101" else ""
        assert alert.text == f'Devices: 2 excluded by "{condition}"{values}.'

    def test_a_round_that_stands_says_what_devices_lack(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=3, rounds=5)
        world.carry_out()
        for device_id in "ab":
            world.decline(device_id)
        world.leave("c")
        world.pass_time(40)
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert waiting.lacks == "3 more updates: 0 devices can still send one"
        assert waiting.reasons.startswith("2 resting after a failure, the first until 00:01 UTC")

    def test_a_fleet_without_other_devices_says_so(self) -> None:
        world = world_of()
        world.start("run", min_devices=2)
        (alert,) = standing_alerts(WELL, view_of(world))
        assert alert.text == "No other device is known."

    def test_the_alert_names_them(self) -> None:
        world = world_of("a", "b")
        world.leave("b")
        world.start("run", min_devices=2)
        (alert,) = standing_alerts(WELL, view_of(world))
        assert alert.title == "Campaign run waits for 1 more device: 1 of 2 ready"
        assert alert.since_s == 1.0
        assert [(device.id, device.text) for device in alert.devices] == [
            ("a", "free"),
            ("b", "offline"),
        ]

    def test_devices_that_wait_for_their_pace_alone_are_no_trouble(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=2, cohort=3, rounds=9, pace_s=100.0)
        all_work(world)
        view = view_of(world)
        waiting = view.campaigns["run"].waiting
        assert waiting is not None
        assert waiting.lacks == "2 more devices: 0 of 2 ready", "readers see it"
        assert waiting.could == {PACED: 3}
        assert standing_alerts(WELL, view) == []
        world.leave("a")
        assert standing_alerts(WELL, view_of(world)) == [], "two are enough"
        world.leave("b")
        (alert,) = standing_alerts(WELL, view_of(world))
        assert (alert.id, alert.troubles) == ("waiting", ("a: offline", "b: offline"))
        world.check_in("b")
        world.pass_time(100)
        assert standing_alerts(WELL, view_of(world)) == []

    def test_a_pace_beside_a_rest_is_a_trouble(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2, rounds=9, pace_s=10.0)
        all_work(world)
        world.pass_time(10)
        world.carry_out()
        world.decline("a")
        world.work("b")
        assert "waiting" in {alert.id for alert in standing_alerts(WELL, view_of(world))}

    def test_an_excluded_device_is_not_free(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=3)
        world.feed(e.Excluded(at_s=world.now_s, campaign="run", device_id="b"))
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert (waiting.could, waiting.cannot) == ({"free": 1}, {"excluded by the operator": 1})

    def test_the_values_by_which_a_rule_excludes_are_named_for_the_first_devices(self) -> None:
        world = world_of(*"abcde", battery=7)
        world.feed(e.Tagged(at_s=world.now_s, device_id="a", tags=("lab", "wrist")))
        world.start("run", min_devices=1, where="battery >= 20")
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert waiting.reasons == '5 excluded by "battery >= 20" (a: 7, b: 7, c: 7, ...)'
        configure(world, where="tags has home and online")
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert "(a: lab, wrist, b: none, c: none, ...)" in waiting.reasons
        configure(world, where="temperature < 40")
        waiting = view_of(world).campaigns["run"].waiting
        assert waiting is not None
        assert "(a: not reported," in waiting.reasons


class TestDevices:
    def test_a_device_that_declines_is_not_said_to_be_silent(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=1, deadline_s=50.0)
        world.carry_out()
        world.decline("a")
        world.work("b")
        world.pass_time(50)
        decline = LastDecline(world.now_s, "run", 1, "failed", "No space left on device")
        view = view_of(world, telemetry={"a": DeviceTelemetry(decline=decline)})
        silent, failing = standing_alerts(WELL, view)
        assert (silent.id, silent.title) == ("unanswered", "A device does not answer")
        assert [device.id for device in silent.devices] == ["c"]
        title = "A device cannot carry out assignments"
        assert (failing.id, failing.title) == ("failing", title)
        assert [(device.id, device.text) for device in failing.devices] == [
            ("a", "declined: failed (No space left on device), 1 failure")
        ]
        assert failing.troubles == ("a: declined: failed",)

    def test_the_last_answer_decides(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2, deadline_s=50.0)
        world.carry_out()
        world.decline("a")
        world.pass_time(REST_S + 50.0)
        world.carry_out()
        world.pass_time(200.0)
        assert world.fleet.devices["a"].failures > 1
        assert {alert.id for alert in standing_alerts(WELL, view_of(world))} >= {"unanswered"}
        assert "failing" not in {alert.id for alert in standing_alerts(WELL, view_of(world))}

    def test_an_old_client_that_fails_is_to_be_updated(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = world_of("a")
        facts = replace(known(world.fleet.devices["a"].facts), client="shoal 0.0.1")
        world.feed(e.CheckedIn(at_s=world.now_s, device_id="a", facts=facts))
        monkeypatch.setattr("aggregator.fleet.eligibility.VERSION", "0.0.3")
        world.start("run", deadline_s=50.0)
        world.pass_time(50)
        (alert,) = (a for a in standing_alerts(WELL, view_of(world)) if a.id == "unanswered")
        advice = "shoal 0.0.1 is older than this service, 0.0.3: update the client of the device"
        assert advice in alert.devices[0].text
        device = view_of(world).device("a")
        assert device is not None
        assert device.outdated == advice

    def test_many_devices_are_one_incident_of_the_fleet(self) -> None:
        world = world_of(*(f"d{number:02d}" for number in range(40)))
        world.start("run", deadline_s=50.0)
        world.pass_time(50)
        (alert,) = (a for a in standing_alerts(WELL, view_of(world)) if a.id == "unanswered")
        assert alert.troubles == ("32 devices",)

    def test_a_device_that_falls_silent_at_work_is_named_before_its_deadline(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2, deadline_s=1000.0)
        heard = {d: DeviceTelemetry(heard_s=world.now_s) for d in "ab"}
        began_s = world.now_s
        world.pass_time(HEARTBEAT_S)
        view = view_of(world, telemetry=heard)
        assert standing_alerts(WELL, view) == []
        assert view.totals.heard_s == began_s, "the page shows how old its word is"
        world.pass_time(1)
        heard["a"] = DeviceTelemetry(heard_s=world.now_s)
        (alert,) = standing_alerts(WELL, view_of(world, telemetry=heard))
        assert (alert.id, alert.title) == ("quiet", "A device is silent at work")
        assert [(d.id, d.text) for d in alert.devices] == [("b", "online, last heard 61 s ago")]
        world.leave("a")
        (alert,) = standing_alerts(WELL, view_of(world, telemetry=heard))
        assert [(d.id, d.text) for d in alert.devices] == [
            ("b", "online, last heard 61 s ago"),
            ("a", "offline, last heard 0 s ago"),
        ]

    def test_a_silent_device_is_not_named_if_no_round_waits_for_it(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=1, deadline_s=1000.0, cohort=1)
        (worker,) = asked(world)
        (idle,) = {"a", "b"} - {worker}
        world.leave(idle)
        assert standing_alerts(WELL, view_of(world)) == []
        ban(world, worker)
        world.leave(worker)
        assert "quiet" not in {alert.id for alert in standing_alerts(WELL, view_of(world))}

    def test_a_device_whose_updates_are_left_out_again_and_again_is_named(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=2, rounds=50)
        world.left_out = ("b",)
        for count in (1, 2, 3):
            all_work(world)
            assert [world.fleet.devices[d].left_out for d in "ab"] == [0, count]
        (alert,) = standing_alerts(WELL, view_of(world))
        assert (alert.id, [(d.id, d.text) for d in alert.devices]) == (
            "poor",
            [("b", "left out of its last 3 rounds")],
        )
        event = e.Excluded(at_s=world.now_s, campaign="run", device_id="b")
        excluded, _ = step(world.fleet, event)
        assert excluded.devices["b"].left_out == 0
        world.left_out = ()
        all_work(world)
        assert standing_alerts(WELL, view_of(world)) == []

    def test_a_device_on_which_the_model_is_far_worse_than_on_others_is_named(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=3, rounds=50)
        fleet = world.fleet
        campaign = fleet.campaigns["run"]
        measured = {"a": metrics_of(0.8), "b": metrics_of(0.0), "c": metrics_of(0.9)}
        version = replace(campaign.version, evaluated=measured)
        campaigns = {"run": replace(campaign, history=(version,))}
        world.fleet = replace(fleet, campaigns=campaigns)
        (alert,) = standing_alerts(WELL, view_of(world))
        assert (alert.id, [(d.id, d.text) for d in alert.devices]) == (
            "poor",
            [("b", "accuracy 0.0 %, on the middle device 80.0 %")],
        )
        ban(world, "b")
        assert "poor" not in {each.id for each in standing_alerts(WELL, view_of(world))}

    def test_clocks_that_are_wrong_are_named(self) -> None:
        world = world_of("a", "b", "c")
        off = {
            "a": DeviceTelemetry(clock_off_s=86_400.0 * 3),
            "b": DeviceTelemetry(clock_off_s=-3600.0 * 3),
            "c": DeviceTelemetry(clock_off_s=200.0),
        }
        (alert,) = standing_alerts(WELL, view_of(world, telemetry=off))
        assert (alert.id, alert.title) == ("device-clocks", "2 devices have a wrong clock")
        assert [(d.id, d.text) for d in alert.devices] == [
            ("a", "3.0 days ahead"),
            ("b", "3.0 h behind"),
        ]
        for ahead_s, words in ((7300.0, "2.0 h ahead of"), (-90.0, "90 s behind")):
            (alert,) = standing_alerts(set_clock(ahead_s), view_of(world))
            assert (alert.id, alert.title) == (
                "clock",
                f"The service's time is {words} its machine's clock",
            )
        assert standing_alerts(set_clock(-30.0), view_of(world)) == []

    def test_devices_that_do_not_answer_are_named_with_since_when_and_when_they_are_asked_next(
        self,
    ) -> None:
        world = world_of("a", "b", "c")
        world.start("run", min_devices=1, deadline_s=100.0)
        all_work(world, "a")
        began_s = world.now_s
        world.pass_time(100)
        world.carry_out()
        totals = view_of(world).totals
        assert [(u.device_id, u.failures, u.since_s) for u in totals.unanswered] == [
            ("b", 1, began_s + 100),
            ("c", 1, began_s + 100),
        ]
        assert {u.next_s for u in totals.unanswered} == {began_s + 100 + REST_S}
        (alert,) = standing_alerts(WELL, view_of(world))
        assert (alert.tone, alert.title) == ("warn", "2 devices do not answer")
        assert alert.devices[0][:4] == ("b", "1 failure", began_s + 100, began_s + 160)
        world.pass_time(REST_S)
        all_work(world)
        world.settle()
        assert view_of(world).totals.unanswered == ()

    def test_failures_in_a_row_are_counted_from_the_first(self) -> None:
        world = world_of("a", "b")
        world.start("run", min_devices=1, deadline_s=100.0, rounds=50)
        for _ in range(60):
            all_work(world, "a")
            world.pass_time(10)
        (device,) = view_of(world).totals.unanswered
        record = world.fleet.devices["b"]
        assert (device.device_id, device.failures, device.since_s) == ("b", 3, 101.0)
        assert device.next_s in (0.0, record.rests_until_s)

    def test_a_device_has_its_facts_tags_ban_assignment_and_place(self) -> None:
        world = world_of("a")
        world.feed(e.Tagged(at_s=world.now_s, device_id="a", tags=("lab",)))
        world.start("run", min_devices=1, rounds=2)
        device = view_of(world).device("a")
        assert device is not None
        assert device.assignment is not None
        assert (device.record.tags, device.assignment.kind, device.group) == (("lab",), "train", "")
        all_work(world)
        device = view_of(world).device("a")
        assert device is not None
        assert device.group == str(ord("a") % 2)
        assert view_of(world).device("nobody") is None
        world.feed(e.Banned(at_s=world.now_s, device_id="a", ban=Ban(1.0, "stolen")))
        device = view_of(world).device("a")
        assert device is not None
        assert device.record.ban == Ban(1.0, "stolen")
        assert device.assignment is None

    def test_a_personal_model_is_shown_unless_it_is_gone_or_withheld(self) -> None:
        world = world_of("a")
        world.start("run", rounds=1, keeps=True)
        world.settle()
        campaign, device = world.fleet.campaigns["run"], world.fleet.devices["a"]
        kept = PersonalChoice("own", 24, 0.3, {})
        update: AdmittedUpdate = replace(campaign.updates["a"], personal_model=kept)
        campaign = replace(campaign, updates=campaign.updates.set("a", update))

        def shown(device: Device) -> object:
            fleet = replace(
                world.fleet,
                campaigns={"run": campaign},
                devices=world.fleet.devices.set("a", device),
            )
            found = FleetView(fleet).device("a")
            assert found is not None
            return found.personal_model

        assert shown(device) == ("run", kept)
        assert shown(replace(device, holds=())) is None
        assert device.facts is not None
        facts = replace(device.facts, policy=Policy(min_windows=5))
        assert shown(replace(device, facts=facts)) is None

    def test_a_decline_is_that_of_the_last_assignment(self) -> None:
        world = world_of("a")
        world.start("run")
        for at_s, is_last in ((0.5, False), (5.0, True)):
            telemetry = DeviceTelemetry(decline=LastDecline(at_s, "run", 1, "policy", ""))
            device = FleetView(world.fleet, {"a": telemetry}).device("a")
            assert device is not None
            assert (device.declined is not None) == is_last

    def test_one_walk_visits_every_device_and_counts_all(self) -> None:
        world = world_of(*"abcd")
        world.start("run")
        view, seen = view_of(world), list[str]()
        view.walk(lambda device: seen.append(device.id))
        assert sorted(seen) == list("abcd")
        counted = view.totals
        assert counted is view.totals
        assert (counted.devices["known"], view.campaigns["run"].online) == (4, 4)
        assert [device.id for device in devices_of(view, "run")] == list("abcd")

    def test_a_campaign_has_the_devices_that_it_may_ask_or_that_are_in_it(self) -> None:
        world = world_of("a", "b")
        world.feed(e.Tagged(at_s=world.now_s, device_id="named", tags=("lab",)))
        world.start("run", where="id = a")
        assert [device.id for device in devices_of(view_of(world), "run")] == ["a"]
        assert view_of(world).campaigns["run"].eligible == 1


class TestRollouts:
    def test_each_step_counts_the_answers_of_the_devices_that_it_reached(self) -> None:
        world = world_of(*"abcdef")
        for device_id in "ab":
            world.feed(e.Tagged(at_s=world.now_s, device_id=device_id, tags=("canary",)))
        world.start("run", rounds=1, steps=(Step(0.0, ("canary",)), Step(1.0)))
        world.settle()
        (progress,) = view_of(world).rollouts
        assert (progress.phase, [step.tags for step in progress.steps]) == (
            "done",
            [("canary",), ()],
        )
        assert [(step.offered, step.confirmed) for step in progress.steps] == [(2, 2), (4, 4)]
        used = view_of(world).totals.answers.in_use
        assert sum(used.values()) == 6

    def test_a_device_that_fails_is_counted_with_its_reason(self) -> None:
        world = world_of("a", "b", "c")
        world.start("run", rounds=1, auto=False)
        world.settle()
        model = world.fleet.campaigns["run"].models
        for device_id in "abc":
            world.clients[device_id].spoils = model[str(ord(device_id) % 2)]
        world.release("run")
        while world.fleet.sweep:
            world.ring()
        world.carry_out()
        (progress,) = view_of(world).rollouts
        assert progress.steps[0].failed == 3
        assert progress.steps[0].reasons == {"it fails": 3}
        world.settle()
        assert {*release_states(world.fleet).values()} == {"withdrawn"}

    def test_releases_are_current_until_later_ones_are(self) -> None:
        world = world_of("a", "b")
        world.start("run", rounds=1)
        world.settle()
        first = set(world.fleet.releases)
        assert {*release_states(world.fleet).values()} == {"released"}
        campaign = world.fleet.campaigns["run"]
        settings = replace(campaign.next_settings, rounds=2)
        world.feed(e.Configured(at_s=world.now_s, campaign="run", settings=settings))
        world.settle()
        states = release_states(world.fleet)
        assert {states[number] for number in first} == {"retired"}
        assert {states[number] for number in set(states) - first} == {"released"}
        release = world.fleet.releases[min(first)]
        own: dict[str, Any] = {"release": release.number, "group": release.group, "salt": "x"}
        world.feed(e.Returned(at_s=world.now_s, campaign="run", **own))
        assert release_states(world.fleet)[release.number] == "released"
        assert needed_releases(world.fleet, offered_releases(world.fleet)) == set(states)
