"""Alerts and the dashboard: each metric that they name is one of a real service, and each alert is
raised by what it is about, and reaches whom the operator names."""

import ast
import json
import queue
import re
import subprocess
import threading
import time
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from aggregator.http.dashboard.alerts import IDS
from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import start_process, stop_processes
from tests.deploy.tools import DEPLOY, debian, run, setup
from tests.support.brokers import wait_for_port
from tests.support.bundles import Exported
from tests.support.pages import blocks

MONITORING = DEPLOY / "monitoring"
SUFFIX = {"counter": "_total", "info": "_info"}
NAME = re.compile(r"\bshoal_\w+")


@pytest.fixture(scope="module")
def scraped(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the labels' names of each metric of a running service, by the metric's name in
    Prometheus."""
    folder, port = tmp_path_factory.mktemp("service"), free_port()
    with EmbeddedBroker() as broker:
        options = [
            "--folder",
            str(folder / "served"),
            "--bundle",
            str(exported.folder),
            "--broker",
            broker.url,
            "--port",
            str(port),
        ]
        serving = start_process(
            ["-m", "shoal", "serve", *options],
            folder / "log",
            {"SHOAL_ALIVE_FILE": str(folder / "alive")},
        )
        try:
            text = scrape(serving, f"http://127.0.0.1:{port}/metrics")
            assert (folder / "alive").exists(), "what a container's health check looks at"
        finally:
            stop_processes([serving])
    families = text_string_to_metric_families(text)
    return {
        f.name + SUFFIX.get(f.type, ""): {label for sample in f.samples for label in sample.labels}
        for f in families
    }


def scrape(serving: "subprocess.Popen[bytes]", url: str) -> str:
    """Return the metrics of a service, once it has started."""
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
    listed = [
        variable["query"]
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]
    alerts = re.findall(r"^ +expr: (.+)$", (MONITORING / "alerts.yml").read_text(), re.MULTILINE)
    return {"dashboard": shown + listed, "alerts": alerts}


@pytest.mark.parametrize("kind", ["dashboard", "alerts"])
def test_every_metric_is_one_of_a_real_service(kind: str, scraped: dict[str, set[str]]) -> None:
    named = {name for expression in expressions()[kind] for name in NAME.findall(expression)}
    assert len(named) >= 10
    assert sorted(named - scraped.keys()) == []


def test_every_alert_has_a_row_and_a_rule() -> None:
    page = (DEPLOY.parent / "docs" / "alerts.md").read_text()
    rows = dict(re.findall(r'^\| <a id="([\w-]+)"></a>`\1` \| `?(\w+)', page, re.MULTILINE))
    assert [*rows] == [*IDS]
    text = (MONITORING / "alerts.yml").read_text()
    (excepted,) = re.findall(r'shoal_alerts\{alert!~"([^"]+)"\}', text)
    others = {name for name, rule in rows.items() if rule != "ShoalAlert"}
    assert others == set(excepted.split("|"))
    assert set(rows.values()) - {"none"} <= set(re.findall(r"- alert: (\w+)", text))


def test_every_alert_that_is_declared_has_an_id() -> None:
    source = (DEPLOY.parent / "aggregator/http/dashboard/alerts.py").read_text()
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name != "round_alerts"
    ]
    calls = [
        node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Alert"
    ]
    assert len(calls) >= 8
    named = [{word.arg for word in call.keywords} & {"id"} for call in calls]
    assert all(named), [call.lineno for call in calls]


def test_the_dashboard_shows_every_metric(scraped: dict[str, set[str]]) -> None:
    shown = {name for expression in expressions()["dashboard"] for name in NAME.findall(expression)}
    assert sorted(name for name in scraped if name.startswith("shoal_") and name not in shown) == []


def test_labels_by_which_the_dashboard_chooses_are_those_of_the_metrics(
    scraped: dict[str, set[str]],
) -> None:
    chosen = [
        match for e in expressions()["dashboard"] for match in re.findall(r"(shoal_\w+)\{(\w+)", e)
    ]
    assert chosen != []
    assert [(name, label) for name, label in chosen if label not in scraped[name]] == []


def test_panels_do_not_overlap() -> None:
    places = [
        panel["gridPos"]
        for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    ]
    cells = [
        (x, y)
        for p in places
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_each_alert_is_raised_by_what_it_is_about_and_by_nothing_that_is_well() -> None:
    promtool = debian("promtool", "prometheus")
    done = run(promtool, "test", "rules", "alerts-test.yml", cwd=MONITORING)
    assert done.returncode == 0, done.stdout + done.stderr
    tried = set(re.findall(r'alertname="(\w+)"', (MONITORING / "alerts-test.yml").read_text()))
    assert tried == set(re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text()))


def test_prometheus_reads_its_configuration() -> None:
    done = run(
        debian("promtool", "prometheus"),
        "check",
        "config",
        "--syntax-only",
        MONITORING / "prometheus.yml",
    )
    assert done.returncode == 0, done.stdout + done.stderr


class _Told(BaseHTTPRequestHandler):
    """A service that Prometheus scrapes, and a webhook that notes what it is told."""

    said: "queue.Queue[dict[str, Any]]"

    def do_GET(self) -> None:
        self.answer(b"shoal_unvouched 1\n")

    def do_POST(self) -> None:
        self.said.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(b"")

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test looks at what came."""


def quicker(text: str, **changed: str) -> str:
    """A configuration with the words of this machine in place of others, each of which must be
    there."""
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    return text


def test_an_alert_goes_through_prometheus_and_alertmanager_to_the_webhook_of_setup(
    tmp_path: Path,
) -> None:
    prometheus, alertmanager = (
        debian("prometheus", "prometheus"),
        debian("prometheus-alertmanager", "prometheus-alertmanager"),
    )
    said: queue.Queue[dict[str, Any]] = queue.Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Told", (_Told,), {"said": said}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here, ports = f"127.0.0.1:{server.server_address[1]}", (free_port(), free_port())
    setup(tmp_path, webhook=f"http://{here}/hook")
    home = tmp_path / "home"
    told = quicker((home / "alertmanager.yml").read_text(), **{"group_wait: 30s": "group_wait: 0s"})
    places = {
        "15s": "1s",
        "/etc/prometheus/alerts.yml": str(MONITORING / "alerts.yml"),
        "/run/secrets/prometheus_token": str(home / "secrets" / "prometheus-token"),
        "aggregator:8080": here,
        "alertmanager:9093": f"127.0.0.1:{ports[1]}",
    }
    (tmp_path / "alertmanager.yml").write_text(told)
    (tmp_path / "prometheus.yml").write_text(
        quicker((MONITORING / "prometheus.yml").read_text(), **places)
    )
    options = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    running = []
    try:
        for name, binary, port in (
            ("alertmanager", alertmanager, ports[1]),
            ("prometheus", prometheus, ports[0]),
        ):
            own = {f"=/etc/{name}/": f"={tmp_path}/", f"=/{name}": f"={home / name}"}
            words = [
                quicker(" ".join(options[name]["command"]), **own),
                f"--web.listen-address=127.0.0.1:{port}",
            ]
            with (tmp_path / "log").open("a") as log:
                running.append(
                    subprocess.Popen([binary, *" ".join(words).split()], stdout=log, stderr=log)
                )
            wait_for_port(
                port, 60
            )  # an alert that finds no Alertmanager is sent again after a minute
        came = said.get(timeout=60)
    except (queue.Empty, TimeoutError):
        raise AssertionError((tmp_path / "log").read_text()) from None
    finally:
        stop_processes(running)
        server.shutdown()
        server.server_close()
    assert (came["receiver"], came["status"]) == ("operator", "firing")
    (alert,) = came["alerts"]
    assert (alert["labels"]["alertname"], alert["labels"]["severity"]) == (
        "ShoalUnvouched",
        "critical",
    )
    assert "Devices believe nothing" in alert["annotations"]["summary"]


def test_alertmanager_reads_the_configuration_and_the_receiver_of_the_page(tmp_path: Path) -> None:
    amtool = debian("amtool", "prometheus-alertmanager")
    harmless = (MONITORING / "alertmanager.yml").read_text()
    (block,) = blocks("docs/alerts.md", "yaml")
    head, _, _ = harmless.partition("receivers:")
    for text in (harmless, head + block.text):
        (tmp_path / "alertmanager.yml").write_text(text)
        done = run(amtool, "check-config", tmp_path / "alertmanager.yml")
        assert done.returncode == 0, done.stdout + done.stderr
    for severity in ("critical", "warning"):
        done = run(
            amtool,
            "config",
            "routes",
            "test",
            f"--config.file={tmp_path / 'alertmanager.yml'}",
            f"severity={severity}",
        )
        assert done.stdout.split() == ["operator"], done.stderr
