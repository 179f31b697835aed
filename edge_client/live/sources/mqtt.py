"""Samples from topics of a broker, such as those of Zigbee2MQTT and Home Assistant.

`edge_client.live.sources.readings` reads the payloads.
"""

import logging
import time
from collections.abc import Callable, Sequence

from edge_client.data.recordings.resampling import Samples
from edge_client.live.sources.readings import LONGEST_NAME, Readings, decode_payload
from edge_client.live.sources.tally import Tally
from wire.errors import DataError, printable
from wire.links.port import Delivery, Denied, Link, LinkDown

log = logging.getLogger("shoal.edge")

MOST = 2000
"""Maximum number of payloads that are read at once."""
MOST_SAMPLES = 10_000
"""Number of samples after which no further payload is read at once."""


class MqttSource:
    """Reader of some topics. `on_label` takes the payloads of `label_topic`."""

    is_over = False

    def __init__(
        self,
        link: Link,
        topics: Sequence[str],
        readings: Readings,
        label_topic: str = "",
        on_label: Callable[[bytes], None] = lambda _payload: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._link, self._readings, self._wall = link, readings, wall
        self._label_topic, self._on_label = label_topic, on_label
        self.ignored = Tally("a payload")
        self.close = link.close
        link.subscribe(*topics, *([label_topic] if label_topic else []))

    def read(self, timeout_s: float) -> list[Samples]:
        end_s = time.monotonic() + timeout_s
        for _ in range(MOST):
            event = self._link.receive(timeout_s=max(0.0, end_s - time.monotonic()))
            if event is None:
                break
            if isinstance(event, Delivery):
                self._take(event)
            elif isinstance(event, Denied):
                log.error(
                    "The samples' broker denies access to a topic: action=%s topic=%s reason=%s",
                    event.action,
                    event.topic,
                    event.reason,
                )
            elif isinstance(event, LinkDown):
                log.warning(
                    "Connection to the samples' broker lost, trying again: reason=%s",
                    printable(event.reason),
                )
            if len(self._readings) >= MOST_SAMPLES or time.monotonic() >= end_s:
                break
        return self._readings.take()

    def _take(self, delivery: Delivery) -> None:
        try:
            if delivery.topic == self._label_topic:
                if not delivery.retained:  # a retained label is older than this process
                    self._on_label(delivery.payload)
            elif not delivery.retained:  # a retained value is old
                self._readings.add(decode_payload(delivery.payload), self._wall(), delivery.topic)
        except (DataError, OSError) as error:
            self.ignored.add(f"topic={delivery.topic[:LONGEST_NAME]}: {error}")
        except Exception as error:
            self.ignored.add(error)
