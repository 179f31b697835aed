"""Checks of a choice on devices: export, training on boards and phones, simulation backends."""

import numpy as np

from algorithms.composition import make_objective, read_algorithm
from edge_client.graphs.onnx import OnnxGraphs
from export.bundle import RUNTIMES
from export.parity import ParityError
from export.publish import publish
from export.runtimes import ONNX
from simulation.contract.fleet import (
    NAMES,
    WORK,
    Field,
    make_field,
    tiny_model,
    tiny_windows,
    window_of,
)
from simulation.contract.rounds import Broken
from simulation.engine.backend import IN_CPP, choose, training_graphs
from simulation.engine.options import EngineOptions
from wire.bundle import Bundle
from wire.errors import ConfigError
from wire.identity.keys import new_key
from wire.tasks import label_of

CLOSE = 2e-3
"""Maximum difference of boards from the simulation after two rounds, relative to a tensor's scale.

Boards add float32 in another order, and differences grow over a few steps.
"""
FLOOR = 1e-2
"""Minimum scale of a tensor."""


def on_a_board(algorithm: str) -> str:
    """Check export to ONNX and that two rounds of boards produce the simulation's models.

    The exported graphs must be within the bound of parity. Returns number of graphs and bytes as
    text.

    Raises:
        Broken: the graphs cannot be exported, or the models differ.
    """
    bundle = _published(algorithm, (ONNX,))
    boards, simulated = (
        make_field(algorithm, 3, graphs=OnnxGraphs(bundle)),
        make_field(algorithm, 3),
    )
    boards.play(2)
    simulated.play(2)
    _check_close(boards, simulated, "boards")
    return f"{len(bundle.manifest.graphs)} graphs, {len(bundle.payload):,} bytes"


def on_a_phone(algorithm: str) -> str:
    """Check export to ExecuTorch, with which phones train, and return its size in bytes as text.

    The exported programs must be within the bound of parity on ExecuTorch's own runtime.

    Raises:
        Broken: the graphs cannot be exported.
    """
    bundle = _published(algorithm, RUNTIMES)
    return f"{len(bundle.payload):,} bytes"


def on_backends(algorithm: str) -> str:
    """Check the fastest backend for a choice against torch, and return its name as a remark.

    Two rounds must produce the models of torch's own functions. The name is followed by the reason
    for a slower backend, if any.

    Raises:
        Broken: the models differ.
    """
    spec = read_algorithm(algorithm)
    objective = make_objective(spec, tiny_model(spec))
    field = make_field(spec, 3)
    programs = field.algorithm.programs(
        field.state, WORK, dict.fromkeys(field.state.models, "0" * 64)
    )
    trained = training_graphs(programs, objective)
    backend = choose(objective, field.bundle.manifest, EngineOptions(), trained)
    if backend.name in IN_CPP:
        fast = make_field(spec, 3, graphs=backend.graphs)
        fast.play(2)
        field.play(2)
        _check_close(fast, field, f"backend {backend.name}")
    return f"{backend.name}: {backend.reason}" if backend.reason else backend.name


def _published(algorithm: str, runtimes: tuple[str, ...]) -> Bundle:
    spec = read_algorithm(algorithm)
    objective = make_objective(spec, tiny_model(spec))
    windows = tiny_windows(
        0, label=label_of(objective.task.of, objective.model.num_classes, objective.model.steps)
    )
    try:
        publication = publish(
            objective,
            window_of(spec),
            NAMES,
            (windows.train_x, windows.train_y),
            new_key(),
            name="tiny",
            runtimes=runtimes,
        )
    except (ConfigError, ParityError) as error:
        raise Broken(str(error)) from error
    return publication.bundle


def _check_close(one: Field, other: Field, what: str) -> None:
    """Check that two fleets have the same groups, and models that differ by rounding alone.

    Raises:
        Broken: groups or models differ.
    """
    if one.state.models.keys() != other.state.models.keys():
        raise Broken(
            f"{what}: the groups are {sorted(one.state.models)}, in the simulation "
            f"{sorted(other.state.models)}"
        )
    for key, model in other.state.models.items():
        for name, value in model.items():
            off = float(np.abs(one.state.models[key][name] - value).max(initial=0))
            if not off <= CLOSE * max(FLOOR, float(np.abs(value).max(initial=0))):
                raise Broken(f"{what}: {name} of model {key} is off by {off:.3g} after two rounds")
