"""Flower: a `ServerApp` with the `FedAvg` strategy and a `ClientApp` (`flower_client.py`), on its
simulation runtime (Ray).

`client_resources` of one core each, as its page 'Run simulations' says, so that as many clients run
at once as there are cores; no client-side evaluation. `run_simulation` and `flwr run` are the same
runtime; the former needs no project folder.
"""

import logging
import time
from importlib.metadata import version

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.flower_client import app
from benchmarks.peers.workload import durations, make_model, read_job, report


def main() -> None:
    """The strategy's `evaluate_fn` is called before the first round and after each one: it notes
    the time."""
    job = read_job()
    logging.getLogger("flwr").setLevel(logging.WARNING)  # a line per message otherwise
    stamps: list[float] = []
    model, server = make_model(), ServerApp()

    def note(_round: int, _arrays: ArrayRecord) -> None:
        stamps.append(time.perf_counter())

    @server.main()
    def serve(grid: Grid, _context: Context) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=job.devices, min_available_nodes=job.devices
        )
        config = ConfigRecord({"data": str(job.data)})
        arrays = ArrayRecord(model.state_dict())
        result = strategy.start(grid, arrays, job.rounds, train_config=config, evaluate_fn=note)
        model.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        server,
        app,
        num_supernodes=job.devices,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {
                "num_cpus": job.processes,
                "logging_level": logging.ERROR,
                "log_to_driver": False,
            },
        },
    )
    report(
        durations(stamps),
        model,
        job,
        f"flwr {version('flwr')}, ray {version('ray')}, torch {torch.__version__}",
    )


if __name__ == "__main__":
    main()
