"""`shoal simulate`: a fleet on one machine, before anything is rolled out."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by


@handled_by("simulate", loads="torch")
def simulate(
    data: opt.Data = "watch",
    algorithm: opt.AlgorithmName = opt.DEFAULT_ALGORITHM,
    rounds: opt.Rounds = 20,
    patience: opt.Patience = 0,
    min_delta: opt.MinDelta = 0.0,
    local_epochs: opt.LocalEpochs = 1,
    seed: opt.Seed = 0,
    out: opt.Out = Path("runs/simulate"),
    partition: opt.Partition = "user",
    attack: opt.Attack = "",
    privacy: opt.PrivacyName = "",
    devices: opt.Devices = None,
    batch_size: opt.BatchSize = 32,
    update_encoding: opt.UpdateEncoding = "float32",
    lr: opt.Lr = None,
    hyper: opt.Hyper = None,
    lr_schedule: opt.LrSchedule = "",
    model: opt.ModelName = "",
    pretrain: opt.Pretrain = "",
    labels: opt.LabelCount = "all",
    split: opt.Split = "own",
    newcomers: opt.NewcomerCount = 0,
    cohort: opt.Cohort = 0,
    profiles: opt.Profiles = "",
    policy: opt.Policy = "",
    backend: opt.BackendName = "auto",
    workers: opt.Workers = 0,
    checkpoint: opt.Checkpoint = None,
    cluster: opt.Cluster = "",
    device: opt.Device = "",
    bf16: opt.Bf16 = False,
    models: Annotated[
        str,
        typer.Option(
            help="Of what OUT/models has files (.safetensors, .pt, .onnx): groups, all (each "
            "device's too), none; auto: all, and of more "
            "than 20 devices the groups alone."
        ),
    ] = "auto",
) -> None:
    """Simulate a fleet: the aggregator's mathematics and the devices' executor. All cores of this
    machine work, or those of a cluster."""
