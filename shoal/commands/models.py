"""`shoal models`: a fleet's releases, and the models of a run's last rounds."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by

Fleet = Annotated[str, typer.Option(help="Name of the fleet.")]
Campaign = Annotated[
    str,
    typer.Option(
        help="Whose rollout: the name of the run that trained; that of the only one when empty."
    ),
]
Group = Annotated[
    str,
    typer.Option(
        help="The group whose model is meant; it may be left out where there is one model."
    ),
]
Released = Annotated[
    int | None,
    typer.Option(
        "--release", min=1, help="The number of a release, in place of a campaign's model."
    ),
]
FleetOfRelease = Annotated[str, typer.Option(help="Name of the fleet, for --release.")]
Round = Annotated[
    int | None,
    typer.Option(
        "--round",
        min=0,
        help="The round that made the model; the one on offer now when it is left out.",
    ),
]

models = typer.Typer(
    rich_markup_mode=None,
    help="A fleet's releases and their rollouts, models as files, and the models of a run's last "
    "rounds.",
    no_args_is_help=True,
)


@models.command("list")
@handled_by("releases")
def list_releases(
    folder: opt.Folder,
    fleet: Fleet = "default",
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """List the releases of a fleet: state, accuracy where it is known, and how many devices use
    each."""


@models.command("show")
@handled_by("releases")
def show_release(
    folder: opt.Folder,
    number: Annotated[int, typer.Argument(help="The release's number.")],
    fleet: Fleet = "default",
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Show all that is known of a release."""


@models.command("release")
@handled_by("releases")
def make_releases(
    folder: opt.Folder,
    campaign: Annotated[
        str, typer.Option(help="The name of the run whose models are released.")
    ] = "run-1",
    roll_out: Annotated[bool, typer.Option(help="Begin to give them to devices.")] = True,
) -> None:
    """Make releases of what a campaign has trained so far, one for each group, and roll them
    out."""


@models.command("rollout")
@handled_by("releases")
def rollout(
    folder: opt.Folder,
    campaign: Campaign = "",
    pause: Annotated[
        bool, typer.Option("--pause", help="Give the releases to no further device.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after a pause.")] = False,
    promote: Annotated[
        bool, typer.Option("--promote", help="Take the next step, whatever devices say.")
    ] = False,
    fleet: Fleet = "default",
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Show how far rollouts are; or pause one, resume it, or take it to its next step."""


@models.command("rollback")
@handled_by("releases")
def roll_back(
    folder: opt.Folder,
    to: Annotated[
        int,
        typer.Option(
            min=0,
            help="The release whose group returns to its model; 0: end the rollout that goes on.",
        ),
    ] = 0,
    group: Annotated[
        str, typer.Option(help="The group that returns to it, if it is not the release's own.")
    ] = "",
    campaign: Campaign = "",
    fleet: Fleet = "default",
    database: opt.Database = "",
) -> None:
    """Return to an earlier release, on all devices of its group at once; or end a rollout, so that
    devices get back what they had."""


@models.command("rounds")
@handled_by("models")
def list_models(
    folder: opt.Folder,
    run: opt.Run = "run-1",
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """List the models that a run has and remembers, and how devices met them before they
    trained."""


@models.command("export")
@handled_by("model_files")
def export_model(
    folder: opt.Folder,
    to: Annotated[
        Path,
        typer.Option(
            help="The file to write: *.onnx, *.pte, *.pt or *.safetensors. Or a folder, a name "
            "without an ending, for *.safetensors, "
            "*.pt and *.onnx of every group."
        ),
    ],
    run: opt.Run = "run-1",
    group: Group = "",
    made_in: Round = None,
    release: Released = None,
    fleet: FleetOfRelease = "default",
    probe: Annotated[
        Path | None, typer.Option(help="For *.pte: server.pt2 of the bundle's folder.")
    ] = None,
    max_batch: Annotated[
        int, typer.Option(min=8, help="For *.pte: windows in a batch, at most.")
    ] = 64,
    database: opt.Database = "",
) -> None:
    """Write a model with its weights inside into a file that other programs read, or the models of
    all groups into a folder."""


@models.command("inspect")
@handled_by("model_files")
def inspect_model(
    folder: opt.Folder,
    run: opt.Run = "run-1",
    group: Group = "",
    made_in: Round = None,
    release: Released = None,
    fleet: FleetOfRelease = "default",
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Print what a model is made of: its bundle, and each tensor with its norm."""


@models.command("diff")
@handled_by("model_files")
def diff_models(
    folder: opt.Folder,
    one: Annotated[
        str, typer.Argument(help="GROUP, or GROUP@ROUND for the model that a round made.")
    ],
    other: Annotated[str, typer.Argument(help="The model to compare with it.")],
    run: opt.Run = "run-1",
    data: Annotated[
        Path | None,
        typer.Option(help="Windows (*.npy, *.npz or *.csv): how often do both say the same?"),
    ] = None,
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Compare two models tensor by tensor, and by what they say of windows."""
