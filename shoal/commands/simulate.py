"""`shoal simulate`: a fleet on one machine, before anything is rolled out."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shoal.commands import options as opt
from shoal.folders import prepare_folder
from shoal.pictures import draw_holdings
from shoal.report import device_table, time_text, verdict, write_report
from simulation import simulate as simulation
from simulation.engine.options import ANY_RAY, Engine
from simulation.heterogeneity import measure
from simulation.partition import make_fleet
from simulation.ran import Told
from wire.errors import ConfigError

SHOWN = 1000
"""Of a larger fleet so many devices are measured and drawn."""


def simulate(
    data: opt.Data = "watch",
    algorithm: opt.AlgorithmName = "distfl",
    rounds: opt.Rounds = 20,
    local_epochs: opt.LocalEpochs = 1,
    seed: opt.Seed = 0,
    out: opt.Out = Path("runs/simulate"),
    partition: opt.Partition = "user",
    attack: opt.Attack = "",
    privacy: opt.PrivacyName = "",
    devices: opt.Devices = None,
    batch_size: opt.BatchSize = 32,
    lr: opt.Lr = None,
    hyper: opt.Hyper = None,
    model: opt.ModelName = "",
    pretrain: opt.Pretrain = "",
    newcomers: Annotated[int, typer.Option(min=0, help="So many devices are held out of training and join when it is over.")] = 0,
    cohort: opt.Cohort = 0,
    profiles: opt.Profiles = "",
    policy: opt.Policy = "",
    path: opt.WayName = "auto",
    workers: opt.Workers = 0,
    checkpoint: opt.Checkpoint = None,
    engine: opt.EngineName = "local",
    ray: opt.RayAddress = "",
    device: opt.Device = "",
    bf16: opt.Bf16 = False,
) -> None:
    """Simulate a fleet: the aggregator's mathematics and the devices' executor, on all cores of this machine or of a cluster."""
    console = Console()
    way = Engine(path, workers, checkpoint, ray_address(engine, ray), device, bf16)  # type: ignore[arg-type]
    fleet = make_fleet(data, partition, devices, seed)
    algorithm = opt.with_privacy(algorithm, privacy)
    settings = simulation.SimulationSettings(
        algorithm,
        rounds,
        local_epochs,
        seed,
        batch_size,
        opt.hyper_values(lr, hyper),
        model,
        attack,
        pretrain,
        newcomers,
        cohort,
        profiles,
        policy,
    )
    holdings = draw_holdings(prepare_folder(out) / "holdings.png", fleet.some(SHOWN))
    heterogeneity = measure(fleet.some(SHOWN))
    console.print("heterogeneity: " + ", ".join(f"{name} {value:.3g}" for name, value in heterogeneity.items()))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[say]}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{algorithm} on {fleet.name}, {len(fleet.devices)} devices", total=rounds, say="")

        def tell(told: Told) -> None:
            progress.update(
                task, completed=told.trained, say=f"groups {told.groups}" + (f", hour {told.at_s / 3600:.1f}" if told.at_s else "")
            )

        outcome = simulation.simulate(fleet, settings, tell, engine=way)
    outcome.summary["heterogeneity"] = heterogeneity
    files = write_report(out, outcome.summary, outcome.records, outcome.blobs, holdings)
    console.print(device_table(outcome.summary))
    why = f" ({outcome.summary['path_why']})" if outcome.summary["path_why"] else ""
    console.print(f"path: {outcome.summary['path']}{why}; {outcome.summary['updates_per_s']:.0f} updates/s", soft_wrap=True)
    if "time" in outcome.summary:
        console.print(time_text(outcome.summary["time"]), soft_wrap=True)
    console.print(verdict(outcome.summary))
    console.print(f"written: {', '.join(str(f) for f in files)}", soft_wrap=True)


def ray_address(engine: str, ray: str) -> str:
    """Where Ray is, by `--engine` and `--ray`; empty without Ray.

    Raises:
        ConfigError: another engine than local and ray.
    """
    if engine not in ("local", "ray"):
        raise ConfigError(f"--engine {engine}: expected local or ray")
    return ray or (ANY_RAY if engine == "ray" else "")
