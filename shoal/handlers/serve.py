"""`shoal serve`: the aggregator of one fleet."""

import logging
import signal
from collections import Counter
from pathlib import Path
from threading import Thread
from typing import Any, get_args

from rich.console import Console

from aggregator.core.budget import why_ended
from aggregator.core.release.state import Gate
from aggregator.core.state import Event, OpenPhase, RoundAggregated, RunState
from aggregator.core.summary import count_groups
from aggregator.enrolment.service import EnrolmentSettings, own_credentials
from aggregator.main import serve as run_service
from aggregator.releases.policy import read_when
from aggregator.releases.rollouts import RolloutSettings, read_steps
from aggregator.service.campaign import Observer
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
    """Carry out `shoal serve`; `campaign` are those of `campaign_fields`. What is in the file
    `config` has been read already."""
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
