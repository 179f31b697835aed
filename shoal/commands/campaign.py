"""`shoal campaign`: what trains in a fleet, while the service runs."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by

Name = Annotated[str, typer.Argument(help="Name of the campaign.")]


campaign = typer.Typer(
    rich_markup_mode=None,
    help="Start, list, pause, resume, change, roll back and end campaigns of a service.",
    no_args_is_help=True,
)


@campaign.command("start")
@handled_by("campaign_start")
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


@campaign.command("list")
@handled_by("campaign")
def list_campaigns(
    folder: opt.Folder, database: opt.Database = "", as_json: opt.Json = False
) -> None:
    """List the campaigns of a folder, and where each stands."""


@campaign.command("pause")
@handled_by("campaign")
def pause(folder: opt.Folder, name: Name) -> None:
    """Pause a campaign until it is resumed. Its devices work for other campaigns meanwhile, if
    there are some."""


@campaign.command("resume")
@handled_by("campaign")
def resume(
    folder: opt.Folder,
    name: Annotated[str, typer.Argument(help="Name of the campaign; all when empty.")] = "",
) -> None:
    """End a pause, once its cause is gone. /ready, /campaigns and the service's log say why a
    campaign is paused."""


@campaign.command("abort")
@handled_by("campaign")
def abort(folder: opt.Folder, name: Name) -> None:
    """End a campaign where it stands. Its models stay."""


@campaign.command("set")
@handled_by("campaign_change")
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


@campaign.command("rollback")
@handled_by("campaign")
def roll_back(
    folder: opt.Folder,
    name: Name,
    to: Annotated[
        int, typer.Option(min=0, help="The round that made the models: `shoal models rounds`.")
    ],
) -> None:
    """Let a campaign return to the models of an earlier round. Later ones, and what the open round
    has received, are given up."""
