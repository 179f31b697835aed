"""A service with campaigns, rounds, releases and a rollout behind its HTTP API, for tests: all real
but the broker and the sockets."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from aggregator.http.access import Access
from aggregator.http.api import create_api
from aggregator.http.tokens import TokenFile, http_access
from aggregator.operator.desk import Desk
from aggregator.operator.device_orders import DeviceOrders
from aggregator.operator.order_queue import OrderQueue
from aggregator.releases.orders import MakeReleases
from aggregator.service.conditions import Conditions, Counted
from aggregator.service.duties import Duties
from aggregator.service.start import Trust
from aggregator.service.steering import Steering
from aggregator.storage.engine import sqlite_url
from aggregator.storage.place import Place
from simulation.datasets.windows import FleetData
from tests.aggregator.test_in_use import Releasing


@dataclass
class HttpService:
    """The application, and what is behind it."""

    api: FastAPI
    folder: Path
    tokens: TokenFile
    releasing: Releasing
    duties: Duties

    @contextmanager
    def running(self) -> Iterator[None]:
        """Carry out orders, as the service's one thread does, for as long as the context is
        open."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(0.002):
                self.duties.done()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def http_service(
    fleet: FleetData, folder: Path, host: str = "127.0.0.1", **access: Any
) -> HttpService:
    """A service that has closed two rounds and made releases of both. `access`: other fields of
    `Access`."""
    releasing = Releasing(fleet, folder, "manual", rounds=9)
    for _ in range(2):
        releasing.round()
        releasing.order(MakeReleases("run-1"))
    bench, rollouts, orders = releasing.bench, releasing.rollouts, OrderQueue()
    assert rollouts is not None
    steering = Steering(
        bench.runner,
        Place(folder, "", trust=Trust((), None), blobs=""),
        lambda _state, _event: None,
    )
    devices = DeviceOrders(
        bench.runner.devices, folder, sqlite_url(folder / "shoal.db"), runner=bench.runner
    )
    desk = Desk(folder, {**steering.handlers, **devices.handlers, **releasing.handlers})
    duties = Duties(bench.runner, desk, bench.clock, lambda: time.time() + 1e6, orders)
    let_in: Access = replace(http_access(folder, host), **access)
    api = create_api(
        lambda: bench.runner.campaigns,
        lambda: Conditions(
            dict(bench.runner.refused), True, bench.runner.paused, "", Counted(), {}
        ),
        lambda: 1.0,
        bench.runner.devices,
        lambda: rollouts.state,
        let_in,
        orders,
        folder,
    )
    return HttpService(api, folder, TokenFile(folder), releasing, duties)
