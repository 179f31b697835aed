"""A fleet's devices as threads of this process, each with a connection of its own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edge_client.agent.loop import Agent
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.topics import Topics


@contextmanager
def devices(
    address: BrokerAddress,
    topics: Topics,
    data: FleetData,
    folder: Path,
    options: Callable[[str], dict[str, Any]],
) -> Iterator[None]:
    """The devices run until the block ends; `options`: by device, what else its agent is given."""
    stopping, links, threads = threading.Event(), [], []
    for device_id, windows in data.devices.items():
        link = MqttLink(address, f"f.{device_id}", Will(topics.device(device_id, "status"), b""))
        agent = Agent(
            device_id,
            topics,
            link,
            windows,
            DeviceState(folder / device_id),
            OnnxGraphs,
            **options(device_id),
        )
        threads.append(threading.Thread(target=agent.run, args=(stopping.is_set,), daemon=True))
        links.append(link)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(20)
        for link in links:
            link.close()
