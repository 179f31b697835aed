"""The reports of runs and comparisons, and the pages of `shoal ui`, without a browser."""

import json
import re
import shutil
import signal
import subprocess
import sys
from html import unescape
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.testclient import TestClient

from aggregator.http.pages.words import bytes_text
from aggregator.view.summary import MessageBytes, spread
from algorithms.composition import read_algorithm
from shoal.api.run import extras_of
from shoal.asked import describe
from shoal.cli import application
from shoal.reports.pages import chart_pair
from shoal.reports.run_page import run_page, worst_first
from shoal.reports.site import MOST, Library, Site
from simulation.cost import BATTERY_J, COMPUTE_W, RADIO_W, RoundWork, count, estimates
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.shoal.report_cases import write
from tests.support.fleets import synthetic_fleet
from wire.errors import ConfigError


@pytest.fixture(scope="module")
def outcome() -> SimulationResult:
    return simulate(synthetic_fleet(6), SimulationSettings(read_algorithm("distfl"), 2))


OUTSIDE = re.compile(
    r"""(?:src|href|action)=["'](?!#|data:|/[^/]|/["'])|@import|url\((?!data:)|<script"""
)
"""Parts of a page that would load or run something."""


class TestRunPage:
    def test_one_file_that_loads_nothing_has_every_part(
        self, outcome: SimulationResult, tmp_path: Path
    ) -> None:
        page = write(tmp_path, outcome, "shoal simulate --data 'a b'").read_text()
        assert OUTSIDE.findall(page) == []
        for title in (
            "Accuracy over rounds",
            "Accuracy over bytes",
            "Devices, worst first",
            "Confusion matrix",
            "Training data of each device",
        ):
            assert f">{title}</h2>" in page
        assert "Groups are not looked for by labels: 6 devices told, 8 are needed." in page
        assert "Estimated cost of a round on a phone" in page
        assert "No phone was measured." in page
        assert "shoal simulate --data 'a b'" in unescape(page)

    def test_devices_come_worst_first_and_those_without_test_windows_last(
        self, outcome: SimulationResult
    ) -> None:
        first, second, *_ = sorted(outcome.summary.devices)
        replaced = {
            first: msgspec.structs.replace(outcome.summary.devices[first], accuracy=None),
            second: msgspec.structs.replace(outcome.summary.devices[second], accuracy=0.001),
        }
        order = [
            d
            for d, _ in worst_first(
                msgspec.structs.replace(outcome.summary, devices=outcome.summary.devices | replaced)
            )
        ]
        assert (order[0], order[-1]) == (second, first)

    def test_the_confusion_matrix_counts_every_test_window_once(
        self, outcome: SimulationResult
    ) -> None:
        extras = extras_of(outcome, read_algorithm("distfl"), outcome.data)
        assert extras.confusion is not None
        assert extras.confusion.sum() == sum(w.num_test for w in outcome.data.devices.values())
        right = sum(
            w.num_test * (outcome.summary.devices[d].accuracy or 0)
            for d, w in outcome.data.devices.items()
        )
        assert extras.confusion.trace() == pytest.approx(right, abs=0.01)

    def test_what_devices_say_is_text(self, outcome: SimulationResult) -> None:
        bad = "<script>alert(1)</script>"
        summary = msgspec.structs.replace(
            outcome.summary, devices={bad: next(iter(outcome.summary.devices.values()))}, data=bad
        )
        page = run_page(
            summary, [], outcome.blobs, extras_of(outcome, read_algorithm("distfl"), outcome.data)
        )
        assert "<script" not in page


class TestNumbers:
    def test_bytes_by_round_grow_to_all_but_the_last_tests(self, outcome: SimulationResult) -> None:
        summary = outcome.summary
        assert len(summary.bytes_by_round) == len(summary.accuracy_by_round) == 2
        up = [record.bytes_up for record in outcome.records]
        assert summary.bytes_by_round[-1].up == sum(up[:-1])
        assert summary.bytes_by_round[0].up == sum(up[: summary.preparations + 1])
        assert sum(up) == summary.bytes.up

    def test_a_rounds_cost_is_counted_and_measured(self, outcome: SimulationResult) -> None:
        verbs = [verb for program in outcome.campaign.version.programs.values() for verb in program]
        counted = count(outcome.records, verbs, outcome.models.objective, outcome.data.window.shape)
        assert counted is not None
        trained = [r for r in outcome.records if r.phase == "training"]
        assert counted.windows == sum(r.trained.num_examples for r in trained) / sum(
            len(r.evaluated) for r in trained
        )
        assert counted.rounds == 2
        assert counted.step_s > 0

    def test_an_estimate_follows_from_the_counts_by_its_assumptions(self) -> None:
        same, slower, _ = estimates(RoundWork(100, 4, 32, 5e5, 1e6, 0.5, 10))
        assert (same.compute_s, same.transfer_s) == (2.0, 2.0)
        assert same.battery_percent == pytest.approx(
            100 * (2 * COMPUTE_W + 2 * RADIO_W) / BATTERY_J
        )
        assert same.run_percent == pytest.approx(10 * same.battery_percent)
        assert (slower.compute_s, slower.transfer_s) == (6.0, 2.0)

    def test_a_chart_over_bytes_leaves_out_what_has_none(self) -> None:
        rounds, sent = chart_pair(
            {("a", "g0"): [(1, 0.0, 0.5)], ("b", "g1"): [(1, 1e6, 0.5), (2, 2e6, None)]}
        )
        assert rounds is not None
        assert sent is not None
        assert [c.label for c in rounds.curves] == ["a", "b"]
        assert [c.label for c in sent.curves] == ["b"]
        assert chart_pair({("a", "g0"): [(1, 0.0, None)]}) == (None, None)
        assert [bytes_text(n) for n in (12, 1e3, 2.5e6, 1e9)] == ["12 B", "1 kB", "2.5 MB", "1 GB"]

    def test_a_command_is_written_with_what_was_chosen_alone(self) -> None:
        told = describe(
            "shoal simulate",
            [
                ("--data", "a b.npz", "watch"),
                ("--rounds", 20, 20),
                ("--hyper", ["m=0", "n=1"], None),
                ("--bf16", True, False),
            ],
        )
        assert told.command == "shoal simulate --data 'a b.npz' --hyper m=0 --hyper n=1 --bf16"
        assert [(s.option, s.is_default) for s in told.settings][:2] == [
            ("--data", False),
            ("--rounds", True),
        ]


@pytest.fixture(scope="module")
def one_run(outcome: SimulationResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run."""
    return write(tmp_path_factory.mktemp("run"), outcome).parent


class TestSite:
    @pytest.fixture
    def root(self, one_run: Path, tmp_path: Path) -> Path:
        for name in ("one", "deep/two"):
            shutil.copytree(one_run, tmp_path / "runs" / name)
        compared = tmp_path / "runs" / "compared"
        compared.mkdir()
        (compared / "compare.json").write_text(
            json.dumps([{"algorithm": "fedavg", "accuracy": {"mean": 0.5}}])
        )
        (compared / "report.html").write_text("a report")
        broken = tmp_path / "runs" / "broken"
        broken.mkdir()
        (broken / "summary.json").write_text("{")
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "report.html").write_text("a report outside")
        return tmp_path / "runs"

    @pytest.fixture
    def client(self, root: Path) -> TestClient:
        return TestClient(Site(Library(root)), base_url="http://127.0.0.1:8099")

    def test_the_list_has_runs_comparisons_and_what_cannot_be_read(
        self, client: TestClient
    ) -> None:
        page = client.get("/").text
        for name in ("one", "deep/two", "compared"):
            assert f'<a href="/report/{name}">' in page
        assert "summary.json: expected a summary that `shoal simulate` wrote" in unescape(page)
        assert "deep/two" not in client.get("/?q=compared").text

    def test_a_report_is_served_and_nothing_outside_of_the_folder(
        self, client: TestClient, root: Path
    ) -> None:
        assert client.get("/report/compared").text == "a report"
        assert "Confusion matrix" in client.get("/report/deep/two").text
        (root / "link").symlink_to(root.parent / "secret")
        for name in ("../secret", "%2e%2e/secret", "link", "broken", "nothing"):
            answer = client.get(f"/report/{name}")
            assert (answer.status_code, "a report outside" in answer.text) == (404, False), name

    def test_runs_side_by_side(self, client: TestClient) -> None:
        page = client.get("/compare?run=one&run=deep/two").text
        assert "2 runs side by side" in page
        assert page.count('<path class="curve') == 4
        assert client.get("/compare?run=one", follow_redirects=False).status_code == 303
        assert client.get("/compare?run=one&run=compared").status_code == 404
        assert (
            client.get("/compare?" + "&".join(f"run={i}" for i in range(MOST + 1))).status_code
            == 422
        )

    def test_a_name_of_another_machine_is_not_answered(self, client: TestClient) -> None:
        for host, status in (
            ("127.0.0.1:8099", 200),
            ("localhost:1", 200),
            ("evil.example", 403),
            ("192.168.1.2", 403),
        ):
            assert client.get("/", headers={"Host": host}).status_code == status

    def test_a_page_runs_no_script_and_loads_nothing(self, client: TestClient) -> None:
        for path in ("/", "/report/one", "/compare?run=one&run=deep/two", "/report/nothing"):
            answer = client.get(path)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "script-src" not in answer.headers["content-security-policy"]
            assert OUTSIDE.findall(answer.text) == []

    def test_what_has_changed_is_read_again(self, root: Path, outcome: SimulationResult) -> None:
        library = Library(root)
        before = library.entries()["one"]
        assert library.entries()["one"] is before
        changed = msgspec.structs.replace(
            outcome.summary, accuracy=spread([0.25]), bytes_by_round=[MessageBytes(1, 1)]
        )
        (root / "one" / "summary.json").write_bytes(msgspec.json.encode(changed))
        after = library.entries()["one"].summary
        assert after is not None
        assert after.accuracy.mean == 0.25


def test_the_command_refuses_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"No folder .*/nothing\. `shoal simulate --out .*/nothing/try` makes it"
    ):
        application("ui")(["ui", str(tmp_path / "nothing")], standalone_mode=False)


def test_the_command_answers_on_this_machine_alone_until_ctrl_c(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", "ui", str(tmp_path), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = re.search(r"0 runs of .* at (http://127\.0\.0\.1:\d+);", process.stdout.readline())
    assert found is not None
    assert "There is no run here yet." in httpx.get(found[1], timeout=60).text
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
