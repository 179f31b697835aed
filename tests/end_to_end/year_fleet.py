"""The fleet of `tests.end_to_end.test_year`: twelve devices that enrol with tokens, and what they
predict."""

import json
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.core.ports import Windows
from edge_client.models.application import Model
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from simulation.local.fleet import write_device_folder
from tests.end_to_end.fleet import Fleet
from tests.support.fleets import synthetic_fleet
from tests.support.known import known

DEVICES = 12
SHIFT = 0.5
"""Offset of the measurements of odd devices."""
MARGIN, DEVICE_MARGIN = 0.03, 0.1
"""Permitted loss of accuracy when a campaign, a bundle or an algorithm changes: in the mean over
devices, and on one device."""
TRAINED = 48
"""Windows that a device trains on; it tests on as many."""
MODELS = """
from collections import OrderedDict
from torch import nn

def layers(shape, classes, blocks):
    made, channels, length = OrderedDict(), shape[0], shape[1]
    for i in range(1, blocks + 1):
        made[f"conv{i}"] = nn.Conv1d(channels, 16, 5, padding=2)
        made[f"norm{i}"], made[f"relu{i}"] = nn.BatchNorm1d(16), nn.ReLU()
        channels = 16
        if i <= 2:
            made[f"pool{i}"] = nn.MaxPool1d(2)
    made["flatten"] = nn.Flatten()
    made["head"] = nn.Linear(16 * (length // 4), classes)
    return nn.Sequential(made)

def first(shape, classes):
    return layers(shape, classes, 2)

def larger(shape, classes):
    return layers(shape, classes, 3)
"""
"""A model, and one with a block more: everything else has the same names and shapes."""


class YearFleet(Fleet):
    """A service with TLS, and devices with windows of their own."""

    def __init__(self, folder: Path, binary: str) -> None:
        super().__init__(folder, binary)
        self.data = _halved(synthetic_fleet(DEVICES, SHIFT, 2 * TRAINED, seed=3))
        self.devices = tuple(self.data.devices)
        self._before: dict[str, float] = {}
        self._began_s = time.monotonic()
        (folder / "models.py").write_text(MODELS)
        for device_id in self.devices:
            write_device_folder(self.data, device_id, folder / "data" / device_id)

    def bundle(self, name: str) -> Path:
        return self.folder / "bundles" / name

    def export(self, name: str, model: str, *options: object) -> None:
        """Export a bundle; all that come after the first are signed with the first one's key."""
        key = (
            ()
            if not self.bundle("first").exists()
            else ("--key", self.bundle("first") / "signing.key")
        )
        told = (
            "--data",
            "data",
            "--model",
            f"models.py:{model}",
            "--out",
            self.bundle(name),
            *key,
            *options,
        )
        self.run("shoal", "export", *told)

    def state(self, device_id: str) -> Path:
        return self.folder / "devices" / device_id

    def enrol(self, devices: Iterable[str]) -> None:
        """Enrol devices, each with a token of its own."""

        def one(device_id: str) -> None:
            token = self.run("shoal", "enrol", "token", self.served, "--tags", "lab").strip()
            self.run(
                "shoal-edge",
                "enrol",
                self.url,
                token,
                "--state",
                self.state(device_id),
                "--device",
                device_id,
            )

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, devices))

    def come(self, devices: Iterable[str]) -> None:
        """Start devices' clients."""
        for device_id in devices:
            data = ("--data", self.folder / "data" / device_id, "--state", self.state(device_id))
            self.start(device_id, "edge_client.main", "run", *data)

    def campaign(self, *words: object) -> str:
        return self.run("shoal", "campaign", words[0], self.served, *words[1:])

    def asks_nobody(self, campaign: str, for_s: float) -> bool:
        """Return True if a campaign gives no device a plan for so many seconds."""
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            if campaign in [
                self.get(f"/devices/{device_id}")["record"].get("campaign")
                for device_id in self.devices
            ]:
                return False
            time.sleep(0.5)
        return True

    def rollout(self, campaign: str) -> dict[str, Any]:
        """The last rollout of a campaign; empty if there was none."""
        return next((each for each in self.get("/rollouts") if each["campaign"] == campaign), {})

    def rolled_out(self, campaign: str, after: int = 0) -> dict[str, Any]:
        """Wait until a rollout of a campaign is done whose releases have greater numbers than
        this."""

        def found() -> dict[str, Any]:
            rollout = self.rollout(campaign)
            return (
                rollout
                if rollout
                and min(rollout["releases"].values()) > after
                and rollout["phase"] == "done"
                else {}
            )

        return self.wait(found)

    @property
    def last_release(self) -> int:
        return max((release["number"] for release in self.get("/releases")), default=0)

    def in_use(self, devices: Iterable[str]) -> dict[str, tuple[int, str]]:
        """Return the number and the model of the release in use, by device: the model by its
        folder, and the last release of this model."""
        numbers = {
            release["model"]: release["number"]
            for release in sorted(self.get("/releases"), key=lambda release: release["number"])
        }
        models = {
            device_id: current.model if (current := DeviceState(folder).current()) else ""
            for device_id, folder in ((d, self.state(d)) for d in devices)
        }
        return {device_id: (numbers.get(model, 0), model) for device_id, model in models.items()}

    def wait_for_use(self, devices: Iterable[str], after: int) -> None:
        """Wait until all of these devices use releases with greater numbers than this, and the
        service says the same."""
        wanted = tuple(devices)
        self.wait(lambda: all(number > after for number, _ in self.in_use(wanted).values()))
        self.agrees(wanted)

    def agrees(self, devices: Iterable[str]) -> None:
        """Wait until the service has as many devices using each release as devices have its
        model."""
        used = [number for number, _ in self.in_use(devices).values()]
        self.wait(
            lambda: all(
                self.get(f"/releases/{number}")["in_use"] == used.count(number)
                for number in set(used)
            )
        )
        listed = self.run("shoal", "models", "list", self.served)
        for number in set(used):
            line = next(line for line in listed.splitlines() if re.match(rf" +{number} ", line))
            assert int(line.split()[-1]) == used.count(number), listed

    def versions(self) -> dict[str, int]:
        """Return the version of the bundle in use, by device."""
        return {
            device_id: known(DeviceState(self.state(device_id)).current()).version
            for device_id in self.devices
        }

    def accuracy(self) -> dict[str, float]:
        """Return, by device, the share of test windows that its model classifies correctly."""
        named = {
            d: Model(self.state(d)).predict(self.data.devices[d].test_x).argmax(1)
            for d in self.devices
        }
        return {device_id: self._share(device_id, classes) for device_id, classes in named.items()}

    def keeps_accuracy(self, what: str) -> None:
        """Accuracy has not fallen since this was last asked: by `MARGIN` on the mean, and on no
        device by `DEVICE_MARGIN`, at most."""
        now, before = self.accuracy(), self._before
        mean = sum(now.values()) / len(now)
        print(
            f"{time.monotonic() - self._began_s:6.1f} s: after {what} {mean:.3f}, worst device "
            f"{min(now.values()):.3f}",
            flush=True,
        )
        if before:
            assert mean >= sum(before[d] for d in now) / len(now) - MARGIN, what
            assert [d for d in now if now[d] < before[d] - DEVICE_MARGIN] == [], what
        self._before = now

    def predicted(self, device_id: str) -> float:
        """Return the same share, measured by `shoal-edge predict`."""
        told = self.run(
            "shoal-edge",
            "predict",
            "--state",
            self.state(device_id),
            self.folder / "data" / device_id / "test.npz",
        )
        return self._share(
            device_id, np.array([int(json.loads(line)["class"]) for line in told.splitlines()])
        )

    def _share(self, device_id: str, named: np.ndarray) -> float:
        return float(np.mean(named == self.data.devices[device_id].test_y))


def _halved(data: FleetData) -> FleetData:
    """Return the fleet with half of each device's windows for training and half for tests."""
    halves = {
        device_id: Windows(
            w.train_x[:TRAINED], w.train_y[:TRAINED], w.train_x[TRAINED:], w.train_y[TRAINED:]
        )
        for device_id, w in data.devices.items()
    }
    return replace(data, devices=halves)
