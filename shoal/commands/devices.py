"""`shoal devices`: who the devices of a fleet are, and an operator's word on them."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by

DeviceId = Annotated[str, typer.Argument(metavar="ID", help="A device's id.")]
DeviceIds = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Devices' ids.")]
Tags = Annotated[str, typer.Option("--tags", help="Tags, separated by commas.")]
Where = Annotated[
    str, typer.Option(help="The devices that this rule means, as `serve --where` takes it.")
]


devices = typer.Typer(
    rich_markup_mode=None,
    help="List a fleet's devices; tag, ban or forget one.",
    no_args_is_help=True,
)


@devices.command("list")
@handled_by("devices")
def list_devices(
    folder: opt.Folder, where: Where = "", database: opt.Database = "", as_json: opt.Json = False
) -> None:
    """List the devices that the registry knows. A running service writes what changes every 10
    seconds."""


@devices.command("show")
@handled_by("devices")
def show(
    folder: opt.Folder, device_id: DeviceId, database: opt.Database = "", as_json: opt.Json = False
) -> None:
    """Print everything that the registry knows of a device."""


@devices.command("profile")
@handled_by("devices")
def profile(
    folder: opt.Folder,
    out: Annotated[Path, typer.Option(help="The CSV file to write.")],
    where: Where = "",
    database: opt.Database = "",
) -> None:
    """Write how fast devices are, for `shoal simulate --profiles trace:devices=FILE`
    (docs/scale.md)."""


@devices.command("tag")
@handled_by("device_orders")
def tag(
    folder: opt.Folder,
    tags: Tags,
    ids: DeviceIds = None,
    where: Where = "",
) -> None:
    """Add tags to devices, which need not have been here yet."""


@devices.command("untag")
@handled_by("device_orders")
def untag(
    folder: opt.Folder,
    tags: Tags,
    ids: DeviceIds = None,
    where: Where = "",
) -> None:
    """Take tags away from devices."""


@devices.command("ban")
@handled_by("device_orders")
def ban(
    folder: opt.Folder,
    device_id: DeviceId,
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
) -> None:
    """Take nothing of a device any more, not even what it sent for the open round, and ask it for
    nothing."""


@devices.command("unban")
@handled_by("device_orders")
def unban(folder: opt.Folder, device_id: DeviceId) -> None:
    """Let a banned device take part again."""


@devices.command("forget")
@handled_by("device_orders")
def forget(
    folder: opt.Folder,
    device_id: DeviceId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove everything that a device ever sent, and say what cannot be removed."""
