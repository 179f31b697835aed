"""`shoal devices`: who the devices of a fleet are; `device_orders.py` has what an operator may
order of them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from aggregator.core.eligibility import read_rule
from aggregator.core.registry import Entry, away, withholds
from aggregator.core.state import Placed
from aggregator.leadership.identity import is_served
from aggregator.profile import profile_of
from aggregator.storage.engine import sqlite_url
from aggregator.storage.registry_table import read_registry
from algorithms.personalisation.kept import NOT_TOLD
from host.files import write_atomically
from shoal.printing import print_json
from wire.errors import ConfigError

LINE = "{:<24}  {:<7}  {:<16}  {:<12}  {:>7}  {:>7}  {:>8}  {:<21}  {}"
"""A device in the list, or the names of what stands there."""


def list_devices(folder: Path, where: str, database: str, as_json: bool) -> None:
    """Carry out `shoal devices list`."""
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


def show(folder: Path, device_id: str, database: str, as_json: bool) -> None:
    """Carry out `shoal devices show`."""
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


def _told(name: str, value: Any) -> str:
    """A field of an entry, for people."""
    if isinstance(value, Placed):
        return f"{value} (group {value.group})"
    return (
        _time(value) + " UTC"
        if name.endswith("_s") and name != "train_s" and value
        else msgspec.json.encode(value).decode()
    )


def profile(folder: Path, out: Path, where: str, database: str) -> None:
    """Carry out `shoal devices profile`."""
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


def entries_of(folder: Path, database: str) -> dict[str, Entry]:
    """The registry of a folder, by device id; where no service runs, everybody is away."""
    entries = read_registry(database_url(folder, database))
    return (
        entries
        if is_served(folder)
        else {device_id: away(entry) for device_id, entry in entries.items()}
    )


def database_url(folder: Path, database: str) -> str:
    """The URL of a service's database.

    Raises:
        ConfigError: there is no service's database.
    """
    path = folder / "shoal.db"
    if not database and not path.exists():
        raise ConfigError(f"folder {folder}: there is no shoal.db; `shoal serve --folder` makes it")
    return database or sqlite_url(path)


def _row(device_id: str, entry: Entry) -> dict[str, Any]:
    return {"id": device_id, **msgspec.to_builtins(entry)}


def _line(device_id: str, entry: Entry) -> str:
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
    return LINE.format(device_id, state, _time(entry.last_seen_s), *told)


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M") if at_s else "never"
