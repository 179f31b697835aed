"""Apple's pfl-research on a model of `benchmarks.usual_speed`, with two processes: ``run_pfl_usual
MODEL ROUNDS``."""

import sys
from importlib.metadata import version

import torch

from benchmarks.peers import workload
from benchmarks.peers.run_pfl import simulate, together
from benchmarks.speed_models import BATCH, DEVICES, EXAMPLES, MODELS, MOMENTUM, RATE, device


def main(name: str, rounds: int) -> None:
    """Train, and say with what."""
    ours, theirs = (
        (BATCH, EXAMPLES, MOMENTUM, RATE),
        (workload.BATCH, workload.WINDOWS, workload.MOMENTUM, workload.RATE),
    )
    assert ours == theirs, "`simulate` has the batches and rates of its own workload"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, shape = MODELS[name]
    data = []
    for number in range(DEVICES):
        x, y = device(number, shape)
        data.append((torch.from_numpy(x), torch.from_numpy(y)))
    _, first = together(2, lambda: simulate(make(), data.__getitem__, DEVICES, rounds))
    if first:
        print(f"pfl-{version('pfl')}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
