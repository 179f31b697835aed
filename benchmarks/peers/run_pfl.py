"""Apple's pfl-research: `FederatedAveraging` on a `SimulatedBackend`, with one or more processes.

Its guide 'Fast distributed simulations': the same script is started once per process with
PFL_WORKER_ADDRESSES and PFL_WORKER_RANK, the users of a cohort are shared out, and the sums are
reduced with torch.distributed (gloo on a CPU). pfl exchanges the parameters and leaves BatchNorm's
running statistics where they are; a user's windows are taken in their order, for pfl does not
shuffle.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import torch
from torch import Tensor, nn

from benchmarks.peers.workload import (
    BATCH,
    EPOCHS,
    MOMENTUM,
    RATE,
    WINDOWS,
    Fleet,
    durations,
    make_model,
    read_job,
    report,
)


def main() -> None:
    """This process's share of the comparison; rank 0 tells the result."""
    job = read_job()
    model, fleet = make_model(), Fleet(job.data)
    seconds, first = together(
        job.processes, lambda: simulate(model, fleet.__getitem__, job.devices, job.rounds)
    )
    if first:
        report(seconds, model, job, f"pfl {version('pfl')}, torch {torch.__version__}")


def together(
    processes: int, run: Callable[[], tuple[list[float], bool]]
) -> tuple[list[float], bool]:
    """Return the result of `run` in this process; rank 0 starts the others with its own command
    line, and waits for them.

    Raises:
        SystemExit: one of the others failed.
    """
    others = []
    if processes > 1 and "PFL_WORKER_RANK" not in os.environ:
        os.environ["PFL_WORKER_ADDRESSES"] = ",".join(
            f"localhost:{port}" for port in free_ports(processes)
        )
        for rank in range(1, processes):
            others.append(
                subprocess.Popen(
                    [sys.executable, *sys.orig_argv[1:]],
                    env={**os.environ, "PFL_WORKER_RANK": str(rank)},
                )
            )
        os.environ["PFL_WORKER_RANK"] = "0"
    try:
        made = run()
        codes = [process.wait(60) for process in others]
    finally:
        for process in others:
            process.kill()
    if any(codes):
        raise SystemExit(f"workers of pfl ended with {codes}")
    return made


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def simulate(
    net: nn.Module, examples: Callable[[int], tuple[Tensor, Tensor]], devices: int, rounds: int
) -> tuple[list[float], bool]:
    """This process's share of a run on a model, which becomes the trained one: seconds of each
    round, and whether this is rank 0.

    `examples` gives device n its WINDOWS examples. pfl reads its environment while it is imported.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class WithMetrics(nn.Module):
        """The model with the two functions pfl calls."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.net(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
            return {
                "windows": Weighted(len(y), len(y))
            }  # pfl evaluates in round 0 and cannot be told not to; this costs nothing

    class Clock(TrainingProcessCallback):
        """Notes the time after every round."""

        def __init__(self) -> None:
            self.stamps = [time.perf_counter()]

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            self.stamps.append(time.perf_counter())
            return False, Metrics()

    module = WithMetrics()
    module.train()
    users = list(range(devices))
    # every user's windows count the same, which lets pfl share a cohort out evenly
    data = FederatedDataset(
        lambda number: Dataset(examples(number), user_id=str(number)),
        get_user_sampler("minimize_reuse", users),
        user_id_to_weight=dict.fromkeys(users, WINDOWS),
    )
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, 10**6, devices, 0),
        backend=SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            module,
            lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=MOMENTUM),
            torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(BATCH, EPOCHS, RATE),
        model_eval_params=NNEvalHyperParams(None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return durations(clock.stamps), pytorch_ops.distributed.global_rank == 0


if __name__ == "__main__":
    main()
