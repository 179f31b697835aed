"""The parts of the dashboard's pages: the order of devices, who is late, distances of groups."""

import io
import re
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace
from PIL import Image

from aggregator.core.telemetry import NO_TELEMETRY, DeviceTelemetry, LastDecline
from aggregator.fleet.records import Ban, Campaign, Device, Fleet, LastOffer
from aggregator.http.dashboard.accuracy import accuracy_page, measure_of, mechanism_of
from aggregator.http.dashboard.alerts import (
    campaign_alerts,
    round_alerts,
    standing_alerts,
)
from aggregator.http.dashboard.fleet import PER_PAGE, condition_of, fleet_page, moves, slice_of
from aggregator.http.dashboard.history import History, Past
from aggregator.http.dashboard.live import LiveCampaign, live_campaign
from aggregator.http.devices import device_line
from aggregator.http.pages.charts import BOTTOM, HEIGHT, TOP, bar_chart, line_chart
from aggregator.http.pages.distances import MOST, compare, picture, read_views
from aggregator.http.pages.words import splits
from aggregator.service.conditions import Conditions, ServiceCounters
from aggregator.view.device import DeviceView
from aggregator.view.fleet import FleetView
from aggregator.view.round_record import SUMMED, SURVEYED
from benchmarks.made_up_fleet import ROUNDS, MadeUpService, made_up_service
from wire.messages import CheckIn, InUse, Metrics

COUNT = 100


@pytest.fixture(scope="module")
def made() -> MadeUpService:
    return made_up_service(COUNT)


def facts(**more: Any) -> CheckIn:
    return CheckIn("d", 10, 4, **more)


def with_campaign(made: MadeUpService, **changes: Any) -> FleetView:
    """The made-up fleet with other fields of its campaign."""
    campaign = replace(made.view.fleet.campaigns["autumn"], **changes)
    fleet = replace(made.view.fleet, campaigns={"autumn": campaign})
    return FleetView(fleet, made.view.telemetry, {}, made.view.now_s)


def campaign_of(made: MadeUpService) -> Campaign:
    return made.view.fleet.campaigns["autumn"]


def past_of(made: MadeUpService) -> Past:
    return History().past(made.view, "autumn", made.store)


BAD: dict[str, Any] = {"last_offer": LastOffer(1, 1), "in_use": InUse("d", 0, 1, "no")}
DECLINED = DeviceTelemetry(decline=LastDecline(6.0, "c", 1, "policy", ""))


class TestFleet:
    @pytest.mark.parametrize(
        ("device", "telemetry", "word"),
        [
            (Device(online=True), NO_TELEMETRY, "online"),
            (Device(), NO_TELEMETRY, "offline"),
            (Device(online=True, failures=2), DECLINED, "failing"),
            (Device(online=True, failures=2, **BAD), NO_TELEMETRY, "release failed"),
            (Device(online=True, failures=1, asked_s=5.0), DECLINED, "declined"),
            (Device(online=True, asked_s=7.0), DECLINED, "online"),
            (Device(online=True, facts=facts(battery_percent=9.0)), NO_TELEMETRY, "low battery"),
            (
                Device(online=True, facts=facts(battery_percent=9.0, charging=True)),
                NO_TELEMETRY,
                "online",
            ),
            (Device(online=True, ban=Ban(1.0, ""), failures=3, **BAD), NO_TELEMETRY, "banned"),
            (Device(withdrawn_s=1.0, failures=3), NO_TELEMETRY, "withdrawn"),
        ],
    )
    def test_the_condition_of_a_device_is_one_thing_and_the_worst(
        self, device: Device, telemetry: DeviceTelemetry, word: str
    ) -> None:
        assert condition_of(DeviceView("d", device, telemetry, Fleet(), None)).word == word

    def test_the_worst_come_first_and_pages_hold_every_device_once(
        self, made: MadeUpService
    ) -> None:
        pages = [fleet_page(made.view, "", "all", "worst", number) for number in (1, 2)]
        rows = [row for page in pages for row in page.rows]
        ranks = [condition.rank for _, condition in rows]
        assert ranks == sorted(ranks)
        assert {line.id for line, _ in rows} == set(made.view.fleet.devices)
        assert (
            pages[0].counts["all"]
            == COUNT
            == pages[0].counts["online"] + pages[0].counts["offline"] + pages[0].counts["banned"]
        )

    def test_words_are_a_rule_or_else_looked_for(self, made: MadeUpService) -> None:
        def found(words: str) -> set[str]:
            return {line.id for line, _ in fleet_page(made.view, words, "all", "id", 1).rows}

        devices = made.view.fleet.devices
        watches = {device_id for device_id in devices if device_id.startswith("watch")}
        assert found("WATCH pixel") == watches
        assert found("tags has canary") == {d for d, v in devices.items() if "canary" in v.tags}
        assert fleet_page(made.view, "battery <", "all", "id", 1).problem
        assert fleet_page(made.view, "nobody here", "all", "id", 1).rows == []

    def test_only_those_of_a_kind_are_shown(self, made: MadeUpService) -> None:
        for show in ("attention", "online", "offline", "banned"):
            page = fleet_page(made.view, "", show, "id", 1)
            assert page.slice.total == page.counts[show] > 0

    def test_a_line_is_that_of_the_api(self, made: MadeUpService) -> None:
        ((line, _),) = fleet_page(made.view, "id = watch-003", "all", "id", 1).rows
        device = made.view.device("watch-003")
        assert device is not None
        assert line == device_line(made.view, device)

    def test_a_page_walks_over_the_devices_once(
        self, made: MadeUpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        walks, original = list[str](), made.view

        class Devices:
            """Devices that count walks over them."""

            def items(self) -> Any:
                walks.append("")
                return original.fleet.devices.items()

            def values(self) -> Any:
                walks.append("")
                return original.fleet.devices.values()

            def __getattr__(self, name: str) -> Any:
                return getattr(original.fleet.devices, name)

            def __contains__(self, device_id: str) -> bool:
                return device_id in original.fleet.devices

            def __getitem__(self, device_id: str) -> Device:
                return original.fleet.devices[device_id]

            def __len__(self) -> int:
                return COUNT

        client = TestClient(made.api, "http://127.0.0.1")
        pages = ("fleet", "campaigns", "releases", "alerts", "device?id=board-002")
        parts = ("", "/groups", "/accuracy", "/privacy")
        paths = [f"/dashboard/{page}" for page in pages]
        paths += [f"/dashboard/campaigns/autumn{part}" for part in parts]
        paths += ["/metrics", "/devices", "/run", "/campaigns", "/releases", "/rollouts"]
        for path in [*paths, "/summary"]:
            fleet: Any = replace(original.fleet, devices=Devices())
            shown = FleetView(fleet, original.telemetry, {}, original.now_s)
            monkeypatch.setattr(made, "view", shown)
            walks.clear()
            assert client.get(path).status_code == 200, path
            assert len(walks) == 1, path


@given(st.integers(0, 10_000), st.integers(-5, 500))
def test_a_page_is_one_that_there_is(total: int, number: int) -> None:
    part = slice_of(total, number)
    assert 1 <= part.number <= part.last
    assert 0 <= part.begin <= part.end <= total
    assert part.end - part.begin <= PER_PAGE
    assert (part.begin < part.end) == (total > 0)


class TestLive:
    def test_every_device_of_the_round_has_one_standing_and_those_waited_for_come_first(
        self, made: MadeUpService
    ) -> None:
        campaign, past = campaign_of(made), past_of(made)

        def live_at(seconds: float) -> LiveCampaign:
            now_s = campaign.opened_s + seconds
            view = FleetView(made.view.fleet, made.view.telemetry, {}, now_s)
            return live_campaign(view, "autumn", past, 1)

        live, later = live_at(10), live_at(1000)
        assert (sum(live.counts.values()), live.num_members) == (live.num_members, live.num_members)
        assert live.counts["in"] == campaign.received
        lapsed = [d for d, v in made.view.fleet.devices.items() if v.failures == 3 and v.online]
        assert live.counts["late"] == len([d for d in lapsed if d in later_ids(made)]), (
            "nobody else is late after ten seconds"
        )
        assert live.members[-1].standing == "in"
        assert later.counts["late"] == live.counts["working"] + live.counts["late"]
        assert later.members[0].standing == "late"

    def test_a_round_is_over_with_the_updates_of_its_cohort(self, made: MadeUpService) -> None:
        view = with_campaign(made, settings=replace(campaign_of(made).settings, cohort=7))
        assert live_campaign(view, "autumn", past_of(made), 1).goal == 7

    def test_what_is_left_takes_as_long_as_the_last_rounds_did(self, made: MadeUpService) -> None:
        """Rounds that were made up close every 900 seconds."""
        campaign, past = campaign_of(made), past_of(made)
        live = live_campaign(made.view, "autumn", past, 1)
        assert live.rounds_left == campaign.settings.rounds - campaign.trained
        assert live.ends_in_s == pytest.approx(900 * live.rounds_left)
        finished = with_campaign(made, phase="finished")
        assert live_campaign(finished, "autumn", past, 1).ends_in_s is None
        assert live_campaign(made.view, "autumn", Past(), 1).ends_in_s is None

    def test_what_the_round_cost_is_of_the_updates_that_are_in(self, made: MadeUpService) -> None:
        live = live_campaign(made.view, "autumn", past_of(made), 1)
        updates = campaign_of(made).updates.values()
        assert (live.round_up, live.round_down) == (
            sum(u.bytes_up for u in updates),
            sum(u.bytes_down for u in updates),
        )


def later_ids(made: MadeUpService) -> set[str]:
    """Devices whose assignment is of the open round."""
    return {d for d, v in made.view.fleet.devices.items() if v.assignment is not None}


class TestMeasures:
    @pytest.mark.parametrize(
        ("algorithm", "name", "of"),
        [
            ("distfl", "Accuracy", ""),
            ("fedavg+sequence", "Accuracy of steps", "whose class"),
            ("fedavg+multi-label", "Exact match", "every label"),
            ("fedavg+regression", "Within tolerance", "within 0.5 of its standard deviation"),
            ("fedavg+adam+reconstruction:tolerance=0.2", "Within tolerance", "at most 0.2"),
            ("gone.py:Mine", "Accuracy", ""),
        ],
    )
    def test_a_share_is_called_what_it_is_the_share_of(
        self, algorithm: str, name: str, of: str
    ) -> None:
        measure = measure_of(algorithm)
        assert (measure.name, of in measure.of, bool(measure.of)) == (name, True, bool(of))

    @pytest.mark.parametrize(
        ("algorithm", "name", "noiseless"),
        [
            ("fedavg+gaussian", "gaussian", False),
            ("fedavg+dp-sgd", "dp-sgd", False),
            ("fedavg+local-gaussian:noise_multiplier=0", "local-gaussian", True),
        ],
    )
    def test_a_mechanism_without_noise_is_one_that_bounds_nothing(
        self, algorithm: str, name: str, noiseless: bool
    ) -> None:
        mechanism = mechanism_of(algorithm)
        assert mechanism is not None
        is_noiseless = mechanism.options.get("noise_multiplier") == 0
        assert (mechanism.name, is_noiseless) == (name, noiseless)

    def test_without_a_mechanism_there_is_none(self) -> None:
        assert mechanism_of("fedavg") is mechanism_of("gone.py:Mine") is None

    def pages(self, made: MadeUpService, algorithm: str) -> dict[str, str]:
        """The pages of a campaign with this algorithm."""
        view, settings = made.view, campaign_of(made).settings
        made.view = with_campaign(made, settings=replace(settings, algorithm=algorithm))
        client = TestClient(made.api, "http://127.0.0.1")
        try:
            pages = {
                part: client.get(f"/dashboard/campaigns/autumn{part}").text
                for part in ("", "/accuracy", "/privacy")
            }
            return pages | {"/releases": client.get("/dashboard/releases").text}
        finally:
            made.view = view

    def test_pages_of_quantities_speak_of_the_loss_and_not_of_accuracy(
        self, made: MadeUpService
    ) -> None:
        pages = self.pages(made, "fedavg+regression")
        for part in ("", "/accuracy"):
            assert "Within tolerance" in pages[part]
            assert "Mean loss" in pages[part]
            assert "within 0.5 of its standard deviation" in pages[part]
            headings = re.findall(r"<(?:th|h2|dt)[^>]*>([^<]*)", pages[part])
            assert [text for text in headings if "Accuracy" in text] == []
        assert "Mean loss" not in self.pages(made, "distfl")["/accuracy"]

    def test_releases_are_measured_as_their_campaign_is(self, made: MadeUpService) -> None:
        heads = {
            a: self.pages(made, a)["/releases"].partition("All releases")[2]
            for a in ("distfl", "fedavg+reconstruction")
        }
        assert (
            "Accuracy</th>" in heads["distfl"],
            "Accuracy</th>" in heads["fedavg+reconstruction"],
        ) == (True, False)
        assert "Within tolerance</th>" in heads["fedavg+reconstruction"]

    def test_the_page_of_releases_says_which_device_reports_what(
        self, made: MadeUpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fleet = made.view.fleet
        statements = {"board-001": "confirmed", "board-002": "failed: <b>no</b>", "x": "confirmed"}
        last = replace(fleet.rollouts[-1], phase="running", statements=statements)
        monkeypatch.setattr(made, "view", FleetView(replace(fleet, rollouts=(last,))))
        page = TestClient(made.api, "http://127.0.0.1").get("/dashboard/releases").text
        assert "set aside: board-002 (failed: &lt;b&gt;no&lt;/b&gt;)" in page
        assert 'id=board-002">board-002</a> failed: &lt;b&gt;no&lt;/b&gt;' in page
        assert 'id=board-001">board-001</a> confirmed' in page

    def test_no_mechanism_and_one_without_noise_are_told_apart(
        self, made: MadeUpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spent = [line._replace(notes={}) for line in past_of(made).rounds]
        monkeypatch.setattr(History, "past", lambda *_: Past({line.round: line for line in spent}))
        assert "has no privacy mechanism" in self.pages(made, "fedavg")["/privacy"]
        without = self.pages(made, "fedavg+gaussian:noise_multiplier=0")["/privacy"]
        assert (
            "adds no noise" in without,
            "Epsilon is infinite" in without,
            "no privacy mechanism" in without,
        ) == (True, True, False)
        assert "Nothing has been spent yet" in self.pages(made, "fedavg+gaussian")["/privacy"]

    def test_the_worst_by_loss_has_the_largest(self, made: MadeUpService) -> None:
        past = past_of(made)
        assert past.evaluated is not None
        ids = list(past.evaluated.evaluated)
        told = {d: Metrics(10, float(i), 5) for i, d in enumerate(ids)}
        record = replace(past.evaluated, evaluated=told)
        page = accuracy_page(made.view, "autumn", record, "", "worst", 1, by_loss=True)
        assert page.devices[0].id == ids[-1]
        assert page.devices[0].loss == pytest.approx((len(ids) - 1) / 10)
        assert page.loss == pytest.approx((len(ids) - 1) / 20)
        record = replace(past.evaluated, evaluated={ids[0]: Metrics(10, float("nan"), 5)})
        not_finite = accuracy_page(made.view, "autumn", record, "", "worst", 1)
        assert (not_finite.loss, not_finite.devices[0].loss) == (None, None)


class TestHistory:
    def test_a_request_reads_for_a_bounded_time_and_the_latest_rounds_first(
        self, made: MadeUpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aggregator.http.dashboard.history.BUDGET_S", 0.0)
        history = History()
        first = history.past(made.view, "autumn", made.store)
        assert sorted(first.lines) == [ROUNDS - 2, ROUNDS - 1, ROUNDS]
        assert first.evaluated is not None
        assert first.evaluated.round == ROUNDS
        monkeypatch.setattr("aggregator.http.dashboard.history.BUDGET_S", 60.0)
        assert history.past(made.view, "autumn", made.store) == past_of(made)
        assert sorted(history.past(made.view, "autumn", made.store).lines) == list(
            range(1, ROUNDS + 1)
        )

    def test_rounds_are_read_once_and_the_last_one_again(
        self, made: MadeUpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read, rounds = [], made.store.rounds

        def count(campaign: str, *asked: int) -> Any:
            read.append(asked)
            return rounds(campaign, *asked)

        monkeypatch.setattr(made.store, "rounds", count)
        history = History()
        first = history.past(made.view, "autumn", made.store)
        assert history.past(made.view, "autumn", made.store) is first
        later = with_campaign(made, round=campaign_of(made).round + 1)
        assert history.past(later, "autumn", made.store).lines == first.lines
        assert read == [(ROUNDS + 1 - 4,), (5, 9), (1, 5), (0, 1), (ROUNDS - 1,)]
        assert [line.round for line in first.rounds] == list(range(1, ROUNDS + 1))
        assert sum(first.rounds[-1].sizes.values()) == COUNT


class TestGroups:
    def test_moves_are_changes_but_for_the_first(self, made: MadeUpService) -> None:
        found = moves(made.view, "autumn")
        assert {move.before for move in found} == {"1"}
        assert {move.device_id for move in found} == {
            d for d, each in made.view.telemetry.items() if len(each.groups) > 1
        }
        assert moves(made.view, "winter") == []

    def test_distances_are_in_the_order_of_groups_without_who_is_forgotten(
        self, made: MadeUpService
    ) -> None:
        past, members = past_of(made), campaign_of(made).members
        assert past.viewed is not None
        matrices, ids = read_views(made.blobs.get(past.viewed.views))
        starts = {d: member.group for d, member in members.items() if d != ids[0]}
        compared = compare(matrices["statistics"], ids, starts)
        assert (len(compared.ids), ids[0] in compared.ids) == (COUNT - 1, False)
        assert list(compared.groups) == sorted(int(key) for key in starts.values())
        a, b = compared.ids[3], compared.ids[70]
        assert compared.matrix[3, 70] == matrices["statistics"][ids.index(a), ids.index(b)]
        assert len(compared.bounds) == 3

    def test_of_a_large_fleet_a_picture_has_some_of_every_group(self) -> None:
        ids = [f"d{i}" for i in range(3 * MOST)]
        compared = compare(
            np.zeros((len(ids), len(ids)), np.float32),
            ids,
            {d: str(i % 3) for i, d in enumerate(ids)},
        )
        assert (len(compared.ids), compared.all, set(compared.groups)) == (
            MOST,
            3 * MOST,
            {0, 1, 2},
        )

    @given(
        st.lists(
            st.tuples(st.integers(-100, 100), st.integers(-100, 100)),
            min_size=2,
            max_size=12,
            unique=True,
        )
    )
    def test_devices_that_lie_in_a_plane_lie_in_it_as_they_do(
        self, points: list[tuple[int, int]]
    ) -> None:
        """Distances between points of a plane come back but for the scale."""
        places = np.array(points, dtype=float)
        apart = np.linalg.norm(places[:, None] - places[None], axis=2)
        ids = [f"d{i}" for i in range(len(points))]
        compared = compare(apart.astype(np.float32), ids, dict.fromkeys(ids, "0"))
        drawn = np.array([compared.places[compared.ids.index(device_id)] for device_id in ids])
        again = np.linalg.norm(drawn[:, None] - drawn[None], axis=2)
        assert np.allclose(again / again.max(), apart / apart.max(), atol=0.01)
        assert drawn.min() >= 0
        assert drawn.max() <= 1

    def test_a_picture_is_a_png_with_dark_for_close(self) -> None:
        matrix = np.array([[0, 1, np.nan], [1, 0, 1], [np.inf, 1, 0]], np.float32)
        image = Image.open(
            io.BytesIO(picture(compare(matrix, ["a", "b", "c"], dict.fromkeys("abc", "0"))))
        ).convert("L")
        pixels = np.asarray(image)
        assert pixels.shape == (3, 3)
        assert pixels[0, 0] < 60 < 200 < pixels[0, 1]


WELL = Conditions({}, True, "", "", ServiceCounters(), {})


def healthy(made: MadeUpService) -> FleetView:
    """The made-up fleet without failures."""
    devices = {
        d: replace(v, failures=0, assignment=v.assignment if v.online else None)
        for d, v in made.view.fleet.devices.items()
    }
    return FleetView(replace(made.view.fleet, devices=Map(devices)), now_s=made.view.now_s)


class TestAlerts:
    def test_a_service_and_a_campaign_that_are_well_have_none(self, made: MadeUpService) -> None:
        assert standing_alerts(WELL, healthy(made)) == []

    def test_a_fleet_that_is_away_is_told_until_the_campaign_has_ended(
        self, made: MadeUpService
    ) -> None:
        away = made.view.campaigns["autumn"]._replace(online=0)
        (alert,) = campaign_alerts("autumn", away)
        assert (alert.tone, alert.title) == (
            "warn",
            f"All {away.devices:,} devices of autumn are offline",
        )
        ended = away._replace(record=replace(away.record, ended="rounds"))
        assert [*campaign_alerts("autumn", ended)] == []

    def test_each_cause_is_one(self, made: MadeUpService) -> None:
        ill = Conditions(
            {}, False, "the disk is full", "the voucher is over", ServiceCounters(), {}
        )
        assert [alert.tone for alert in standing_alerts(ill, FleetView(Fleet()))] == ["bad"] * 3
        waiting = with_campaign(made, phase="waiting", attempt=1, updates=Map()).campaigns["autumn"]
        held = waiting._replace(paused="the operator has paused it")
        titles = [alert.title for alert in campaign_alerts("autumn", held)]
        assert titles == [
            "Campaign autumn is paused",
            "Campaign autumn waits for 2 more devices: 0 of 2 ready",
            "Round 13 of autumn was opened again",
        ]
        fleet = healthy(made).fleet
        failed = replace(fleet.rollouts[-1], phase="failed", reason="it fails")
        (alert,) = standing_alerts(WELL, FleetView(replace(fleet, rollouts=(failed,))))
        assert (alert.tone, alert.text) == ("bad", "it fails")

    def test_what_the_last_rounds_left_out_is_told_without_whose_it_was(
        self, made: MadeUpService
    ) -> None:
        notes: tuple[dict[str, Any], ...] = (
            {"left_out": {"board-001": "norm"}},
            {"set_aside": "a model was not finite"},
            {
                "rolled_back": {
                    "from": 4,
                    "to": 2,
                    "reason": "accuracy fell",
                    "made_by": ["board-001"],
                }
            },
            {"too_small": ["1"], "too_far": ["2", "3"]},
        )
        line = past_of(made).rounds[0]
        past = Past(
            {
                number: line._replace(round=number, notes=note)
                for number, note in enumerate(notes, 1)
            }
        )
        found = [*round_alerts("autumn", past)]
        assert [alert.title.split()[1] for alert in found] == ["4", "4", "3", "2", "1"], (
            "the latest first"
        )
        assert not any("board" in alert.title + alert.text for alert in found)


class TestAccuracy:
    def test_groups_and_devices_agree_with_what_devices_told(self, made: MadeUpService) -> None:
        past = past_of(made)
        page = accuracy_page(made.view, "autumn", past.evaluated, "", "worst", 1)
        assert page.round == ROUNDS
        assert sum(group.devices for group in page.groups) == COUNT
        assert (
            min(group.accuracy.worst or 1 for group in page.groups)
            == page.overall.worst
            == page.devices[0].accuracy
        )
        assert past.evaluated is not None
        assert sum(page.personal_models.values()) == len(past.evaluated.personal_models)
        assert [
            device.id
            for device in accuracy_page(
                made.view, "autumn", past.evaluated, "watch-003", "id", 1
            ).devices
        ] == ["watch-003"]

    def test_in_secret_mode_the_means_of_groups_are_known_and_no_device(
        self, made: MadeUpService
    ) -> None:
        last = past_of(made).evaluated
        assert last is not None
        groups = {"0": {"accuracy": 0.5, "loss": 1.0}, "1": {"accuracy": 0.75, "loss": 0.5}}
        summed = {"devices": 100, "accuracy": 0.6, "loss": 0.8, "groups": groups}
        record = replace(last, evaluated={}, notes={SUMMED: summed})
        page = accuracy_page(made.view, "autumn", record, "", "worst", 1)
        assert (page.overall.mean, page.overall.worst, page.loss) == (0.6, None, 0.8)
        means = {group.number: (group.accuracy.mean, group.loss) for group in page.groups}
        assert (means[0], means[1]) == ((0.5, 1.0), (0.75, 0.5))
        assert all(device.accuracy is None for device in page.devices)
        noised = {"devices": 100, "groups": {"0": {}, "1": {}}}
        record = replace(last, evaluated={}, notes={SUMMED: noised})
        page = accuracy_page(made.view, "autumn", record, "", "worst", 1)
        assert (page.overall.mean, page.loss) == (None, None), "with noise nothing is known"
        assert {group.accuracy.mean for group in page.groups} == {None}

    def test_before_anybody_has_told_anything_there_is_a_page_too(
        self, made: MadeUpService
    ) -> None:
        view = FleetView(replace(made.view.fleet, devices=Map()))
        page = accuracy_page(view, "autumn", None, "", "group", 1)
        assert (page.round, page.overall.mean, page.groups, page.devices) == (None, None, [], [])


class TestCharts:
    @given(st.lists(st.one_of(st.none(), st.floats(0, 5)), min_size=1, max_size=60))
    def test_every_value_is_inside_of_the_picture(self, values: list[float | None]) -> None:
        chart = line_chart({("a", "mean"): list(enumerate(values, 1))}, 1.0, low=0.0, high=5.0)
        assert (chart is None) == (set(values) == {None})
        if chart is None:
            return
        assert all(TOP <= y <= HEIGHT - BOTTOM for _, y in chart.curves[0].points)
        assert len(chart.curves[0].points) in (0, sum(value is not None for value in values))
        assert 3 <= len(chart.y) <= 6

    def test_the_page_of_groups_says_in_which_view_no_test_was_made(
        self, made: MadeUpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def page(*looks: list[dict[str, Any]]) -> str:
            rounds = zip(past_of(made).rounds, looks, strict=False)
            lines = {
                line.round: line._replace(notes={"untested": look, "epsilon": 1.0})
                for line, look in rounds
            }
            monkeypatch.setattr(History, "past", lambda *_: Past(lines))
            client = TestClient(made.api, "http://127.0.0.1")
            return client.get("/dashboard/campaigns/autumn/groups").text

        few = [{"view": "labels", "devices": 6, "needed": 8}]
        sentence = "Groups are not looked for by labels: 6 devices told, 8 are needed."
        assert sentence in page([], few)
        assert "not looked for" not in page(few, [])

    def test_a_page_says_which_nodes_secret_mode_has_split(self) -> None:
        survey = {
            "": {"devices": 20, "split": True, "share": 0.984, "p": 0.0002},
            "1": {"devices": 10, "split": False, "share": 0.71, "p": 0.31},
        }
        assert splits([{}, {SURVEYED: {}}, {SURVEYED: survey}, {}]) == [
            "The fleet, 20 devices: split. Of the variance along the best axis, 98.4 % is between "
            "the sides (p = 0.0002).",
            "Side 1, 10 devices: not split. Of the variance along the best axis, 71.0 % is between "
            "the sides (p = 0.31).",
        ]

    def test_columns_are_as_high_as_their_groups_are_large(self) -> None:
        chart = bar_chart({1: {0: 30, 1: 10}, 2: {0: 40}})
        assert chart is not None
        heights = [bar.height for bar in chart.bars]
        assert heights[0] == pytest.approx(3 * heights[1], abs=0.2)
        assert heights[2] == pytest.approx(heights[0] + heights[1], abs=0.2)
