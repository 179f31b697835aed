"""A board with exported graphs keeps the candidate that a simulation with torch keeps."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from algorithms.composition import AlgorithmSpec, make_algorithm, read_algorithm
from algorithms.core.contract import Work
from edge_client.core.ports import Windows
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.work.executor import Executor, PlanResult
from simulation.datasets.windows import FleetData, for_task
from simulation.engine.graphs.eager import EagerGraphs
from simulation.objective import objective_for_fleet
from tests.support.bundles import write_bundle
from tests.support.labels import quantities, several_labels, steps
from tests.support.plans import plan
from tests.support.shared import shared_folder
from wire.arrays import names
from wire.bundle import Bundle, unpack
from wire.messages import Train
from wire.tasks import RECONSTRUCTION

ALGORITHM = "fedavg+personal:memory=16+none"
TASKS: dict[str, Callable[[FleetData], FleetData]] = {
    "classification": lambda data: data,
    "multi-label": several_labels,
    "regression": quantities,
    "sequence": steps,
    "reconstruction": lambda data: for_task(data, "reconstruction"),
}


@dataclass(frozen=True)
class Made:
    """A bundle, and the algorithm and the fleet that it was made for."""

    bundle: Bundle
    spec: AlgorithmSpec
    fleet: FleetData


IDS = ("all", "diverges", "fewest", "one", "none")


@pytest.fixture(scope="module", params=TASKS)
def made(
    request: pytest.FixtureRequest, fleet: FleetData, tmp_path_factory: pytest.TempPathFactory
) -> Made:
    own, spec = TASKS[request.param](fleet), read_algorithm(f"{ALGORITHM}+{request.param}")
    folder = shared_folder(
        tmp_path_factory, f"kept-{request.param}", lambda folder: write_bundle(folder, own, spec)
    )
    return Made(unpack((folder / "device.shoal").read_bytes()), spec, own)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_labelled", "lr"), [(None, 0.05), (13, 1e30), (9, 0.05), (1, 0.05), (0, 0.05)], ids=IDS
)
def test_boards_keep_the_candidate_that_simulations_keep(
    made: Made, num_labelled: int | None, lr: float
) -> None:
    fleet, bundle, spec = made.fleet, made.bundle, made.spec
    own = fleet.devices["d0"]
    x, y = own.train_x[:num_labelled], own.train_y[:num_labelled]
    windows = Windows(x, y, own.test_x, own.test_y, own.train_x[len(y) :])
    coordinator = make_algorithm(spec).coordinator
    closing = coordinator.closing(coordinator.begin({}, 0), Work(8, 1))
    verbs = tuple(
        msgspec.structs.replace(v, hyper={"lr": lr}) if isinstance(v, Train) else v for v in closing
    )
    model = names.of_role(bundle.initial, *names.EXCHANGED)
    graphs = (OnnxGraphs(bundle), EagerGraphs(objective_for_fleet(fleet, spec, seed=0)))

    def kept_by(one: OnnxGraphs | EagerGraphs) -> PlanResult:
        with np.errstate(all="ignore"):
            return Executor(bundle, one, windows).execute(
                plan(verbs=verbs), model, {}, lambda _d: {}
            )

    board, simulated = kept_by(graphs[0]), kept_by(graphs[1])
    assert (board.num_steps > 0) == (
        num_labelled not in (0, 1) or bundle.manifest.task == RECONSTRUCTION
    )
    np.testing.assert_array_equal(
        board.tensors["response/choose.choice"], simulated.tensors["response/choose.choice"]
    )
    assert board.private.keys() == simulated.private.keys()
    for key, value in board.private.items():
        assert np.isfinite(value).all()
        np.testing.assert_allclose(value, simulated.private[key], rtol=1e-3, atol=1e-4, err_msg=key)
    told = [
        Executor(bundle, one, windows).predict(model, board.private, own.test_x) for one in graphs
    ]
    np.testing.assert_allclose(told[0], told[1], rtol=1e-3, atol=1e-4)
    metrics = [
        Executor(bundle, one, windows).evaluate(model, board.private, own.test_x, own.test_y)
        for one in graphs
    ]
    assert metrics[0].loss_sum == pytest.approx(board.evaluated.loss_sum, rel=1e-3)
    assert metrics[0].num_correct == metrics[1].num_correct
    assert metrics[0].loss_sum == pytest.approx(metrics[1].loss_sum, rel=1e-3)
