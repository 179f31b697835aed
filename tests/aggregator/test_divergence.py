"""A campaign that diverges says so, with its cause and the evidence."""

from typing import Any

import msgspec
import pytest
from immutables import Map
from msgspec.structs import replace

from aggregator.aggregation.orders import rolled_back
from aggregator.fleet import events as e
from aggregator.fleet.divergence import NAMED, divergence
from aggregator.fleet.records import Divergence, Member
from aggregator.http.dashboard.alerts import campaign_alerts
from aggregator.view.fleet import FleetView
from aggregator.view.pulls import divergence_text
from simulation.datasets.windows import FleetData
from tests.aggregator.test_bad_settings import refuse
from tests.aggregator.training import NAME, RECEIVED, Training
from wire import messages as m
from wire.messages import CheckIn

IDS = "abcdef"


def bench_of(fleet: FleetData, device_ids: str = IDS, **settings: Any) -> Training:
    chosen = {"keep_models": 3, "rounds": 30, "min_updates": 2, "min_devices": len(device_ids)}
    return Training(fleet, settings={**chosen, **settings}, device_ids=device_ids)


def close(bench: Training, loss: float, norm: float = 1.0, /, **odd: Any) -> Any:
    devices = [d for d, device in bench.fleet.devices.items() if device.assignment is not None]
    return bench.close(**{d: odd.get(d, (norm, 2, loss)) for d in devices})


def cause(bench: Training) -> Divergence:
    now = bench.campaign.divergence
    assert now is not None
    return now


def test_a_growing_loss_with_growing_updates_is_the_learning_rate(fleet: FleetData) -> None:
    bench = bench_of(fleet)
    for number, loss in enumerate((1.0, 0.8, 2.0)):
        close(bench, loss, 1.5**number)
        assert bench.campaign.divergence is None, "one bad round is no divergence"
    notes = close(bench, 5.0, 6.0)
    assert cause(bench).cause == "rate"
    assert cause(bench).evidence == (
        "the usual loss of the models of round 1 is 0.8, and that of the last ones 5, on 6 "
        "devices; the median norm of the updates grew from 1 in round 1 to 6"
    )
    assert notes["diverges"] == msgspec.to_builtins(cause(bench))
    view = FleetView(bench.fleet).campaigns[NAME]
    alert = next(a for a in campaign_alerts(NAME, view) if "diverges" in a.title)
    assert alert.title == f"Campaign {NAME} diverges: too high a learning rate"
    assert "lower --lr" in alert.text
    assert divergence_text(bench.campaign).startswith("too high a learning rate: the usual loss")


def test_a_device_that_stands_out_comes_first(fleet: FleetData) -> None:
    bench = bench_of(fleet)
    for number, loss in enumerate((1.0, 0.8, 2.0, 5.0)):
        norm = 2.0**number
        close(bench, loss, norm, **({"c": (-10 * norm, 2, loss)} if number else {}))
    assert (cause(bench).cause, cause(bench).devices) == ("device", ("c",))
    assert "its updates have stood out since round 2, score 0.66" in cause(bench).evidence


def test_one_loud_round_of_a_device_is_no_cause(fleet: FleetData) -> None:
    bench = bench_of(fleet)
    for number, loss in enumerate((1.0, 0.8, 2.0, 5.0)):
        close(bench, loss, 2.0**number, **({"c": (-9.0, 2, loss)} if number == 3 else {}))
    assert cause(bench).cause == "rate"


def test_a_device_whose_loss_is_far_off_has_wrong_labels(fleet: FleetData) -> None:
    bench = bench_of(fleet)
    for loss in (0.5, 0.4):
        close(bench, loss)
    for _ in range(2):
        close(bench, 0.4, e=(1.0, 0, 9.0))
    assert (cause(bench).cause, cause(bench).devices) == ("labels", ("e",))
    assert "its median over all devices is 0.4, and here it is at least 9" in cause(bench).evidence


def test_the_alert_names_the_device_whose_loss_is_far_off_while_it_lasts(fleet: FleetData) -> None:
    bench = bench_of(fleet)
    for loss in (0.5, 0.4):
        close(bench, loss)
    for number in range(6):
        close(bench, 0.4 if number else 0.38, e=(1.0, 2, 9.0))
        assert (bench.campaign.divergence is None) == (number == 0), "one bad round is none"
    (alert,) = (a for a in campaign_alerts(NAME, FleetView(bench.fleet).campaigns[NAME]) if a.id)
    assert alert.title == f"Campaign {NAME} diverges on few devices: wrong labels or test windows"
    assert alert.text.startswith("the loss of the last models rose on few devices, not on the")
    assert [device.id for device in alert.devices] == ["e"]
    close(bench, 0.4)
    assert bench.campaign.divergence is None, "its loss is as usual again"


@pytest.mark.parametrize("claim", [9.0, 1e6, 1e11])
def test_a_false_loss_names_its_device_and_raises_nothing_for_the_others(
    fleet: FleetData, claim: float
) -> None:
    bench = bench_of(fleet)
    for number, loss in enumerate((1.0, 0.8, 0.7, 0.65, 0.6)):
        close(bench, loss, **({"c": (1.0, 2, claim)} if number >= 2 else {}))
    assert (cause(bench).cause, cause(bench).devices) == ("labels", ("c",))


@pytest.mark.parametrize("device_ids", ["abc", IDS, "abcdefgh"])
@pytest.mark.parametrize("then", [1e9, 0.8, 0.0, -1e9])
@pytest.mark.parametrize("now", [1e9, 0.0, -1e9])
def test_one_false_loss_hides_no_divergence(
    fleet: FleetData, device_ids: str, then: float, now: float
) -> None:
    bench = bench_of(fleet, device_ids)
    for number, loss in enumerate((1.0, 0.8, 2.0, 5.0)):
        close(bench, loss, 2.0**number, c=(2.0**number, 2, then if number < 2 else now))
    assert (cause(bench).cause, cause(bench).devices) == ("rate", ())
    assert "usual loss" in cause(bench).evidence


@pytest.mark.parametrize("claim", [1e9, -1e9, 0.0])
def test_a_false_loss_in_every_second_round_names_no_other_device(
    fleet: FleetData, claim: float
) -> None:
    bench = bench_of(fleet, "abcdefgh")
    for number in range(8):
        close(bench, 0.9**number, **({"c": (1.0, 2, claim)} if number % 2 else {}))
        now = bench.campaign.divergence
        assert now is None or now.devices == ("c",)


def test_a_rise_on_most_devices_accuses_no_device_of_wrong_labels(fleet: FleetData) -> None:
    bench = bench_of(fleet)
    for number, loss in enumerate((1.9, 6.0, 300.0, 270.0, 5.0, 2.0, 1.8)):
        close(bench, loss, e=(1.0, 2, loss if number < 2 else 600.0 / number))
        assert number < 3 or bench.campaign.divergence is None or not cause(bench).devices


def test_the_divergence_of_a_small_group_is_seen(fleet: FleetData) -> None:
    bench = bench_of(fleet, "abcdefghijkl")
    for loss in (0.2, 0.2, 2.0, 5.0):
        close(bench, 0.2, **dict.fromkeys("abc", (1.0, 2, loss)))
    campaign, model = bench.campaign, bench.campaign.models["0"]
    groups = {d: Member(group=str(int(d in "abc"))) for d in "abcdefghijkl"}
    version = replace(campaign.version, models={"0": model, "1": model})
    campaign = replace(campaign, members=Map(groups), version=version)
    losses = {d: m.Metrics(4, 20.0 if d in "abc" else 0.8, 2) for d in "abcdefghijkl"}
    counted = {d: replace(RECEIVED, evaluated=metrics) for d, metrics in losses.items()}
    found = divergence(campaign, counted, set(), is_void=False)
    assert found is not None
    assert "is 0.2, and that of the last ones 5, on 3 devices" in found.evidence


def test_devices_with_other_windows_than_in_their_survey_are_named(fleet: FleetData) -> None:
    bench = bench_of(fleet)
    close(bench, 0.5)
    for device_id in "bd":
        facts = CheckIn(device_id, 10, 4, moved=True)
        bench.feed(e.CheckedIn(at_s=bench.now_s, device_id=device_id, facts=facts))
    for loss in (0.5, 2.0, 3.0):
        close(bench, loss)
    assert (cause(bench).cause, cause(bench).devices) == ("windows", ("b", "d"))
    assert "the windows of 2 of 6 devices have changed" in cause(bench).evidence


def test_two_devices_are_too_few(fleet: FleetData) -> None:
    bench = bench_of(fleet, "ab")
    for loss in (0.5, 0.5, 2.0, 3.0):
        close(bench, loss)
    assert cause(bench).cause == "few"
    assert "the last round had 2 updates" in cause(bench).evidence


def test_without_evidence_no_cause_is_named(fleet: FleetData) -> None:
    bench = bench_of(fleet)
    for loss in (0.5, 0.5, 2.0, 3.0):
        close(bench, loss)
    assert cause(bench).cause == "unknown"


def test_a_round_that_gives_models_up_says_why(fleet: FleetData) -> None:
    bench = bench_of(fleet, max_drop=0.3)
    for right, norm in ((3, 1.0), (4, 1.0), (4, 3.0), (0, 9.0)):
        notes = bench.close(**dict.fromkeys(IDS, (norm, right, 3.0 - right / 2)))
    assert "rolled_back" in notes
    assert notes["diverges"]["cause"] == "rate"
    bench.close(**dict.fromkeys(IDS, (1.0, 4, 1.0)))
    assert bench.campaign.divergence is None, "the models are good again"


@pytest.mark.parametrize(
    "losses", [(1.0, 0.8, 0.7, 0.65), (1.0, 0.8, 3.0, 0.8), (0.5, 0.6, 0.7, 0.6)]
)
def test_a_campaign_that_learns_or_has_one_bad_round_does_not_diverge(
    fleet: FleetData, losses: tuple[float, ...]
) -> None:
    bench = bench_of(fleet)
    for loss in losses:
        assert "diverges" not in close(bench, loss)


def test_a_return_to_an_earlier_round_ends_the_divergence(fleet: FleetData) -> None:
    bench = bench_of(fleet)
    for number, loss in enumerate((1.0, 0.8, 2.0, 5.0)):
        close(bench, loss, 2.0**number)
    assert cause(bench).cause == "rate"
    parts = (bench.algorithm, bench.blobs, bench.now_s)
    bench.feed(rolled_back(bench.campaign, 1, *parts))
    assert bench.campaign.divergence is None
    assert [trend.round for trend in bench.campaign.trends] == [1]


class TestMended:
    """Evidence from before the cause was mended does not count."""

    def diverging(self, fleet: FleetData) -> Training:
        bench = bench_of(fleet)
        for number, loss in enumerate((1.0, 0.8, 2.0, 5.0)):
            close(bench, loss, 2.0**number)
        assert cause(bench).cause == "rate"
        return bench

    @pytest.mark.parametrize(
        "mend",
        [
            {"hyper": {"lr": 0.001}},
            {"local_epochs": 7},
            {"algorithm": "fedavg+median"},
            {"norm_cap": 99.0},
        ],
    )
    def test_losses_of_the_models_of_before_do_not_count(
        self, fleet: FleetData, mend: dict[str, Any]
    ) -> None:
        bench = self.diverging(fleet)
        bench.configure(**mend)
        close(bench, 5.0, 9.0)
        for loss in (5.0, 4.9, 1.0, 1.0):
            assert bench.campaign.divergence is None, "the mend counts from the opening of a round"
            close(bench, loss, 0.1)
        for loss in (2.0, 6.0):
            close(bench, loss)
        assert cause(bench).cause == "rate", "it was no mend"

    @pytest.mark.parametrize("change", [{"rounds": 40}, {"where": "id != z"}, {"keep_models": 4}])
    def test_other_settings_mend_nothing(self, fleet: FleetData, change: dict[str, Any]) -> None:
        bench = self.diverging(fleet)
        bench.configure(**change)
        close(bench, 5.0, 9.0)
        assert cause(bench).cause == "rate"

    @pytest.mark.parametrize("mend", ["rollback", "rate", "both"])
    def test_a_crowd_of_before_is_no_cause_and_names_nobody(
        self, fleet: FleetData, mend: str
    ) -> None:
        bench = bench_of(fleet, "abcdefg", min_updates=4, norm_cap=10.0)
        for number in range(7):
            bench.close(**{d: (90.0 if number > 1 and d in "abcd" else 1.0, 2) for d in "abcdefg"})
        assert cause(bench).cause == "rate"
        assert bench.campaign.members["a"].score > NAMED
        if mend != "rollback":
            bench.configure(hyper={"lr": 0.001})
            close(bench, 0.5)
        if mend != "rate":
            back = rolled_back(bench.campaign, 1, bench.algorithm, bench.blobs, bench.now_s)
            bench.feed(back)
            bench.ring()
        for _ in range(3):
            view = FleetView(bench.fleet).campaigns[NAME]
            assert {a.id for a in campaign_alerts(NAME, view)} == set()
            close(bench, 0.5)

    def test_a_single_device_stands_out_after_a_return_as_before(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        for number in range(6):
            close(bench, 0.5, **({"c": (-1.0, 2, 0.5)} if number else {}))
        back = rolled_back(bench.campaign, 3, bench.algorithm, bench.blobs, bench.now_s)
        bench.feed(back)
        assert [pull.device_id for pull in FleetView(bench.fleet).campaigns[NAME].pulls] == ["c"]

    @pytest.mark.parametrize("is_reopened", [True, False])
    def test_refusals_of_before_do_not_count(self, fleet: FleetData, is_reopened: bool) -> None:
        bench = bench_of(fleet)
        refuse(bench, "abcd")
        assert cause(bench).cause == "rate"
        bench.configure(hyper={"lr": 0.001})
        if is_reopened:
            bench.now_s += 400.0
        else:
            bench.close(e=(1.0, 2), f=(1.0, 2))
        bench.ring()
        assert (bench.campaign.divergence, bench.campaign.refused) == (None, 0)
        for device_id in IDS:
            bench.check_in(device_id, 11)
        bench.ring()
        works = {d: device.assignment for d, device in bench.fleet.devices.items()}
        again = "".join(d for d, work in works.items() if work and not work.lapsed)
        refuse(bench, again)
        assert bench.campaign.refused == len(again) > 1
        assert cause(bench).cause == "rate", "it was no mend"

    def test_refusals_of_before_a_return_do_not_count(self, fleet: FleetData) -> None:
        bench = bench_of(fleet)
        refuse(bench, "abcd")
        for _ in range(2):
            bench.close(e=(1.0, 2), f=(1.0, 2))
            bench.configure(min_devices=2)
        assert cause(bench).cause == "rate"
        back = rolled_back(bench.campaign, 1, bench.algorithm, bench.blobs, bench.now_s)
        bench.feed(back)
        bench.ring()
        bench.close(e=(1.0, 2), f=(1.0, 2))
        assert bench.campaign.divergence is None
