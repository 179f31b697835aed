"""A fleet of real processes that learns a task, takes up the release of it, and answers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.composition import read_algorithm
from export.publish import DEVICE_FILE
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker
from tests.end_to_end.field import Field
from tests.support.bundles import Exported, write_bundle
from tests.support.waiting import wait_until
from wire.arrays.tensors import Array
from wire.bundle import unpack

EPOCHS = 2


def learned(
    folder: Path, data: FleetData, exported_for: FleetData, algorithm: str
) -> tuple[dict[str, Any], list[Path]]:
    """The summary of a run of boards with the data, by a bundle that is exported for data like
    these; and their state folders, once all have the release."""
    (folder / "bundle").mkdir()
    write_bundle(folder / "bundle", exported_for, read_algorithm(algorithm))
    exported = Exported(folder / "bundle", unpack((folder / "bundle" / DEVICE_FILE).read_bytes()))
    with EmbeddedBroker() as broker:
        field = Field(data, exported, folder, broker.url, epochs=EPOCHS)
        try:
            with field.edges():
                field.serve("--algorithm", algorithm, "--release", "auto", "--rollout-steps", "1")
                field.finish()
                summary: dict[str, Any] = field.get("/summary")
                states = [folder / "devices" / d / "state" for d in data.devices]
                wait_until(
                    lambda: all((state / "current" / "model.json").exists() for state in states)
                )
        finally:
            field.stop()
    return summary, states


def predicted(state: Path, windows: Array) -> list[dict[str, Any]]:
    """Return the answers of `shoal-edge predict` for windows, by the model in a state folder."""
    path = state.parent / "windows.npy"
    np.save(path, windows)
    command = [
        sys.executable,
        "-m",
        "edge_client.main",
        "predict",
        "--state",
        str(state),
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
