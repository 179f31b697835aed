"""`shoal simulate`: a fleet on one machine, before anything is rolled out."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from aggregator.core.state import Event, RoundAggregated, RunState
from aggregator.summary import count_groups
from shoal.commands import options as opt
from shoal.report import device_table, prepare_folder, verdict, write_report
from simulation import simulate as simulation
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import select_devices
from simulation.partition import partition as deal


def simulate(
    data: opt.Data = "watch",
    algorithm: opt.AlgorithmName = "distfl",
    rounds: opt.Rounds = 20,
    local_epochs: opt.LocalEpochs = 1,
    seed: opt.Seed = 0,
    out: opt.Out = Path("runs/simulate"),
    signature: opt.Signature = "both",
    partition: Annotated[str, typer.Option(help="user (one device per subject), or iid (the same windows dealt at random).")] = "user",
    devices: opt.Devices = None,
    batch_size: opt.BatchSize = 32,
    lr: opt.Lr = None,
) -> None:
    """Simulate a fleet: the aggregator and the devices of the field, in one process, on a virtual clock."""
    console = Console()
    fleet = deal(select_devices(load_data(data), devices), partition, seed)
    settings = simulation.SimulationSettings(
        algorithm, rounds, local_epochs, seed, batch_size, lr, opt.algorithm_options(algorithm, signature)
    )
    prepare_folder(out)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[say]}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{algorithm} on {fleet.name}, {len(fleet.devices)} devices", total=rounds, say="")

        def observe(state: RunState, event: Event) -> None:
            if isinstance(event, RoundAggregated):
                progress.update(task, completed=event.round, say=f"groups {count_groups(state.starts)}")

        outcome = simulation.simulate(fleet, settings, observe)
    files = write_report(out, outcome.summary, outcome.records, outcome.blobs)
    console.print(device_table(outcome.summary))
    console.print(verdict(outcome.summary))
    console.print(f"written: {', '.join(str(f) for f in files)}", soft_wrap=True)
