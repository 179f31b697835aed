"""What the dashboard's pages are made of: who comes first, who is late, where groups lie."""

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

from aggregator.core.registry import Ban, Decline, Entry
from aggregator.http.dashboard.accuracy import accuracy_page, measure_of, mechanism_of
from aggregator.http.dashboard.alerts import (
    campaign_alerts,
    round_alerts,
    standing_alerts,
)
from aggregator.http.dashboard.fleet import PER_PAGE, condition_of, fleet_page, moves, slice_of
from aggregator.http.dashboard.history import History, Past
from aggregator.http.dashboard.live import live_campaign
from aggregator.http.devices import device_line
from aggregator.http.pages.charts import BOTTOM, HEIGHT, TOP, bar_chart, line_chart
from aggregator.http.pages.distances import MOST, compare, picture, read_views
from aggregator.service.conditions import Conditions, Counted
from benchmarks.made_up_fleet import ROUNDS, MadeUpService, made_up_service
from wire.messages import CheckIn, Metrics

COUNT = 100


@pytest.fixture(scope="module")
def made() -> MadeUpService:
    return made_up_service(COUNT)


def said(**more: Any) -> CheckIn:
    return CheckIn("d", 10, 4, **more)


class TestFleet:
    @pytest.mark.parametrize(
        ("entry", "failures", "word"),
        [
            (Entry(online=True), 0, "online"),
            (Entry(), 0, "offline"),
            (Entry(online=True), 2, "failing"),
            (Entry(online=True, release_problem="no"), 2, "release failed"),
            (
                Entry(online=True, asked_s=5.0, decline=Decline(6.0, "c", 1, "policy", "")),
                0,
                "declined",
            ),
            (
                Entry(online=True, asked_s=7.0, decline=Decline(6.0, "c", 1, "policy", "")),
                0,
                "online",
            ),
            (Entry(online=True, said=said(battery_percent=9.0)), 0, "low battery"),
            (Entry(online=True, said=said(battery_percent=9.0, charging=True)), 0, "online"),
            (Entry(online=True, ban=Ban(1.0, ""), release_problem="no"), 3, "banned"),
        ],
    )
    def test_what_is_wrong_with_a_device_is_one_thing_and_the_worst(
        self, entry: Entry, failures: int, word: str
    ) -> None:
        assert condition_of(entry, failures).word == word

    def test_the_worst_come_first_and_pages_hold_every_device_once(
        self, made: MadeUpService
    ) -> None:
        pages = [
            fleet_page(made.devices.entries, made.campaign.state, "", "all", "worst", number)
            for number in (1, 2)
        ]
        rows = [row for page in pages for row in page.rows]
        ranks = [condition.rank for _, condition in rows]
        assert ranks == sorted(ranks)
        assert {line.id for line, _ in rows} == set(made.devices.entries)
        assert (
            pages[0].counts["all"]
            == COUNT
            == pages[0].counts["online"] + pages[0].counts["offline"] + pages[0].counts["banned"]
        )

    def test_words_are_a_rule_or_else_looked_for(self, made: MadeUpService) -> None:
        def found(words: str) -> set[str]:
            return {
                line.id
                for line, _ in fleet_page(made.devices.entries, None, words, "all", "id", 1).rows
            }

        watches = {device_id for device_id in made.devices.entries if device_id.startswith("watch")}
        assert found("WATCH pixel") == watches
        assert found("tags has canary") == {
            d for d, entry in made.devices.entries.items() if "canary" in entry.tags
        }
        assert fleet_page(made.devices.entries, None, "battery <", "all", "id", 1).problem
        assert fleet_page(made.devices.entries, None, "nobody here", "all", "id", 1).rows == []

    def test_only_those_of_a_kind_are_shown(self, made: MadeUpService) -> None:
        for show in ("attention", "online", "offline", "banned"):
            page = fleet_page(made.devices.entries, made.campaign.state, "", show, "id", 1)
            assert page.slice.total == page.counts[show] > 0

    def test_a_line_is_that_of_the_api(self, made: MadeUpService) -> None:
        run = made.campaign.state
        ((line, _),) = fleet_page(made.devices.entries, run, "id = watch-003", "all", "id", 1).rows
        assert line == device_line(run, "watch-003", made.devices.entries["watch-003"])


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
        run = made.campaign.state
        live = live_campaign(
            run, made.devices.entries, History().past(made.campaign), run.opened_at_s + 10, 1
        )
        assert (sum(live.counts.values()), live.asked) == (len(run.cohort), len(run.cohort))
        assert live.counts["in"] == len(run.received)
        assert live.counts["late"] == 0, "nobody is late after ten seconds"
        assert live.members[-1].standing == "in"
        later = live_campaign(
            run, made.devices.entries, History().past(made.campaign), run.opened_at_s + 1000, 1
        )
        assert later.counts["late"] == live.counts["working"]
        assert later.members[0].standing == "late"

    def test_a_round_is_over_with_the_updates_of_its_cohort(self, made: MadeUpService) -> None:
        run = replace(made.campaign.state, settings=replace(made.campaign.state.settings, cohort=7))
        assert (
            live_campaign(
                run, made.devices.entries, History().past(made.campaign), run.at_s, 1
            ).goal
            == 7
        )

    def test_what_is_left_takes_as_long_as_the_last_rounds_did(self, made: MadeUpService) -> None:
        """Rounds that were made up close every 900 seconds."""
        run, past = made.campaign.state, History().past(made.campaign)
        live = live_campaign(run, made.devices.entries, past, run.opened_at_s, 1)
        assert live.rounds_left == run.settings.rounds - run.trained
        assert live.ends_in_s == pytest.approx(900 * live.rounds_left)
        assert (
            live_campaign(
                replace(run, phase="finished"), made.devices.entries, past, run.opened_at_s, 1
            ).ends_in_s
            is None
        )
        assert (
            live_campaign(run, made.devices.entries, Past(), run.opened_at_s, 1).ends_in_s is None
        )

    def test_what_the_round_cost_is_of_the_updates_that_are_in(self, made: MadeUpService) -> None:
        run = made.campaign.state
        live = live_campaign(
            run, made.devices.entries, History().past(made.campaign), run.opened_at_s, 1
        )
        updates = run.received.values()
        assert (live.round_up, live.round_down) == (
            sum(u.bytes_up for u in updates),
            sum(u.bytes_down for u in updates),
        )


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
        state = made.campaign.state
        made.campaign.state = replace(state, settings=replace(state.settings, algorithm=algorithm))
        client = TestClient(made.api, "http://127.0.0.1")
        try:
            pages = {
                part: client.get(f"/dashboard/campaigns/autumn{part}").text
                for part in ("", "/accuracy", "/privacy")
            }
            return pages | {"/releases": client.get("/dashboard/releases").text}
        finally:
            made.campaign.state = state

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

    def test_no_mechanism_and_one_without_noise_are_told_apart(
        self, made: MadeUpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spent = [line._replace(notes={}) for line in History().past(made.campaign).rounds]
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
        past = History().past(made.campaign)
        assert past.evaluated is not None
        ids = list(past.evaluated.evaluated)
        told = {d: Metrics(10, float(i), 5) for i, d in enumerate(ids)}
        page = accuracy_page(
            made.campaign.state,
            replace(past.evaluated, evaluated=told),
            "",
            "worst",
            1,
            by_loss=True,
        )
        assert page.devices[0].id == ids[-1]
        assert page.devices[0].loss == pytest.approx((len(ids) - 1) / 10)
        assert page.loss == pytest.approx((len(ids) - 1) / 20)
        not_finite = accuracy_page(
            made.campaign.state,
            replace(past.evaluated, evaluated={ids[0]: Metrics(10, float("nan"), 5)}),
            "",
            "worst",
            1,
        )
        assert (not_finite.loss, not_finite.devices[0].loss) == (None, None)


class TestHistory:
    def test_a_request_reads_for_a_bounded_time_and_the_latest_rounds_first(
        self, made: MadeUpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aggregator.http.dashboard.history.BUDGET_S", 0.0)
        history = History()
        first = history.past(made.campaign)
        assert sorted(first.lines) == [ROUNDS - 2, ROUNDS - 1, ROUNDS]
        assert first.evaluated is not None
        assert first.evaluated.round == ROUNDS
        monkeypatch.setattr("aggregator.http.dashboard.history.BUDGET_S", 60.0)
        assert history.past(made.campaign) == History().past(made.campaign)
        assert sorted(history.past(made.campaign).lines) == list(range(1, ROUNDS + 1))

    def test_rounds_are_read_once_and_the_last_one_again(
        self, made: MadeUpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read, rounds = [], made.campaign.store.rounds

        def count(*asked: int) -> Any:
            read.append(asked)
            return rounds(*asked)

        monkeypatch.setattr(made.campaign.store, "rounds", count)
        state = made.campaign.state
        history = History()
        first = history.past(made.campaign)
        assert history.past(made.campaign) is first
        monkeypatch.setattr(made.campaign, "state", replace(state, round=state.round + 1))
        assert history.past(made.campaign).lines == first.lines
        assert read == [(ROUNDS + 1 - 4,), (5, 9), (1, 5), (0, 1), (ROUNDS - 1,)]
        assert [line.round for line in first.rounds] == list(range(1, ROUNDS + 1))
        assert sum(first.rounds[-1].sizes.values()) == COUNT


class TestGroups:
    def test_moves_are_changes_but_for_the_first(self, made: MadeUpService) -> None:
        found = moves(made.devices.entries, "autumn")
        assert {move.before for move in found} == {"1"}
        assert {move.device_id for move in found} == {
            d for d, entry in made.devices.entries.items() if len(entry.groups) > 1
        }
        assert moves(made.devices.entries, "winter") == []

    def test_distances_are_in_the_order_of_groups_without_who_is_forgotten(
        self, made: MadeUpService
    ) -> None:
        run, past = made.campaign.state, History().past(made.campaign)
        assert past.viewed is not None
        matrices, ids = read_views(made.campaign.blobs.get(past.viewed.views))
        starts = {d: key for d, key in run.starts.items() if d != ids[0]}
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


class TestAlerts:
    def test_a_service_and_a_campaign_that_are_well_have_none(self, made: MadeUpService) -> None:
        well = Conditions({}, True, "", "", Counted(), {})
        assert standing_alerts(well, {"autumn": made.campaign}, made.releases) == []

    def test_a_fleet_that_is_away_is_told_until_the_campaign_has_ended(
        self, made: MadeUpService
    ) -> None:
        away = replace(made.campaign.state, num_online=0)
        (alert,) = campaign_alerts("autumn", away, "")
        assert (alert.tone, alert.title) == (
            "warn",
            f"None of the {len(away.devices):,} devices of autumn is here",
        )
        assert [*campaign_alerts("autumn", replace(away, ended=True), "")] == []

    def test_each_cause_is_one(self, made: MadeUpService) -> None:
        run = made.campaign.state
        ill = Conditions({}, False, "the disk is full", "the voucher is over", Counted(), {})
        assert [alert.tone for alert in standing_alerts(ill, {}, None)] == ["bad"] * 3
        waiting = replace(run, phase="waiting", attempt=1)
        titles = [
            alert.title
            for alert in campaign_alerts("autumn", waiting, "the operator has paused it")
        ]
        assert titles == [
            "Campaign autumn is paused",
            "Campaign autumn waits for devices",
            "Round 13 of autumn was opened again",
        ]
        rollouts = {
            "autumn": replace(
                made.releases.rollouts["autumn"], phase="rolled-back", reason="it fails"
            )
        }
        well = Conditions({}, True, "", "", Counted(), {})
        (alert,) = standing_alerts(well, {}, replace(made.releases, rollouts=rollouts))
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
        line = History().past(made.campaign).rounds[0]
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
        past = History().past(made.campaign)
        page = accuracy_page(made.campaign.state, past.evaluated, "", "worst", 1)
        assert page.round == ROUNDS
        assert sum(group.devices for group in page.groups) == COUNT
        assert (
            min(group.accuracy.worst or 1 for group in page.groups)
            == page.overall.worst
            == page.devices[0].accuracy
        )
        assert past.evaluated is not None
        assert sum(page.kept.values()) == len(past.evaluated.kept)
        assert [
            device.id
            for device in accuracy_page(
                made.campaign.state, past.evaluated, "watch-003", "id", 1
            ).devices
        ] == ["watch-003"]

    def test_before_anybody_has_told_anything_there_is_a_page_too(
        self, made: MadeUpService
    ) -> None:
        run = replace(made.campaign.state, devices=Map())
        page = accuracy_page(run, None, "", "group", 1)
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

    def test_columns_are_as_high_as_their_groups_are_large(self) -> None:
        chart = bar_chart({1: {0: 30, 1: 10}, 2: {0: 40}})
        assert chart is not None
        heights = [bar.height for bar in chart.bars]
        assert heights[0] == pytest.approx(3 * heights[1], abs=0.2)
        assert heights[2] == pytest.approx(heights[0] + heights[1], abs=0.2)
