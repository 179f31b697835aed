"""The webhook of a service: what is sent when alerts begin and end, and after failures."""

import http.server
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aggregator.http.dashboard.alerts import Alert, AlertDevice
from aggregator.http.monitoring.webhook import LOOK_S, AlertMessage, AlertWebhook
from aggregator.leadership.identity import SENT_ALERTS
from tests.aggregator.inbox_cases import Watch
from tests.support.pages import blocks
from wire.errors import ConfigError

DEVICES = (AlertDevice("pi-1", "offline"), AlertDevice("pi-2", "online"))
LOST = Alert("bad", "No connection to the broker", "Nothing arrives.", id="broker")
WAITS = Alert(
    "warn", "run waits", "No device.", "campaigns/run", 5.0, DEVICES, id="waiting", campaign="run"
)


class Hook:
    """A webhook, and the service's alerts that it learns of."""

    def __init__(self, folder: Path) -> None:
        came: list[dict[str, Any]] = []
        self.came, self.status, self.folder, self.clock = came, 204, folder, Watch(50.0)
        self.alerts: list[Alert] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if hook.status < 300:
                    came.append(json.loads(body))
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.start()

    def start(self) -> None:
        """Start the service again."""
        url = f"http://127.0.0.1:{self.server.server_address[1]}/s3cret"
        self.webhook = AlertWebhook(url, self.folder, lambda: list(self.alerts), self.clock)

    def look(self, *alerts: Alert, times: int = 2) -> list[tuple[str, bool]]:
        """Return the messages of looks at these alerts: id, and True if it has ended."""
        before, self.alerts = len(self.came), list(alerts)
        for _ in range(times):
            self.webhook.look()
        return [(message["alert"], message["resolved"]) for message in self.came[before:]]


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Hook]:
    hook = Hook(tmp_path)
    yield hook
    hook.server.shutdown()
    hook.server.server_close()


def test_an_alert_is_sent_once_when_it_begins_and_once_when_it_ends(hook: Hook) -> None:
    assert hook.look(WAITS, LOST) == [("broker", False), ("waiting", False)]
    assert hook.came[1] == {
        "alert": "waiting",
        "tone": "warn",
        "title": "run waits",
        "text": "No device. pi-1: offline; pi-2: online",
        "page": "/dashboard/campaigns/run",
        "help": "docs/alerts.md#waiting",
        "since": 5.0,
        "resolved": False,
    }
    assert hook.look(WAITS._replace(title="run still waits"), LOST) == []
    assert hook.look(LOST) == [("waiting", True)]
    assert hook.look() == [("broker", True)]
    assert hook.look() == []


def test_what_one_look_alone_finds_is_not_sent(hook: Hook) -> None:
    assert hook.look(LOST, times=1) + hook.look() == []
    assert hook.look(LOST) == [("broker", False)]
    assert hook.look(times=1) + hook.look(LOST) == []


def test_alerts_of_two_campaigns_are_two(hook: Hook) -> None:
    assert hook.look(WAITS, WAITS._replace(campaign="other")) == [("waiting", False)] * 2
    assert hook.look(WAITS) == [("waiting", True)]


def fails(*devices: str, error: str = "") -> Alert:
    """An alert about these devices; a colon separates the cause of one."""
    named = tuple(
        AlertDevice(each.partition(":")[0], "", cause=each.partition(":")[2]) for each in devices
    )
    troubles = tuple(device.trouble for device in named)
    return Alert("warn", "Devices", "", devices=named, id="failing", error=error, troubles=troubles)


class TestFurtherTroubles:
    def test_a_device_that_joins_a_standing_alert_is_sent_once(self, hook: Hook) -> None:
        assert hook.look(fails("pi-1")) == [("failing", False)]
        assert hook.look(fails("pi-1", "pi-2")) == [("failing", False)]
        assert "pi-2" in hook.came[-1]["text"]
        assert hook.look(fails("pi-1", "pi-2"), times=5) == []
        assert hook.look() == [("failing", True)]

    def test_another_cause_of_the_same_device_is_sent(self, hook: Hook) -> None:
        hook.look(fails("pi-1:offline"))
        assert hook.look(fails("pi-1:declined")) == [("failing", False)]

    def test_numbers_and_recoveries_are_not_sent(self, hook: Hook) -> None:
        hook.look(fails("pi-1", "pi-2"))
        assert hook.look(fails("pi-1")._replace(title="1 device", text="2 failures")) == []

    def test_a_device_that_fails_again_after_its_recovery_is_sent_again(self, hook: Hook) -> None:
        hook.look(fails("pi-1", "pi-2"))
        hook.look(fails("pi-1"))
        assert hook.look(fails("pi-1", "pi-2")) == [("failing", False)]

    def test_what_one_look_alone_finds_or_misses_is_not_sent(self, hook: Hook) -> None:
        hook.look(fails("pi-1", "pi-2"))
        assert hook.look(fails("pi-1", "pi-3"), times=1) == []
        assert hook.look(fails("pi-1", "pi-2")) == []

    def test_two_errors_are_two_incidents(self, hook: Hook) -> None:
        one, other = fails("pi-1", error="E: a"), fails("pi-2", error="E: b")
        assert hook.look(one, other) == [("failing", False)] * 2
        assert hook.look(other) == [("failing", True)]

    def test_a_restart_sends_a_further_device_alone(self, hook: Hook) -> None:
        hook.look(fails("pi-1"))
        hook.start()
        assert hook.look(fails("pi-1")) == []
        hook.start()
        assert hook.look(fails("pi-1", "pi-2")) == [("failing", False)]

    def test_a_message_that_failed_is_sent_later(self, hook: Hook) -> None:
        hook.look(fails("pi-1"))
        hook.status = 500
        assert hook.look(fails("pi-1", "pi-2")) == []
        hook.status = 204
        assert hook.look(fails("pi-1", "pi-2"), times=1) == [("failing", False)]


def test_a_message_has_the_time_of_the_first_look_if_none_is_known(hook: Hook) -> None:
    hook.look(LOST, times=1)
    hook.clock.now_s += 30.0
    hook.look(LOST, times=1)
    hook.clock.now_s += 30.0
    hook.look()
    assert [(m["since"], m["resolved"]) for m in hook.came] == [(50.0, False), (50.0, True)]


def test_notes_on_rounds_are_not_sent(hook: Hook) -> None:
    assert hook.look(Alert("warn", "Round 3 changed nothing", "")) == []


def test_a_restart_sends_nothing_again(hook: Hook) -> None:
    hook.look(WAITS, LOST)
    hook.start()
    assert hook.look(WAITS, LOST) == []
    hook.start()
    assert hook.look(LOST) == [("waiting", True)]


def test_while_the_webhook_fails_the_pause_doubles_and_then_the_present_is_sent(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.status = 500
    with caplog.at_level(logging.WARNING, "shoal.aggregator"):
        assert hook.look(LOST) == []
        assert hook.webhook.pause_s == 2 * LOOK_S
        assert hook.look(LOST, WAITS) == []
    assert "Alert not sent, trying again: alert=broker" in caplog.text
    assert "it answered 500" in caplog.text
    assert "s3cret" not in caplog.text
    hook.status = 200
    assert hook.look(WAITS) == [("waiting", False)], "the other one is over"
    assert hook.webhook.pause_s == LOOK_S


def test_a_webhook_that_is_away_is_one_line_without_its_secret(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.server.shutdown()
    hook.server.server_close()
    with caplog.at_level(logging.WARNING, "shoal.aggregator"):
        assert hook.look(LOST) == []
    assert "Connection refused" in caplog.text
    assert "s3cret" not in caplog.text
    hook.server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    )
    threading.Thread(target=hook.server.serve_forever, daemon=True).start()


@pytest.mark.parametrize(
    "url", ["hooks.example/x", "ftp://a/s3cret", "http:///s3cret", "http://[a"]
)
def test_an_address_that_is_none_is_refused_without_its_secret(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="alert_webhook must be") as caught:
        AlertWebhook(url, tmp_path, list, time.time)
    assert "s3cret" not in str(caught.value)


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    (tmp_path / SENT_ALERTS).write_text("{")
    with pytest.raises(ConfigError, match="delete it"):
        AlertWebhook("http://hooks.example", tmp_path, list, time.time)


def test_the_message_of_the_page_is_one() -> None:
    (block,) = blocks("docs/alerts.md", "json")
    message = msgspec.json.decode(block.text, type=AlertMessage)
    assert json.loads(block.text) == msgspec.to_builtins(message)
    assert list(json.loads(block.text)) == list(AlertMessage.__struct_fields__)
