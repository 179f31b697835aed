"""A board that is killed again and again in one long plan: real processes, ended by SIGKILL at any
moment."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from aggregator.fleet import events as e
from aggregator.http.dashboard.alerts import standing_alerts
from simulation.datasets.windows import FleetData
from tests.aggregator.inbox_cases import InboxBench
from tests.aggregator.test_device_errors import page, view_of
from tests.fleet.test_view import WELL
from tests.support.bundles import Exported
from wire import messages as m
from wire.codec import decode_update

pytestmark = pytest.mark.full

CLIENT = """
import sys, time
from pathlib import Path
import numpy as np
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.storage.state import DeviceState, only_process
from edge_client.agent.loop import Agent
from edge_client.core.checkpoint import Pace
from edge_client.core.ports import Windows
from tests.support.plans import plan
from wire import messages as m
from wire.bundle import unpack
from wire.codec import digest, encode
from wire.links.in_process import InProcessBroker
from wire.arrays.tensors import encode_tensors
from wire.topics import Topics

import edge_client.agent.health as health
folder, bundle = Path(sys.argv[1]), unpack(Path(sys.argv[2]).read_bytes())
out, pause_s = Path(sys.argv[3]), float(sys.argv[4])
with np.load(Path(sys.argv[2]).parent / "windows.npz") as file:
    windows = Windows(file["x"], file["y"], file["x"], file["y"])
topics, broker = Topics("f"), InProcessBroker()
server = broker.connect("server")
server.subscribe(*topics.from_devices)
model = encode_tensors({spec.key: bundle.initial[spec.key] for spec in bundle.manifest.received()})
for payload in (bundle.payload, model):
    broker.publish(topics.blob(digest(payload)), payload, True)
broker.publish(topics.aggregator, encode(m.AggregatorStatus(True, "b", 1, 1.8e9)), True)

class Slow(OnnxGraphs):
    def run(self, graph, inputs):
        time.sleep(pause_s)
        return super().run(graph, inputs)

print("started", flush=True)
with only_process(folder):
    link, state = broker.connect("d0"), DeviceState(folder)
    agent = Agent("d0", topics, link, windows, state, Slow, pace=Pace(0.0, 1e9),
        machine=lambda: health.linux_machine(Path(sys.argv[5])))
    verbs = (m.Evaluate("inputs", "survey"), m.Train(8, 60), m.Evaluate())
    order = plan(bundle=bundle.digest, model=digest(model), verbs=verbs)
    broker.publish(topics.device("d0", "plan"), encode(order), False)
    while (event := agent.link.receive(timeout_s=0)) is not None:
        agent.handle(event)
updates = set()
while (event := server.receive(timeout_s=0)) is not None:
    topic = getattr(event, "topic", "")
    assert not topic.endswith("/decline"), event.payload
    if topic.endswith("/error"):
        out.with_suffix(".error").write_bytes(event.payload)
    if topic.endswith("/update"):
        updates.add(event.payload)
(payload,) = updates
out.write_bytes(payload)
"""


def _kills(fleet: FleetData, exported: Exported, tmp_path: Path, kills: int) -> None:
    windows, bundle = fleet.devices["d0"], tmp_path / "bundle"
    np.savez(tmp_path / "windows.npz", x=windows.train_x, y=windows.train_y)
    bundle.write_bytes(exported.bundle.payload)
    rng = random.Random(4)

    def client(state: str, pause_s: float) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-c",
            CLIENT,
            str(tmp_path / state),
            str(bundle),
            str(tmp_path / f"{state}.update"),
            str(pause_s),
            str(tmp_path / "proc"),
        ]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )

    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "vmstat").write_text(Path("/proc/vmstat").read_text())
    assert client("whole", 0.0).wait() == 0
    killed = 0
    while killed < kills and not (tmp_path / "killed.update").exists():
        process = client("killed", 0.02)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(rng.uniform(0.05, 0.5))
        process.kill()
        assert process.wait() in (0, -signal.SIGKILL)
        killed += 1
    assert killed == kills, "it was done before"
    counters = (tmp_path / "proc" / "vmstat").read_text()
    more = re.sub("(?m)^oom_kill .*", "oom_kill 99999", counters)
    (tmp_path / "proc" / "vmstat").write_text(more)
    assert client("killed", 0.0).wait() == 0
    _is_on_its_page(fleet, (tmp_path / "killed.error").read_bytes())
    (one, tensors), (other, expected) = (
        decode_update((tmp_path / f"{state}.update").read_bytes()) for state in ("killed", "whole")
    )
    assert (one.num_steps, one.trained, one.evaluated, one.model) == (
        other.num_steps,
        other.trained,
        other.evaluated,
        other.model,
    )
    assert {key: value.tobytes() for key, value in tensors.items()} == {
        key: value.tobytes() for key, value in expected.items()
    }
    assert not (tmp_path / "killed" / "checkpoint").exists()


def _is_on_its_page(fleet: FleetData, payload: bytes) -> None:
    """The page of the device and the alert say that the kernel lacked memory."""
    bench = InboxBench(fleet)
    bench.take(e.CheckedIn(at_s=101.0, device_id="d0", facts=m.CheckIn("d0", 10, 4)))
    bench.send("d0", "error", payload)
    shown = page(bench, "d0")
    assert "for lack of memory (exit -9); use smaller batches" in shown
    assert "the client ended while it worked on round" in shown
    (alert,) = (a for a in standing_alerts(WELL, view_of(bench)) if a.id == "errors")
    assert alert.title.startswith("1 of 3 devices: Killed: the client ended while it worked on")
    assert alert.title.endswith("or give the machine more memory")


def test_a_board_that_is_killed_in_training_goes_on_with_the_same_bits(
    fleet: FleetData, exported: Exported, tmp_path: Path
) -> None:
    _kills(fleet, exported, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_board_that_is_killed_thirty_times_in_training_goes_on_with_the_same_bits(
    fleet: FleetData, exported: Exported, tmp_path: Path
) -> None:
    _kills(fleet, exported, tmp_path, 30)
