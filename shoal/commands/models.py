"""`shoal models`: the models of a run's last rounds."""

from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from aggregator.adapters.salvage import read_database
from aggregator.adapters.sql_store import SqlStore, database_name, has_run
from aggregator.core.state import ModelVersion, RunState
from aggregator.core.versions import met
from wire.errors import ConfigError

Folder = Annotated[Path, typer.Argument(help="The folder of `shoal serve --folder`.")]
Run = Annotated[str, typer.Option(help="Name of the run.")]
Database = Annotated[str, typer.Option(help="SQLAlchemy URL; SQLite in the folder when empty.")]

models = typer.Typer(rich_markup_mode=None, help="List the models of a run's last rounds.", no_args_is_help=True)


@models.command("list")
def list_models(folder: Folder, run: Run = "run-1", database: Database = "") -> None:
    """List the models that a run has and remembers, and how devices met them before they trained."""
    state = _state(folder, run, database)
    current = ModelVersion(
        round=state.made_in,
        models=state.models,
        memory=state.memory,
        starts=state.starts,
        programs=state.programs,
        evaluated=met(state.received) if state.phase != "aggregating" else {},
    )
    print(f"{'made in':>8}  {'models':>6}  {'devices':>7}  {'accuracy':>8}  {'loss':>8}")
    for version in (*(v for v in state.history if v.round != state.made_in), current):
        print(_line(version) + ("  offered now" if version is current else ""))


def _state(folder: Path, run: str, database: str) -> RunState:
    """The run's state. Of SQLite in the folder, it is read without a trace.

    Raises:
        ConfigError: there is no such run, or the database cannot be opened or is damaged.
        StorageFailed: the database cannot be read.
    """
    path = folder / "shoal.db"
    if database:
        if not has_run(database, run):  # a store would make it
            raise ConfigError(f"database {database_name(database)}: there is no run {run!r} (--run)")
        with closing(SqlStore(database, run)) as store:
            state = store.load()
    elif not path.exists():
        raise ConfigError(f"folder {folder}: there is no shoal.db; `shoal serve --folder` makes it")
    else:
        contents = read_database(path)
        if contents.damage:
            raise ConfigError(f"database {path}: damaged, {contents.damage[0]}; `shoal doctor` says more")
        if run not in contents.runs:
            raise ConfigError(f"folder {folder}: there is no run {run!r} (--run)")
        state = contents.runs[run].state
    if state is None:
        raise ConfigError(f"folder {folder}: run {run!r} has not begun")
    return state


def _line(version: ModelVersion) -> str:
    """A version's line in the table; a dash where no device has evaluated it."""
    evaluated = version.evaluated.values()
    accuracy, loss = _mean([m.accuracy for m in evaluated]), _mean([m.mean_loss for m in evaluated])
    return f"{version.round:>8}  {len(version.models):>6}  {len(evaluated):>7}  {accuracy:>8}  {loss:>8}"


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.4f}" if values else "-"
