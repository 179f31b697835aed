"""Messages about standing alerts to a webhook, for a service without Prometheus.

An alert is sent when it begins, when a device or a cause joins it, and when it ends. Each look
compares the standing alerts with the sent ones, which are in a file: a repeated look, or a restart,
sends nothing again. A failed message is tried at a later look, if it is still true then.
"""

import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from aggregator.http.dashboard.alerts import Alert
from aggregator.http.session import PAGES
from aggregator.leadership.identity import SENT_ALERTS
from aggregator.ports import Clock
from host.files import write_atomically
from wire.errors import ConfigError

log = logging.getLogger("shoal.aggregator")

LOOK_S, LONGEST_S = 30.0, 3600.0
"""Seconds between two looks, and the longest pause after failures, each of which doubles it.

An alert is sent once two looks in a row have found it, and its end likewise.
"""
TIMEOUT_S = 10.0


class AlertMessage(msgspec.Struct, frozen=True):
    """Message about an alert."""

    alert: str
    """Id of the alert, as in docs/alerts.md."""
    tone: str
    title: str
    text: str
    page: str
    """Path of the dashboard's page about it."""
    help: str
    since: float
    """Time when it began, or else when the service first saw it (Unix seconds)."""
    resolved: bool = False


class SentAlert(msgspec.Struct, frozen=True):
    """Alert that was sent and has not ended."""

    message: AlertMessage
    troubles: frozenset[str]
    """Devices and causes of the alert that were sent and still stand."""


SENT = dict[str, SentAlert]
"""Alerts that were sent and have not ended, by `Alert.key`."""


def check_webhook(url: str) -> str:
    """Return the address of a webhook without its secret parts, for the log.

    Raises:
        ConfigError: it is no address of HTTP.
    """
    try:
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        parts, place = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise ConfigError(
            "alert_webhook must be http://HOST/PATH or https://HOST/PATH; it is not shown here, "
            "since it may hold a secret"
        )
    return place


def message_of(alert: Alert, since_s: float) -> AlertMessage:
    """Return the message about an alert that stands since this time."""
    named = (f"{each.id}: {each.text}" if each.text else each.id for each in alert.devices)
    text = f"{alert.sentence} {'; '.join(named)}".strip()
    page = PAGES + (alert.page or "alerts")
    about = (alert.id, alert.tone, alert.title, text, page, alert.help)
    return AlertMessage(*about, since_s)


class AlertWebhook:
    """Sender of messages about alerts."""

    def __init__(
        self, url: str, folder: Path, alerts: Callable[[], list[Alert]], clock: Clock
    ) -> None:
        """Read which alerts were sent before.

        `alerts`: returns the standing alerts.

        Raises:
            ConfigError: `url` is no address of HTTP, or the file cannot be read.
        """
        self.place, self._url, self._file = check_webhook(url), url, folder / SENT_ALERTS
        self._alerts, self._clock, self.pause_s = alerts, clock, LOOK_S
        try:
            payload = self._file.read_bytes() if self._file.exists() else b"{}"
            self.sent: SENT = msgspec.json.decode(payload, type=SENT)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"{self._file}: not readable ({error}); delete it, and standing alerts are sent "
                "again"
            ) from None
        self._before = {key: (sent.message.since, sent.troubles) for key, sent in self.sent.items()}
        """Time since which each alert of the look before stands, and its troubles, by key."""

    def look(self) -> None:
        """Send what has begun, grown or ended, if this look and the one before agree about it."""
        standing = {alert.key: alert for alert in self._alerts() if alert.id}
        before, now_s = self._before, self._clock()
        self._before = {
            key: (alert.since_s or before.get(key, (now_s,))[0], frozenset(alert.troubles))
            for key, alert in standing.items()
        }
        for key in sorted(standing.keys() & before.keys()):
            (since_s, troubles), earlier, sent = (
                self._before[key],
                before[key][1],
                self.sent.get(key),
            )
            if sent is None or troubles & earlier - sent.troubles:
                message = message_of(standing[key], since_s)
                if not self._post(message):
                    return
                self._keep({**self.sent, key: SentAlert(message, troubles)})
            elif gone := sent.troubles - troubles - earlier:  # sent again if they come back
                self._keep({**self.sent, key: SentAlert(sent.message, sent.troubles - gone)})
        for key in sorted(self.sent.keys() - standing.keys() - before.keys()):
            if not self._post(msgspec.structs.replace(self.sent[key].message, resolved=True)):
                return
            self._keep({k: sent for k, sent in self.sent.items() if k != key})

    def _keep(self, sent: SENT) -> None:
        self.sent = sent
        try:
            write_atomically(self._file, msgspec.json.encode(sent), 0o600)
        except OSError as error:
            log.error(
                "Sent alerts not stored, a restart sends them again: file=%s: %s",
                self._file,
                error.strerror,
            )

    def _post(self, message: AlertMessage) -> bool:
        """Send a message; return True if the other side has taken it."""
        request = urllib.request.Request(
            self._url, msgspec.json.encode(message), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                self.pause_s = LOOK_S
                return True
        except urllib.error.HTTPError as error:
            problem = f"it answered {error.code}"
        except (OSError, HTTPException, ValueError) as error:
            cause = getattr(error, "reason", error)
            problem = getattr(cause, "strerror", "") or type(cause).__name__
        self.pause_s = min(2 * self.pause_s, LONGEST_S)
        log.warning(
            "Alert not sent, trying again: alert=%s webhook=%s retry_in_s=%.0f: %s",
            message.alert,
            self.place,
            self.pause_s,
            problem,
        )
        return False


@contextmanager
def alerts_to(webhook: AlertWebhook | None) -> Iterator[None]:
    """Look for alerts in another thread while the context is open; None: do nothing."""
    over = threading.Event()

    def work() -> None:
        while webhook is not None and not over.wait(webhook.pause_s):
            try:
                webhook.look()
            except Exception:  # a defect here must not end the messages about later alerts
                log.exception("Alerts not examined because of a defect")

    thread = threading.Thread(target=work, name="alerts", daemon=True)
    if webhook is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()
