"""HTTP routes of devices: `/devices` in pages, with a filter, and `/devices/ID`."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, Field

from aggregator.fleet.desired import rests_until, takes
from aggregator.fleet.eligibility import LONGEST, read_rule
from aggregator.http.problem import STRUCT, Chosen, DeviceId, Limit
from aggregator.view.device import DeviceView, stored_fields
from aggregator.view.fleet import FleetView, is_of_round
from aggregator.view.summary import group_number
from wire.errors import ConfigError


class DeviceLine(BaseModel):
    """A device in a list. Times are Unix seconds, 0 for never. Null stands for unknown values."""

    id: str
    online: bool
    banned: bool
    tags: list[str]
    client: str
    protocol: str = Field(description="Version of the protocol that its client speaks.")
    app: str = Field(description="Version of the app that its client is a part of; empty: none.")
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
    campaign: str = Field(description="The campaign that gave it its last assignment.")
    assignment: str = Field(description="Kind of its current assignment; empty: it has none.")
    release: int = Field(description="The release in use; 0: none.")
    answer: str | None = Field(
        description="Its answer to the release that it was offered last; null: it was offered none."
    )
    alone: str = Field(
        description="Why it uses that release without its personal model; empty: it uses that, or "
        "has none."
    )
    personal_model: str | None = Field(
        description="The kind of its personal model; null: it has reported none."
    )
    declines: int
    last_decline: str = Field(description="Reason of its last decline.")
    last_error: str = Field(
        description="Type and message of its last error, without paths and numbers; empty: none."
    )
    eligible: bool = Field(description="True if the campaign may ask it for anything.")
    group: int | None = Field(description="The number of its group in the campaign.")
    placed: str | None = Field(
        description="How sure its group is, where its group is not by its training."
    )
    in_cohort: bool = Field(description="True if it works for the campaign's current round.")
    received: bool = Field(description="True if its update counts in that round.")
    failures: int = Field(description="Assignments in a row that it did not carry out.")
    failing_s: float = Field(description="When it failed the first of them.")
    rests_until_s: float = Field(description="It is assigned nothing until then.")


class DevicePage(BaseModel):
    """A page of devices, in the order of their ids."""

    total: int = Field(description="Devices that the filter means.")
    devices: list[DeviceLine]
    after: str | None = Field(description="Ask for the next page with this; null: there is none.")


class DeviceDetails(BaseModel):
    """One device: the line of the list, its record and its telemetry."""

    line: DeviceLine
    record: dict[str, Any] = Field(json_schema_extra={STRUCT: "Device"})
    telemetry: dict[str, Any] = Field(json_schema_extra={STRUCT: "DeviceTelemetry"})


def device_routes(current: Callable[[str], FleetView]) -> APIRouter:
    """Return the routes of devices.

    `current` returns the fleet as it is now, and checks the name of a campaign.
    """
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
        """List the devices of the fleet."""
        try:
            means = read_rule(where).means
        except ConfigError as error:
            raise HTTPException(422, str(error)) from None
        view, matches = current(campaign), list[DeviceView]()

        def visit(device: DeviceView) -> None:
            if means(device.id, device.record, view.fleet.campaigns):
                matches.append(device)

        view.walk(visit, campaign)
        matches.sort(key=lambda device: device.id)
        begin = bisect_right(matches, after, key=lambda device: device.id)
        page = matches[begin : begin + limit]
        more = page[-1].id if begin + limit < len(matches) else None
        return DevicePage(
            total=len(matches), devices=[device_line(view, device) for device in page], after=more
        )

    @routes.get("/devices/{device_id}")
    def show_device(device_id: DeviceId, campaign: Chosen = "") -> DeviceDetails:
        """Show one device."""
        view = current(campaign)
        device = view.device(device_id, campaign)
        if device is None:
            raise HTTPException(404, f"No device {device_id[:64]!r} has ever checked in.")
        return DeviceDetails(
            line=device_line(view, device),
            record=stored_fields(device.record),
            telemetry=msgspec.to_builtins(device.telemetry),
        )

    return routes


def device_line(view: FleetView, device: DeviceView) -> DeviceLine:
    """Return a device's line in a list."""
    record, facts, campaign = device.record, device.record.facts, device.of
    placed, personal_model = device.placed, device.personal_model
    decline, work = device.telemetry.decline, device.assignment
    return DeviceLine(
        id=device.id,
        online=record.online,
        banned=record.ban is not None,
        tags=list(record.tags),
        client=facts.client if facts else "",
        protocol=facts.protocol if facts else "",
        app=facts.app if facts else "",
        runtime=facts.runtime if facts else "",
        hardware=facts.hardware if facts else "",
        num_train=facts.num_train if facts else 0,
        num_test=facts.num_test if facts else 0,
        battery_percent=facts.battery_percent if facts else None,
        charging=facts.charging if facts else None,
        metered=None if facts is None or facts.unmetered is None else not facts.unmetered,
        idle=facts.idle if facts else None,
        temperature_c=facts.temperature_c if facts else None,
        free_bytes=facts.free_bytes if facts else None,
        first_seen_s=record.first_seen_s,
        last_seen_s=device.seen_s,
        campaign=record.campaign,
        assignment=work.kind if work is not None else "",
        release=device.release,
        answer=device.answer[0],
        alone=device.alone,
        personal_model=personal_model.model.candidate if personal_model is not None else None,
        declines=record.declines,
        last_decline=decline.reason if decline else "",
        last_error=device.telemetry.error.key if device.telemetry.error else "",
        eligible=campaign is not None
        and not record.barred
        and takes(view.fleet, campaign, device.id, record),
        group=group_number(device.group),
        placed=str(placed) if placed else None,
        in_cohort=campaign is not None
        and device.assignment is not None
        and is_of_round(campaign, record),
        received=campaign is not None and device.id in campaign.updates,
        failures=record.failures,
        failing_s=record.failing_s,
        rests_until_s=rests_until(view.fleet, record),
    )
