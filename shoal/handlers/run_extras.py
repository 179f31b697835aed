"""What the report of a simulation shows besides its summary and records, gathered from what the
simulation left."""

import numpy as np

from algorithms.registry import AlgorithmSpec
from shoal.api.result import Result
from shoal.asked import NOW
from shoal.reports.pictures import class_counts
from shoal.reports.run_page import Extras
from simulation.cost import count
from simulation.datasets.windows import FleetData
from simulation.simulate import SimulationResult
from wire.tasks import CLASSIFICATION, SEQUENCE

MOST = 1000
"""Of a larger fleet so many devices are asked for predictions."""


def extras_of(outcome: SimulationResult, spec: AlgorithmSpec, held: FleetData) -> Extras:
    """The extras of a finished simulation; `held`: what devices had of the data, newcomers and
    all."""
    data, result, objective = outcome.data, Result(outcome), outcome.models.objective
    asked = sorted(data.devices)[:MOST]
    confusion = None
    if objective.task.of in (CLASSIFICATION, SEQUENCE):
        confusion = np.sum([result.confusion(device_id) for device_id in asked], axis=0)
    verbs = [verb for program in outcome.state.programs.values() for verb in program]
    return Extras(
        recipe=spec.recipe,
        confusion=confusion,
        confused=len(asked),
        classes=data.classes,
        holdings={
            d: class_counts(w.train_y, len(held.classes), held.window.steps)
            for d, w in held.devices.items()
        },
        counted=count(outcome.records, verbs, objective, data.window.shape),
        settings=NOW.get().settings,
    )
