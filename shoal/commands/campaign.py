"""The commands `shoal campaign`, which manage the campaigns of a fleet while its service runs."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from shoal.command import command, print_json
from shoal.commands import options as opt
from wire.errors import ConfigError
from wire.topics import check_name

if TYPE_CHECKING:
    from aggregator.storage.charter import Charter
    from aggregator.view.fleet import CampaignView


class CampaignRow(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign in the list; the numbers are None if it has not begun."""

    name: str
    phase: str
    trained: int | None = None
    rounds: int | None = None
    devices: int | None = None
    algorithm: str
    diverges: str = ""
    """Cause of a divergence, with its evidence; empty if the campaign does not diverge."""
    stand_out: tuple[str, ...] = ()
    """Ids of the devices that stand out over rounds."""
    paused: str = ""
    """Reason of its pause; empty if it is not paused."""
    ended: str = ""
    """Reason why no further round is trained; empty if further rounds follow."""
    waits_for: str = ""
    """Requirement that the campaign waits for; empty if it waits for nothing."""
    reasons: str = ""
    """Number of devices that do not serve it meanwhile, by the reason, for people."""


Name = Annotated[str, typer.Argument(help="Name of the campaign.")]


Device = Annotated[str, typer.Argument(metavar="DEVICE", help="Id of the device.")]


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
    campaign: Annotated[dict[str, Any], opt.CAMPAIGN],
) -> None:
    """Start a campaign.

    Devices work for it instead of earlier campaigns until it has finished.
    """
    from aggregator.http.local import check_served, order
    from aggregator.service.start import read_exported, read_trust, run_settings
    from aggregator.service_settings import CampaignSettings
    from aggregator.storage.charter import (
        Charter,
        charters,
        check_campaign_name,
        propose,
    )
    from shoal.campaign_settings import campaign_fields

    check_served(folder)
    settings = CampaignSettings(run=check_campaign_name(name), **campaign_fields(bundle, campaign))
    exported = read_exported(bundle, read_trust(bundle))
    if name in charters(folder):
        raise ConfigError(
            f"Campaign name {name!r} is taken in {folder}. `shoal campaign set` changes a campaign."
        )
    charter_settings = run_settings(settings, exported.bundle, secrets.token_hex(16))
    propose(folder, Charter(0, charter_settings, start_from=settings.start_from), bundle)
    print(order(folder, "campaigns", name, "start"))


@campaign.command("list")
@command()
def list_campaigns(
    folder: opt.Folder, database: opt.Database = "", as_json: opt.Json = False
) -> None:
    """List the campaigns with their progress, the latest last."""
    from aggregator.http.local import pauses
    from aggregator.leadership.identity import is_served
    from aggregator.maintenance.database import read_view
    from aggregator.storage.charter import charters

    if not folder.is_dir():
        raise ConfigError(f"No folder {folder}. `shoal serve --folder {folder}` makes it.")
    charter_by_name = charters(folder)
    if not charter_by_name:
        raise ConfigError(f"No campaign in {folder}. `shoal campaign start` starts one.")
    has_fleet = database or (folder / "shoal.db").exists()
    campaigns = read_view(folder, database).campaigns if has_fleet else {}
    paused, problem = dict[str, str](), ""
    try:
        paused = pauses(folder) if is_served(folder) else {}  # faults are not in the database
    except ConfigError as error:
        problem = f"{error}; the list has no pauses after a fault"
    rows = [
        _row(name, charter, campaigns.get(name), paused.get(name, ""))
        for name, charter in charter_by_name.items()
    ]
    if problem:
        print(problem, file=sys.stderr)
    if as_json:
        print_json(rows)
        return
    width = max(8, *(len(row.name) for row in rows))
    print(f"{'campaign':<{width}}  {'phase':<11}  {'rounds':>9}  {'devices':>7}  algorithm")
    for row in rows:
        has_begun = row.trained is not None and row.rounds is not None
        trained = f"{row.trained}/{max(row.trained or 0, row.rounds or 0)}" if has_begun else ""
        devices = str(row.devices) if has_begun else ""
        why = f" (paused: {row.paused})" if row.paused else ""
        why += f" ({row.ended})" if row.ended else ""
        reasons = f"; devices: {row.reasons}" if row.reasons else ""
        why += f" (waits for {row.waits_for}{reasons})" if row.waits_for else ""
        why += f" (diverges: {row.diverges})" if row.diverges else ""
        why += f" (stands out: {', '.join(row.stand_out)})" if row.stand_out else ""
        numbers = f"{trained:>9}  {devices:>7}"
        print(f"{row.name:<{width}}  {row.phase:<11}  {numbers}  {row.algorithm}{why}")


@campaign.command("pause")
@command()
def pause(folder: opt.Folder, name: Name) -> None:
    """Pause a campaign until it is resumed.

    Meanwhile its devices work for other campaigns, if there are any.
    """
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    print(order(folder, "campaigns", check_campaign_name(name), "pause"))


@campaign.command("resume")
@command()
def resume(
    folder: opt.Folder,
    name: Annotated[
        str, typer.Argument(help="Name of the campaign; without it, all campaigns.")
    ] = "",
) -> None:
    """Resume a paused campaign, once the cause of its pause is gone.

    /ready, /campaigns and the service's log say why a campaign is paused.
    """
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    named = [check_campaign_name(name)] if name else []
    print(order(folder, "campaigns", *named, "resume"))


@campaign.command("abort")
@command()
def abort(folder: opt.Folder, name: Name) -> None:
    """End a campaign now. Its models remain."""
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    print(order(folder, "campaigns", check_campaign_name(name), "abort"))


@campaign.command("set")
@command()
def change(
    folder: opt.Folder,
    name: Name,
    changes: Annotated[dict[str, Any], opt.CAMPAIGN._replace(live=True)],
) -> None:
    """Change the settings of a campaign from its next round on."""
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name
    from algorithms.schedules import read_schedule
    from shoal.campaign_settings import with_asking

    if policy := changes.pop("policy", ""):
        changes |= with_asking(policy, changes.get("cohort"), changes.get("over_select"))
    zone = changes.pop("time_zone", "UTC")
    if (window := changes.pop("window", None)) is not None:
        changes["hours"] = f"{window} {zone}" if window else ""
    if schedule := changes.get("lr_schedule"):
        changes["lr_schedule"] = str(read_schedule(schedule))
    if not changes:
        raise ConfigError("shoal campaign set needs at least one setting, such as --rounds")
    print(order(folder, "campaigns", check_campaign_name(name), "settings", **changes))


@campaign.command("rollback")
@command()
def roll_back(
    folder: opt.Folder,
    name: Name,
    to: Annotated[
        int, typer.Option(min=0, help="Round of the models; `shoal models rounds` lists them.")
    ],
) -> None:
    """Return a campaign to the models of an earlier round, or open its round anew.

    Later models, and the updates of the open round, are discarded. With the number of the present
    models, only these updates are.
    """
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    print(order(folder, "campaigns", check_campaign_name(name), "rollback", to=to))


@campaign.command("exclude")
@command()
def exclude(
    folder: opt.Folder,
    name: Name,
    device_id: Device,
    since: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Return to the models after the round before this one, or to the last stored ones "
            "before them; default: do not.",
        ),
    ] = None,
) -> None:
    """Exclude a device from a campaign, which trains on without it.

    The device gets no assignment of the campaign, and its update of the open round does not count.
    It may still be given the campaign's model.
    """
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    choice = {"device_id": check_name(device_id, "device id"), "since": since}
    print(order(folder, "campaigns", check_campaign_name(name), "exclude", **choice))


@campaign.command("include")
@command()
def include(folder: opt.Folder, name: Name, device_id: Device) -> None:
    """Let an excluded device take part in a campaign again."""
    from aggregator.http.local import order
    from aggregator.storage.charter import check_campaign_name

    choice = {"device_id": check_name(device_id, "device id")}
    print(order(folder, "campaigns", check_campaign_name(name), "include", **choice))


def _row(name: str, charter: Charter, view: CampaignView | None, paused: str) -> CampaignRow:
    if view is None:
        return CampaignRow(name=name, phase="not begun", algorithm=charter.settings.algorithm)
    from aggregator.view.pulls import divergence_text

    campaign = view.record
    return CampaignRow(
        name=name,
        phase="paused" if paused or campaign.paused else campaign.phase,
        paused=paused or view.paused,
        trained=campaign.trained,
        rounds=campaign.next_settings.rounds,
        devices=view.devices,
        algorithm=campaign.next_settings.algorithm,
        diverges=divergence_text(campaign),
        stand_out=tuple(pull.device_id for pull in view.pulls),
        ended=view.ended,
        waits_for=view.waiting.lacks if view.waiting is not None else "",
        reasons=view.waiting.reasons if view.waiting is not None else "",
    )
