"""The commands `shoal devices`: the devices of a fleet, and the operator's orders about them."""

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
    from aggregator.view.device import DeviceView
    from aggregator.view.fleet import FleetView


LINE = "{:<24}  {:<7}  {:<16}  {:<12}  {:>7}  {:>7}  {:>8}  {:>8}  {:<21}  {}"
"""Format of a device's line in the list, and of the headings."""


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
    """List the devices of the fleet.

    A running service writes when it heard them every 10 seconds.
    """
    from aggregator.maintenance.database import read_view

    view = read_view(folder, database)
    chosen = _chosen(view, where)
    if as_json:
        print_json([_row(device) for device in chosen])
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
            "failures",
            "personal model",
            "tags",
        )
    )
    for device in chosen:
        print(_line(device))


@devices.command("show")
@command()
def show(
    folder: opt.Folder, device_id: DeviceId, database: opt.Database = "", as_json: opt.Json = False
) -> None:
    """Print everything that is known of a device."""
    from aggregator.maintenance.database import read_view

    device = read_view(folder, database).device(device_id)
    if device is None:
        raise ConfigError(f"No device {device_id!r} in {folder}. `shoal devices list` names all.")
    row = _row(device)
    if as_json:
        print_json(row)
        return
    print(f"device {row.pop('id')}")
    for name, value in row.items():
        if value not in ("", None, 0, [], {}):
            print(f"  {name:<16}  {_text(name, value)}")


@devices.command("profile")
@command()
def profile(
    folder: opt.Folder,
    out: Annotated[Path, typer.Option(help="The CSV file to write.")],
    where: Where = "",
    database: opt.Database = "",
) -> None:
    """Write how fast devices are, for `shoal simulate --profiles trace:devices=FILE`.

    docs/scale.md describes the file.
    """
    from aggregator.maintenance.database import read_view
    from aggregator.profile import profile_of

    view = read_view(folder, database)
    speed_table = profile_of({d.id: d.record for d in _chosen(view, where)}, view.telemetry)
    try:
        write_atomically(out, speed_table.text.encode())
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    print(f"{speed_table.devices} devices: {out}")
    for device_ids, what in (
        (speed_table.untrained, "examples a second"),
        (speed_table.unmeasured, "bytes a second"),
    ):
        if device_ids:
            print(
                f"{what} of {len(device_ids)} are not known, the usual ones stand for them: "
                f"{', '.join(device_ids[:5])}"
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
    """Take nothing of a device any more, and ask it for nothing.

    What it sent for the open round is not taken either.
    """
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


def _text(name: str, value: Any) -> str:
    """Return a field of a device as text for people."""
    if name.endswith("_s") and name != "train_s":
        return minute_of(value) + " UTC"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _chosen(view: FleetView, where: str) -> list[DeviceView]:
    """Return the devices that a rule selects, by id.

    Raises:
        ConfigError: the rule cannot be read.
    """
    from aggregator.fleet.eligibility import read_rule

    means = read_rule(where).means
    chosen: list[DeviceView] = []

    def visit(device: DeviceView) -> None:
        if means(device.id, device.record, view.fleet.campaigns):
            chosen.append(device)

    view.walk(visit)
    return sorted(chosen, key=lambda device: device.id)


def _row(device: DeviceView) -> dict[str, Any]:
    """Return a device for JSON: its record, what follows from it, and its telemetry."""
    from aggregator.view.device import stored_fields

    personal_model, placed = device.kept, device.placed
    return {
        "id": device.id,
        **stored_fields(device.record),
        "group": device.group,
        "placed": str(placed) if placed is not None else "",
        "kept": msgspec.to_builtins(personal_model.kept) if personal_model is not None else None,
        "release": device.release,
        "answer": device.answer[0],
        "alone": device.alone,
        **msgspec.to_builtins(device.telemetry),
    }


def _line(device: DeviceView) -> str:
    """Return a device's line in the list."""
    from algorithms.personalisation.kept import NOT_TOLD

    record, personal_model = device.record, device.kept
    facts = record.facts
    state = "banned" if record.ban else "online" if record.online else "away"
    battery, client, windows = "-", "-", "-"
    if facts is not None:
        client, windows = facts.client.removeprefix("shoal ") or "-", str(facts.num_train)
        if facts.battery_percent is not None:
            battery = f"{facts.battery_percent:.0f} %"
    if personal_model is not None:
        model = personal_model.kept.candidate
    else:
        model = NOT_TOLD if record.policy.withholds else "alone" if device.alone else "-"
    cells = (client[:12], battery, windows, record.declines, record.failures, model)
    seen = minute_of(device.seen_s) if device.seen_s else "never"
    return LINE.format(device.id, state, seen, *cells, ", ".join(record.tags))


def _split(tags: str) -> list[str]:
    """Return the tags of a text with commas.

    Raises:
        ConfigError: it has no tags.
    """
    tag_names = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not tag_names:
        raise ConfigError(f"--tags {tags!r}: there is none in it")
    return tag_names
