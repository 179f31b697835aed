"""The commands `shoal token`, which manage the tokens of a service's HTTP API."""

import time
from typing import Annotated

import typer

from aggregator.http.tokens import Role, TokenFile
from shoal.command import command, minute_of, print_json, seconds_of
from shoal.commands import options as opt

Name = Annotated[str, typer.Option(help="Name of its user in the audit log.")]


token = typer.Typer(
    rich_markup_mode=None,
    help="Make, list and revoke tokens for a service's HTTP API.",
    no_args_is_help=True,
)


@token.command("new")
@command()
def new(
    folder: opt.Folder,
    name: Name,
    role: Annotated[
        Role, typer.Option(help="viewer: reads everything. operator: gives orders too.")
    ],
    expires: Annotated[
        str, typer.Option(help="Time for which it is valid: 30m, 12h or 90d; no limit when empty.")
    ] = "",
) -> dict[str, str]:
    """Print a token.

    It is printed only once, because the folder has only its hash. From the first token on, reading
    needs one too.
    """
    new_token = TokenFile(folder).new(
        name, role, seconds_of(expires, "--expires") if expires else None
    )
    print(new_token)
    return {"token": str(new_token), "name": name, "role": role}


@token.command("list")
@command()
def list_all(folder: opt.Folder, as_json: opt.Json = False) -> None:
    """List the tokens' names, roles and times."""
    if as_json:
        print_json(TokenFile(folder).all())
        return
    for entry in TokenFile(folder).all():
        until = (
            "no limit" if entry.expires_at_s is None else f"until {minute_of(entry.expires_at_s)}"
        )
        over = "  expired" if entry.is_over(time.time()) else ""
        print(
            f"{entry.name:<20}  {entry.role:<8}  made {minute_of(entry.made_at_s)}  {until}{over}"
        )


@token.command("revoke")
@command()
def revoke(
    folder: opt.Folder, name: Annotated[str, typer.Argument(help="Name of the token.")]
) -> None:
    """Revoke a token; a running service refuses it at once."""
    TokenFile(folder).revoke(name)
    print(f"token {name}: revoked")
