"""`shoal token`: who may ask what over HTTP."""

from typing import Annotated

import typer

from aggregator.http.tokens import Role
from shoal.commands import options as opt
from shoal.dispatch import handled_by

Name = Annotated[str, typer.Option(help="By which the audit log knows whoever uses it.")]


token = typer.Typer(
    rich_markup_mode=None,
    help="Make, list and revoke tokens for a service's HTTP API.",
    no_args_is_help=True,
)


@token.command("new")
@handled_by("token")
def new(
    folder: opt.Folder,
    name: Name,
    role: Annotated[
        Role, typer.Option(help="viewer: may read everything. operator: may give orders too.")
    ],
    expires: Annotated[
        str, typer.Option(help="For how long it counts: 30m, 12h or 90d; for ever when empty.")
    ] = "",
) -> None:
    """Print a token. It is printed once: the folder has its hash alone. From the first token on,
    reading needs one too."""


@token.command("list")
@handled_by("token")
def list_all(folder: opt.Folder, as_json: opt.Json = False) -> None:
    """List the tokens, without the tokens themselves."""


@token.command("revoke")
@handled_by("token")
def revoke(folder: opt.Folder, name: Annotated[str, typer.Argument(help="Its name.")]) -> None:
    """Let a token count no longer; a running service refuses it at once."""
