"""Bundles for the data of a fleet, as `shoal export` writes them."""

from dataclasses import dataclass
from pathlib import Path

from algorithms.composition import AlgorithmSpec
from algorithms.objectives.supervised import Supervised
from export.bundle import RUNTIMES, ExportedGraphs, capture_graphs, make_bundle
from export.publish import own_key, publish
from simulation.datasets.windows import FleetData
from simulation.objective import objective_for_fleet
from wire.bundle import Bundle, unpack


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


def pack_graphs(exported: ExportedGraphs, data: FleetData, objective: Supervised) -> bytes:
    """The bytes of an unsigned bundle of captured graphs for the data of a fleet."""
    return make_bundle(
        exported,
        name=data.name,
        bundle_version=1,
        objective=objective,
        classes=data.classes,
        window=data.window,
    )


@dataclass(frozen=True)
class Exported:
    """Export of `shoal export` for the synthetic fleet."""

    folder: Path
    bundle: Bundle


@dataclass(frozen=True)
class ExportedPrograms:
    """FedAvg's step and evaluation for the synthetic fleet, for ONNX and ExecuTorch, with batches
    of 32 at most."""

    bundle: Bundle
    objective: Supervised


def some_graphs(objective: Supervised, *names: str) -> Supervised:
    """The objective with these of its graphs alone: exporting one for ExecuTorch takes seconds."""
    whole = type(objective)
    some = type(
        whole.__name__,
        (whole,),
        {"graphs": lambda self: {name: whole.graphs(self)[name] for name in names}},
    )
    objective.__class__ = some
    return objective


def export_programs(fleet: FleetData, objective: Supervised, max_batch: int) -> Bundle:
    """A bundle for ONNX and ExecuTorch."""
    exported = capture_graphs(objective, fleet.window.shape, RUNTIMES, max_batch)
    return unpack(pack_graphs(exported, fleet, objective))
