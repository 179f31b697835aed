"""`shoal campaign`: what trains in a fleet, while the service runs."""

from pathlib import Path

from aggregator.adapters.engine import sqlite_url
from aggregator.adapters.sql_store import load_run
from aggregator.charter import Charter, charters
from aggregator.core.budget import why_ended
from aggregator.core.state import RunState
from aggregator.desk import submit
from aggregator.orders import Abort, Hold, Resume, RollBack
from wire.errors import ConfigError


def list_campaigns(folder: Path, database: str) -> None:
    """Carry out `shoal campaign list`."""
    known = charters(folder)
    if not known:
        raise ConfigError(f"folder {folder}: it has no campaign; `shoal campaign start` begins one")
    print(f"{'campaign':<20}  {'phase':<11}  {'trained':>9}  {'devices':>7}  algorithm")
    for name, charter in known.items():
        state = load_run(database or sqlite_url(folder / "shoal.db"), name)
        print(_line(name, charter, state))


def pause(folder: Path, name: str) -> None:
    """Carry out `shoal campaign pause`."""
    print(submit(folder, Hold(name)))


def resume(folder: Path, name: str) -> None:
    """Carry out `shoal campaign resume`."""
    print(submit(folder, Resume(name)))


def abort(folder: Path, name: str) -> None:
    """Carry out `shoal campaign abort`."""
    print(submit(folder, Abort(name)))


def roll_back(folder: Path, name: str, to: int) -> None:
    """Carry out `shoal campaign rollback`."""
    print(submit(folder, RollBack(name, to)))


def _line(name: str, charter: Charter, state: RunState | None) -> str:
    if state is None:
        return f"{name:<20}  {'not begun':<11}  {'':>9}  {'':>7}  {charter.settings.algorithm}"
    phase = "paused" if charter.held else state.phase
    trained = f"{state.trained}/{state.next_settings.rounds}"
    why = why_ended(state)
    algorithm = state.next_settings.algorithm + (f" ({why})" if why else "")
    return f"{name:<20}  {phase:<11}  {trained:>9}  {len(state.devices):>7}  {algorithm}"
