"""The devices of a fleet over HTTP: `/devices` in pages, with a filter, and `/devices/ID`."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, Field

from aggregator.core.eligibility import LONGEST, read_rule
from aggregator.core.registry import Entry
from aggregator.core.round.asking import placed_of
from aggregator.core.state import RunState
from aggregator.core.summary import group_number
from aggregator.http.problem import STRUCT, Chosen, DeviceId, Limit
from aggregator.service.devices import Devices
from wire.errors import ConfigError


class DeviceLine(BaseModel):
    """A device in a list. Times are Unix seconds; 0: never. What is null is not known."""

    id: str
    online: bool
    banned: bool
    tags: list[str]
    client: str
    runtime: str
    hardware: str
    num_train: int
    num_test: int
    battery_percent: float | None
    charging: bool | None
    metered: bool | None
    idle: bool | None
    temperature_c: float | None
    free_bytes: int | None
    first_seen_s: float
    last_seen_s: float
    campaign: str
    release: int
    alone: str = Field(
        description="Why it uses that release without what it has kept; empty: it uses that, or "
        "has kept nothing."
    )
    kept: str | None = Field(
        description="What it keeps of the last campaign of which it has told that; null: it has "
        "not told."
    )
    declines: int
    last_decline: str
    """Its reason."""
    eligible: bool = Field(description="Whether the campaign may ask it for anything.")
    group: int | None = Field(description="The number of its group in the campaign.")
    placed: str | None = Field(
        description="How sure its group is, where it has too few labels to train; null: it has "
        "enough."
    )
    in_cohort: bool
    received: bool
    failures: int


class DevicePage(BaseModel):
    """Devices in the order of their ids."""

    total: int = Field(description="Devices that the filter means.")
    devices: list[DeviceLine]
    after: str | None = Field(description="Ask for the next page with this; null: there is none.")


class DeviceDetails(BaseModel):
    """One device: the line of the list, and all else that the registry has."""

    line: DeviceLine
    entry: dict[str, Any] = Field(json_schema_extra={STRUCT: "Entry"})


def device_routes(current: Callable[[str], RunState | None], devices: Devices) -> APIRouter:
    """The routes. `current` returns the state of a campaign as it is now, of the latest where none
    is named; None where there is none."""
    routes = APIRouter()

    @routes.get("/devices")
    def list_devices(
        where: Annotated[
            str, Query(max_length=LONGEST, description="A rule, as `serve --where` takes it.")
        ] = "",
        after: Annotated[str, Query(max_length=64, description="Devices behind this id.")] = "",
        limit: Limit = 100,
        campaign: Chosen = "",
    ) -> DevicePage:
        """Every device that the registry knows."""
        try:
            means = read_rule(where).means
        except ConfigError as error:
            raise HTTPException(422, str(error)) from None
        run, known = current(campaign), devices.entries
        ids = sorted(device_id for device_id, entry in known.items() if means(device_id, entry))
        begin = bisect_right(ids, after)
        page = ids[begin : begin + limit]
        more = page[-1] if begin + limit < len(ids) else None
        return DevicePage(
            total=len(ids), devices=[device_line(run, d, known[d]) for d in page], after=more
        )

    @routes.get("/devices/{device_id}")
    def show_device(device_id: DeviceId, campaign: Chosen = "") -> DeviceDetails:
        """One device."""
        entry = devices.entries.get(device_id)
        if entry is None:
            raise HTTPException(404, f"device {device_id[:64]!r}: it has never been here")
        return DeviceDetails(
            line=device_line(current(campaign), device_id, entry), entry=msgspec.to_builtins(entry)
        )

    return routes


def device_line(run: RunState | None, device_id: str, entry: Entry) -> DeviceLine:
    """A device in a list. `run`: the campaign whose group and cohort are said."""
    said, device = entry.said, run.devices.get(device_id) if run is not None else None
    placed = placed_of(run, device_id) if run is not None else None
    return DeviceLine(
        id=device_id,
        online=entry.online,
        banned=entry.ban is not None,
        tags=list(entry.tags),
        client=said.client if said else "",
        runtime=said.runtime if said else "",
        hardware=said.hardware if said else "",
        num_train=said.num_train if said else 0,
        num_test=said.num_test if said else 0,
        battery_percent=said.battery_percent if said else None,
        charging=said.charging if said else None,
        metered=None if said is None or said.unmetered is None else not said.unmetered,
        idle=said.idle if said else None,
        temperature_c=said.temperature_c if said else None,
        free_bytes=said.free_bytes if said else None,
        first_seen_s=entry.first_seen_s,
        last_seen_s=entry.last_seen_s,
        campaign=entry.campaign,
        release=entry.release,
        alone=entry.release_alone,
        kept=entry.kept.kept.candidate if entry.kept else None,
        declines=entry.declines,
        last_decline=entry.decline.reason if entry.decline else "",
        eligible=device is not None and device.eligible,
        group=group_number(placed.group if placed else run.starts.get(device_id))
        if run is not None
        else None,
        placed=str(placed) if placed else None,
        in_cohort=run is not None and device_id in run.cohort,
        received=run is not None and device_id in run.received,
        failures=device.failures if device is not None else 0,
    )
