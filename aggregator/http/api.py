"""HTTP API of the aggregator: health, campaigns, rounds, devices, models and orders.

``/openapi.json`` describes every path. Below ``/dashboard/`` are pages for people
(`aggregator.http.dashboard`). Nothing is loaded from another machine.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as Refusal
from starlette.responses import RedirectResponse

from aggregator.core.telemetry import DeviceTelemetry
from aggregator.fleet.records import Campaign, Device
from aggregator.http.dashboard.app import HOME, REFERENCE, Dashboard, starting, static_files
from aggregator.http.dashboard.pages import Sources
from aggregator.http.devices import device_routes
from aggregator.http.guard import FREE, Guard
from aggregator.http.monitoring.metrics import CampaignMetrics
from aggregator.http.orders import order_routes
from aggregator.http.problem import (
    HANDLERS,
    PAGE,
    RETRY_S,
    After,
    Chosen,
    Group,
    Limit,
    Number,
    describe,
    problem,
    refusals,
    refuse_unknown,
)
from aggregator.http.releases import release_routes
from aggregator.http.session import PAGES
from aggregator.http.tokens import Access
from aggregator.http.views import (
    BlobsOf,
    CampaignLine,
    HealthView,
    ReadyView,
    RoundView,
    RunView,
    SettingsView,
    campaign_line,
    round_view,
    waiting_view,
)
from aggregator.operator.desk import Desk
from aggregator.ports import BlobLost, Blobs, StorageFailed, Store
from aggregator.service.conditions import Conditions
from aggregator.storage.blob_bucket import check_blobs
from aggregator.view.fleet import FleetView
from aggregator.view.summary import Summary, summarize

DOWNLOAD = "application/octet-stream"


def create_api(
    view: Callable[[], FleetView],
    store: Store,
    blobs: BlobsOf,
    conditions: Callable[[], Conditions],
    wall_s: Callable[[], float],
    access: Access | None = None,
    orders: Desk | None = None,
    audit: Path | None = None,
) -> FastAPI:
    """Return the application.

    `view` returns the fleet as it is now; a handler calls it once. `store`: store of the rounds'
    records. `blobs` returns the blobs of a campaign. `conditions` returns the condition of the
    service. `wall_s` returns the seconds since the service's start. `access`: rules of access;
    without them everybody may read. `orders`: desk that takes operators' orders; without it none
    are taken. `audit`: folder with the audit log, for the dashboard.
    """
    api = FastAPI(
        title="Shoal aggregator",
        description="The campaigns of a fleet, and orders to them. Refusals have the shape of RFC "
        "9457.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        dependencies=[Depends(refuse_unknown)],
        exception_handlers=HANDLERS,
    )
    describe(api, (Summary, Device, DeviceTelemetry), FREE)

    def find(name: str) -> tuple[FleetView, str]:
        """Return the fleet, and the name of a known campaign; empty: the latest."""
        now = view()
        campaigns = now.fleet.campaigns
        if not campaigns:
            raise HTTPException(404, "No campaign yet. `shoal campaign start` starts one.")
        if name and name not in campaigns:
            raise HTTPException(
                404, f"No campaign {name!r}. Known campaigns: {', '.join(campaigns)}."
            )
        return now, name or now.latest

    def record(name: str) -> Campaign:
        """Return a campaign by its name."""
        now, name = find(name)
        return now.fleet.campaigns[name]

    def download(name: str, digest: str, file: str) -> Response:
        """Return a blob of a campaign as a file."""
        files = blobs(find(name)[1])
        if files is None:
            raise HTTPException(404, f"The files of campaign {name!r} cannot be read.")
        return _download(files, digest, file)

    def current(name: str) -> FleetView:
        """Return the fleet, if it has this campaign."""
        return find(name)[0] if name else view()

    scraped = CampaignMetrics(view, conditions, lambda: access.refused if access else {})

    @api.get(FREE, responses=refusals(422))
    def health() -> HealthView:
        """Report that the process runs, and the phase of its latest campaign; needs no token."""
        now = view().fleet
        if not now.campaigns:
            return HealthView(status="ok", run="", phase="", round=0)
        latest = list(now.campaigns.values())[-1]
        return HealthView(status="ok", run=latest.name, phase=latest.phase, round=latest.round)

    @api.get("/", include_in_schema=False)
    @api.get(PAGES.rstrip("/"), include_in_schema=False)
    @api.get("/docs", include_in_schema=False)
    def home(request: Request) -> Response:
        """Redirect to the dashboard, or to its page about this API."""
        return RedirectResponse(REFERENCE if request.scope["path"] == "/docs" else HOME, 303)

    guarded = APIRouter(responses=refusals(401, 403, 404, 422, 429, 503))

    @guarded.get(
        "/ready", responses={503: {"model": ReadyView, "description": "Updates are not taken."}}
    )
    def ready(response: Response) -> ReadyView:
        """Report if updates are taken: broker, database, disk, campaigns and voucher; else 503."""
        now, names = conditions(), list(view().fleet.campaigns)
        problems = {"database": "ok", "disk": "ok"}
        parts: list[tuple[str, Callable[[], object]]] = [("database", store.check)]
        parts += [("disk", partial(check_blobs, each)) for each in map(blobs, names) if each]
        for part, check in parts:
            try:
                check()
            except StorageFailed as error:
                problems[part] = str(error)
        checks = {
            "broker": "ok" if now.connected else "no connection",
            **problems,
            "run": f"paused: {now.paused}" if now.paused else "ok",
            "voucher": now.unvouched or "ok",
        }
        as_it_should = all(value == "ok" for value in checks.values())
        response.status_code = 200 if as_it_should else 503
        return ReadyView(ready=as_it_should, **checks, phase=record("").phase if names else "")

    @guarded.get(
        "/metrics", response_class=Response, responses=_content("text/plain", {"type": "string"})
    )
    def metrics() -> Response:
        """Report metrics for Prometheus, in its text format."""
        return Response(generate_latest(scraped), media_type=CONTENT_TYPE_LATEST)

    @guarded.get("/campaigns")
    def list_campaigns(limit: Limit = PAGE) -> list[CampaignLine]:
        """List the campaigns, in the order of their starts."""
        lines = list(view().campaigns.items())[:limit]
        return [campaign_line(name, each) for name, each in lines]

    @guarded.get("/run")
    def run(name: Chosen = "") -> RunView:
        """Show a campaign with its settings."""
        now, name = find(name)
        each, received = now.campaigns[name], now.fleet.campaigns[name].updates.values()
        campaign = each.record
        settings = msgspec.to_builtins(campaign.settings)
        for field in ("reported", "responses"):
            settings.pop(field)
        return RunView(
            settings=SettingsView.model_validate(settings),
            phase=campaign.phase,
            round=campaign.round,
            online=each.online,
            cohort=campaign.width,
            received=campaign.received,
            groups=each.groups,
            deadline_s=campaign.deadline_s,
            bytes_up=sum(update.bytes_up for update in received),
            bytes_down=sum(update.bytes_down for update in received),
            refused=conditions().refused,
            paused=each.paused,
            ended=each.ended,
            waiting=waiting_view(each.waiting),
            epoch=now.fleet.epoch,
            attempt=campaign.attempt,
        )

    @guarded.get("/rounds")
    def rounds(name: Chosen = "", after: After = 0, limit: Limit = PAGE) -> list[RoundView]:
        """List the closed rounds, by number."""
        return [round_view(each) for each in store.rounds(find(name)[1], after)[:limit]]

    @guarded.get("/models")
    def models(name: Chosen = "") -> dict[str, str]:
        """List the digests of the groups' current models."""
        return dict(record(name).models)

    @guarded.get("/models/{group}", response_class=Response, responses=_content(DOWNLOAD))
    def model(group: Group, name: Chosen = "") -> Response:
        """Download a group's current model as safetensors."""
        campaign = record(name)
        if group not in campaign.models:
            raise HTTPException(
                404, f"No group {group!r}. Known groups: {', '.join(sorted(campaign.models))}."
            )
        file = f"{campaign.settings.run_id}-{group}.safetensors"
        return download(name, campaign.models[group], file)

    @guarded.get("/bundle", response_class=Response, responses=_content(DOWNLOAD))
    def bundle(name: Chosen = "") -> Response:
        """Download the bundle with which devices train."""
        settings = record(name).settings
        return download(name, settings.bundle, f"{settings.run_id}.shoal")

    @guarded.get(
        "/summary",
        response_class=Response,
        responses=_content("application/json", {"$ref": "#/components/schemas/Summary"}),
    )
    def summary(name: Chosen = "") -> Response:
        """Show the summary of a campaign so far, as in `summary.json`."""
        now, name = find(name)
        result = summarize(now, name, store.rounds(name), wall_s())
        return Response(msgspec.json.encode(result), media_type="application/json")

    @guarded.get("/views/{number}", response_class=Response, responses=_content(DOWNLOAD))
    def views(number: Number, name: Chosen = "") -> Response:
        """Download the distance matrices of a round as safetensors."""
        for each in store.rounds(find(name)[1], number - 1, number):
            if each.round == number and each.views:
                return download(name, each.views, f"round-{number}.safetensors")
        raise HTTPException(404, f"Round {number} computed no distances.")

    guarded.include_router(device_routes(current))
    guarded.include_router(release_routes(view))
    if orders is not None:
        guarded.include_router(order_routes(orders))
    api.include_router(guarded)
    sources = Sources(
        view=view,
        store=store,
        blobs=blobs,
        conditions=conditions,
        access=access,
        orders=orders,
        audit=audit,
        openapi=api.openapi,
    )
    dashboard = Dashboard(sources)
    api.mount(PAGES.rstrip("/"), dashboard.app)
    if access is not None:
        api.add_middleware(Guard, access=access, page=dashboard.refuse)
    return api


def _content(
    media_type: str, schema: dict[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of an answer with a body that is not a pydantic model.

    Without a schema, the body is bytes.
    """
    return {
        200: {
            "description": "OK",
            "content": {media_type: {"schema": schema or {"type": "string", "format": "binary"}}},
        }
    }


def _download(blobs: Blobs, digest: str, name: str) -> Response:
    try:
        payload = blobs.get(digest)
    except BlobLost as error:
        raise HTTPException(404, str(error)) from None
    return Response(
        payload,
        media_type=DOWNLOAD,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def create_starting_api(doing: Callable[[], str]) -> FastAPI:
    """Return the application of a service that is not ready.

    `doing` returns the current step of the start, as text.
    """
    api = FastAPI(openapi_url=None)

    @api.get(FREE)
    def health() -> HealthView:
        """Report that the process runs, and what it does."""
        return HealthView(status="starting", run="", phase="", round=0, doing=doing())

    def not_yet(request: Request, _error: Exception) -> Response:
        path = request.scope["path"]
        if path == "/" or path.startswith(PAGES):
            return starting(request, doing())
        return problem(503, f"The service is starting: {doing()}.", {"Retry-After": str(RETRY_S)})

    api.mount(
        PAGES.rstrip("/"),
        Starlette(routes=[static_files()], exception_handlers={Refusal: not_yet}),
    )
    api.add_exception_handler(Refusal, not_yet)
    return api
