"""`shoal export`: model + algorithm -> what devices and the aggregator are given; `shoal export
inspect`: what is in a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by

export = typer.Typer(
    rich_markup_mode=None,
    help="Export the training step for devices, check it against eager torch, and sign it.",
)


@export.callback(invoke_without_command=True)
@handled_by("export", loads="torch")
def write(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for device.shoal, server.pt2, signing.key and trust.pem."),
    ] = None,
    data: opt.Data = "watch",
    algorithm: opt.AlgorithmName = opt.DEFAULT_ALGORITHM,
    model: opt.ModelName = "",
    pretrain: opt.Pretrain = "",
    privacy: opt.PrivacyName = "",
    seed: opt.Seed = 0,
    bundle_version: Annotated[
        int, typer.Option(min=1, help="Devices refuse a bundle older than one they have used.")
    ] = 1,
    key: Annotated[
        Path | None,
        typer.Option(help="Signing key (PEM); OUT/signing.key is made when there is none."),
    ] = None,
    runtimes: Annotated[
        str, typer.Option(help="What devices train with: onnx, or onnx,executorch.")
    ] = "onnx",
    max_batch: Annotated[
        int, typer.Option(min=8, help="Windows in a batch of ExecuTorch's programs, at most.")
    ] = 64,
) -> None:
    """Export the training step for devices, check it against eager torch, and sign it."""


@export.command("inspect")
@handled_by("export")
def show(
    bundle: Annotated[
        Path, typer.Argument(help="A bundle, or the folder that `shoal export` wrote it to.")
    ],
    operators: Annotated[
        bool, typer.Option("--operators", help="Also list every graph's operators.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """What is in a bundle: for each graph and runtime its size, the largest batch, the memory
    planned for that, how many operators, and how many of these XNNPACK carries out."""
