"""`shoal demo`: the whole product on this machine. A broker, the aggregator and one process per
device, on real data."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by


@handled_by("demo", loads="torch")
def demo(
    algorithm: opt.AlgorithmName = opt.DEFAULT_ALGORITHM,
    devices: opt.Devices = None,
    rounds: opt.Rounds = 20,
    out: opt.Out = Path("runs/demo"),
    data: opt.Data = "watch",
    local_epochs: opt.LocalEpochs = 1,
    seed: opt.Seed = 0,
    phones: Annotated[
        int,
        typer.Option(
            min=0,
            help="So many of the devices are Kotlin phones with ExecuTorch, on this machine's "
            "Java.",
        ),
    ] = 0,
) -> None:
    """Train twenty real smartwatches over MQTT, find who belongs together, and compare with
    FedAvg."""
