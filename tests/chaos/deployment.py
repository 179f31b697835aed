"""A whole fleet of processes on this machine: a broker, a service, three devices, and a witness on
the broker. Each can be killed."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggregator.fleet.reconcile import REST_S
from aggregator.ports import StorageFailed
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import read_rounds
from aggregator.storage.schema import reading
from aggregator.view.round_record import RoundRecord
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import LocalFleet, start_process, start_program, stop_processes
from tests.chaos.ledger import Place, Verdict, Witness
from tests.support.brokers import wait_for_port
from tests.support.postgres import Postgres

FLEET = "chaos"
DEADLINE_S, GRACE_S = 8.0, 2.0
PATIENCE_S = REST_S + 2 * DEADLINE_S
"""A round is aggregated within so many seconds of a fault: a device that missed a deadline by it
rests before it is asked again."""
START_S = 90.0
"""A service answers within so many seconds of its start, also where all processors are busy."""


class ServiceEnded(Exception):
    """The service ended by itself; the text is the end of its log."""


class Broker:
    """Mosquitto where it is installed, else the embedded broker. It keeps nothing on disk: killed,
    it has forgotten everything."""

    def __init__(self, folder: Path) -> None:
        self._binary = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
        self._log = folder / "broker.log"
        self._embedded = None if self._binary else EmbeddedBroker()
        self._port = free_port()
        self._config = folder / "mosquitto.conf"
        limits = "message_size_limit 67108864\nmax_queued_messages 0\nmax_inflight_messages 0\n"
        self._config.write_text(f"listener {self._port} 127.0.0.1\nallow_anonymous true\n{limits}")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Name of the program."""
        return "Mosquitto" if self._binary else "the embedded broker"

    @property
    def url(self) -> str:
        """The address for ``--broker``."""
        return self._embedded.url if self._embedded else f"mqtt://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start, and return when it accepts connections."""
        if self._embedded:
            self._embedded.start()
        elif self._binary:
            self._process = start_program([self._binary, "-c", str(self._config)], self._log)
            wait_for_port(self._port)

    def kill(self) -> None:
        """Kill it; the embedded one can only be stopped, which it forgets as much by."""
        if self._embedded:
            self._embedded.stop()
        elif self._process:
            kill(self._process)


@dataclass
class Deployment:
    """The processes, in a folder. On entering the context the broker, the witness, the devices and
    the service are started."""

    data: FleetData
    bundle: Path
    folder: Path
    epochs: int = 3
    postgres: Postgres | None = None
    """The server with the service's database; None: SQLite in the service's folder."""
    port: int = field(default_factory=free_port)
    services: list[subprocess.Popen[bytes]] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further options of the service."""

    def __enter__(self) -> "Deployment":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.new_database()
        self.broker = Broker(self.folder)
        self.broker.start()
        try:
            self.witness = Witness(self.broker.url, FLEET)
            self.devices = LocalFleet(
                self.data,
                self.folder / "devices",
                self.broker.url,
                FLEET,
                self.bundle / "trust.pem",
            )
            self.devices.__enter__()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "devices"):
            self.devices.__exit__()
        stop_processes(self.services)
        if hasattr(self, "witness"):
            self.witness.close()
        self.broker.kill()

    @property
    def served(self) -> Path:
        """The service's folder."""
        return self.folder / "run"

    def new_database(self) -> None:
        """Have services use an empty database from now on; one in their folder goes with that."""
        self.url = sqlite_url(self.served / "shoal.db")
        if self.postgres is not None:
            self.url = self.postgres.create(secrets.token_hex(6))

    @property
    def service(self) -> "subprocess.Popen[bytes]":
        """The service's process, the last that was started."""
        return self.services[-1]

    @property
    def log(self) -> Path:
        """Path of the services' log."""
        return self.folder / "service.log"

    def launch(
        self, *more: str, folder: Path | None = None, port: int | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a service, without waiting for it."""
        options = {
            "--folder": folder or self.served,
            "--bundle": self.bundle,
            "--broker": self.broker.url,
            "--fleet": FLEET,
        }
        options |= {
            "--algorithm": "fedavg",
            "--rounds": 1_000_000,
            "--local-epochs": self.epochs,
            "--port": port or self.port,
        }
        options |= {"--deadline": DEADLINE_S, "--grace": GRACE_S}
        options |= {"--database": self.url} if self.postgres is not None else {}
        arguments = [part for name, value in options.items() for part in (name, str(value))]
        return start_process(
            ["-m", "shoal", "serve", *arguments, *more],
            self.log,
            {"OMP_NUM_THREADS": "1", **self.environment},
        )

    def start(self, *more: str) -> None:
        """Start the service, and return when it answers.

        Raises:
            ServiceEnded: it did not start.
        """
        self.services.append(self.launch(*more))
        self.wait(lambda: self.get("/health") is not None, START_S, "the service does not answer")

    def stop(self) -> None:
        """Stop the service in order."""
        stop_processes([self.service])

    def restart(self, environment: Mapping[str, str]) -> None:
        """Stop the service and start it with this environment."""
        self.stop()
        self.environment = environment
        self.start()

    def snapshot(self, to: Path) -> int:
        """Copy the service's folder as it is at one moment; returns the witness's mark of that
        moment."""
        os.kill(self.service.pid, signal.SIGSTOP)
        try:
            self.settle()
            shutil.rmtree(to, ignore_errors=True)
            shutil.copytree(self.served, to)
            return self.witness.mark()
        finally:
            os.kill(self.service.pid, signal.SIGCONT)

    def settle(self) -> None:
        """Return when the witness has read what a service that was killed or halted had sent."""
        time.sleep(0.3)

    def get(self, path: str) -> Any:
        """Return the service's answer, or None if it does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=5
            ) as response:
                return json.load(response)
        except OSError:
            return None

    def wait(self, ready: Callable[[], bool], patience_s: float, problem: str) -> float:
        """Return when `ready`; the seconds that it took.

        Raises:
            ServiceEnded: the service ended meanwhile.
            TimeoutError: with the problem as its text, it did not get there.
        """
        start_s = time.monotonic()
        while not ready():
            if self.service.poll() is not None:
                raise ServiceEnded(self.log.read_text()[-3000:])
            if time.monotonic() - start_s > patience_s:
                raise TimeoutError(
                    f"{problem} after {patience_s:.0f} s; {self.get('/run')}\n"
                    f"{self.log.read_text()[-3000:]}"
                )
            time.sleep(0.02)
        return time.monotonic() - start_s

    def round(self) -> int:
        """The latest round; 0 before the first, -1 if the service does not answer."""
        run = self.get("/run")
        return int(run["round"]) if run else -1

    def paused(self) -> bool:
        """Return True if the service reports that it is paused."""
        run = self.get("/run")
        return bool(run and run["paused"])

    def wait_for_rounds(self, number: int, patience_s: float) -> float:
        """Return when so many rounds more have been aggregated; the seconds that it took. Errors:
        as `wait`."""
        self.wait(lambda: self.round() >= 0, patience_s, "the service does not answer")
        wanted = max(1, self.round()) + number
        return self.wait(
            lambda: self.round() >= wanted, patience_s, f"{number} more rounds were not aggregated"
        )

    def place(self) -> Place:
        """The run and its latest round."""
        self.wait(lambda: self.round() >= 0, START_S, "the service does not answer")
        run = self.get("/run")
        return Place(run["settings"]["run_id"], run["round"])

    def records(self) -> list[RoundRecord]:
        """The records of the closed rounds, out of the service's database."""
        with reading(self.url, StorageFailed) as connection:
            return [] if connection is None else read_rounds(connection, "run-1")

    def audit(self, since: int, models: bool = True) -> Verdict:
        """Hold acknowledgements and records against each other, from round `since` on; but for the
        last record, whose model nobody may have been sent yet."""
        place, records = self.place(), self.records()
        self.settle()
        return self.witness.audit(place.run_id, records[:-1], since, models)

    def resident_bytes(self) -> int:
        """The service's resident memory now."""
        for line in Path(f"/proc/{self.service.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill -9, and wait for the end."""
    process.kill()
    process.wait()
