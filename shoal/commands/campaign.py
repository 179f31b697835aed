"""`shoal campaign`: what trains in a fleet, while the service runs."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from aggregator.adapters.engine import sqlite_url
from aggregator.adapters.sql_store import load_run
from aggregator.charter import Charter, charters, check_campaign_name, is_proposed, propose
from aggregator.core.budget import why_ended
from aggregator.core.state import RunState
from aggregator.desk import submit
from aggregator.identity import is_served
from aggregator.orders import Abort, Hold, Resume, Retune, RollBack, Start
from shoal.arguments import Database, Folder
from shoal.choices import hyper_values, read_encoding, schedule_of
from shoal.commands import options as opt
from wire.errors import ConfigError

Name = Annotated[str, typer.Argument(help="Name of the campaign.")]

campaign = typer.Typer(
    rich_markup_mode=None, help="Start, list, pause, resume, change, roll back and end campaigns of a service.", no_args_is_help=True
)


@campaign.command("start")
def start(
    folder: Folder,
    name: Name,
    bundle: Annotated[Path, typer.Option(help="Folder that `shoal export` wrote.")],
    algorithm: opt.BundledAlgorithm = "",
    privacy: opt.PrivacyName = "",
    rounds: opt.Rounds = 20,
    days: opt.Days = 0.0,
    patience: opt.Patience = 0,
    min_delta: opt.MinDelta = 0.0,
    local_epochs: opt.LocalEpochs = 1,
    batch_size: opt.BatchSize = 32,
    lr: opt.Lr = None,
    hyper: opt.Hyper = None,
    lr_schedule: opt.LrSchedule = "",
    seed: opt.Seed = 0,
    update_encoding: opt.UpdateEncoding = "float32",
    min_devices: opt.MinDevices = 2,
    min_group: opt.MinGroup = 2,
    deadline: opt.Deadline = 600.0,
    grace: opt.Grace = 60.0,
    weight_cap: opt.WeightCap = 10.0,
    norm_cap: opt.NormCap = 10.0,
    max_norm: opt.MaxNorm = 1e6,
    max_drop: opt.MaxDrop = 0.3,
    keep_models: opt.KeepModels = 3,
    where: opt.Where = "",
    cohort: opt.RoundCohort = 0,
    over_select: opt.OverSelect = 1.0,
    policy: opt.CampaignPolicy = "",
    quorum: opt.Quorum = 0.0,
    pace: opt.Pace = 0.0,
    window: opt.Window = "",
    time_zone: opt.TimeZone = "UTC",
    start_from: opt.StartFrom = "latest",
) -> None:
    """Start a campaign. It takes the devices of campaigns before it until it is over."""
    given = locals()
    from aggregator.service_settings import CampaignSettings, run_settings  # these need torch, which the other commands do without
    from aggregator.start import read_exported, read_trust

    if not folder.is_dir():
        raise ConfigError(f"folder {folder}: there is no such folder; `shoal serve --folder` makes it")
    settings = CampaignSettings(run=check_campaign_name(name), **opt.campaign_fields(given))
    exported = read_exported(bundle, read_trust(bundle))
    if name in charters(folder):
        raise ConfigError(f"campaign {name}: there is one of this name in {folder}; `shoal campaign set` changes it")
    if is_proposed(folder, name) and not is_served(folder):
        raise ConfigError(f"campaign {name}: it is to start already, when `shoal serve` has the folder {folder}")
    made = run_settings(settings, exported.bundle, secrets.token_hex(16))
    propose(folder, Charter(0, made, start_from=start_from), bundle)
    print(submit(folder, Start(name)))


@campaign.command("list")
def list_campaigns(folder: Folder, database: Database = "") -> None:
    """List the campaigns of a folder, and where each stands."""
    known = charters(folder)
    if not known:
        raise ConfigError(f"folder {folder}: it has no campaign; `shoal campaign start` begins one")
    print(f"{'campaign':<20}  {'phase':<11}  {'trained':>9}  {'devices':>7}  algorithm")
    for name, charter in known.items():
        state = load_run(database or sqlite_url(folder / "shoal.db"), name)
        print(_line(name, charter, state))


@campaign.command("pause")
def pause(folder: Folder, name: Name) -> None:
    """Pause a campaign until it is resumed. Its devices work for other campaigns meanwhile, if there are some."""
    print(submit(folder, Hold(name)))


@campaign.command("resume")
def resume(folder: Folder, name: Annotated[str, typer.Argument(help="Name of the campaign; all when empty.")] = "") -> None:
    """End a pause, once its cause is gone. /ready, /campaigns and the service's log say why a campaign is paused."""
    print(submit(folder, Resume(name)))


@campaign.command("abort")
def abort(folder: Folder, name: Name) -> None:
    """End a campaign where it stands. Its models stay."""
    print(submit(folder, Abort(name)))


@campaign.command("set")
def change(
    folder: Folder,
    name: Name,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of training in all: more than it had extend it.")] = None,
    days: Annotated[float | None, typer.Option(callback=opt.finite_if_given, min=0, help="Days in all, from its start; 0: any.")] = None,
    patience: Annotated[int | None, typer.Option(min=0, help="Rounds without a better mean accuracy; 0: any.")] = None,
    min_delta: Annotated[
        float | None, typer.Option(callback=opt.finite_if_given, min=0, max=1, help="By how much more than the best is better.")
    ] = None,
    deadline: Annotated[float | None, typer.Option(callback=opt.finite_if_given, min=1, help="Seconds a round is open at most.")] = None,
    grace: Annotated[
        float | None, typer.Option(callback=opt.finite_if_given, min=0, help="Seconds a round waits for a device that was lost.")
    ] = None,
    min_devices: Annotated[int | None, typer.Option(min=1, help="No round is aggregated with fewer devices.")] = None,
    local_epochs: Annotated[int | None, typer.Option(min=1, help="Passes over a device's windows in each round.")] = None,
    lr: opt.Lr = None,
    lr_schedule: opt.LrSchedule = "",
    update_encoding: Annotated[str, typer.Option(help="How devices send what training changed: float32 or int8.")] = "",
    algorithm: Annotated[str, typer.Option(help="The same algorithm with another mean.")] = "",
    where: Annotated[str | None, typer.Option(help="Which devices are asked; every one when empty.")] = None,
    cohort: Annotated[int | None, typer.Option(min=0, help="A round is over with so many updates; 0: one of every device asked.")] = None,
    over_select: Annotated[
        float | None, typer.Option(callback=opt.finite_if_given, min=1, max=10, help="A round asks so many times its cohort.")
    ] = None,
    policy: opt.CampaignPolicy = "",
    quorum: Annotated[
        float | None, typer.Option(callback=opt.finite_if_given, min=0, max=1, help="No round is aggregated with a smaller share.")
    ] = None,
    pace: Annotated[
        float | None, typer.Option(callback=opt.finite_if_given, min=0, help="Seconds between two rounds that ask a device.")
    ] = None,
    window: Annotated[str | None, typer.Option(help="Hours in which devices are asked, such as 22:00-06:00; any when empty.")] = None,
    time_zone: opt.TimeZone = "UTC",
) -> None:
    """Change the settings of a campaign from its next round on."""
    hyper_values(lr, {})
    asking = opt.with_asking(policy, cohort, over_select) if policy else {"cohort": cohort, "over_select": over_select}
    order = Retune.of(
        name,
        rounds=rounds,
        days=days,
        patience=patience,
        min_delta=min_delta,
        grace_s=grace,
        min_devices=min_devices,
        local_epochs=local_epochs,
        lr=lr,
        lr_schedule=schedule_of(lr_schedule) or None,
        update_encoding=read_encoding(update_encoding) if update_encoding else None,
        algorithm=algorithm or None,
        where=where,
        quorum=quorum,
        pace_s=pace,
        hours=opt.hours_of(window, time_zone) if window is not None else None,
        **{"deadline_s": deadline, **asking},
    )
    if not order.changes:
        raise ConfigError("shoal campaign set: expected at least one setting, such as --rounds")
    print(submit(folder, order))


@campaign.command("rollback")
def roll_back(
    folder: Folder, name: Name, to: Annotated[int, typer.Option(min=0, help="The round that made the models: `shoal models list`.")]
) -> None:
    """Let a campaign return to the models of an earlier round. Later ones, and what the open round has received, are given up."""
    print(submit(folder, RollBack(name, to)))


def _line(name: str, charter: Charter, state: RunState | None) -> str:
    if state is None:
        return f"{name:<20}  {'not begun':<11}  {'':>9}  {'':>7}  {charter.settings.algorithm}"
    phase = "paused" if charter.held else state.phase
    trained = f"{state.trained}/{state.next_settings.rounds}"
    why = why_ended(state)
    algorithm = state.next_settings.algorithm + (f" ({why})" if why else "")
    return f"{name:<20}  {phase:<11}  {trained:>9}  {len(state.devices):>7}  {algorithm}"
