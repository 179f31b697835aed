"""The service: assembly of store, blobs, link, runner and HTTP server, and their life cycle."""

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from aggregator.enrolment.order_handlers import DeviceOrders
from aggregator.enrolment.service import enrolled_tags, enrolment
from aggregator.fleet.events import Event
from aggregator.fleet.records import Fleet
from aggregator.http.api import create_api, create_starting_api
from aggregator.http.dashboard.alerts import AHEAD_S, standing_alerts
from aggregator.http.local import FILE as LOCAL
from aggregator.http.local import Endpoint, open_to_owner
from aggregator.http.monitoring.metrics import CampaignMetrics
from aggregator.http.monitoring.otlp import check_export, otlp_export
from aggregator.http.monitoring.webhook import AlertWebhook, alerts_to, check_webhook
from aggregator.http.server import HttpServer
from aggregator.http.tokens import http_access
from aggregator.leadership.fleet_lease import LeaseLost, open_lease
from aggregator.leadership.identity import (
    boot_ids,
    find_epoch,
    lock_service,
    service_signer,
    steady_clock,
)
from aggregator.leadership.rivals import Rivals
from aggregator.opening import Opening
from aggregator.operator.desk import Desk
from aggregator.operator.duties import Duties
from aggregator.operator.release_orders import ORDERS, refuse, release_handlers
from aggregator.ports import Blobs, Clock
from aggregator.releases import ReleaseMaker
from aggregator.service.conditions import Conditions, ServiceCounters
from aggregator.service.inbox import FleetInbox
from aggregator.service.runner import Observer, Runner
from aggregator.service.steering import Steering
from aggregator.service.telemetry import Telemetry
from aggregator.service_settings import ServeSettings
from aggregator.storage.blob_bucket import open_blobs
from aggregator.storage.charter import RELEASES, check_campaign_name
from aggregator.storage.fleet_store import FleetStore
from aggregator.storage.telemetry_table import TelemetryTable
from aggregator.transfer.assembly import Assembly
from aggregator.transfer.fleet import FleetLink
from aggregator.view.fleet import FleetView
from wire.errors import OtherAggregator, ShoalError
from wire.identity.signed import Signer, Verifier
from wire.links.mqtt import MqttLink
from wire.links.port import Will
from wire.messages import AggregatorStatus
from wire.topics import Topics, client_name

log = logging.getLogger("shoal.aggregator")

SILENCE_S = 180.0
"""Seconds without a message after which a device counts as absent."""


def serve(
    settings: ServeSettings,
    stop: Callable[[], bool],
    observe: Observer = lambda _fleet, _event: None,
) -> Fleet | None:
    """Run a service until `stop` returns True, or, without `stay`, until every campaign is over.

    Campaigns of the folder go on. Return the fleet at the end, or None if the service was stopped
    while it waited for the lease.

    Raises:
        ShoalError: a setting, a bundle, the database or the broker cannot be used, or another
        aggregator has the fleet.
    """
    topics, folder, doing = Topics(settings.fleet), settings.folder, ""

    def begins(step: str) -> None:
        nonlocal doing
        doing = step
        log.info("Starting: %s", step)

    if settings.bundle is not None:
        check_campaign_name(settings.run)
    if settings.alert_webhook:
        check_webhook(settings.alert_webhook)
    check_export()
    lock = lock_service(folder)
    try:
        (folder / LOCAL).unlink(missing_ok=True)  # left by a killed service
        with ExitStack() as opened:
            begins(f"reading {folder}")
            opening = Opening.read(settings)
            http = opened.enter_context(
                HttpServer(settings.http_host, settings.http_port, proxies=settings.http_proxies)
            )
            starting_api = create_starting_api(lambda: doing)
            if not settings.standby:  # a standby opens no port before it has the lease
                http.serve(starting_api)
            lease = open_lease(
                opening.place.database, settings.fleet, secrets.token_hex(8), settings.standby
            )
            if lease is not None:
                opened.enter_context(closing(lease))
                opening.place = replace(opening.place, lease=lease)
            begins("reading the state of its campaigns")
            secret = opening.look(settings)
            earlier_boots = boot_ids(
                folder / "boots", boot_id := lease.name if lease else secrets.token_hex(8)
            )
            if lease is not None:
                lease.share(secret)
                begins("taking the lease of the fleet")
                if not lease.take(earlier_boots, settings.standby, settings.take_over, stop):
                    return None
                earlier_boots.append(lease.holder_before)
                opening.charters = opening.place.exchange()
                opening.look(settings)  # the former holder may have written meanwhile
            http.serve(starting_api)
            opening.begin(settings)
            named = (settings.fleet, settings.broker, folder / "trust.pem", settings.database)
            opened.enter_context(enrolment(settings.enrolment, folder, *named))
            tags = opened.enter_context(enrolled_tags(folder, settings.database))
            return _serve(
                settings, topics, http, opening, tags, begins, earlier_boots, boot_id, stop, observe
            )
    except OtherAggregator as error:
        raise LeaseLost(str(error)) if settings.standby else error from None
    finally:
        os.close(lock)


def _serve(
    settings: ServeSettings,
    topics: Topics,
    http: HttpServer,
    opening: Opening,
    tags: Callable[[str], tuple[str, ...]],
    begins: Callable[[str], None],
    known: list[str],
    boot_id: str,
    stop: Callable[[], bool],
    observe: Observer,
) -> Fleet | None:
    folder, place, clock = settings.folder, opening.place, steady_clock(opening.last_s)
    trust, lease = place.trust, place.lease
    if (ahead_s := clock() - time.time()) > AHEAD_S:
        log.warning(
            "Stored time is ahead of this machine's clock, going on from the stored time: "
            "ahead_s=%.0f",
            ahead_s,
        )

    def make_signer() -> Signer:
        return service_signer(folder, settings.fleet, trust.keys, trust.root, clock())

    signer, verifier = make_signer(), Verifier(settings.fleet, trust.keys)
    client_id = client_name(settings.fleet, "aggregator")
    new_link = partial(MqttLink, settings.broker, client_id, confirmed=True)
    stored_epoch = opening.fleet.epoch if opening.fleet.at_s else 0
    least = max(lease.epoch - 1 if lease else 0, stored_epoch)
    begins(f"looking for another aggregator of the fleet at {settings.broker}")
    epoch = find_epoch(new_link, topics, verifier, least, known, clock(), settings.take_over)
    log.info("Service started: fleet=%s epoch=%d broker=%s", settings.fleet, epoch, settings.broker)
    will = Will(topics.aggregator, signer(AggregatorStatus(False, boot_id, epoch, clock())))
    mqtt = MqttLink(settings.broker, client_id, will, confirmed=True)
    counted, started_s = ServiceCounters(), time.monotonic()
    observers = [counted.observe, observe]

    def observe_too(fleet: Fleet, event: Event) -> None:
        for each in observers:
            each(fleet, event)

    link = FleetLink(mqtt, topics, boot_id, signer)
    assembly = Assembly(folder / "pieces", settings.max_payload << 20)
    telemetry = Telemetry(TelemetryTable(place.database, place.fence()), clock)
    inbox = FleetInbox(
        topics, clock, link.offered, telemetry, assembly, silence_s=SILENCE_S, tags=tags
    )
    releases = (
        open_blobs(settings.blobs or str(folder), folder, RELEASES, place.may_delete)
        if settings.release != "off"
        else None
    )
    store = FleetStore(place.database, place.fence())
    runner = Runner(
        store,
        link,
        inbox,
        telemetry,
        Rivals(verifier, clock, inbox.count),
        clock,
        assembly=assembly,
        releases=releases,
        observe=observe_too,
    )
    maker = ReleaseMaker(
        settings.release,
        settings.rollout.steps,
        settings.rollout.gate,
        releases,
        lambda name: runner.trainers[name].blobs,
        clock,
        settings.release_every,
    )
    steering = Steering(runner, place, maker, settings.accelerator)

    def renew() -> float:
        link.sign = signer = make_signer()
        return signer.until_s

    try:
        for name, charter in opening.charters.items():
            begins(f"opening campaign {name}")
            is_own = opening.fresh is not None and name == settings.run
            try:
                if is_own:
                    steering.open(charter, opening.exported, opening.fresh)
                else:
                    steering.open(charter)
            except ShoalError as error:  # the other campaigns go on without it
                if is_own:
                    raise
                steering.broken[name] = str(error)
                log.error("Campaign cannot be opened: campaign=%s: %s", name, error)
        runner.begin(epoch)
        orders = DeviceOrders(runner, folder, place.database)
        handlers = {**steering.handlers, **orders.handlers}
        handlers |= (
            dict.fromkeys(ORDERS, refuse)
            if settings.release == "off"
            else release_handlers(runner, maker)
        )
        desk, local = Desk(folder, handlers), Endpoint.new(*http.address)
        access = http_access(folder, settings.http_host, local.token)
        duties = Duties(runner, desk, clock, renew, maker)
        conditions = partial(_conditions, runner, steering, duties, counted)
        view = partial(_view, runner, steering, telemetry, clock)

        def blobs_of(name: str) -> Blobs | None:
            return runner.trainers[name].blobs if name in runner.trainers else None

        def wall_s() -> float:
            return time.monotonic() - started_s

        webhook = settings.alert_webhook and AlertWebhook(
            settings.alert_webhook, folder, lambda: standing_alerts(conditions(), view()), clock
        )
        metrics = CampaignMetrics(view, conditions, lambda: access.refused)
        with alerts_to(webhook or None), otlp_export(settings.fleet, metrics, observers):
            http.serve(create_api(view, store, blobs_of, conditions, wall_s, access, desk, folder))
            with open_to_owner(folder, local):
                runner.run(
                    lambda: (
                        stop()
                        or (lease is not None and lease.is_lost())
                        or duties.done()
                        or (runner.finished and not settings.stay)
                    )
                )
        link.announce(runner.fleet.epoch, clock(), "", online=False)
        telemetry.save()
        return runner.fleet
    finally:
        mqtt.close()
        store.close()
        telemetry.close()


def _view(runner: Runner, steering: Steering, telemetry: Telemetry, clock: Clock) -> FleetView:
    """Return a view of the fleet as it is now."""
    problems = {n: runner.problem or trainer.problem for n, trainer in runner.trainers.items()}
    stopped = {name: why for name, why in problems.items() if why}
    return FleetView(runner.fleet, telemetry.records, {**steering.broken, **stopped}, clock())


def _conditions(
    runner: Runner, steering: Steering, duties: Duties, counted: ServiceCounters
) -> Conditions:
    """Return the condition of the service, for the HTTP API."""
    broken = "; ".join(
        f"campaign {name} cannot be opened: {why}" for name, why in steering.broken.items()
    )
    return Conditions(
        dict(runner.refused),
        runner.connected,
        runner.condition or broken,
        duties.unvouched,
        counted,
        dict(runner.telemetry.declined),
        runner.now_s - time.time(),
    )
