"""Memory of an edge process by stage: a real `shoal-edge run` of one watch, whose aggregator this
process plays through a broker, with the messages that a campaign of `personal` sends.

For each stage: resident memory (RSS) and the process's own share of it (PSS) when the stage is
over, and the peak of RSS since the stage began. The medians of some processes are reported.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from algorithms.algorithm import SURVEY
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Work
from export.publish import TRUST_FILE, Publication, publish
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData, select_devices
from simulation.local.broker import EmbeddedBroker
from simulation.local.fleet import start_process, stop_processes, write_device_folder
from simulation.objective import objective_for_fleet
from wire import messages as m
from wire.arrays.tensors import encode_tensors
from wire.codec import digest
from wire.identity.keys import PrivateKey, new_key
from wire.identity.signed import Signer, vouch
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery
from wire.topics import Topics

FLEET, RUN, EPOCH = "board", "0" * 32, 1
PATIENCE_S = 60.0
IMPORTED, CONNECTED, IN_USE = "after imports", "connected", "model in use"
Memory = dict[str, float]
"""MiB: `rss`, `pss` and `peak`."""


@dataclass(frozen=True)
class Workload:
    """The files of a device, and the verbs of the plans that it is given, by stage."""

    published: Publication
    key: PrivateKey
    data: FleetData
    plans: dict[str, tuple[m.Verb, ...]]


class Board:
    """A device's process, and the aggregator that it hears."""

    def __init__(self, folder: Path, broker: str, workload: Workload) -> None:
        published = workload.published
        bundle = published.bundle
        self._topics, self._bundle, self._round = Topics(FLEET), bundle, 0
        (folder / TRUST_FILE).write_bytes(published.trust)
        service = new_key()
        until_s = time.time() + 3600
        self._sign = Signer(service, vouch(workload.key, FLEET, service.public_key(), until_s))
        self._model = encode_tensors(
            {s.key: bundle.initial[s.key] for s in bundle.manifest.received()}
        )
        self._link = MqttLink(BrokerAddress.parse(broker), f"{FLEET}@aggregator")
        self._link.subscribe(*self._topics.from_devices)
        self.device_id = "board"
        options = ["--id", self.device_id, "--data", folder / "data", "--state", folder / "state"]
        options += ["--broker", broker, "--fleet", FLEET, "--trust", folder / TRUST_FILE]
        self._log = folder / "edge.log"
        command = ["-m", "edge_client.main", "run", *map(str, options)]
        self._process = start_process(command, self._log, environment())

    def connect(self) -> Memory:
        """Wait for the check-in, and answer it."""
        self._await("check-in")
        time.sleep(0.5)
        memory = self._memory()
        status = m.AggregatorStatus(True, "0" * 32, EPOCH, time.time())
        self._say(self._topics.aggregator, status)
        for payload in (self._bundle.payload, self._model):
            topic = self._topics.blob(digest(payload))
            self._link.publish(topic, payload, retain=True)
        return memory

    def carry_out(self, *verbs: m.Verb) -> Memory:
        """Give the device a plan, and wait for its update."""
        self._forget_peak()
        self._round += 1
        plan = m.Plan(
            run_id=RUN,
            epoch=EPOCH,
            round=self._round,
            attempt=1,
            device_id=self.device_id,
            bundle=self._bundle.digest,
            model=digest(self._model),
            verbs=verbs,
            seed=self._round,
            deadline_at_s=time.time() + 600,
        )
        self._say(self._topics.device(self.device_id, "plan"), plan)
        update = self._await("update")
        reply = m.Acknowledge(self.device_id, digest(update))
        self._say(self._topics.device(self.device_id, "reply"), reply)
        time.sleep(0.5)
        return self._memory()

    def finish(self) -> Memory:
        """Let the device take the model into use."""
        self._forget_peak()
        bundle, model = self._bundle.digest, digest(self._model)
        finish = m.Finish(self.device_id, RUN, EPOCH, bundle, model, number=1)
        self._say(self._topics.device(self.device_id, "reply"), finish)
        end_s = time.monotonic() + PATIENCE_S
        while "Model in use: " not in self._log.read_text():
            if time.monotonic() > end_s:
                raise RuntimeError(self._log.read_text())
            time.sleep(0.1)
        time.sleep(0.5)
        return self._memory()

    def close(self) -> None:
        """End the process and the connection."""
        stop_processes([self._process])
        self._link.close()

    def _say(self, topic: str, message: m.ToDeviceMessage) -> None:
        self._link.publish(topic, self._sign(message))

    def _await(self, kind: str) -> bytes:
        """Return the payload of the next message of a kind; all other messages are dropped."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            event = self._link.receive(timeout_s=1.0)
            if isinstance(event, Delivery):
                address = self._topics.parse(event.topic)
                if address.kind == kind:
                    return event.payload
                if address.kind == "decline":
                    raise RuntimeError(event.payload.decode())
        raise RuntimeError(f"no {kind} within {PATIENCE_S:g} s\n{self._log.read_text()}")

    def _forget_peak(self) -> None:
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def _memory(self) -> Memory:
        own = Path(f"/proc/{self._process.pid}")
        return read_memory((own / "status").read_text() + (own / "smaps_rollup").read_text())


def environment() -> dict[str, str]:
    """Return the variables of a board: one thread, and modules compiled beforehand, as an
    installation has them."""
    compiled = str(Path(tempfile.gettempdir()) / "shoal-board-pycache")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}


def read_memory(text: str) -> Memory:
    """Return the memory that `status` and `smaps_rollup` of a process state."""
    words = {"rss": "VmRSS:", "pss": "Pss:", "peak": "VmHWM:"}
    return {key: int(text.partition(word)[2].split()[0]) / 1024 for key, word in words.items()}


def import_all() -> Memory:
    """Return the memory of a process that has imported what `shoal-edge run` imports."""
    code = ";".join(
        [
            "import edge_client.main, edge_client.graphs.onnx",
            "own = '/proc/self/'",
            "print(open(own + 'status').read(), open(own + 'smaps_rollup').read())",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    return read_memory(done.stdout)


def make_workload() -> Workload:
    """Return the work that a campaign of `personal` gives to one watch."""
    torch.set_num_threads(1)
    data, spec, key = select_devices(load_data("watch"), 1), read_algorithm("personal"), new_key()
    objective, coordinator = objective_for_fleet(data, spec, 0), make_algorithm(spec).coordinator
    published = publish(objective, data.window, data.classes, data.sample(), key, name=data.name)
    context = coordinator.begin({k: v.numpy() for k, v in objective.initial().items()}, 0)
    train, longer = (Work(32, epochs).train() for epochs in (1, 10))
    plans = {
        "survey of the data": (SURVEY,),
        "training, 1 epoch": (m.Evaluate(), train),
        "training, 10 epochs": (m.Evaluate(), longer),
        "choosing the personal model": coordinator.closing(context, Work(32, 1)),
    }
    return Workload(published, key, data, plans)


def measure(workload: Workload, processes: int) -> dict[str, Memory]:
    """Return the memory of each stage, the medians of some processes."""
    measured = []
    import_all()  # so that all modules are compiled
    for _ in range(processes):
        with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as folder:
            write_device_folder(
                workload.data, next(iter(workload.data.devices)), Path(folder) / "data"
            )
            board = Board(Path(folder), broker.url, workload)
            try:
                rows = {IMPORTED: import_all(), CONNECTED: board.connect()}
                rows |= {name: board.carry_out(*verbs) for name, verbs in workload.plans.items()}
                rows[IN_USE] = board.finish()
            finally:
                board.close()
            measured.append(rows)
    first = measured[0]
    return {
        stage: {kind: statistics.median(rows[stage][kind] for rows in measured) for kind in row}
        for stage, row in first.items()
    }


def table(stages: dict[str, Any]) -> str:
    """Return the stages as Markdown."""
    now, before = stages["now"], stages["before"]
    lines = [
        f"An edge process of one watch by stage; MiB, medians of {stages['processes']} processes; "
        "in brackets an earlier commit.",
        "",
        "| stage | RSS | PSS | peak of RSS |",
        "|---|---|---|---|",
    ]
    for stage, row in now.items():
        cells = [
            f"{row[kind]:.0f}" + (f" ({before[stage][kind]:.0f})" if stage in before else "")
            for kind in ("rss", "pss", "peak")
        ]
        lines.append(f"| {stage} | {' | '.join(cells)} |")
    return "\n".join(lines)
