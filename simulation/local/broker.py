"""A broker for demonstrations and tests: rumqttd of the `iotcore` wheel, on free loopback ports.

Its defaults refuse MQTT 5 and payloads above 20 KB, so it gets its own configuration. It stores
sessions in memory only: for a fleet, use Mosquitto or another broker that stores them on disk
(deploy/mosquitto).
"""

import socket
import tempfile
from pathlib import Path

import iotcore

from wire.errors import LinkError

_LISTENER = """
[v{version}.1]
name = "v{version}"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 1
[v{version}.1.connections]
connection_timeout_ms = 60000
max_payload_size = 67108864
max_inflight_count = 100
dynamic_filters = true
"""
_ROUTER = """id = 0
[router]
id = 0
max_connections = 10010
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
"""


def free_port() -> int:
    """Return a TCP port that is free on the loopback address at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedBroker:
    """A broker with MQTT 3.1.1 on `port` and MQTT 5 on `port_v5`.

    `stop` followed by `start` restarts it on the same ports, without its sessions.
    """

    def __init__(self) -> None:
        self.port, self.port_v5 = free_port(), free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}?version=3.1.1&max_packet={2**26 + 2**10}"
        """Address for `--broker`, with MQTT 3.1.1."""
        self.url_v5 = f"mqtt://127.0.0.1:{self.port_v5}?version=5"
        listeners = (
            _LISTENER.format(version=4, port=self.port),
            _LISTENER.format(version=5, port=self.port_v5),
        )
        with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
            file.write(_ROUTER + "".join(listeners))
        self._config = Path(file.name)
        self._broker = iotcore.Broker(config_path=str(self._config))

    def start(self) -> "EmbeddedBroker":
        """Start the broker, and return as soon as it accepts connections.

        Raises:
            LinkError: the broker did not start.
        """
        try:
            self._broker.start()
        except (OSError, RuntimeError) as error:
            raise LinkError(
                f"The embedded broker did not start on port {self.port}: {error}"
            ) from None
        return self

    def stop(self) -> None:
        """Stop the broker; its sessions are lost."""
        self._broker.stop()

    __enter__ = start

    def __exit__(self, *_error: object) -> None:
        self.stop()
        self._config.unlink(missing_ok=True)
