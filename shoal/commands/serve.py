"""`shoal serve`: the aggregator of one fleet."""

from __future__ import annotations

import logging
import signal
from collections import Counter
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from aggregator.core.release.state import Gate
from shoal.command import command
from shoal.commands import options as opt
from wire.errors import ConfigError
from wire.pieces import MOST_BYTES

if TYPE_CHECKING:
    from aggregator.core.state import Event, RunState
    from aggregator.service.campaign import Observer


Pem = Annotated[
    Path | None,
    typer.Option(help="PEM file for mqtts://; those of the folder's own authority when not given."),
]


@command(loads="aggregator.main", in_json=False)
def serve(
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
    release: Annotated[
        str,
        typer.Option(help="What makes releases: off, manual, or auto: a campaign that is over."),
    ] = "off",
    release_every: Annotated[
        int, typer.Option(min=0, help="With auto: release also after so many rounds; 0: not.")
    ] = 0,
    rollout_steps: Annotated[
        str, typer.Option(help="Shares of the devices, and tags, one after the other.")
    ] = "0.1,0.5,1",
    rollout_quorum: Annotated[
        float,
        typer.Option(
            callback=opt.finite,
            min=0.01,
            max=1,
            help="The share of a step's devices that have to confirm.",
        ),
    ] = Gate().quorum,
    rollout_max_drop: Annotated[
        float,
        typer.Option(
            callback=opt.finite,
            min=0,
            max=1,
            help="A release that lowers accuracy by more is rolled back.",
        ),
    ] = Gate().max_drop,
    rollout_max_failures: Annotated[
        float,
        typer.Option(
            callback=opt.finite,
            min=0,
            max=1,
            help="One that fails on more of a step's devices is rolled back.",
        ),
    ] = Gate().max_failures,
    rollout_max_slower: Annotated[
        float,
        typer.Option(
            callback=opt.finite,
            min=1,
            help="One with which a prediction takes more times as long is rolled back.",
        ),
    ] = Gate().max_slower,
    rollout_patience: Annotated[
        float,
        typer.Option(
            callback=opt.finite,
            min=0,
            help="Seconds a step waits for a clear answer; then what there is counts.",
        ),
    ] = Gate().patience_s,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Begin although another aggregator is at work; that one ends."
        ),
    ] = False,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Wait while another aggregator has the lease in the PostgreSQL database, then "
            "take over.",
        ),
    ] = False,
    database: Annotated[
        str,
        typer.Option(
            help="sqlite:///PATH or postgresql://USER@HOST/NAME; SQLite in the folder when empty."
        ),
    ] = "",
    blobs: Annotated[
        str, typer.Option(help="s3://BUCKET/PREFIX, or a folder; one in --folder when empty.")
    ] = "",
    max_payload: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            help="MiB of the largest update; devices have the same option, for models too.",
        ),
    ] = MOST_BYTES >> 20,
    host: Annotated[
        str, typer.Option(help="Address of the HTTP API; beyond this machine it asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the HTTP API.")] = 8080,
    proxy: Annotated[
        str,
        typer.Option(
            help="Addresses or networks of reverse proxies, with commas, whose X-Forwarded-For and "
            "-Proto are believed."
        ),
    ] = "",
    stay: Annotated[
        bool, typer.Option(help="Go on answering devices and HTTP when the run is over.")
    ] = True,
    enrol_host: Annotated[
        str, typer.Option(help="Address at which devices are enrolled over HTTPS.")
    ] = "0.0.0.0",
    enrol_port: Annotated[
        int,
        typer.Option(
            help="Its port, where the folder has an authority (`shoal init --tls`); 0: nobody is "
            "enrolled."
        ),
    ] = 8443,
    enrol_broker: Annotated[
        str,
        typer.Option(
            help="The broker's address for enrolled devices; that of --broker when empty."
        ),
    ] = "",
    enrol_policy: Annotated[
        Path | None,
        typer.Option(help="What enrolled devices are suggested as their policy (TOML)."),
    ] = None,
    enrol_days: Annotated[
        float,
        typer.Option(callback=opt.finite, help="Days for which a device's certificate is valid."),
    ] = 90.0,
    enrol_attestation: Annotated[
        Path | None,
        typer.Option(
            help="Who has to attest an app and its phone before it is enrolled (TOML); nobody "
            "without it."
        ),
    ] = None,
    config: opt.Config = None,
    log_format: Annotated[
        str, typer.Option(help="text, or json with fields for fleet, run, device and round.")
    ] = "text",
    ca: Pem = None,
    cert: Pem = None,
    key: Pem = None,
) -> None:
    """Run the aggregator until Ctrl-C or SIGTERM. Started again, it goes on where it stopped."""
    given = dict(locals())
    from rich.console import Console

    from aggregator.core.budget import why_ended
    from aggregator.enrolment.service import EnrolmentSettings, own_credentials
    from aggregator.main import serve as run_service
    from aggregator.releases.policy import read_when
    from aggregator.releases.rollouts import RolloutSettings, read_steps
    from aggregator.service_settings import ServeSettings
    from host.logs import FORMS, log_to_stderr
    from host.supervisor import alive
    from shoal.campaign_settings import campaign_fields

    if log_format not in FORMS:
        raise ConfigError(f"--log-format {log_format}: expected {' or '.join(FORMS)}")
    log_to_stderr("INFO", log_format, fleet=fleet, run=run)
    stopping: list[int] = []
    ask_to_stop(stopping)
    settings = ServeSettings(
        folder=folder,
        bundle=bundle,
        broker=own_credentials(folder, broker, ca, cert, key),
        run=run,
        fleet=fleet,
        **campaign_fields(given),
        release=read_when(release),
        release_every=release_every,
        rollout=RolloutSettings(
            steps=read_steps(rollout_steps),
            gate=Gate(
                quorum=rollout_quorum,
                max_drop=rollout_max_drop,
                max_failures=rollout_max_failures,
                max_slower=rollout_max_slower,
                patience_s=rollout_patience,
            ),
        ),
        take_over=take_over,
        standby=standby,
        database=database,
        blobs=blobs,
        max_payload=max_payload,
        http_host=host,
        http_port=port,
        http_proxies=proxy,
        stay=stay,
        enrolment=EnrolmentSettings(
            host=enrol_host,
            port=enrol_port,
            broker=enrol_broker,
            policy=enrol_policy,
            days=enrol_days,
            attestation=enrol_attestation,
        ),
    )

    def stop() -> bool:
        alive()
        return bool(stopping)

    final = run_service(settings, stop, log_rounds())
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
