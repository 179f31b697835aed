"""`shoal campaign`: what trains in a fleet, while the service runs."""

from pathlib import Path

import msgspec

from aggregator.core.budget import why_ended
from aggregator.core.state import RunState
from aggregator.http.local import order
from aggregator.storage.charter import Charter, charters, check_campaign_name
from aggregator.storage.engine import sqlite_url
from aggregator.storage.sql_store import load_run
from shoal.printing import print_json
from wire.errors import ConfigError


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign in the list. Of one that has not begun, the numbers are None."""

    name: str
    phase: str
    trained: int | None = None
    rounds: int | None = None
    devices: int | None = None
    algorithm: str
    ended: str = ""
    """Why no further round is trained."""


def list_campaigns(folder: Path, database: str, as_json: bool) -> None:
    """Carry out `shoal campaign list`."""
    known = charters(folder)
    if not known:
        raise ConfigError(f"folder {folder}: it has no campaign; `shoal campaign start` begins one")
    rows = [
        _row(name, charter, load_run(database or sqlite_url(folder / "shoal.db"), name))
        for name, charter in known.items()
    ]
    if as_json:
        print_json(rows)
        return
    print(f"{'campaign':<20}  {'phase':<11}  {'trained':>9}  {'devices':>7}  algorithm")
    for row in rows:
        print(_line(row))


def pause(folder: Path, name: str) -> None:
    """Carry out `shoal campaign pause`."""
    print(order(folder, "campaigns", check_campaign_name(name), "pause"))


def resume(folder: Path, name: str) -> None:
    """Carry out `shoal campaign resume`."""
    named = [check_campaign_name(name)] if name else []
    print(order(folder, "campaigns", *named, "resume"))


def abort(folder: Path, name: str) -> None:
    """Carry out `shoal campaign abort`."""
    print(order(folder, "campaigns", check_campaign_name(name), "abort"))


def roll_back(folder: Path, name: str, to: int) -> None:
    """Carry out `shoal campaign rollback`."""
    print(order(folder, "campaigns", check_campaign_name(name), "rollback", to=to))


def _row(name: str, charter: Charter, state: RunState | None) -> Row:
    if state is None:
        return Row(name=name, phase="not begun", algorithm=charter.settings.algorithm)
    return Row(
        name=name,
        phase="paused" if charter.held else state.phase,
        trained=state.trained,
        rounds=state.next_settings.rounds,
        devices=len(state.devices),
        algorithm=state.next_settings.algorithm,
        ended=why_ended(state),
    )


def _line(row: Row) -> str:
    trained, devices = (
        (f"{row.trained}/{row.rounds}", str(row.devices)) if row.rounds is not None else ("", "")
    )
    why = f" ({row.ended})" if row.ended else ""
    return f"{row.name:<20}  {row.phase:<11}  {trained:>9}  {devices:>7}  {row.algorithm}{why}"
