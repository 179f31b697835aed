"""The command `shoal serve`, which runs the aggregator of one fleet."""

from __future__ import annotations

import logging
import math
import signal
from collections import Counter
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aggregator.core.steps import Gate
from aggregator.service_settings import EnrolmentSettings, RolloutSettings, ServeSettings
from shoal.command import Options, command
from shoal.commands import options as opt
from wire.errors import ConfigError

if TYPE_CHECKING:
    from aggregator.fleet.events import Event
    from aggregator.fleet.records import Campaign, Fleet, Rollout
    from aggregator.service.runner import Observer


MOST_LOGGED = 1000
"""Number of devices above which the log does not say who comes and goes."""
Pem = Annotated[
    Path | None,
    typer.Option(help="PEM file for mqtts://; without it, that of the folder's own authority."),
]


@command(loads="aggregator.main", in_json=False)
def serve(
    *,
    folder: Annotated[
        Path,
        typer.Option(help="Folder of the fleet: the database, the blobs and the campaigns."),
    ],
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="Folder that `shoal export` wrote, for a new campaign; without it, only the "
            "campaigns of the folder continue."
        ),
    ] = None,
    run: Annotated[
        str,
        typer.Option(help="Name of the campaign of --bundle; one that is in the folder continues."),
    ] = "run-1",
    broker: Annotated[
        str,
        typer.Option(
            envvar="SHOAL_BROKER",
            help="mqtt://[USER:PASSWORD@]HOST[:PORT] or mqtts://...; in USER and PASSWORD, # is "
            "written %23, / is %2F, and so on.",
        ),
    ] = "mqtt://localhost",
    broker_user: Annotated[
        str | None,
        typer.Option(
            envvar="SHOAL_BROKER_USER", help="User at the broker; its address may have it instead."
        ),
    ] = None,
    broker_password_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the password at the broker; SHOAL_BROKER_PASSWORD has it instead."
        ),
    ] = None,
    fleet: Annotated[str, typer.Option(help="Name of the fleet.")] = "default",
    settings: Annotated[dict[str, Any], Options((opt.CampaignWords, ServeSettings))],
    rollout_steps: Annotated[
        str, typer.Option(help="Steps of a rollout: shares of the devices, or tags.")
    ] = "0.1,0.5,1",
    gate: Annotated[dict[str, Any], Options((Gate,), "rollout_")],
    enrolment: Annotated[dict[str, Any], Options((EnrolmentSettings,), "enrol_")],
    config: opt.Config = None,
    log_format: Annotated[
        str, typer.Option(help="text, or json with fields for fleet, run, device and round.")
    ] = "text",
    ca: Pem = None,
    cert: Pem = None,
    key: Pem = None,
) -> None:
    """Run the aggregator until Ctrl-C or SIGTERM. Started again, it continues where it stopped."""
    from rich.console import Console

    from aggregator.enrolment.service import own_credentials
    from aggregator.fleet.budget import why_ended
    from aggregator.main import serve as run_service
    from aggregator.releases import read_steps
    from host.logs import FORMS, alive, log_to_stderr
    from shoal.campaign_settings import campaign_fields

    if log_format not in FORMS:
        raise ConfigError(f"log_format must be one of {', '.join(FORMS)}, got {log_format!r}")
    log_to_stderr("INFO", log_format, fleet=fleet, run=run)
    stopping: list[int] = []
    ask_to_stop(stopping)
    serve_settings = ServeSettings(
        folder=folder,
        bundle=bundle,
        broker=own_credentials(folder, broker, ca, cert, key).login(
            broker_user, broker_password_file
        ),
        run=run,
        fleet=fleet,
        rollout=RolloutSettings(steps=read_steps(rollout_steps), gate=Gate(**gate)),
        enrolment=EnrolmentSettings(**enrolment),
        **campaign_fields(bundle, settings),
    )

    def stop() -> bool:
        alive()
        return bool(stopping)

    final = run_service(serve_settings, stop, log_rounds())
    campaigns = final.campaigns if final is not None else {}
    campaign = campaigns.get(run) or next(reversed(campaigns.values()), None)
    if campaign is None:
        Console().print(f"No campaign ran; the fleet is kept in {folder}")
        return
    wanted, why = campaign.next_settings.rounds, why_ended(campaign)
    trained = f"{campaign.phase}, {campaign.trained} of {max(wanted, campaign.trained)} rounds"
    place = place_of(folder, serve_settings.database)
    text = f"campaign {campaign.name}: {trained}{f': {why}' if why else ''}; {place}"
    Console().print(text, soft_wrap=True)


def place_of(folder: Path, database: str) -> str:
    """Return where a fleet is kept, or that its database is gone, for people."""
    if database or (folder / "shoal.db").exists():
        return f"kept in {folder}"
    return f"{folder / 'shoal.db'} is gone: put it back, or run `shoal restore` with a backup"


def log_rounds() -> Observer:
    """Return an observer that logs the rounds of campaigns and the steps of rollouts.

    It logs a round when it opens, with the number of devices; when it closes, with the number of
    updates; and when it is aggregated, with the number of groups, the updates that were left out,
    and why it changed nothing. While it waits, its log has what it lacks and what devices of a
    small fleet lack: at once, within a minute after this has changed, and else every hour. It does
    not log a wait for the pace alone. It logs the end of a campaign
    with the personal models that devices chose, each step and the end of rollouts, and devices of a
    small fleet that come and go.
    """
    from aggregator.fleet.events import Aggregated, CheckedIn, Seen
    from aggregator.fleet.reconcile import Turn
    from aggregator.fleet.rounds import lacking
    from aggregator.view.fleet import FleetView
    from aggregator.view.progress import GOING, reason_of
    from aggregator.view.summary import count_groups

    stages: dict[str, tuple[int, int, str]] = {}
    steps: dict[str, tuple[str, int]] = {}
    fleets: list[Fleet] = []
    waits: dict[str, tuple[float, float, Any]] = {}
    # when to look again what a campaign waits for, when it was logged last, and what was logged
    log = logging.getLogger("shoal")

    def observe(fleet: Fleet, event: Event) -> None:
        last, fleets[:] = fleets[:], [fleet]
        if not last or last[0].rollouts is not fleet.rollouts:
            for rollout in fleet.rollouts:
                step = rollout.phase, rollout.step
                is_new = steps.get(rollout.salt) != step and rollout.phase != "candidate"
                steps[rollout.salt] = step
                if is_new and (last or rollout.phase in GOING):
                    say_rollout(rollout)
        if last and isinstance(event, CheckedIn | Seen) and len(fleet.devices) <= MOST_LOGGED:
            say_device(last[0], fleet, event.device_id)
        turn = Turn(fleet)
        for campaign in fleet.campaigns.values():
            stage = campaign.round, campaign.attempt, campaign.phase
            before = stages.get(campaign.name, (0, 0, "waiting"))
            if isinstance(event, Aggregated) and event.campaign == campaign.name:
                groups = count_groups({d: m.group for d, m in campaign.members.items() if m.group})
                lr = f" lr={event.notes['lr']:g}" if "lr" in event.notes else ""
                message = "Round %d aggregated: campaign=%s groups=%d%s"
                log.info(message, event.round, campaign.name, groups, lr)
                say_notes(event)
            if stage != before:
                stages[campaign.name] = stage
                say(campaign)
            if fleet.sweep:  # not every device has been looked at
                continue
            lacks = lacking(turn, campaign).text
            if not lacks:
                waits.pop(campaign.name, None)
            elif event.at_s >= waits.get(campaign.name, (0.0,))[0]:
                say_waiting(fleet, campaign, lacks)

    def say(campaign: Campaign) -> None:
        name, number, updates = campaign.name, campaign.round, campaign.received
        match campaign.phase:
            case "aggregating":
                log.info("Round %d closed: campaign=%s updates=%d", number, name, updates)
            case "preparing" | "training":
                message = "Round %d opened: campaign=%s devices=%d phase=%s"
                log.info(message, number, name, campaign.width, campaign.phase)
            case "evaluating":  # the number of devices is not known at once
                log.info("Round %d opened: campaign=%s phase=evaluating", number, name)
            case "finished":
                chosen = Counter(
                    u.personal_model.candidate
                    for u in campaign.updates.values()
                    if u.personal_model
                )
                counts = ", ".join(f"{name} ({count})" for name, count in chosen.most_common())
                models = f" personal_models={counts}" if counts else ""
                log.info("Campaign finished: campaign=%s devices=%d%s", name, updates, models)

    def say_device(before: Fleet, after: Fleet, device_id: str) -> None:
        was, now = (f.devices.get(device_id) for f in (before, after))
        if now is not None and now.online != (was is not None and was.online):
            log.info("Device %s: device=%s", "online" if now.online else "offline", device_id)

    def say_notes(event: Aggregated) -> None:
        number, name = event.round, event.campaign
        if reason := event.notes.get("set_aside"):
            log.warning("Round %d changed nothing: campaign=%s: %s", number, name, reason)
        for device_id, reason in event.notes.get("left_out", {}).items():
            message = "Round %d left an update out: campaign=%s device=%s: %s"
            log.warning(message, number, name, device_id, reason)
        for entry in event.notes.get("untested", ()):
            counts = entry["view"], entry["devices"], entry["needed"]
            message = "Groups not looked for: campaign=%s round=%d view=%s devices=%d needed=%d"
            log.info(message, name, number, *counts)

    def say_waiting(fleet: Fleet, campaign: Campaign, lacks: str) -> None:
        waiting, reasons = None, ""
        if len(fleet.devices) <= MOST_LOGGED:  # the reasons need a walk over all devices
            waiting = FleetView(fleet, now_s=fleet.at_s).campaigns[campaign.name].waiting
            reasons = f" devices={waiting.reasons}" if waiting and waiting.reasons else ""
        cause = lacks, waiting and (waiting.could, waiting.cannot)
        _, logged_s, before = waits.get(campaign.name, (0.0, -math.inf, None))
        is_due = cause != before or fleet.at_s >= logged_s + 3600.0
        is_due = is_due and not (waiting is not None and waiting.is_paced)
        last = (fleet.at_s, cause) if is_due else (logged_s, before)
        times = fleet.at_s + 60.0, last[0] + 3600.0
        waits[campaign.name] = min(at_s for at_s in times if at_s > fleet.at_s), *last
        if not is_due:
            return
        message = "Round %d waits for %s: campaign=%s%s"
        log.info(message, campaign.round, lacks, campaign.name, reasons)

    def say_rollout(rollout: Rollout) -> None:
        level = logging.ERROR if rollout.phase == "failed" else logging.INFO
        numbers = ",".join(map(str, sorted(rollout.releases.values())))
        fields = rollout.phase, rollout.campaign, numbers, min(rollout.step + 1, len(rollout.steps))
        reason = f": {why}" if (why := reason_of(rollout)) else ""
        log.log(level, "Rollout %s: campaign=%s releases=%s step=%d%s", *fields, reason)

    return observe


def ask_to_stop(stopping: list[int]) -> None:
    """Record SIGTERM and Ctrl-C in `stopping`, and log at once that the service stops.

    The service finishes its current task, such as an aggregation, first.
    """

    def note(number: int, _frame: object) -> None:
        if not stopping:
            message = (
                "Stopping after the current task; if killed, the service resumes from the last "
                "saved state: signal=%s"
            )
            name = signal.Signals(number).name
            Thread(
                target=logging.getLogger("shoal").info, args=(message, name), daemon=True
            ).start()  # a signal may interrupt this thread while it writes a log line
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
