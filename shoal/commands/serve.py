"""`shoal serve`: the aggregator of one fleet."""

from __future__ import annotations

import logging
import signal
from collections import Counter
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from aggregator.core.release.state import Gate
from aggregator.service_settings import EnrolmentSettings, RolloutSettings, ServeSettings
from shoal.command import Options, command
from shoal.commands import options as opt
from wire.errors import ConfigError

if TYPE_CHECKING:
    from aggregator.core.state import Event, RunState
    from aggregator.service.campaign import Observer


Pem = Annotated[
    Path | None,
    typer.Option(help="PEM file for mqtts://; those of the folder's own authority when not given."),
]


@command(loads="aggregator.main", in_json=False)
def serve(
    *,
    folder: Annotated[
        Path,
        typer.Option(help="Where the fleet is kept: the database, the blobs and the campaigns."),
    ],
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="Folder that `shoal export` wrote, to train with; without one the folder's "
            "campaigns go on."
        ),
    ] = None,
    run: Annotated[
        str,
        typer.Option(
            help="Name of the campaign that trains with it; one that is in the folder goes on."
        ),
    ] = "run-1",
    broker: Annotated[
        str, typer.Option(envvar="SHOAL_BROKER", help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT].")
    ] = "mqtt://localhost",
    fleet: Annotated[str, typer.Option(help="Name of the fleet.")] = "default",
    settings: Annotated[dict[str, Any], Options((opt.CampaignWords, ServeSettings))],
    rollout_steps: Annotated[
        str, typer.Option(help="Shares of the devices, and tags, one after the other.")
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
    """Run the aggregator until Ctrl-C or SIGTERM. Started again, it goes on where it stopped."""
    from rich.console import Console

    from aggregator.core.budget import why_ended
    from aggregator.enrolment.service import own_credentials
    from aggregator.main import serve as run_service
    from aggregator.releases.rollouts import read_steps
    from host.logs import FORMS, alive, log_to_stderr
    from shoal.campaign_settings import campaign_fields

    if log_format not in FORMS:
        raise ConfigError(f"--log-format {log_format}: expected {' or '.join(FORMS)}")
    log_to_stderr("INFO", log_format, fleet=fleet, run=run)
    stopping: list[int] = []
    ask_to_stop(stopping)
    asked = ServeSettings(
        folder=folder,
        bundle=bundle,
        broker=own_credentials(folder, broker, ca, cert, key),
        run=run,
        fleet=fleet,
        rollout=RolloutSettings(steps=read_steps(rollout_steps), gate=Gate(**gate)),
        enrolment=EnrolmentSettings(**enrolment),
        **campaign_fields(bundle, settings),
    )

    def stop() -> bool:
        alive()
        return bool(stopping)

    final = run_service(asked, stop, log_rounds())
    if final is None:
        Console().print(f"no campaign was at work here; the fleet is kept in {folder}")
    else:
        wanted, why = final.next_settings.rounds, why_ended(final)
        stands = f"{final.phase}, round {min(final.round, wanted)} of {wanted}" + (
            f": {why}" if why else ""
        )
        Console().print(f"run {final.settings.name}: {stands}; kept in {folder}", soft_wrap=True)


def log_rounds() -> Observer:
    """Logs where a campaign's rounds are: when one opens, for how many devices; when it is
    aggregated, of how many updates; and, once that is done, how many groups there are; and when it
    is over, of how many devices is known how the last models answer, and what they keep."""
    from aggregator.core.state import OpenPhase, RoundAggregated
    from aggregator.core.summary import count_groups

    received: dict[str, int] = {}
    stood: dict[str, tuple[int, int, str]] = {}
    log = logging.getLogger("shoal")

    def observe(state: RunState, event: Event) -> None:
        run = state.settings.run_id
        if isinstance(event, RoundAggregated):
            lr = f" lr={event.notes['lr']:g}" if "lr" in event.notes else ""
            made = event.round, received[run], count_groups(state.starts), lr
            log.info("round=%d devices=%d groups=%d%s", *made)
        received[run] = len(state.received)
        stands = state.round, state.attempt, state.phase
        if stands != stood.get(run, (0, 0, "waiting")):
            if state.phase == "aggregating":
                log.info("round=%d is aggregated: updates=%d", state.round, received[run])
            elif state.phase in get_args(OpenPhase):
                log.info(
                    "round=%d is open: devices=%d phase=%s",
                    state.round,
                    len(state.cohort),
                    state.phase,
                )
            elif run in stood:
                kept = Counter(
                    said.kept.candidate for said in state.received.values() if said.kept is not None
                )
                keeps = (
                    "; they keep "
                    + ", ".join(f"{name} ({count})" for name, count in kept.most_common())
                    if kept
                    else ""
                )
                log.info(
                    "run=%s is over: devices=%d%s", state.settings.name, len(state.received), keeps
                )
        stood[run] = stands

    return observe


def ask_to_stop(stopping: list[int]) -> None:
    """Have SIGTERM and Ctrl-C noted in `stopping`, and say so at once: what is at work, such as an
    aggregation, is brought to its end."""

    def note(number: int, _frame: object) -> None:
        if not stopping:
            told = (
                "%s: the service stops when what it is at work on is done; killed, it goes on "
                "from before that"
            )
            name = signal.Signals(number).name
            Thread(
                target=logging.getLogger("shoal").info, args=(told, name), daemon=True
            ).start()  # this one may be in the midst of a line
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
