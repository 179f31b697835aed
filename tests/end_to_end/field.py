"""A service and its devices as processes, on a broker that can be stopped."""

import contextlib
import io
import json
import subprocess
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggregator.core.state import RunState
from aggregator.storage.engine import sqlite_url
from aggregator.storage.sql_store import load_run
from shoal.cli import application
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from simulation.local.fleet import LocalFleet, start_process, stop_processes
from tests.support.bundles import Exported
from tests.support.waiting import wait_until

ROUNDS = 6


@dataclass
class Field:
    """A broker, edge processes and an aggregator process, in a folder."""

    data: FleetData
    exported: Exported
    folder: Path
    broker_url: str
    epochs: int = 30
    port: int = field(default_factory=free_port)
    serving: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def serve(self, *more: str) -> subprocess.Popen[bytes]:
        options = {
            "--folder": self.folder / "run",
            "--bundle": self.exported.folder,
            "--broker": self.broker_url,
            "--fleet": "t",
        }
        options |= {
            "--rounds": ROUNDS,
            "--min-devices": len(self.data.devices),
            "--local-epochs": self.epochs,
            "--port": self.port,
        }
        arguments = [part for name, value in options.items() for part in (name, str(value))]
        self.serving.append(
            start_process(
                ["-m", "shoal", "serve", *arguments, *more], self.folder / "aggregator.log"
            )
        )
        return self.serving[-1]

    def devices(self, command: str, *arguments: str) -> str:
        """Return what `shoal devices` prints of the service's folder."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            application("devices")(
                ["devices", command, str(self.folder / "run"), *arguments], standalone_mode=False
            )
        return printed.getvalue()

    def edges(self) -> LocalFleet:
        return LocalFleet(
            self.data,
            self.folder / "devices",
            self.broker_url,
            "t",
            self.exported.folder / "trust.pem",
        )

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            return json.load(response)

    def wait(self, ready: Any, patience_s: float = 120.0) -> dict[str, Any]:
        return wait_until(
            lambda: run if ready(run := self.get("/run")) else None,
            patience_s,
            lambda: (self.folder / "aggregator.log").read_text()[-3000:],
        )

    def wait_for_round(self, number: int) -> None:
        self.wait(lambda run: run["round"] >= number and run["received"] >= 1)

    def finish(self) -> RunState:
        self.wait(lambda run: run["phase"] == "finished")
        state = load_run(sqlite_url(self.folder / "run" / "shoal.db"), "run-1")
        assert state is not None
        return state

    def stop(self) -> None:
        stop_processes(self.serving)


def same_models(state: RunState, expected: RunState) -> None:
    assert state.models == expected.models
    assert state.starts == expected.starts
    assert {d: r.evaluated for d, r in state.received.items()} == {
        d: r.evaluated for d, r in expected.received.items()
    }
