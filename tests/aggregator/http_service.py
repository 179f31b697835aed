"""A service with campaigns, rounds, releases and a rollout behind its HTTP API, for tests: all real
but the broker and the sockets."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from aggregator.enrolment.order_handlers import DeviceOrders
from aggregator.http.api import create_api
from aggregator.http.guard import Guard
from aggregator.http.local import Endpoint, open_to_owner
from aggregator.http.orders import order_routes
from aggregator.http.problem import HANDLERS, problem
from aggregator.http.server import HttpServer
from aggregator.http.tokens import Access, TokenFile, http_access
from aggregator.leadership.identity import lock_service
from aggregator.operator import device_orders
from aggregator.operator.desk import Desk
from aggregator.operator.duties import Duties
from aggregator.service.conditions import Conditions, ServiceCounters
from aggregator.service.place import ServiceStorage
from aggregator.service.start import Trust
from aggregator.service.steering import Steering
from aggregator.storage.engine import sqlite_url
from aggregator.view.fleet import FleetView
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.releasing import Releasing

OWN = "shoal-the-owner's"
"""Token of the folder's owner."""


@contextmanager
def running(look: Callable[[], object]) -> Iterator[None]:
    """Carry out orders, as the service's one thread does, while the context is open."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.002):
            look()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def taking_orders(
    folder: Path, desk: Desk, campaigns: Sequence[Mapping[str, str]] = ()
) -> Iterator[None]:
    """Take orders of a folder's owner over HTTP, as a service does, while the context is open.

    `campaigns`: answer to a request for the list of campaigns.
    """
    held, api = lock_service(folder), FastAPI(exception_handlers=HANDLERS)
    api.include_router(order_routes(desk))
    api.get("/campaigns")(lambda: list(campaigns))
    try:
        with HttpServer("127.0.0.1", 0) as server:
            local = Endpoint.new(*server.address)
            access = http_access(folder, "127.0.0.1", local.token)
            api.add_middleware(Guard, access=access, page=lambda _scope, *told: problem(*told))
            server.serve(api)
            with running(desk.look), open_to_owner(folder, local):
                yield
    finally:
        os.close(held)


@dataclass
class HttpService:
    """The application, and what is behind it."""

    api: FastAPI
    folder: Path
    tokens: TokenFile
    releasing: Releasing
    duties: Duties
    steering: Steering

    def running(self) -> AbstractContextManager[None]:
        """Carry out orders while the context is open."""
        return running(self.duties.done)

    @property
    def bench(self) -> Bench:
        """The runner and its two devices."""
        return self.releasing.bench

    def tag(self, device_id: str, tag: str) -> None:
        """Give a device a tag, as the operator does."""
        runner = self.bench.runner
        runner.order(*device_orders.tag(runner.fleet, [device_id], [tag], runner.now_s))


def api_of(
    releasing: Releasing,
    access: Access | None = None,
    orders: Desk | None = None,
    audit: Path | None = None,
) -> FastAPI:
    """Return the application of a service with releases."""
    bench = releasing.bench

    def view() -> FleetView:
        return FleetView(bench.runner.fleet, bench.runner.telemetry.records, {}, bench.clock())

    def conditions() -> Conditions:
        runner = bench.runner
        return Conditions(dict(runner.refused), True, runner.condition, "", ServiceCounters(), {})

    return create_api(
        view,
        bench.store,
        lambda _name: bench.blobs,
        conditions,
        lambda: 1.0,
        access,
        orders,
        audit,
    )


def http_service(
    fleet: FleetData, folder: Path, host: str = "127.0.0.1", **access: Any
) -> HttpService:
    """Return a service that has closed two rounds and made releases of both. `access`: other
    fields of `Access`."""
    releasing = Releasing(fleet, folder, "manual", rounds=9)
    for _ in range(2):
        releasing.round()
        releasing.order("make-releases", campaign="run-1")
    runner, url = releasing.bench.runner, sqlite_url(folder / "shoal.db")
    steering = Steering(runner, ServiceStorage(folder, url, trust=Trust((), None)), releasing.maker)
    devices = DeviceOrders(runner, folder, url)
    desk = Desk(folder, {**steering.handlers, **devices.handlers, **releasing.handlers})
    duties = Duties(runner, desk, releasing.bench.clock, lambda: time.time() + 1e6, releasing.maker)
    let_in: Access = replace(http_access(folder, host, OWN), **access)
    api = api_of(releasing, let_in, desk, folder)
    return HttpService(api, folder, TokenFile(folder), releasing, duties, steering)
