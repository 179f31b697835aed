"""A service and its devices as processes, on a broker that can be stopped."""

import io
import json
import subprocess
import urllib.request
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggregator.fleet.records import Campaign, Fleet
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore, load_fleet
from aggregator.view.round_record import RoundRecord
from shoal.cli import application
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from simulation.local.fleet import LocalFleet, start_process, stop_processes
from tests.support.bundles import Exported
from tests.support.known import known
from tests.support.waiting import wait_until
from wire.messages import Metrics

ROUNDS = 6
RUN = "run-1"
"""The campaign."""


@dataclass
class Field:
    """A broker, edge processes and an aggregator process, in a folder."""

    data: FleetData
    exported: Exported
    folder: Path
    broker_url: str
    epochs: int = 30
    database: str = ""
    """Empty: the database in the service's folder."""
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
        with redirect_stdout(printed):
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

    @property
    def url(self) -> str:
        """URL of the database."""
        return self.database or sqlite_url(self.folder / "run" / "shoal.db")

    def stored(self) -> Fleet:
        """Return the fleet as it is stored."""
        return known(load_fleet(self.url))

    def campaign(self) -> Campaign:
        """Return the campaign as it is stored."""
        return self.stored().campaigns[RUN]

    def records(self) -> list[RoundRecord]:
        """Return the records of the campaign's rounds."""
        with closing(FleetStore(self.url)) as store:
            return store.rounds(RUN)

    def finish(self) -> Campaign:
        """Wait for the campaign's end; return it."""
        self.wait(lambda run: run["phase"] == "finished")
        return self.campaign()

    def stop(self) -> None:
        stop_processes(self.serving)


def same_models(campaign: Campaign, expected: Campaign) -> None:
    """Check that two campaigns have the same models, groups and final tests."""
    assert campaign.models == expected.models
    assert groups(campaign) == groups(expected)
    assert final_tests(campaign) == final_tests(expected)


def groups(campaign: Campaign) -> dict[str, str]:
    """Return the groups that training has found, by device."""
    return {d: member.group for d, member in campaign.members.items() if member.group}


def final_tests(campaign: Campaign) -> dict[str, Metrics]:
    """Return the results of the last tests, by device."""
    return {d: update.evaluated for d, update in campaign.updates.items()}
