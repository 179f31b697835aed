"""A board with exported graphs keeps the candidate that a simulation with torch keeps."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from algorithms.core.contract import Work
from algorithms.registry import make_algorithm, read_algorithm
from edge_client.adapters.onnx_graphs import OnnxGraphs
from edge_client.core.ports import Windows
from edge_client.executor import Executor, Result
from simulation.datasets.windows import FleetData
from simulation.engine.graphs.eager import EagerGraphs
from simulation.objective import objective_for_fleet
from tests.bundles import write_bundle
from tests.plans import plan
from wire import names
from wire.bundle import Bundle, unpack
from wire.messages import Train

SPEC = read_algorithm("fedavg+personal:memory=16+none")


@pytest.fixture(scope="module")
def bundle(fleet: FleetData, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder: Path = tmp_path_factory.mktemp("personal")
    write_bundle(folder, fleet, SPEC)
    return unpack((folder / "device.shoal").read_bytes())


@pytest.mark.parametrize(("num_labelled", "lr"), [(None, 0.05), (12, 1e30), (1, 0.05), (0, 0.05)], ids=["all", "diverges", "one", "none"])
def test_boards_keep_the_candidate_that_simulations_keep(fleet: FleetData, bundle: Bundle, num_labelled: int | None, lr: float) -> None:
    own = fleet.devices["d0"]
    x, y = own.train_x[:num_labelled], own.train_y[:num_labelled]
    windows = Windows(x, y, own.test_x, own.test_y, own.train_x[len(y) :])
    coordinator = make_algorithm(SPEC).coordinator
    closing = coordinator.closing(coordinator.begin({}, 0), Work(8, 1))
    verbs = tuple(msgspec.structs.replace(v, hyper={"lr": lr}) if isinstance(v, Train) else v for v in closing)
    model = {key: value for key, value in bundle.initial.items() if names.is_exchanged(key)}
    graphs = (OnnxGraphs(bundle), EagerGraphs(objective_for_fleet(fleet, SPEC, seed=0)))

    def kept_by(one: OnnxGraphs | EagerGraphs) -> Result:
        with np.errstate(all="ignore"):
            return Executor(bundle, one, windows).execute(plan(verbs=verbs), model, {}, lambda _d: {})

    board, simulated = kept_by(graphs[0]), kept_by(graphs[1])
    assert (board.num_steps > 0) == (num_labelled not in (0, 1))
    np.testing.assert_array_equal(board.tensors["response/choose.kept"], simulated.tensors["response/choose.kept"])
    assert board.private.keys() == simulated.private.keys()
    for key, value in board.private.items():
        assert np.isfinite(value).all()
        np.testing.assert_allclose(value, simulated.private[key], rtol=1e-3, atol=1e-4, err_msg=key)
