"""A bundle's folder for the data of a fleet, as `shoal export` writes it."""

from pathlib import Path

from algorithms.core.contract import Objective
from algorithms.registry import AlgorithmSpec
from export.bundle import ExportedGraphs, make_bundle
from export.publish import own_key, publish
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet


def write_bundle(
    folder: Path, fleet: FleetData, algorithm: AlgorithmSpec, runtimes: tuple[str, ...] = ("onnx",)
) -> None:
    """Publish into a folder."""
    objective, key = objective_for_fleet(fleet, algorithm, seed=0), own_key(folder)
    published = publish(
        objective,
        fleet.window,
        fleet.classes,
        fleet.sample(),
        key,
        name=fleet.name,
        runtimes=runtimes,
    )
    published.write(folder, key)


def pack_graphs(exported: ExportedGraphs, data: FleetData, objective: Objective) -> bytes:
    """The bytes of an unsigned bundle of captured graphs for the data of a fleet."""
    return make_bundle(
        exported,
        name=data.name,
        bundle_version=1,
        objective=objective,
        classes=data.classes,
        window=data.window,
    )
