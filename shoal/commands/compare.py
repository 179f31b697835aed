"""`shoal compare`: several algorithms on the same simulated fleets, over several seeds, in one
scenario or in a grid of them."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by


@handled_by("compare", loads="torch")
def compare(
    algorithms: Annotated[
        str, typer.Option(help="Names with commas between them: fedavg,distfl,dbe+distfl+irls.")
    ],
    data: opt.Data = "watch",
    rounds: opt.Rounds = 20,
    local_epochs: opt.LocalEpochs = 1,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Seeds 0 to N - 1 of all that is drawn: 1 when not given, 3 with --scenarios.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for compare.json, compare.csv, compare.png and each run's result."
        ),
    ] = Path("runs/compare"),
    partition: opt.Partition = "user",
    attack: opt.Attack = "",
    privacy: opt.PrivacyName = "",
    labels: opt.LabelCount = "",
    split: opt.Split = "",
    newcomers: opt.NewcomerCount = 0,
    scenarios: Annotated[
        bool,
        typer.Option(
            "--scenarios",
            help="A grid: --data, --labels and --split take several values with commas between "
            "them; labels "
            "all,20,5,1,none and split time,session when not given.",
        ),
    ] = False,
    reference: Annotated[
        str,
        typer.Option(
            help="The algorithm that the others are tested against; the first when not given."
        ),
    ] = "",
    target: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Accuracy to count rounds to; 95 % of the best when not given."
        ),
    ] = None,
    devices: opt.Devices = None,
    batch_size: opt.BatchSize = 32,
    update_encoding: opt.UpdateEncoding = "float32",
    lr: opt.Lr = None,
    hyper: opt.Hyper = None,
    lr_schedule: opt.LrSchedule = "",
    model: opt.ModelName = "",
    pretrain: opt.Pretrain = "",
    cohort: opt.Cohort = 0,
    profiles: opt.Profiles = "",
    policy: opt.Policy = "",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at the same time; one for each core when not given."),
    ] = None,
) -> None:
    """Compare algorithms in one table and one picture. Started again, it goes on where it was
    interrupted."""
