"""A plan that ends the process: real processes, killed in the middle of the work."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from edge_client.core.session import MOST_TRIES
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from tests.support.bundles import Exported

CLIENT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.storage.state import DeviceState, only_process
from edge_client.agent.loop import Agent
from edge_client.core.ports import Windows
from tests.support.plans import plan
from wire import messages as m
from wire.bundle import unpack
from wire.codec import decode, decode_update, digest, encode
from wire.links.in_process import InProcessBroker
from wire.arrays.tensors import encode_tensors
from wire.topics import Topics

folder, bundle = Path(sys.argv[1]), unpack(Path(sys.argv[2]).read_bytes())
number, deadly = int(sys.argv[3]), sys.argv[4] == "deadly"
with np.load(folder / "windows.npz") as file:
    windows = Windows(file["x"], file["y"], file["x"], file["y"])
topics, broker = Topics("f"), InProcessBroker()
server = broker.connect("server")
server.subscribe(*topics.from_devices)
model = encode_tensors({spec.key: bundle.initial[spec.key] for spec in bundle.manifest.received()})
for payload in (bundle.payload, model):
    broker.publish(topics.blob(digest(payload)), payload, True)
broker.publish(topics.aggregator, encode(m.AggregatorStatus(True, "b", 1, 1.8e9)), True)

class Deadly(OnnxGraphs):
    batches = 0
    def run(self, graph, inputs):
        self.batches += 1
        if deadly and self.batches == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(graph, inputs)

with only_process(folder / "state"):
    state = DeviceState(folder / "state")
    agent = Agent("d0", topics, broker.connect("d0"), windows, state, Deadly)
    sent = plan(number, bundle=bundle.digest, model=digest(model))
    broker.publish(topics.device("d0", "plan"), encode(sent), False)
    while (event := agent.link.receive(timeout_s=0)) is not None:
        agent.handle(event)
while (event := server.receive(timeout_s=0)) is not None:
    topic = getattr(event, "topic", "")
    if topic.endswith("/decline"):
        print("decline", decode(event.payload, m.Decline).reason)
    if topic.endswith("/update"):
        print("update", decode_update(event.payload)[0].round)
"""


def test_work_that_kills_the_client_is_quarantined_and_the_next_plan_is_taken(
    fleet: FleetData, exported: Exported, tmp_path: Path
) -> None:
    windows, bundle = fleet.devices["d0"], tmp_path / "bundle"
    np.savez(tmp_path / "windows.npz", x=windows.train_x, y=windows.train_y)
    bundle.write_bytes(exported.bundle.payload)

    def client(number: int, kind: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", CLIENT, str(tmp_path), str(bundle), str(number), kind]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=Path(__file__).parents[2]
        )

    for number in range(MOST_TRIES):
        done = client(1, "deadly")
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert DeviceState(tmp_path / "state").load().tries == number + 1
    sixth = client(1, "deadly")
    assert (sixth.returncode, set(sixth.stdout.splitlines())) == (0, {"decline quarantined"}), (
        sixth.stderr
    )
    honest = client(2, "honest")
    assert (honest.returncode, honest.stdout.splitlines()) == (0, ["update 2"]), honest.stderr
