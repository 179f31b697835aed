"""Costs of one device's client over a campaign, for `benchmarks.cpp_client`.

The fleet is real: `shoal init`, Mosquitto with TLS and a certificate for each party, and `shoal
serve`. Another subscriber of the broker takes the times of messages.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from aggregator.enrolment.authority import read_authority, write_pair
from benchmarks.board import environment, read_memory
from benchmarks.quick_starts import known_program
from export.publish import TRUST_FILE
from simulation.local.broker import free_port
from simulation.local.fleet import start_program, stop_processes
from wire.codec import decode_update
from wire.identity.certificates import new_tls_key
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery
from wire.topics import Topics

FLEET, DEVICE, WATCHER = "default", "board", "watcher"
PATIENCE_S, REST_S = 120.0, 3.0
ROUNDS, EPOCHS = 5, 10
"""Number of training rounds of a campaign, and of passes over the windows in each."""


class Campaign:
    """A fleet of one device in a folder, and its messages as they pass the broker."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.folder, self.trust = folder, bundle / TRUST_FILE
        self._served, self.port = folder / "served", free_port()
        self.authority, self.url = self._served / "ca.pem", f"mqtts://localhost:{self.port}"
        self._topics = Topics(FLEET)
        self._processes: list[subprocess.Popen[bytes]] = []
        run_shoal(
            *("init", folder / "serve.toml", "--tls", "localhost,127.0.0.1"),
            *("--folder", self._served, "--bundle", bundle, "--broker-port", self.port),
        )
        with (self._served / "broker" / "shoal.acl").open("a") as file:
            file.write(f"\nuser {WATCHER}\ntopic read shoal/#\n")
        authority, pairs = read_authority(self._served), {}
        assert authority is not None
        for name in (DEVICE, WATCHER):
            pairs[name], key = folder / f"{name}.pem", new_tls_key()
            write_pair(pairs[name], key, authority.issue(key.public_key(), name, time.time()))
        self.pair = pairs[DEVICE]
        configuration = self._served / "broker" / "mosquitto.conf"
        self._start([known_program("mosquitto"), "-c", str(configuration)], "broker.log")
        address = BrokerAddress.parse(self.url, self.authority, pairs[WATCHER])
        self._link = MqttLink(address, WATCHER)
        self._link.subscribe(
            *(self._topics.device(DEVICE, kind) for kind in ("check-in", "update", "decline")),
            *(self._topics.device(DEVICE, kind) for kind in ("plan", "reply")),
        )

    def _start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        process = start_program(command, self.folder / log, environment())
        self._processes.append(process)
        return process

    def measure(self, command: list[str]) -> dict[str, Any]:
        """Return the costs of a client over a whole campaign."""
        began_s = time.monotonic()
        process = self._start(command, "client.log")
        start_s = self._next("check-in")[0] - began_s
        time.sleep(REST_S)
        rest, rest_s = memory_of(process.pid), processor_s(process.pid)
        options = ["--rounds", ROUNDS, "--local-epochs", EPOCHS, "--min-devices", 1]
        options += ["--algorithm", "fedavg", "--min-group", 1, "--port", free_port()]
        options += ["--enrol-port", free_port(), "--config", self.folder / "serve.toml"]
        service = [sys.executable, "-m", "shoal", "serve", *map(str, options)]
        self._start(service, "serve.log")
        rounds: list[dict[str, float]] = []
        while len(rounds) < ROUNDS:
            planned_s, plan = self._next("plan")
            sent_s, payload = self._next("update")
            update = decode_update(payload)[0]
            reply = json.loads(self._next("reply")[1].split(b"\n")[0])
            if reply["type"] != "acknowledge":
                raise RuntimeError(f"the service did not take an update: {reply}")
            if any(verb["type"] == "train" for verb in json.loads(plan.split(b"\n")[0])["verbs"]):
                trained = update.trained
                rounds.append(
                    {
                        "seconds": sent_s - planned_s,
                        "work_s": update.train_s,
                        "steps": update.num_steps,
                        "loss": trained.loss_sum / trained.num_examples,
                    }
                )
        training = memory_of(process.pid)
        return {
            "start_s": start_s,
            "rest": rest,
            "training": training,
            "processor_s": processor_s(process.pid) - rest_s,
            "rounds": rounds,
            "libraries": libraries_of(process.pid),
        }

    def _next(self, kind: str) -> tuple[float, bytes]:
        """Return time and payload of the device's next message of a kind; others are dropped."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            event = self._link.receive(timeout_s=1.0)
            if isinstance(event, Delivery) and event.payload:
                address = self._topics.parse(event.topic)
                if address.kind == kind:
                    return time.monotonic(), event.payload
                if address.kind == "decline":
                    raise RuntimeError(event.payload.decode())
        logs = [path.read_text()[-3000:] for path in sorted(self.folder.glob("*.log"))]
        raise RuntimeError("\n".join([f"no {kind} within {PATIENCE_S:g} s", *logs]))

    def close(self) -> None:
        """End the link and every process, the broker last."""
        self._link.close()
        stop_processes(self._processes[::-1])


def run_shoal(*words: object) -> None:
    """Run a command of `shoal` to its end."""
    command = [sys.executable, "-m", "shoal", *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stdout}{result.stderr}")


def memory_of(pid: int) -> dict[str, float]:
    """Return `rss`, `pss` and `peak` (VmHWM) of a process in MiB."""
    files = [Path(f"/proc/{pid}/{name}") for name in ("status", "smaps_rollup")]
    return read_memory("".join(file.read_text() for file in files))


def processor_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def libraries_of(pid: int) -> dict[str, float]:
    """Return the number and the size (MB) of the shared libraries of a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if ".so" in line}
    sizes = {path: path.stat().st_size / 1e6 for path in paths if path.exists()}
    runtime = [path for path in sizes if "executorch" in path.name]
    return {
        "number": len(sizes),
        "mb": sum(sizes.values()),
        "executorch_mb": sum(sizes[path] for path in runtime),
    }
