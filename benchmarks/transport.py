"""Cost of messages: ``python -m benchmarks.transport``.

A device's link publishes, an aggregator's link in another process receives, through a real broker:
Mosquitto, and the broker of ``shoal demo``. It also measures writing and reading an update, as a
tensor file and as JSON. Writes ``benchmarks/results/transport.json`` and a section of RESULTS.md.
"""

import json
import multiprocessing as mp
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results.report import describe_machine, put
from benchmarks.stopwatch import seconds_of
from simulation.local.broker import EmbeddedBroker, free_port
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.codec import decode_update, encode_update
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery
from wire.messages import Metrics, Update

WEIGHT = names.delta("w")
OUT = Path(__file__).parent / "results" / "transport.json"
SIZES = {
    "1 KB": 2**10,
    "20 KB": 20 * 2**10,
    "200 KB (45,190 parameters)": 200 * 2**10,
    "2 MB": 2 * 2**20,
}
BYTES, MOST, TURNS = 200 * 2**20, 4000, 3
"""Each measurement sends about so many bytes, but no more messages than this."""
PARAMETERS = 45_190


@contextmanager
def mosquitto() -> Iterator[str]:
    """A Mosquitto of its own."""
    binary = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if binary is None:
        raise SystemExit("Mosquitto is not installed: deploy/install-debian mosquitto")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mosquitto.conf"
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nmessage_size_limit 67108864\n"
            "max_queued_messages 0\n"
        )
        process = subprocess.Popen(
            [binary, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(1.0)
        try:
            yield f"mqtt://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


@contextmanager
def embedded() -> Iterator[str]:
    """The broker inside a process, MQTT 5."""
    with EmbeddedBroker() as broker:
        yield broker.url_v5


def publish(url: str, size: int, count: int) -> None:
    """A device that has so many messages to send."""
    link = MqttLink(BrokerAddress.parse(url), "fleet.device", None)
    payload = os.urandom(size)
    for _ in range(count):
        link.publish("shoal/1/fleet/device/d/update", payload)
    link.close(patience_s=120.0)


def measure(url: str, size: int) -> dict[str, float]:
    """Messages a second from the first to the last that arrive, and the receiver's CPU time for
    each."""
    count = max(20, min(MOST, BYTES // size))
    link = MqttLink(BrokerAddress.parse(url), "fleet.aggregator", None)
    link.subscribe("shoal/1/fleet/device/+/update")
    while link.receive(timeout_s=0.5) is not None:
        pass
    sender = mp.get_context("spawn").Process(target=publish, args=(url, size, count))
    sender.start()
    arrived, began_s, began_cpu_s = 0, 0.0, 0.0
    while arrived < count:
        event = link.receive(timeout_s=60.0)
        if event is None:
            raise SystemExit(f"{arrived} of {count} messages of {size} bytes came")
        if isinstance(event, Delivery):
            arrived += 1
            if arrived == 1:
                began_s, began_cpu_s = time.perf_counter(), time.process_time()
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    link.close()
    sender.join()
    return {
        "messages_per_s": (count - 1) / seconds,
        "mb_per_s": (count - 1) * size / seconds / 1e6,
        "cpu_ms": 1000 * cpu_s / (count - 1),
    }


def codec() -> dict[str, dict[str, float]]:
    """Microseconds to write and to read one update, and its size."""
    rng = np.random.default_rng(0)
    tensors: Tensors = {WEIGHT: rng.standard_normal(PARAMETERS).astype(np.float32)}
    update = Update(
        "run",
        1,
        1,
        0,
        "d",
        "0" * 64,
        256,
        8,
        Metrics(64, 1.0, 32),
        Metrics(256, 1.0, 128),
        200_000,
        1.0,
    )

    def as_lists() -> bytes:
        return json.dumps({name: value.tolist() for name, value in tensors.items()}).encode()

    written, text = encode_update(update, tensors), as_lists()
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
        "Shoal's update": (
            lambda: encode_update(update, tensors),
            lambda: decode_update(written),
            len(written),
        ),
        "JSON lists": (as_lists, lambda: np.array(json.loads(text)[WEIGHT], np.float32), len(text)),
    }
    return {
        name: {"write_us": _median_us(write), "read_us": _median_us(read), "bytes": size}
        for name, (write, read, size) in ways.items()
    }


def _median_us(call: Callable[[], Any], turns: int = 15) -> float:
    return round(1e6 * statistics.median(seconds_of(call, turns)), 1)


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Machine: {results['machine']}. One sender, one receiver, QoS 1, through "
        f"`wire.links.mqtt`; medians of {TURNS} turns.",
        "",
        "| broker | message | messages/s | MB/s | receiver's CPU, ms each |",
        "|---|---|---|---|---|",
    ]
    for row in results["links"]:
        numbers = f"{row['messages_per_s']:,.0f} | {row['mb_per_s']:,.0f} | {row['cpu_ms']:.2f}"
        lines.append(f"| {row['broker']} | {row['message']} | {numbers} |")
    lines += [
        "",
        f"| an update of {PARAMETERS:,} parameters | write, us | read, us | bytes |",
        "|---|---|---|---|",
    ]
    for name, row in results["codec"].items():
        lines.append(
            f"| {name} | {row['write_us']:,.0f} | {row['read_us']:,.0f} | {row['bytes']:,} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure in turns, write the results, print the table."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(TURNS):
        for broker, start in (("Mosquitto", mosquitto), ("embedded", embedded)):
            for message, size in SIZES.items():
                with start() as url:
                    found.setdefault((broker, message), []).append(measure(url, size))
    links = [
        {"broker": broker, "message": message}
        | {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
        for (broker, message), runs in found.items()
    ]
    results = {"machine": describe_machine(), "links": links, "codec": codec()}
    OUT.write_text(json.dumps(results, indent=1) + "\n")
    put("transport", f"## Messages\n\n{table(results)}")
    print(table(results))


if __name__ == "__main__":
    main()
