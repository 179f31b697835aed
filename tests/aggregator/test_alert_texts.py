"""Texts of alerts: each one is read with no, one, two and many devices, and with missing values.
One cause of a device is in one alert."""

import dataclasses
import re
from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.divergence import STILL
from aggregator.fleet.records import Divergence, Standstill
from aggregator.http.dashboard.alerts import IDS, Alert, standing_alerts
from aggregator.http.monitoring.webhook import message_of
from aggregator.service.conditions import Conditions
from aggregator.view.fleet import (
    CampaignView,
    CampaignWait,
    CommonError,
    FleetView,
    PoorDevice,
    Server,
    SilentDevice,
    Unanswered,
)
from aggregator.view.progress import RolloutProgress
from aggregator.view.pulls import CAUSES, STANDSTILLS, StandingOut
from simulation.datasets.windows import FleetData
from tests.aggregator.inbox_cases import InboxBench
from tests.aggregator.test_device_errors import FULL_DISK, view_of
from tests.aggregator.training import NAME, Training
from tests.fleet.test_view import WELL
from wire import messages as m
from wire.codec import encode

HOLES = (
    r":(\s*$|\s*[;,.](?!\.))",
    r"\b1 (devices|failures|rounds|updates|others|releases|groups)\b",
    r"\b([02-9]|\d{2,}) (device|failure|update|other|release|group)\b",
    "#",
    "  ",
    r"\bNone\b",
    r"\b(?i:nan|inf)\b",
    r"\(\)",
    r" [,;.]( |$)",
    r"[,;][,;.]",
    "1970",
)
"""Patterns that no text of an alert has: holes, and numbers that do not fit their noun."""
ILL = Conditions({}, False, "the disk is full", "no voucher", WELL.counted, {}, ahead_s=7200.0)
NOW_S = 1.8e9


class Rollouts:
    """The rollouts of a fleet in place of `ReleaseAnswers`."""

    def __init__(self, reason: str) -> None:
        about: dict[str, Any] = {"releases": {}, "direct": False, "step": 0, "steps": []}
        about |= {"reason": reason, "statements": {}, "began_s": 1.0, "step_s": 0.0}
        self.rollouts = [
            RolloutProgress(campaign=NAME, phase=phase, patience_s=60.0, **about)
            for phase in ("running", "paused", "failed")
        ]

    def progress(self) -> list[RolloutProgress]:
        return self.rollouts


def holes(alert: Alert) -> list[str]:
    """Return the patterns that the message about an alert has."""
    message = message_of(alert, 1.0)
    texts = (message.title, message.text)
    return [f"{hole} in {text}" for text in texts for hole in HOLES if re.search(hole, text)]


def campaign_of(
    bench: Training, ids: list[str], bare: bool, cause: Any, still: Any
) -> CampaignView:
    """Return a campaign with every trouble about these devices."""
    stills = {str(n): Standstill(still, "it is too small", STILL) for n, _ in enumerate(ids)}
    divergence = Divergence(cause, "the usual loss rose", tuple(ids[:1]))
    record = replace(bench.campaign, attempt=1, standstills=stills, divergence=divergence)
    servers = tuple(Server(d, "offline", 0.0) for d in ids[:20])
    reasons = f"{len(ids)} offline" if ids else ""
    about: Any = ({"offline": len(ids)} if ids else {}, {}, reasons, servers)
    pulls = tuple(
        StandingOut(d, NAME, 0.6, 3, 2 if bare else 3 + n, tuple(range(n)))
        for n, d in enumerate(ids[:21])
    )
    return (
        FleetView(bench.fleet)
        .campaigns[NAME]
        ._replace(
            record=record,
            paused="the operator has paused it" if bare else "the model is not finite",
            ended="epsilon 3 is not reached",
            waiting=CampaignWait("1 more device: 1 of 2 ready", 0.0, *about) if bare else None,
            devices=max(1, len(ids)),
            online=0,
            pulls=pulls,
        )
    )


def fleet_of(bench: Training, ids: list[str], bare: bool, **causes: str) -> FleetView:
    """Return a fleet in which every trouble has these devices; `bare`: with missing values."""
    at_s = 0.0 if bare else NOW_S
    answers = ("", "declined: policy (it is hot)")
    view = FleetView(bench.fleet, now_s=NOW_S + 100)
    rollouts: Any = Rollouts("" if bare else "it is slow")
    view.__dict__["totals"] = view.totals._replace(
        devices={**view.totals.devices, "known": max(1, len(ids))},
        campaigns={NAME: campaign_of(bench, ids, bare, **causes)},
        answers=rollouts,
        unanswered=tuple(
            Unanswered(d, 1 + n, at_s, at_s, bare, answer, "", False)
            for answer in answers
            for n, d in enumerate(ids)
        ),
        quiet=tuple(SilentDevice(d, at_s, bare) for d in ids),
        poor=tuple(
            PoorDevice(f"poor-{d}", 1 + n, 0.0 if bare else None, 0.5) for n, d in enumerate(ids)
        ),
        clocks=dict.fromkeys(ids, -400.0),
        seconds=dict.fromkeys(ids, NOW_S),
        errors=(CommonError("E", "E", 1.0, tuple(ids)),) if ids else (),
    )
    return view


@pytest.fixture(scope="module")
def training(fleet: FleetData) -> Training:
    return Training(fleet)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 45])
def test_no_alert_has_a_hole(training: Training, number: int) -> None:
    ids, seen = [f"pi-{each}" for each in range(number)], set[str]()
    for bare in (True, False):
        for cause, still in zip(CAUSES, [*STANDSTILLS] * 3, strict=False):
            for now in (WELL, ILL, dataclasses.replace(WELL, ahead_s=-90.0)):
                view = fleet_of(training, ids, bare, cause=cause, still=still)
                for alert in standing_alerts(now, view):
                    assert holes(alert) == []
                    assert alert.text, alert.title
                    seen.add(alert.id)
    of_devices = {"unanswered", "failing", "quiet", "poor", "device-clocks", "second-device"}
    of_devices |= {"errors", "unchanged"}
    missing = set() if number else of_devices
    missing |= set() if number > 1 else {"stands-out"}
    assert seen == {*IDS} - missing


@pytest.mark.parametrize(
    "text",
    [
        "a:",
        "1 devices are",
        "3 device is",
        "[Errno #]",
        "a  b",
        "of None",
        "nan %",
        "x ()",
        "x ; y",
    ],
)
def test_a_hole_is_seen(text: str) -> None:
    assert holes(Alert("warn", text, "", id="poor")) != []
    assert holes(Alert("warn", "", text, id="poor")) != []


class TestOneCauseOneAlert:
    def naming(self, view: FleetView, device_id: str) -> list[str]:
        """Return the ids of the alerts about a device: a campaign's wait is none."""
        alerts = [a for a in standing_alerts(WELL, view) if a.id != "waiting"]
        return [a.id for a in alerts if device_id in [device.id for device in a.devices]]

    @pytest.mark.parametrize("norm", [-10.0, 90.0])
    def test_a_device_that_pulls_only_stands_out(self, fleet: FleetData, norm: float) -> None:
        settings = {"min_devices": 5, "min_updates": 2, "norm_cap": 5.0, "rounds": 30}
        bench = Training(fleet, settings=settings, device_ids="abcde")
        for _ in range(4):
            bench.close(**{d: (norm if d == "d" else 1.0, 2) for d in "abcde"})
        view = FleetView(bench.fleet)
        assert view.totals.poor != ()
        assert self.naming(view, "d") == ["stands-out"]

    def test_a_device_that_has_the_campaign_diverge_is_named_there(self, fleet: FleetData) -> None:
        settings = {"min_devices": 6, "min_updates": 2, "keep_models": 3, "rounds": 30}
        bench = Training(fleet, settings=settings, device_ids="abcdef")
        for number, loss in enumerate((1.0, 0.8, 2.0, 5.0)):
            odd = {"c": (-10.0, 2, loss)} if number else {}
            bench.close(**{**dict.fromkeys("abcdef", (1.0, 2, loss)), **odd})
        view = FleetView(bench.fleet)
        assert self.naming(view, "c") == ["diverges"]
        (alert,) = (a for a in standing_alerts(WELL, view) if a.id == "diverges")
        assert "they are in the models of rounds 2 to 4" in alert.devices[0].text
        assert view.campaigns[NAME].other_pulls == ()

    def test_a_device_whose_labels_are_wrong_is_no_poor_one_too(self, training: Training) -> None:
        view = fleet_of(training, ["pi-0"], bare=True, cause="labels", still="small")
        poor = (PoorDevice("pi-0", 0, 0.0, 0.9), PoorDevice("pi-1", 0, 0.0, 0.9))
        view.__dict__["totals"] = view.totals._replace(poor=poor)
        assert "poor" not in self.naming(view, "pi-0")
        assert self.naming(view, "pi-1") == ["poor"]

    @pytest.mark.parametrize(
        ("reason", "named"),
        [
            ("failed", ["errors"]),
            ("data", ["errors"]),
            ("quarantined", ["errors"]),
            ("policy", ["errors", "failing"]),
        ],
    )
    def test_a_device_that_fails_by_an_error_has_the_alert_of_the_error(
        self, fleet: FleetData, reason: Any, named: list[str]
    ) -> None:
        bench = InboxBench(fleet)
        work = bench.work("a")
        bench.send("a", "error", encode(FULL_DISK))
        decline = m.Decline("r", 1, work.round, work.serial, "a", reason, "no space")
        bench.send("a", "decline", encode(decline))
        view = view_of(bench)
        assert self.naming(view, "a") == named
        (alert,) = (a for a in standing_alerts(WELL, view) if a.id == "errors")
        text = f"declined: {reason} (no space), 1 failure" if named == ["errors"] else ""
        assert alert.devices[0].text.startswith(text)
        bench.clock.now_s += 90_000.0
        assert self.naming(view_of(bench), "a") == ["failing"], "the error is of yesterday"

    def test_numbers_of_an_error_are_shown_where_all_devices_have_them(
        self, fleet: FleetData
    ) -> None:
        bench = InboxBench(fleet)
        bench.take(e.CheckedIn(at_s=101.0, device_id="b", facts=m.CheckIn("b", 10, 4)))
        for number, device_id in enumerate("ab"):
            text = f"[Errno 28] No space left on device, round {number}: '/x/{number}'"
            report = replace(FULL_DISK, device_id=device_id, message=text)
            bench.send(device_id, "error", encode(report))
        (error,) = view_of(bench).totals.errors
        assert error.text == "OSError: [Errno 28] No space left on device, round ..."
        assert error.key == "OSError: [Errno #] No space left on device, round #"
