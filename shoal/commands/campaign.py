"""`shoal campaign`: what trains in a fleet, while the service runs."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from shoal.command import command, print_json
from shoal.commands import options as opt
from wire.errors import ConfigError

if TYPE_CHECKING:
    from aggregator.core.state import RunState
    from aggregator.storage.charter import Charter


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


Name = Annotated[str, typer.Argument(help="Name of the campaign.")]


campaign = typer.Typer(
    rich_markup_mode=None,
    help="Start, list, pause, resume, change, roll back and end campaigns of a service.",
    no_args_is_help=True,
)


@campaign.command("start")
@command()
def start(
    folder: opt.Folder,
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
    given = dict(locals())
    from aggregator.http.local import check_served, order
    from aggregator.service.start import read_exported, read_trust
    from aggregator.service_settings import CampaignSettings, run_settings
    from aggregator.storage.charter import (
        Charter,
        charters,
        check_campaign_name,
        propose,
    )
    from shoal.campaign_settings import campaign_fields

    check_served(folder)
    settings = CampaignSettings(run=check_campaign_name(name), **campaign_fields(given))
    exported = read_exported(bundle, read_trust(bundle))
    if name in charters(folder):
        raise ConfigError(
            f"campaign {name}: there is one of this name in {folder}; `shoal campaign set` "
            "changes it"
        )
    made = run_settings(settings, exported.bundle, secrets.token_hex(16))
    propose(folder, Charter(0, made, start_from=start_from), bundle)
    print(order(folder, "campaigns", name, "start"))


@campaign.command("list")
@command()
def list_campaigns(
    folder: opt.Folder, database: opt.Database = "", as_json: opt.Json = False
) -> None:
    """List the campaigns of a folder, and where each stands."""
    from aggregator.storage.charter import charters
    from aggregator.storage.engine import sqlite_url
    from aggregator.storage.sql_store import load_run

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


@campaign.command("pause")
@command()
def pause(folder: opt.Folder, name: Name) -> None:
    """Pause a campaign until it is resumed. Its devices work for other campaigns meanwhile, if
    there are some."""
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    print(order(folder, "campaigns", check_campaign_name(name), "pause"))


@campaign.command("resume")
@command()
def resume(
    folder: opt.Folder,
    name: Annotated[str, typer.Argument(help="Name of the campaign; all when empty.")] = "",
) -> None:
    """End a pause, once its cause is gone. /ready, /campaigns and the service's log say why a
    campaign is paused."""
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    named = [check_campaign_name(name)] if name else []
    print(order(folder, "campaigns", *named, "resume"))


@campaign.command("abort")
@command()
def abort(folder: opt.Folder, name: Name) -> None:
    """End a campaign where it stands. Its models stay."""
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    print(order(folder, "campaigns", check_campaign_name(name), "abort"))


@campaign.command("set")
@command()
def change(
    folder: opt.Folder,
    name: Name,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds of training in all: more than it had extend it."),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            callback=opt.finite_if_given, min=0, help="Days in all, from its start; 0: any."
        ),
    ] = None,
    patience: Annotated[
        int | None, typer.Option(min=0, help="Rounds without a better mean accuracy; 0: any.")
    ] = None,
    min_delta: Annotated[
        float | None,
        typer.Option(
            callback=opt.finite_if_given,
            min=0,
            max=1,
            help="By how much more than the best is better.",
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(callback=opt.finite_if_given, min=1, help="Seconds a round is open at most."),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            callback=opt.finite_if_given,
            min=0,
            help="Seconds a round waits for a device that was lost.",
        ),
    ] = None,
    min_devices: Annotated[
        int | None, typer.Option(min=1, help="No round is aggregated with fewer devices.")
    ] = None,
    local_epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over a device's windows in each round.")
    ] = None,
    lr: opt.Lr = None,
    lr_schedule: opt.LrSchedule = "",
    update_encoding: Annotated[
        str, typer.Option(help="How devices send what training changed: float32 or int8.")
    ] = "",
    algorithm: Annotated[str, typer.Option(help="The same algorithm with another mean.")] = "",
    where: Annotated[
        str | None, typer.Option(help="Which devices are asked; every one when empty.")
    ] = None,
    cohort: Annotated[
        int | None,
        typer.Option(
            min=0, help="A round is over with so many updates; 0: one of every device asked."
        ),
    ] = None,
    over_select: Annotated[
        float | None,
        typer.Option(
            callback=opt.finite_if_given,
            min=1,
            max=10,
            help="A round asks so many times its cohort.",
        ),
    ] = None,
    policy: opt.CampaignPolicy = "",
    quorum: Annotated[
        float | None,
        typer.Option(
            callback=opt.finite_if_given,
            min=0,
            max=1,
            help="No round is aggregated with a smaller share.",
        ),
    ] = None,
    pace: Annotated[
        float | None,
        typer.Option(
            callback=opt.finite_if_given,
            min=0,
            help="Seconds between two rounds that ask a device.",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(help="Hours in which devices are asked, such as 22:00-06:00; any when empty."),
    ] = None,
    time_zone: opt.TimeZone = "UTC",
) -> None:
    """Change the settings of a campaign from its next round on."""
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name
    from shoal.campaign_settings import hours_of, with_asking
    from shoal.choices import hyper_values, read_encoding, schedule_of

    hyper_values(lr, {})
    asking = (
        with_asking(policy, cohort, over_select)
        if policy
        else {"cohort": cohort, "over_select": over_select}
    )
    settings = dict(
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
        hours=hours_of(window, time_zone) if window is not None else None,
        **{"deadline_s": deadline, **asking},
    )
    changes = {field: value for field, value in settings.items() if value is not None}
    if not changes:
        raise ConfigError("shoal campaign set: expected at least one setting, such as --rounds")
    print(order(folder, "campaigns", check_campaign_name(name), "settings", **changes))


@campaign.command("rollback")
@command()
def roll_back(
    folder: opt.Folder,
    name: Name,
    to: Annotated[
        int, typer.Option(min=0, help="The round that made the models: `shoal models rounds`.")
    ],
) -> None:
    """Let a campaign return to the models of an earlier round. Later ones, and what the open round
    has received, are given up."""
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    print(order(folder, "campaigns", check_campaign_name(name), "rollback", to=to))


def _row(name: str, charter: Charter, state: RunState | None) -> Row:
    from aggregator.core.budget import why_ended

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
