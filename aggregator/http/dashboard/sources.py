"""What the dashboard reads, and where its orders go."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregator.core.ports import Clock
from aggregator.core.release.state import FleetState
from aggregator.http.tokens import Access
from aggregator.http.views import Shown
from aggregator.operator.desk import Desk
from aggregator.service.conditions import Conditions
from aggregator.service.devices import Devices


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The same that the HTTP API has; states are asked for anew by each page, once."""

    campaigns: Callable[[], Mapping[str, Shown]]
    conditions: Callable[[], Conditions]
    devices: Devices
    releases: Callable[[], FleetState] | None
    """None: the fleet has no releases."""
    access: Access | None
    orders: Desk | None
    audit: Path | None
    """The folder with the audit log."""
    openapi: Callable[[], dict[str, Any]]
    clock: Clock = time.time
