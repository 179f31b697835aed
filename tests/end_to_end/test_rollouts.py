"""Releases with real processes and a real broker: a worse model is rolled back by itself, and a
service that is killed goes on."""

import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from simulation.local.fleet import LocalFleet, start_process, stop_processes
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet
from tests.support.waiting import wait_until

DEVICES = 6


@dataclass
class Field:
    """A broker, a service and edge processes, in a folder."""

    data: FleetData
    exported: Exported
    folder: Path
    broker: str
    port: int = field(default_factory=free_port)
    serving: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def serve(self, run: str, *more: str) -> subprocess.Popen[bytes]:
        options = {
            "--folder": self.folder / "run",
            "--bundle": self.exported.folder,
            "--broker": self.broker,
            "--fleet": "t",
        }
        options |= {
            "--run": run,
            "--algorithm": "fedavg",
            "--rounds": 2,
            "--min-devices": DEVICES,
            "--port": self.port,
            "--release": "auto",
        }
        options |= {"--rollout-steps": "0.4,1", "--rollout-patience": 20}
        arguments = [part for name, value in options.items() for part in (name, str(value))]
        self.serving.append(
            start_process(
                ["-m", "shoal", "serve", *arguments, *more], self.folder / "aggregator.log"
            )
        )
        return self.serving[-1]

    def edges(self) -> LocalFleet:
        return LocalFleet(
            self.data, self.folder / "devices", self.broker, "t", self.exported.folder / "trust.pem"
        )

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            return json.load(response)

    def rollout(self, campaign: str) -> dict[str, Any]:
        return next((each for each in self.get("/rollouts") if each["campaign"] == campaign), {})

    def wait(self, ready: Callable[[], Any], patience_s: float = 120.0) -> Any:
        return wait_until(
            ready, patience_s, lambda: (self.folder / "aggregator.log").read_text()[-5000:]
        )

    def in_use(self) -> dict[str, tuple[int, str]]:
        """Return the number of the offer in use and its model, by device, as its folder has it."""
        found = {}
        for device_id in self.data.devices:
            current = DeviceState(self.folder / "devices" / device_id / "state").current()
            found[device_id] = (current.release, current.model) if current is not None else (0, "")
        return found

    def shoal(self, *arguments: str) -> str:
        path = self.folder / "command.log"
        path.unlink(missing_ok=True)
        assert start_process(["-m", "shoal", *arguments], path).wait(60) == 0, path.read_text()
        return path.read_text()

    def stop(self) -> None:
        stop_processes(self.serving)


@pytest.fixture
def running(exported: Exported, tmp_path: Path, mosquitto: str) -> Iterator[Field]:
    field = Field(
        synthetic_fleet(num_devices=DEVICES, num_windows=60), exported, tmp_path, mosquitto
    )
    yield field
    field.stop()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_worse_canary_rolls_back_by_itself_and_a_service_killed_in_a_step_goes_on(
    running: Field,
) -> None:
    with running.edges() as edges:
        service = running.serve("good", "--local-epochs", "20")
        running.wait(lambda: running.rollout("good").get("phase") == "done")
        first = running.wait(
            lambda: (used := running.in_use()) and all(model for _, model in used.values()) and used
        )
        models = {model for _, model in first.values()}
        assert len(models) == 1
        stop_processes([service])

        # another campaign, which learns nothing
        service = running.serve(
            "bad", "--local-epochs", "1", "--lr", "0.000001", "--start-from", "initial"
        )
        running.wait(lambda: running.rollout("bad").get("phase") == "failed")
        assert "accuracy fell by" in running.rollout("bad")["reason"]

        def returned() -> list[str]:
            """Devices that were offered the bad release and have the good one again."""
            used = running.in_use()
            again = [d for d, (number, _) in used.items() if number > first[d][0]]
            return again if {model for _, model in used.values()} == models else []

        assert 0 < len(running.wait(returned)) < DEVICES, "a canary, and not everybody"
        releases = {release["number"]: release for release in running.get("/releases")}
        assert [releases[n]["state"] for n in (1, 2)] == ["released", "withdrawn"]
        assert (releases[1]["model"], len(releases)) == (*models, 2)
        listed = running.shoal("models", "list", str(running.folder / "run"))
        assert "withdrawn" in listed
        stop_processes([service])

        # a third, of which the service is killed in the middle of a step, while half of the devices
        # are away
        away = sorted(running.data.devices)[: DEVICES // 2]
        service = running.serve(
            "third", "--local-epochs", "5", "--rollout-max-drop", "1", "--rollout-patience", "1"
        )
        running.wait(lambda: running.rollout("third").get("phase") == "running")
        service.kill()
        service.wait()
        for device_id in away:
            stop_processes([edges.processes[device_id]])
        service = running.serve(
            "third", "--local-epochs", "5", "--rollout-max-drop", "1", "--rollout-patience", "1"
        )
        running.wait(lambda: running.rollout("third").get("step") == 1)
        for device_id in away:
            edges.start(device_id)
        running.wait(lambda: running.rollout("third").get("phase") == "done")
        last = max(running.get("/releases"), key=lambda release: release["number"])
        new = {last["model"]}
        running.wait(lambda: {model for _, model in running.in_use().values()} == new)
        answer = running.shoal("models", "rollback", str(running.folder / "run"), "--to", "1")
        assert "group good/0 returns to the model of release 1" in answer
        running.wait(lambda: {model for _, model in running.in_use().values()} == models)
