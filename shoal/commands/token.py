"""The commands `shoal token`, which manage the tokens of a service's HTTP API."""

import time
from typing import Annotated

import typer

from aggregator.http.tokens import Role, TokenFile
from shoal.command import command, minute_of, print_json, seconds_of
from shoal.commands import options as opt

Name = Annotated[str, typer.Option(help="By which the audit log knows whoever uses it.")]


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
        Role, typer.Option(help="viewer: may read everything. operator: may give orders too.")
    ],
    expires: Annotated[
        str, typer.Option(help="For how long it counts: 30m, 12h or 90d; for ever when empty.")
    ] = "",
) -> dict[str, str]:
    """Print a token.

    It is printed once: the folder has its hash alone. From the first token on, reading needs one
    too.
    """
    new_token = TokenFile(folder).new(
        name, role, seconds_of(expires, "--expires") if expires else None
    )
    print(new_token)
    return {"token": str(new_token), "name": name, "role": role}


@token.command("list")
@command()
def list_all(folder: opt.Folder, as_json: opt.Json = False) -> None:
    """List the tokens, without the tokens themselves."""
    if as_json:
        print_json(TokenFile(folder).all())
        return
    for entry in TokenFile(folder).all():
        until = (
            "for ever" if entry.expires_at_s is None else f"until {minute_of(entry.expires_at_s)}"
        )
        over = "  over" if entry.is_over(time.time()) else ""
        print(
            f"{entry.name:<20}  {entry.role:<8}  made {minute_of(entry.made_at_s)}  {until}{over}"
        )


@token.command("revoke")
@command()
def revoke(folder: opt.Folder, name: Annotated[str, typer.Argument(help="Its name.")]) -> None:
    """Let a token count no longer; a running service refuses it at once."""
    TokenFile(folder).revoke(name)
    print(f"token {name}: revoked")
