"""The commands `shoal devices`: the devices of a fleet, and the operator's orders about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from host.files import file_error, write_atomically
from shoal.command import command, minute_of, print_json
from shoal.commands import options as opt
from wire.errors import ConfigError
from wire.topics import check_name

if TYPE_CHECKING:
    from aggregator.view.device import DeviceView
    from aggregator.view.fleet import FleetView


NUMBERS = ("battery", "windows", "release", "failures")
HEADINGS = ("device", "state", "last seen (UTC)", "client", *NUMBERS, "personal model", "tags")
"""Headings of the list of devices; the columns of `NUMBERS` are aligned at their right."""
DURATIONS = ("train_s", "answer_s", "clock_off_s")
"""Fields that are durations in seconds; other fields that end in ``_s`` are Unix times."""


DeviceId = Annotated[str, typer.Argument(metavar="ID", help="Id of the device.")]


DeviceIds = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of the devices.")]


Tags = Annotated[str, typer.Option("--tags", help="Tags, separated by commas.")]


Where = Annotated[
    str, typer.Option(help="Rule that selects devices, as for `shoal serve --where`.")
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
    """List the devices of the fleet, most urgent first, and their errors of the last day.

    The time when a device was last seen is up to 10 seconds old.
    """
    from aggregator.http.dashboard.fleet import condition_of
    from aggregator.maintenance.database import read_view

    view = read_view(folder, database)
    chosen = _chosen(view, where)
    if as_json:
        print_json([_row(device) for device in chosen])
        return
    chosen.sort(key=lambda device: condition_of(device).rank)
    lines = [HEADINGS, *map(_cells, chosen)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(HEADINGS, line, widths, strict=True)
        aligned = [
            f"{cell:{'>' if name in NUMBERS else '<'}{width}}" for name, cell, width in cells
        ]
        print("  ".join(aligned).rstrip())
    for error in view.totals.errors:
        print(f"{len(error.devices)} of {len(view.fleet.devices)}: {error.key}")


@devices.command("show")
@command()
def show(
    folder: opt.Folder, device_id: DeviceId, database: opt.Database = "", as_json: opt.Json = False
) -> None:
    """Print all that the service knows of a device."""
    from aggregator.http.dashboard.fleet import condition_of
    from aggregator.maintenance.database import read_view

    device = read_view(folder, database).device(device_id)
    if device is None:
        raise ConfigError(f"No device {device_id!r} in {folder}. `shoal devices list` names all.")
    row = _row(device)
    if as_json:
        print_json(row)
        return
    condition = condition_of(device)
    row.pop("error", None)
    print(f"device {row.pop('id')}: {condition.word}{condition.why and ', '}{condition.why}")
    for name, value in row.items():
        for field, part in value.items() if isinstance(value, dict) else (("", value),):
            if field not in ("type", "device_id") and part not in ("", None, 0, [], (), {}):
                label = f"{name} {field}".strip().removesuffix("_s").replace("_", " ")
                print(f"  {label:<26}  {_text(field or name, part)}")
    if (error := device.telemetry.error) is not None:
        report = error.report
        lines = {
            "last error": f"{report.what}, {minute_of(error.at_s)} UTC",
            report.error: report.message,
            "memory": " of ".join(
                _text("bytes", size) for size in (report.peak_bytes, report.memory_bytes) if size
            ),
            "client then": " ".join((report.client, report.app and f"app {report.app}")),
            **{f"frame {number}": frame for number, frame in enumerate(report.frames, 1)},
        }
        for label, text in lines.items():
            print(f"  {label:<26}  {text}")


@devices.command("profile")
@command()
def profile(
    folder: opt.Folder,
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    where: Where = "",
    database: opt.Database = "",
) -> None:
    """Write the speeds of devices, for simulations.

    `shoal simulate --profiles trace:devices=FILE` reads the file (docs/speeds.md).
    """
    from aggregator.maintenance.database import read_view
    from aggregator.profile import profile_of

    view = read_view(folder, database)
    speed_table = profile_of({d.id: d.record for d in _chosen(view, where)}, view.telemetry)
    try:
        write_atomically(out, speed_table.text.encode())
    except OSError as error:
        raise ConfigError(file_error(f"--out {out}", error)) from None
    count = speed_table.devices
    print(f"{out}: the speeds of {count} device{'' if count == 1 else 's'}")
    for device_ids, what in (
        (speed_table.untrained, "training speed"),
        (speed_table.unmeasured, "transfer speed"),
    ):
        if device_ids:
            print(
                f"{what} not known, the usual one is written: {', '.join(device_ids[:5])}"
                + (f" and {len(device_ids) - 5} more" if len(device_ids) > 5 else "")
            )


@devices.command("tag")
@command()
def tag(
    folder: opt.Folder,
    tags: Tags,
    ids: DeviceIds = None,
    where: Where = "",
) -> None:
    """Add tags to devices, also before they connect."""
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
    """Remove tags from devices."""
    from aggregator.http.local import order

    print(order(folder, "tags", "remove", tags=_split(tags), device_ids=ids or [], where=where))


@devices.command("ban")
@command()
def ban(
    folder: opt.Folder,
    device_id: DeviceId,
    reason: Annotated[str, typer.Option(help="Reason, for people.")] = "",
) -> None:
    """Ban a device.

    The service refuses its messages and gives it no assignments. Its update of the open round does
    not count either.
    """
    from aggregator.http.local import order

    print(order(folder, "devices", check_name(device_id, "device id"), "ban", reason=reason[:1000]))


@devices.command("unban")
@command()
def unban(folder: opt.Folder, device_id: DeviceId) -> None:
    """Let a banned device take part again, or one that was refused as a second of its id."""
    from aggregator.http.local import order

    print(order(folder, "devices", check_name(device_id, "device id"), "unban"))


@devices.command("forget")
@command()
def forget(
    folder: opt.Folder,
    device_id: DeviceId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for a confirmation.")] = False,
) -> None:
    """Delete everything that a device sent.

    The command says what cannot be deleted.
    """
    from aggregator.http.local import order

    if not yes and not typer.confirm(f"Forget device {device_id}? It cannot be undone.", err=True):
        raise typer.Exit(1)
    print(order(folder, "devices", check_name(device_id, "device id"), "forget"))


def _text(name: str, value: Any) -> str:
    """Return a field of a device as text for people; of a digest, the first digits."""
    from aggregator.http.pages.words import amount

    if name in DURATIONS:
        return f"{value:.1f} s"
    if name.endswith("_s"):
        return minute_of(value) + " UTC"
    if isinstance(value, str):
        return value[:12] if re.fullmatch("[0-9a-f]{64}", value) else value
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return ", ".join(_text("", each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return amount(value) if "bytes" in name else msgspec.json.encode(value).decode()


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

    personal_model, placed = device.personal_model, device.placed
    return {
        "id": device.id,
        **stored_fields(device.record),
        "group": device.group,
        "placed": str(placed) if placed is not None else "",
        "stands_out": pull.text if (pull := device.standing_out) is not None else "",
        "excluded": device.of.name if device.of is not None and device.excluded else "",
        "personal_model": msgspec.to_builtins(personal_model.model)
        if personal_model is not None
        else None,
        "release": device.release,
        "answer": device.answer[0],
        "alone": device.alone,
        **msgspec.to_builtins(device.telemetry),
    }


def _cells(device: DeviceView) -> tuple[str, ...]:
    """Return a device's cells in the list, in the order of `HEADINGS`."""
    from aggregator.http.dashboard.fleet import condition_of
    from algorithms.personalisation.kept import NOT_TOLD

    record, personal_model = device.record, device.personal_model
    facts = record.facts
    battery, windows, client = "-", "-", "-"
    if facts is not None:
        client = facts.client.removeprefix("shoal ") or "-"
        client += f" (app {facts.app})" if facts.app else ""
        windows = str(facts.num_train)
        if facts.battery_percent is not None:
            battery = f"{facts.battery_percent:.0f} %"
    if personal_model is not None:
        model = personal_model.model.candidate
    else:
        model = NOT_TOLD if record.policy.withholds else "not in use" if device.alone else "-"
    seen = minute_of(device.seen_s) if device.seen_s else "never"
    numbers = (battery, windows, str(device.release or "-"), str(record.failures))
    word, tags = condition_of(device).word, ", ".join(record.tags)
    return (device.id, word, seen, client, *numbers, model, tags)


def _split(tags: str) -> list[str]:
    """Return the tags of a text with commas.

    Raises:
        ConfigError: it has no tags.
    """
    tag_names = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not tag_names:
        raise ConfigError(f"--tags must have at least one tag, got {tags!r}")
    return tag_names
