"""`shoal serve`: the aggregator of one fleet."""

import logging
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from aggregator.core.state import Event, RoundAggregated, RunState
from aggregator.core.summary import count_groups
from aggregator.main import ServeSettings
from aggregator.main import serve as run_service
from algorithms.registry import read_algorithm
from host.logs import FORMS, log_to_stderr
from shoal.commands import options as opt
from wire.errors import ConfigError
from wire.links.mqtt import BrokerAddress

Pem = Annotated[Path | None, typer.Option(help="PEM file for mqtts://.")]


def serve(
    folder: Annotated[Path, typer.Option(help="Where the run is kept: the database and the blobs.")],
    bundle: Annotated[Path, typer.Option(help="Folder that `shoal export` wrote.")],
    run: Annotated[str, typer.Option(help="Name of the run; a run that is in the folder already goes on.")] = "run-1",
    broker: Annotated[str, typer.Option(envvar="SHOAL_BROKER", help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT].")] = "mqtt://localhost",
    fleet: Annotated[str, typer.Option(help="Name of the fleet.")] = "default",
    algorithm: opt.AlgorithmName = "distfl",
    privacy: opt.PrivacyName = "",
    rounds: opt.Rounds = 20,
    local_epochs: opt.LocalEpochs = 1,
    batch_size: opt.BatchSize = 32,
    lr: opt.Lr = None,
    hyper: opt.Hyper = None,
    seed: opt.Seed = 0,
    min_devices: Annotated[int, typer.Option(min=1, help="No round opens or is aggregated with fewer devices.")] = 2,
    min_group: Annotated[int, typer.Option(min=1, help="A group's model changes only with so many of its devices.")] = 2,
    deadline: Annotated[float, typer.Option(callback=opt.finite, min=1, help="Seconds a round is open at most.")] = 600.0,
    grace: Annotated[float, typer.Option(callback=opt.finite, min=0, help="Seconds a round waits for a device that was lost.")] = 60.0,
    weight_cap: Annotated[
        float, typer.Option(callback=opt.finite, min=0, help="A device weighs at most so many times the median; 0: no bound.")
    ] = 10.0,
    norm_cap: Annotated[
        float, typer.Option(callback=opt.finite, min=0, help="Updates of more than so many times the median norm are left out.")
    ] = 10.0,
    max_norm: Annotated[float, typer.Option(callback=opt.finite, min=0, help="An update whose change has a larger norm is refused.")] = 1e6,
    max_drop: Annotated[
        float, typer.Option(callback=opt.finite, min=0, max=1, help="Models by which accuracy fell by more are given up; 1: never.")
    ] = 0.3,
    keep_models: Annotated[int, typer.Option(min=0, help="The models of so many rounds stay, to return to.")] = 3,
    where: Annotated[str, typer.Option(help="Which devices are asked, such as 'battery >= 50 and not metered'; see docs/operate.md.")] = "",
    cohort: Annotated[int, typer.Option(min=0, help="A round is over with so many updates; 0: one of every device asked.")] = 0,
    over_select: Annotated[
        float, typer.Option(callback=opt.finite, min=1, max=10, help="A round asks so many times --cohort devices.")
    ] = 1.0,
    quorum: Annotated[
        float, typer.Option(callback=opt.finite, min=0, max=1, help="No round is aggregated with a smaller share of its updates.")
    ] = 0.0,
    pace: Annotated[float, typer.Option(callback=opt.finite, min=0, help="Seconds between two rounds that ask the same device.")] = 0.0,
    window: Annotated[str, typer.Option(help="Hours in which devices are asked, such as 22:00-06:00; any when empty.")] = "",
    time_zone: Annotated[str, typer.Option(help="Of --window, such as Europe/Berlin.")] = "UTC",
    take_over: Annotated[bool, typer.Option("--take-over", help="Begin although another aggregator is at work; that one ends.")] = False,
    database: Annotated[str, typer.Option(help="SQLAlchemy URL; SQLite in the folder when empty.")] = "",
    host: Annotated[str, typer.Option(help="Address of the HTTP API. It is read-only and has no login: keep it local.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the HTTP API.")] = 8080,
    stay: Annotated[bool, typer.Option(help="Go on answering devices and HTTP when the run is over.")] = True,
    config: opt.Config = None,
    log_format: Annotated[str, typer.Option(help="text, or json with fields for fleet, run, device and round.")] = "text",
    ca: Pem = None,
    cert: Pem = None,
    key: Pem = None,
) -> None:
    """Run the aggregator until Ctrl-C or SIGTERM. Started again, it goes on where it stopped."""
    if log_format not in FORMS:
        raise ConfigError(f"--log-format {log_format}: expected {' or '.join(FORMS)}")
    log_to_stderr("INFO", log_format, fleet=fleet, run=run)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: stopping.append(signum))
    settings = ServeSettings(
        folder=folder,
        bundle=bundle,
        broker=BrokerAddress.parse(broker, ca, cert, key),
        run=run,
        fleet=fleet,
        algorithm=opt.with_privacy(read_algorithm(algorithm), privacy),
        rounds=rounds,
        min_devices=min_devices,
        deadline_s=deadline,
        grace_s=grace,
        local_epochs=local_epochs,
        batch_size=batch_size,
        hyper=opt.hyper_values(lr, hyper),
        seed=seed,
        min_group=min_group,
        weight_cap=weight_cap,
        norm_cap=norm_cap,
        max_update_norm=max_norm,
        max_drop=max_drop,
        keep_models=keep_models,
        where=where,
        cohort=cohort,
        over_select=over_select,
        quorum=quorum,
        pace_s=pace,
        hours=f"{window} {time_zone}" if window else "",
        take_over=take_over,
        database=database,
        http_host=host,
        http_port=port,
        stay=stay,
    )

    def observe(state: RunState, event: Event) -> None:
        if isinstance(event, RoundAggregated):
            logging.getLogger("shoal").info("round=%d devices=%d groups=%d", event.round, len(state.devices), count_groups(state.starts))

    final = run_service(settings, lambda: bool(stopping), observe)
    Console().print(f"run {run}: {final.phase}, round {min(final.round, rounds)} of {rounds}; kept in {folder}")
