"""A fleet in a folder, made by the commands of docs/operate.md: a service, Mosquitto with TLS, and
devices, each a real process."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from aggregator.enrolment.authority import read_authority, write_pair
from simulation.local.broker import free_port
from simulation.local.fleet import start_process, stop_processes
from tests.support.brokers import wait_for_port
from tests.support.known import known
from tests.support.waiting import wait_until
from wire.identity.certificates import new_tls_key
from wire.links.mqtt import BrokerAddress, MqttLink

Found = TypeVar("Found")
MODULES = {"shoal": "shoal", "shoal-edge": "edge_client.main"}


def find_mosquitto() -> str:
    """The path of Mosquitto; the test is skipped where Debian's package is not installed."""
    binary = shutil.which(
        "mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/usr/bin"
    )
    if binary is None:
        pytest.skip("Mosquitto is not installed: apt-get install mosquitto would run this")
    return binary


class Fleet:
    """A folder with a service, its broker and its devices. `served`: the service's folder;
    `configuration`: what `serve` reads."""

    def __init__(self, folder: Path, binary: str) -> None:
        self.folder, self.binary = folder, binary
        self.served, self.configuration = folder / "runs" / "served", folder / "serve.toml"
        self.ports = {"broker": free_port(), "http": free_port(), "enrol": free_port()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """Return the address at which devices enrol."""
        return f"https://localhost:{self.ports['enrol']}"

    def run(self, *command: object) -> str:
        """Run a command to its end, which must be a good one; returns what it printed."""
        words = [str(word) for word in command]
        done = subprocess.run(
            [sys.executable, "-m", MODULES[words[0]], *words[1:]],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def init(self, bundle: Path) -> None:
        """Make the authority, the broker's folder and the configuration; the test is skipped where
        devices could not be banned."""
        options = [
            "--folder",
            self.served,
            "--bundle",
            bundle,
            "--broker-port",
            self.ports["broker"],
        ]
        if "bans will not hold" in self.run(
            "shoal", "init", self.configuration, "--tls", "localhost,127.0.0.1", *options
        ):
            pytest.skip(
                "Mosquitto has no dynamic security here: apt-get install mosquitto would run this"
            )

    def start_broker(self) -> None:
        configuration = self.served / "broker" / "mosquitto.conf"
        with (self.folder / "broker.log").open("ab") as log:
            self.processes["broker"] = subprocess.Popen(
                [self.binary, "-c", str(configuration)], stdout=log, stderr=log
            )
        wait_for_port(self.ports["broker"])

    def start(self, name: str, *words: object) -> None:
        """Start a module's command; what it says goes to a file of this name."""
        self.processes[name] = start_process(["-m", *map(str, words)], self.folder / f"{name}.log")

    def serve(self, *options: object) -> None:
        """Start the service, and return when devices can enrol."""
        ports = ["--port", self.ports["http"], "--enrol-port", self.ports["enrol"]]
        self.start("serve", "shoal", "serve", "--config", self.configuration, *ports, *options)
        wait_for_port(self.ports["enrol"], 60)

    def stop(self, *names: str) -> None:
        stop_processes([self.processes.pop(name) for name in names])

    def close(self) -> None:
        """Stop everything."""
        stop_processes(list(self.processes.values()))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def get(self, path: str) -> Any:
        """Return the service's answer over HTTP."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.ports['http']}{path}", timeout=10
        ) as response:
            return json.load(response)

    def wait(self, ready: Callable[[], Found], patience_s: float = 90.0) -> Found:
        """Return what this finds, once it finds something."""
        return wait_until(ready, patience_s, lambda: self.log("serve")[-6000:])

    def link(self, name: str) -> MqttLink:
        """A client with a certificate of this name, as a thief of a device's credentials would have
        it."""
        authority, key, pair = (
            known(read_authority(self.served)),
            new_tls_key(),
            self.folder / f"{name}.pem",
        )
        write_pair(pair, key, authority.issue(key.public_key(), name, time.time()))
        return MqttLink(
            BrokerAddress.parse(
                f"mqtts://localhost:{self.ports['broker']}", self.served / "ca.pem", pair
            ),
            name,
        )
