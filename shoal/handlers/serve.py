"""`shoal serve`: the aggregator of one fleet."""

import logging
import signal
from pathlib import Path
from typing import Any

from rich.console import Console

from aggregator.campaign import Observer
from aggregator.core.budget import why_ended
from aggregator.core.rollout_state import Gate
from aggregator.core.state import Event, RoundAggregated, RunState
from aggregator.core.summary import count_groups
from aggregator.enrolment.service import EnrolmentSettings, own_credentials
from aggregator.main import serve as run_service
from aggregator.release_policy import read_when
from aggregator.rollouts import RolloutSettings, read_steps
from aggregator.service_settings import ServeSettings
from host.logs import FORMS, log_to_stderr
from host.supervisor import alive
from shoal.handlers.campaign_settings import campaign_fields
from wire.errors import ConfigError


def serve(
    folder: Path,
    bundle: Path | None,
    run: str,
    broker: str,
    fleet: str,
    release: str,
    release_every: int,
    rollout_steps: str,
    rollout_quorum: float,
    rollout_max_drop: float,
    rollout_max_failures: float,
    rollout_max_slower: float,
    rollout_patience: float,
    take_over: bool,
    standby: bool,
    database: str,
    blobs: str,
    max_payload: int,
    host: str,
    port: int,
    proxy: str,
    stay: bool,
    enrol_host: str,
    enrol_port: int,
    enrol_broker: str,
    enrol_policy: Path | None,
    enrol_days: float,
    enrol_attestation: Path | None,
    config: Path | None,
    log_format: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    **campaign: Any,
) -> None:
    """Carry out `shoal serve`; `campaign` are those of `campaign_fields`. What is in the file `config` has been read already."""
    if log_format not in FORMS:
        raise ConfigError(f"--log-format {log_format}: expected {' or '.join(FORMS)}")
    log_to_stderr("INFO", log_format, fleet=fleet, run=run)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: stopping.append(signum))
    settings = ServeSettings(
        folder=folder,
        bundle=bundle,
        broker=own_credentials(folder, broker, ca, cert, key),
        run=run,
        fleet=fleet,
        **campaign_fields({**campaign, "bundle": bundle}),
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
            host=enrol_host, port=enrol_port, broker=enrol_broker, policy=enrol_policy, days=enrol_days, attestation=enrol_attestation
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
        stands = f"{final.phase}, round {min(final.round, wanted)} of {wanted}" + (f": {why}" if why else "")
        Console().print(f"run {final.settings.name}: {stands}; kept in {folder}", soft_wrap=True)


def log_rounds() -> Observer:
    """Logs each round that is aggregated: how many devices' updates it had, and how many groups there are since."""
    received: dict[str, int] = {}

    def observe(state: RunState, event: Event) -> None:
        run = state.settings.run_id
        if isinstance(event, RoundAggregated):
            lr = f" lr={event.notes['lr']:g}" if "lr" in event.notes else ""
            made = event.round, received[run], count_groups(state.starts), lr
            logging.getLogger("shoal").info("round=%d devices=%d groups=%d%s", *made)
        received[run] = len(state.received)

    return observe
