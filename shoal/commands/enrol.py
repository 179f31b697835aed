"""`shoal enrol`: tokens for devices, and who has used them."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by

Database = Annotated[
    str,
    typer.Option(
        help="SQLAlchemy URL, as `shoal serve --database`; SQLite in the folder when empty."
    ),
]


enrol = typer.Typer(
    rich_markup_mode=None,
    help="Make tokens with which devices get certificates, and approve devices.",
    no_args_is_help=True,
)


@enrol.command("token")
@handled_by("enrol")
def token(
    folder: opt.Folder,
    expires: Annotated[
        str, typer.Option(help="For how long it can be used: 30m, 12h or 7d.")
    ] = "1d",
    tags: Annotated[str, typer.Option(help="Tags of the device, with commas between them.")] = "",
    device: Annotated[
        str,
        typer.Option(help="The only id that it is for; it may replace a device that has this id."),
    ] = "",
    approve: Annotated[
        bool, typer.Option("--approve", help="The device waits until `shoal enrol approve`.")
    ] = False,
    database: Database = "",
) -> None:
    """Print a token for one device. It is printed once: the service keeps its hash alone."""


@enrol.command("list")
@handled_by("enrol")
def list_all(
    folder: opt.Folder,
    database: Database = "",
    as_json: opt.Json = False,
) -> None:
    """List tokens that can be used, and devices with the ends of their certificates."""


@enrol.command("approve")
@handled_by("enrol")
def approve(
    folder: opt.Folder,
    device: Annotated[str, typer.Argument(help="Its id.")],
    database: Database = "",
) -> None:
    """Let a device that waits have its certificate."""


@enrol.command("reject")
@handled_by("enrol")
def reject(
    folder: opt.Folder,
    name: Annotated[str, typer.Argument(help="A device's id, or what `list` calls a token.")],
    database: Database = "",
) -> None:
    """Refuse a device that waits, or take back a token that nobody has used."""


@enrol.command("audit")
@handled_by("enrol")
def audit(
    folder: opt.Folder,
    last: Annotated[int, typer.Option(min=1, help="So many lines.")] = 100,
    database: Database = "",
    as_json: opt.Json = False,
) -> None:
    """Print what was done, and when: tokens, enrolments, renewals, bans."""


@enrol.command("renew")
@handled_by("enrol")
def renew(
    folder: opt.Folder,
    broker_folder: Annotated[
        Path | None,
        typer.Option(help="The broker's folder; broker in the service's when not given."),
    ] = None,
) -> None:
    """Renew the broker's and the service's own certificates, where a third of their time or less is
    left."""
