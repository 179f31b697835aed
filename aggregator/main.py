"""The service: makes store, blob store, link, runner and HTTP server from its settings, and runs
them until it is stopped."""

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from aggregator.core.ports import Clock
from aggregator.core.round.dismissal import opened
from aggregator.core.state import Event, RunState
from aggregator.enrolment.order_handlers import DeviceOrders
from aggregator.enrolment.service import enrolled_tags, enrolment
from aggregator.http.api import create_api, create_starting_api
from aggregator.http.local import FILE as LOCAL
from aggregator.http.local import Local, open_to_owner
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
from aggregator.opening import Opening
from aggregator.operator.desk import Desk
from aggregator.operator.duties import Duties
from aggregator.releases.orders import ORDERS, refuse, release_handlers
from aggregator.releases.policy import ReleasePolicy, group_of, released_group, released_source
from aggregator.releases.rollouts import Rollouts
from aggregator.service.campaign import Observer
from aggregator.service.conditions import Conditions, Counted
from aggregator.service.devices import Devices
from aggregator.service.place import Place
from aggregator.service.runner import Runner
from aggregator.service.steering import Steering
from aggregator.service_settings import ServeSettings
from aggregator.storage.blob_bucket import open_blobs
from aggregator.storage.charter import RELEASES, check_campaign_name
from aggregator.storage.registry_table import RegistryTable
from aggregator.storage.sql_store import FLEET, SqlStore
from aggregator.transfer.assembly import Assembly
from aggregator.transfer.fleet import Fleet
from wire.errors import OtherAggregator, ShoalError
from wire.identity.signed import Signer, Verifier
from wire.links.mqtt import MqttLink
from wire.links.port import Will
from wire.messages import AggregatorStatus
from wire.topics import Topics, client_name

log = logging.getLogger("shoal.aggregator")

AHEAD_S = 60.0
"""By so much the stored time may be ahead of the machine's clock without a word: clocks are set."""
SILENCE_S = 180.0
"""A device of which nothing came for so long is taken for absent."""


def serve(
    settings: ServeSettings,
    stop: Callable[[], bool],
    observe: Observer = lambda _state, _event: None,
) -> RunState | None:
    """Run a service until `stop` returns true, or until every campaign is over where `stay` is
    false; returns the last state of the campaign that it was started with, or of the latest; None
    if there was none, or if it was stopped while it waited for another service. Campaigns that are
    in the folder go on.

    Raises:
        ShoalError: a setting, a bundle, the database or the broker cannot be used; or another
        aggregator has the fleet.
    """
    topics, folder, doing = Topics(settings.fleet), settings.folder, ""

    def begins(step: str) -> None:
        nonlocal doing
        doing = step
        log.info("starting: %s", step)

    if settings.bundle is not None:
        check_campaign_name(settings.run)
    held = lock_service(folder)
    try:
        (folder / LOCAL).unlink(missing_ok=True)  # of one that was killed
        with ExitStack() as opened:
            begins(f"reads {folder}")
            opening = Opening.read(settings)
            http = opened.enter_context(
                HttpServer(settings.http_host, settings.http_port, proxies=settings.http_proxies)
            )
            starting_api = create_starting_api(lambda: doing)
            if not settings.standby:  # one that waits for the lease opens no port
                http.serve(starting_api)
            lease = open_lease(
                opening.place.database, settings.fleet, secrets.token_hex(8), settings.standby
            )
            if lease is not None:
                opened.enter_context(closing(lease))
                opening.place = replace(opening.place, lease=lease)
            begins("reads where its campaigns stand")
            secret = opening.look(settings)
            known = boot_ids(
                folder / "boots", boot_id := lease.name if lease else secrets.token_hex(8)
            )
            if lease is not None:
                lease.share(secret)
                begins("takes the lease on the fleet")
                if not lease.take(known, settings.standby, settings.take_over, stop):
                    return None
                known.append(lease.holder_before)
                opening.known = opening.place.exchange()
                opening.look(settings)  # the one before may have written meanwhile
            http.serve(starting_api)
            opening.begin(settings)
            named = (settings.fleet, settings.broker, folder / "trust.pem", settings.database)
            opened.enter_context(enrolment(settings.enrolment, folder, *named))
            tags = opened.enter_context(enrolled_tags(folder, settings.database))
            return _serve(
                settings, topics, http, opening, tags, begins, known, boot_id, stop, observe
            )
    except OtherAggregator as error:
        raise LeaseLost(str(error)) if settings.standby else error from None
    finally:
        os.close(held)


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
) -> RunState | None:
    folder, trust, lease, clock = (
        settings.folder,
        opening.place.trust,
        opening.place.lease,
        steady_clock(opening.last_s),
    )

    if (ahead_s := clock() - time.time()) > AHEAD_S:
        log.warning(
            "what is stored is of a time %.0f s ahead of this machine's clock: the service goes "
            "on from that time",
            ahead_s,
        )

    def make_signer() -> Signer:
        return service_signer(folder, settings.fleet, trust.keys, trust.root, clock())

    signer, verifier = make_signer(), Verifier(settings.fleet, trust.keys)
    client_id = client_name(settings.fleet, "aggregator")

    look = partial(MqttLink, settings.broker, client_id, confirmed=True)
    stored = [state.epoch for state in opening.states.values() if state is not None]
    least = max(lease.epoch - 1 if lease else 0, *stored, 0)
    begins(f"looks for another aggregator of the fleet at {settings.broker}")
    epoch = find_epoch(look, topics, verifier, least, known, clock(), settings.take_over)
    log.info("fleet=%s epoch=%d broker=%s", settings.fleet, epoch, settings.broker)
    gone = AggregatorStatus(False, boot_id, epoch, clock())
    link = MqttLink(
        settings.broker, client_id, Will(topics.aggregator, signer(gone)), confirmed=True
    )
    counted = Counted()

    def observe_too(state: RunState, event: Event) -> None:
        counted.observe(state, event)
        if releases is not None:
            releases.observe(state, event)
        observe(state, event)

    fleet = Fleet(link, topics, boot_id, signer)
    registry = RegistryTable(opening.place.database, opening.place.fence())
    devices = Devices(registry, clock, tags)
    releases = (
        _releases(settings, opening.place, devices, fleet, clock, lambda: runner)
        if settings.release != "off"
        else None
    )
    rollouts = releases.rollouts if releases is not None else None
    assembly = Assembly(folder / "pieces", settings.max_payload << 20)
    runner = Runner(
        fleet,
        clock,
        epoch=epoch,
        silence_s=SILENCE_S,
        verifier=verifier,
        rollouts=rollouts,
        devices=devices,
        assembly=assembly,
    )
    steering = Steering(
        runner,
        opening.place,
        observe_too,
        lambda: (
            released_source(rollouts.state, rollouts.blobs.get) if rollouts is not None else None
        ),
    )
    try:
        started_s = time.monotonic()
        wanted = {*opened({name: opening.states[name] for name in opening.known}), settings.run}
        for name, charter in opening.known.items():
            if name not in wanted:
                continue
            state, doing = opening.states[name], f"opens campaign {name}"
            if state is not None and state.phase == "aggregating":
                doing += f", and aggregates the {len(state.received)} updates of its round "
                doing += str(state.round)
            begins(doing)
            if opening.fresh is not None and name == settings.run:
                steering.open(charter, opening.exported, opening.fresh)
                continue
            try:
                steering.open(charter)
            except ShoalError as error:  # the others go on without it
                steering.broken[name] = str(error)
                log.error("campaign %s cannot be opened: %s", name, error)

        def renew() -> float:
            signer = make_signer()
            fleet.sign = signer
            return signer.until_s

        orders = DeviceOrders(runner, folder, opening.place.database, opening.place.blobs)
        handlers = {**steering.handlers, **orders.handlers}
        handlers |= (
            dict.fromkeys(ORDERS, refuse)
            if releases is None
            else release_handlers(
                releases,
                lambda: {name: campaign.state for name, campaign in runner.campaigns.items()},
            )
        )
        desk, local = Desk(folder, handlers), Local.new(*http.address)
        access = http_access(folder, settings.http_host, local.token)
        duties = Duties(runner, desk, clock, renew, releases)
        conditions = partial(_conditions, runner, steering, duties, counted)
        fleet_state = None if rollouts is None else lambda: rollouts.state
        shown = (
            lambda: runner.campaigns,
            conditions,
            lambda: time.monotonic() - started_s,
            devices,
            fleet_state,
        )
        http.serve(create_api(*shown, access, desk, folder))
        with open_to_owner(folder, local):
            runner.run(
                lambda: (
                    stop()
                    or (lease is not None and lease.is_lost())
                    or duties.done()
                    or (runner.finished and not settings.stay)
                )
            )
        fleet.announce(runner.epoch, clock(), "", online=False)
        devices.save()
        last = runner.campaigns.get(settings.run) or next(reversed(runner.campaigns.values()), None)
        return last.state if last is not None else None
    finally:
        link.close()
        steering.stores.close()
        registry.close()


def _releases(
    settings: ServeSettings,
    place: Place,
    devices: Devices,
    fleet: Fleet,
    clock: Clock,
    runner: Callable[[], Runner],
) -> ReleasePolicy:
    """The fleet's releases, and what makes them of campaigns' models. `runner`: what runs these."""

    def is_online(device_id: str) -> bool:
        known = (campaign.state.devices.get(device_id) for campaign in runner().campaigns.values())
        return any(device is not None and device.online for device in known)

    def group(device_id: str) -> str:
        running = runner()
        latest = released_group(
            [c.state for c in running.campaigns.values() if c.may_ask(device_id)],
            rollouts.state,
            device_id,
        )
        campaign = running.campaign_of(device_id)
        return latest or (group_of(campaign.state, device_id) if campaign is not None else "")

    rollouts = Rollouts(
        SqlStore(place.database, settings.fleet, place.fence(), FLEET),
        open_blobs(settings.blobs or str(place.folder), place.folder, RELEASES, place.may_delete),
        fleet,
        clock,
        lambda: runner().epoch,
        online=is_online,
        group=group,
        tags=lambda device_id: devices.entry(device_id).tags,
        settings=settings.rollout,
    )
    return ReleasePolicy(
        rollouts,
        lambda name: runner().campaigns[name].blobs,
        settings.release,
        settings.release_every,
    )


def _conditions(runner: Runner, steering: Steering, duties: Duties, counted: Counted) -> Conditions:
    """What the HTTP API says of the service beside its campaigns."""
    broken = "; ".join(
        f"campaign {name} cannot be opened: {why}" for name, why in steering.broken.items()
    )
    return Conditions(
        dict(runner.refused),
        runner.connected,
        runner.paused or broken,
        duties.unvouched,
        counted,
        dict(runner.devices.declined),
    )
