"""Surveys of a fleet's devices, as devices make them for a grouping, whatever the algorithm."""

import numpy as np
import torch

from algorithms.core.contract import LocalModel
from algorithms.groupings.surveys import PREFIX, Surveys
from algorithms.groupings.views import Points
from algorithms.objectives.gradients import tape
from algorithms.objectives.supervised import Supervised
from host.threads import one_thread
from simulation.datasets.windows import FleetData
from wire.arrays import names
from wire.arrays.tensors import Array

WINDOWS = 64
"""Maximum number of a device's windows in its survey."""


def distances(data: FleetData, objective: Supervised) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the distances (devices, devices) between surveys by inputs and by labels, and the ids.

    The surveys are made with the initial model. Devices without labelled windows are left out.
    """
    initial, models = objective.initial(), []
    for device_id, windows in sorted(data.devices.items()):
        if not windows.num_train:
            continue
        at = np.linspace(0, windows.num_train - 1, min(WINDOWS, windows.num_train)).astype(int)
        batch = {
            "x": torch.from_numpy(np.ascontiguousarray(windows.train_x[at])),
            "y": torch.from_numpy(np.ascontiguousarray(windows.train_y[at])),
        } | {name: torch.ones(len(at), *shape) for name, shape in objective.columns.items()}
        with one_thread(), tape():
            sums = objective.survey(initial, batch)
        answers = {
            PREFIX + names.name_of(key): (value / len(at)).numpy() for key, value in sums.items()
        }
        models.append(LocalModel(device_id, len(at), 1, "", {}, answers))
    if not models:
        return {}, ()
    surveys = Surveys().with_reports(models)
    members = np.arange(len(models))
    matrices = {name: Points(rows).distances(members) for name, rows in surveys.rows().items()}
    return {VIEWS[name]: matrix for name, matrix in matrices.items()}, surveys.device_ids


MOST = 200
"""Maximum number of devices on a map."""
VIEWS = {"statistics": "inputs", "labels": "labels"}
"""Names of the views of surveys for readers."""
