"""`shoal devices`: who the devices of a fleet are, and an operator's word on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from host.files import write_atomically
from shoal.command import command, minute_of, print_json
from shoal.commands import options as opt
from wire.errors import ConfigError
from wire.topics import check_name

if TYPE_CHECKING:
    from aggregator.core.registry import Entry


LINE = "{:<24}  {:<7}  {:<16}  {:<12}  {:>7}  {:>7}  {:>8}  {:<21}  {}"
"""A device in the list, or the names of what stands there."""


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
@command()
def list_devices(
    folder: opt.Folder, where: Where = "", database: opt.Database = "", as_json: opt.Json = False
) -> None:
    """List the devices that the registry knows. A running service writes what changes every 10
    seconds."""
    from aggregator.core.eligibility import read_rule

    means = read_rule(where).means
    chosen = [
        (d, entry) for d, entry in sorted(entries_of(folder, database).items()) if means(d, entry)
    ]
    if as_json:
        print_json([_row(device_id, entry) for device_id, entry in chosen])
        return
    print(
        LINE.format(
            "device",
            "state",
            "last seen (UTC)",
            "client",
            "battery",
            "windows",
            "declines",
            "keeps",
            "tags",
        )
    )
    for device_id, entry in chosen:
        print(_line(device_id, entry))


@devices.command("show")
@command()
def show(
    folder: opt.Folder, device_id: DeviceId, database: opt.Database = "", as_json: opt.Json = False
) -> None:
    """Print everything that the registry knows of a device."""
    from aggregator.core.registry import Entry

    entry = entries_of(folder, database).get(device_id)
    if entry is None:
        raise ConfigError(f"device {device_id!r}: the registry of {folder} does not have it")
    if as_json:
        print_json(_row(device_id, entry))
        return
    print(f"device {device_id}")
    for name in Entry.__struct_fields__:
        value = getattr(entry, name)
        if value not in ("", (), None):
            print(f"  {name:<16}  {_told(name, value)}")


@devices.command("profile")
@command()
def profile(
    folder: opt.Folder,
    out: Annotated[Path, typer.Option(help="The CSV file to write.")],
    where: Where = "",
    database: opt.Database = "",
) -> None:
    """Write how fast devices are, for `shoal simulate --profiles trace:devices=FILE`
    (docs/scale.md)."""
    from aggregator.core.eligibility import read_rule
    from aggregator.profile import profile_of

    means = read_rule(where).means
    made = profile_of(
        {d: entry for d, entry in entries_of(folder, database).items() if means(d, entry)}
    )
    try:
        write_atomically(out, made.text.encode())
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    print(f"{made.devices} devices: {out}")
    for found, what in ((made.untrained, "examples a second"), (made.unmeasured, "bytes a second")):
        if found:
            print(
                f"{what} of {len(found)} are not known, the usual ones stand for them: "
                f"{', '.join(found[:5])}"
            )


@devices.command("tag")
@command()
def tag(
    folder: opt.Folder,
    tags: Tags,
    ids: DeviceIds = None,
    where: Where = "",
) -> None:
    """Add tags to devices, which need not have been here yet."""
    from aggregator.http.local import order

    print(order(folder, "tags", "add", tags=_split(tags), device_ids=ids or [], where=where))


@devices.command("untag")
@command()
def untag(
    folder: opt.Folder,
    tags: Tags,
    ids: DeviceIds = None,
    where: Where = "",
) -> None:
    """Take tags away from devices."""
    from aggregator.http.local import order

    print(order(folder, "tags", "remove", tags=_split(tags), device_ids=ids or [], where=where))


@devices.command("ban")
@command()
def ban(
    folder: opt.Folder,
    device_id: DeviceId,
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
) -> None:
    """Take nothing of a device any more, not even what it sent for the open round, and ask it for
    nothing."""
    from aggregator.http.local import order

    print(order(folder, "devices", check_name(device_id, "device id"), "ban", reason=reason[:1000]))


@devices.command("unban")
@command()
def unban(folder: opt.Folder, device_id: DeviceId) -> None:
    """Let a banned device take part again."""
    from aggregator.http.local import order

    print(order(folder, "devices", check_name(device_id, "device id"), "unban"))


@devices.command("forget")
@command()
def forget(
    folder: opt.Folder,
    device_id: DeviceId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove everything that a device ever sent, and say what cannot be removed."""
    from aggregator.http.local import order

    if not yes and not typer.confirm(f"Forget device {device_id}? It cannot be undone.", err=True):
        raise typer.Exit(1)
    print(order(folder, "devices", check_name(device_id, "device id"), "forget"))


def _told(name: str, value: Any) -> str:
    """A field of an entry, for people."""
    from aggregator.core.state import Placed

    if isinstance(value, Placed):
        return f"{value} (group {value.group})"
    return (
        minute_of(value) + " UTC"
        if name.endswith("_s") and name != "train_s" and value
        else msgspec.json.encode(value).decode()
    )


def entries_of(folder: Path, database: str) -> dict[str, Entry]:
    """The registry of a folder, by device id; where no service runs, everybody is away.

    Raises:
        ConfigError: there is no service's database.
    """
    from aggregator.core.registry import away
    from aggregator.leadership.identity import is_served
    from aggregator.storage.engine import sqlite_url
    from aggregator.storage.registry_table import read_registry

    path = folder / "shoal.db"
    if not database and not path.exists():
        raise ConfigError(f"folder {folder}: there is no shoal.db; `shoal serve --folder` makes it")
    entries = read_registry(database or sqlite_url(path))
    return (
        entries
        if is_served(folder)
        else {device_id: away(entry) for device_id, entry in entries.items()}
    )


def _row(device_id: str, entry: Entry) -> dict[str, Any]:
    return {"id": device_id, **msgspec.to_builtins(entry)}


def _line(device_id: str, entry: Entry) -> str:
    from aggregator.core.registry import withholds
    from algorithms.personalisation.kept import NOT_TOLD

    said = entry.said
    state = "banned" if entry.ban else "online" if entry.online else "away"
    battery = f"{said.battery_percent:.0f} %" if said and said.battery_percent is not None else "-"
    client, windows = (
        (said.client.removeprefix("shoal ") or "-", str(said.num_train)) if said else ("-", "-")
    )
    keeps = (
        entry.kept.kept.candidate
        if entry.kept
        else NOT_TOLD
        if withholds(said)
        else "alone"
        if entry.release_alone
        else "-"
    )
    told = (client[:12], battery, windows, entry.declines, keeps, ", ".join(entry.tags))
    seen = minute_of(entry.last_seen_s) if entry.last_seen_s else "never"
    return LINE.format(device_id, state, seen, *told)


def _split(tags: str) -> list[str]:
    """
    Raises:
        ConfigError: there are no tags.
    """
    found = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not found:
        raise ConfigError(f"--tags {tags!r}: there is none in it")
    return found
