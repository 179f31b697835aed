"""Alerts and the dashboard: each metric that they name is one of a real service, and each alert is raised by what it is about."""

import json
import re
import subprocess
import time
import urllib.request
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import start_process, stop_processes
from tests.conftest import Exported
from tests.deploy.tools import DEPLOY, debian, run

MONITORING = DEPLOY / "monitoring"
SUFFIX = {"counter": "_total", "info": "_info"}
NAME = re.compile(r"\bshoal_\w+")


@pytest.fixture(scope="module")
def scraped(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Of a service that runs: the labels' names of each metric, by the metric's name as Prometheus knows it."""
    folder, port = tmp_path_factory.mktemp("service"), free_port()
    with EmbeddedBroker() as broker:
        options = ["--folder", str(folder / "served"), "--bundle", str(exported.folder), "--broker", broker.url, "--port", str(port)]
        serving = start_process(["-m", "shoal", "serve", *options], folder / "log", {"SHOAL_ALIVE_FILE": str(folder / "alive")})
        try:
            text = scrape(serving, f"http://127.0.0.1:{port}/metrics")
            assert (folder / "alive").exists(), "what a container's health check looks at"
        finally:
            stop_processes([serving])
    families = text_string_to_metric_families(text)
    return {f.name + SUFFIX.get(f.type, ""): {label for sample in f.samples for label in sample.labels} for f in families}


def scrape(serving: "subprocess.Popen[bytes]", url: str) -> str:
    """What a service says of itself, once it has started."""
    for _ in range(600):
        assert serving.poll() is None, "the service has ended"
        with suppress(OSError), urllib.request.urlopen(url, timeout=20) as answer:
            return str(answer.read().decode())
        time.sleep(0.2)
    raise AssertionError(f"{url} did not answer within two minutes")


def expressions() -> dict[str, list[str]]:
    """The expressions of the dashboard and of the alerts."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    listed = [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    alerts = re.findall(r"^ +expr: (.+)$", (MONITORING / "alerts.yml").read_text(), re.MULTILINE)
    return {"dashboard": shown + listed, "alerts": alerts}


@pytest.mark.parametrize("kind", ["dashboard", "alerts"])
def test_every_metric_is_one_of_a_real_service(kind: str, scraped: dict[str, set[str]]) -> None:
    named = {name for expression in expressions()[kind] for name in NAME.findall(expression)}
    assert len(named) >= 10
    assert sorted(named - scraped.keys()) == []


def test_the_dashboard_shows_every_metric(scraped: dict[str, set[str]]) -> None:
    shown = {name for expression in expressions()["dashboard"] for name in NAME.findall(expression)}
    assert sorted(name for name in scraped if name.startswith("shoal_") and name not in shown) == []


def test_labels_by_which_the_dashboard_chooses_are_those_of_the_metrics(scraped: dict[str, set[str]]) -> None:
    chosen = [match for e in expressions()["dashboard"] for match in re.findall(r"(shoal_\w+)\{(\w+)", e)]
    assert chosen != []
    assert [(name, label) for name, label in chosen if label not in scraped[name]] == []


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_each_alert_is_raised_by_what_it_is_about_and_by_nothing_that_is_well() -> None:
    promtool = debian("promtool", "prometheus")
    done = run(promtool, "test", "rules", "alerts-test.yml", cwd=MONITORING)
    assert done.returncode == 0, done.stdout + done.stderr
    tried = set(re.findall(r'alertname="(\w+)"', (MONITORING / "alerts-test.yml").read_text()))
    assert tried == set(re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text()))


def test_prometheus_reads_its_configuration() -> None:
    done = run(debian("promtool", "prometheus"), "check", "config", "--syntax-only", MONITORING / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
