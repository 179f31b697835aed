"""`shoal models`: a fleet's releases, and the models of a run's last rounds; `model_files.py` has what is about one of them."""

from statistics import fmean

import typer

from aggregator.core.state import ModelVersion
from aggregator.core.versions import met
from shoal.arguments import Database, Folder, Run
from shoal.commands import releases
from shoal.commands.model_files import diff_models, export_model, inspect_model
from shoal.held_model import state_of

models = typer.Typer(
    rich_markup_mode=None,
    help="A fleet's releases and their rollouts, models as files, and the models of a run's last rounds.",
    no_args_is_help=True,
)
models.command("list")(releases.list_releases)
models.command("show")(releases.show_release)
models.command("release")(releases.make_releases)
models.command("rollout")(releases.rollout)
models.command("rollback")(releases.roll_back)
models.command("export")(export_model)
models.command("inspect")(inspect_model)
models.command("diff")(diff_models)


@models.command("rounds")
def list_models(folder: Folder, run: Run = "run-1", database: Database = "") -> None:
    """List the models that a run has and remembers, and how devices met them before they trained."""
    state = state_of(folder, run, database)
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


def _line(version: ModelVersion) -> str:
    """A version's line in the table; a dash where no device has evaluated it."""
    evaluated = version.evaluated.values()
    accuracy, loss = _mean([m.accuracy for m in evaluated]), _mean([m.mean_loss for m in evaluated])
    return f"{version.round:>8}  {len(version.models):>6}  {len(evaluated):>7}  {accuracy:>8}  {loss:>8}"


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.4f}" if values else "-"
