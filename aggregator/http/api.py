"""The aggregator over HTTP, for people and tools: health, campaigns, their rounds and devices, the
models to download, and orders.

``/openapi.json`` describes every path. Below ``/dashboard/`` are pages for people
(`aggregator.http.dashboard`). Nothing is loaded from another machine.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as Refusal
from starlette.responses import RedirectResponse

from aggregator.core.budget import why_ended
from aggregator.core.ports import BlobLost, Blobs, StorageFailed
from aggregator.core.registry import Entry
from aggregator.core.release.state import FleetState
from aggregator.core.summary import Summary, count_groups, summarize
from aggregator.http.dashboard.app import HOME, REFERENCE, Dashboard, starting, static_files
from aggregator.http.dashboard.pages import Sources
from aggregator.http.devices import device_routes
from aggregator.http.guard import FREE, Guard
from aggregator.http.metrics import CampaignMetrics
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
    CampaignView,
    HealthView,
    ReadyView,
    RoundView,
    RunView,
    SettingsView,
    Shown,
    campaign_view,
    round_view,
)
from aggregator.operator.desk import Desk
from aggregator.service.conditions import Conditions
from aggregator.service.devices import Devices
from aggregator.storage.blob_bucket import check_blobs

DOWNLOAD = "application/octet-stream"


def create_api(
    campaigns: Callable[[], Mapping[str, Shown]],
    conditions: Callable[[], Conditions],
    wall_s: Callable[[], float],
    devices: Devices,
    releases: Callable[[], FleetState] | None = None,
    access: Access | None = None,
    orders: Desk | None = None,
    audit: Path | None = None,
) -> FastAPI:
    """The application.

    `campaigns` returns the campaigns as they are now, by name, in the order of their starts;
    `conditions` what else there is to say; `wall_s` the seconds since the service was started. A
    handler reads a campaign's state once. `releases`: the fleet's releases, if it has some.
    `access`: who may ask what; without it everybody may read. `orders`: where operators' orders go;
    without it none are taken. `audit`: the folder with the audit log that the dashboard shows.
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
    describe(api, (Summary, Entry), FREE)

    def find(name: str) -> Shown:
        """Return a campaign by its name, the latest by an empty one."""
        shown = campaigns()
        if not shown:
            raise HTTPException(404, "there is no campaign yet: `shoal campaign start` begins one")
        if name and name not in shown:
            raise HTTPException(404, f"campaign {name!r}: expected one of {', '.join(shown)}")
        return shown[name] if name else list(shown.values())[-1]

    scraped = CampaignMetrics(
        lambda: {name: shown.state for name, shown in campaigns().items()},
        conditions,
        lambda: devices.entries,
        lambda: access.refused if access is not None else {},
    )

    @api.get(FREE, responses=refusals(422))
    def health() -> HealthView:
        """That the process runs, and where its latest campaign stands. It never needs a token."""
        if not campaigns():
            return HealthView(status="ok", run="", phase="", round=0)
        state = find("").state
        return HealthView(
            status="ok", run=state.settings.name, phase=state.phase, round=state.round
        )

    @api.get("/", include_in_schema=False)
    @api.get(PAGES.rstrip("/"), include_in_schema=False)
    @api.get("/docs", include_in_schema=False)
    def home(request: Request) -> Response:
        """Lead to the dashboard, or to its page about this API."""
        return RedirectResponse(REFERENCE if request.scope["path"] == "/docs" else HOME, 303)

    guarded = APIRouter(responses=refusals(401, 403, 404, 422, 429, 503))

    @guarded.get(
        "/ready", responses={503: {"model": ReadyView, "description": "Updates are not taken."}}
    )
    def ready(response: Response) -> ReadyView:
        """Whether updates are taken: broker, database, disk, campaigns and voucher. 503 if one of
        them is not as it should be."""
        now, shown = conditions(), campaigns()
        problems = {"database": "ok", "disk": "ok"}
        for campaign in reversed([*shown.values()]):
            parts: dict[str, Callable[[], object]] = {
                "database": campaign.store.check,
                "disk": partial(check_blobs, campaign.blobs),
            }
            for name, check in parts.items():
                try:
                    check()
                except StorageFailed as error:
                    problems[name] = str(error)
        checks = {
            "broker": "ok" if now.connected else "no connection",
            **problems,
            "run": f"paused: {now.paused}" if now.paused else "ok",
            "voucher": now.unvouched or "ok",
        }
        as_it_should = all(value == "ok" for value in checks.values())
        response.status_code = 200 if as_it_should else 503
        return ReadyView(ready=as_it_should, **checks, phase=find("").state.phase if shown else "")

    @guarded.get(
        "/metrics", response_class=Response, responses=_content("text/plain", {"type": "string"})
    )
    def metrics() -> Response:
        """The same and more for Prometheus, in its text format."""
        return Response(generate_latest(scraped), media_type=CONTENT_TYPE_LATEST)

    @guarded.get("/campaigns")
    def list_campaigns(limit: Limit = PAGE) -> list[CampaignView]:
        """The campaigns that are open, the first ones in the order of their starts."""
        return [
            campaign_view(name, shown.state, shown.paused)
            for name, shown in list(campaigns().items())[:limit]
        ]

    @guarded.get("/run")
    def run(name: Chosen = "") -> RunView:
        """A campaign's settings, and where it stands."""
        shown = find(name)
        state = shown.state
        settings = msgspec.to_builtins(state.settings)
        for field in ("reported", "responses"):
            settings.pop(field)
        return RunView(
            settings=SettingsView.model_validate(settings),
            phase=state.phase,
            round=state.round,
            online=state.num_online,
            cohort=len(state.cohort),
            received=len(state.received),
            groups=count_groups(state.starts),
            deadline_at_s=state.deadline_at_s,
            bytes_up=sum(r.bytes_up for r in state.received.values()),
            bytes_down=sum(r.bytes_down for r in state.received.values()),
            refused=conditions().refused,
            paused=shown.paused,
            ended=why_ended(state),
            epoch=state.epoch,
            attempt=state.attempt,
        )

    @guarded.get("/rounds")
    def rounds(name: Chosen = "", after: After = 0, limit: Limit = PAGE) -> list[RoundView]:
        """The closed rounds, by number."""
        return [round_view(record) for record in find(name).store.rounds(after)[:limit]]

    @guarded.get("/models")
    def models(name: Chosen = "") -> dict[str, str]:
        """The digest of each group's current model."""
        return dict(find(name).state.models)

    @guarded.get("/models/{group}", response_class=Response, responses=_content(DOWNLOAD))
    def model(group: Group, name: Chosen = "") -> Response:
        """A group's current model as safetensors."""
        shown = find(name)
        state = shown.state
        if group not in state.models:
            raise HTTPException(
                404, f"group {group!r}: expected one of {', '.join(sorted(state.models))}"
            )
        return _download(
            shown.blobs, state.models[group], f"{state.settings.run_id}-{group}.safetensors"
        )

    @guarded.get("/bundle", response_class=Response, responses=_content(DOWNLOAD))
    def bundle(name: Chosen = "") -> Response:
        """The bundle that devices train with."""
        shown = find(name)
        state = shown.state
        return _download(shown.blobs, state.settings.bundle, f"{state.settings.run_id}.shoal")

    @guarded.get(
        "/summary",
        response_class=Response,
        responses=_content("application/json", {"$ref": "#/components/schemas/Summary"}),
    )
    def summary(name: Chosen = "") -> Response:
        """The summary of a campaign, as `summary.json` has it, so far."""
        shown = find(name)
        told = msgspec.json.encode(summarize(shown.state, shown.store.rounds(), wall_s()))
        return Response(told, media_type="application/json")

    @guarded.get("/views/{number}", response_class=Response, responses=_content(DOWNLOAD))
    def views(number: Number, name: Chosen = "") -> Response:
        """The distance matrices of a round as safetensors."""
        shown = find(name)
        for record in shown.store.rounds(number - 1, number):
            if record.round == number and record.views:
                return _download(shown.blobs, record.views, f"round-{number}.safetensors")
        raise HTTPException(404, f"round {number}: no distances were computed in it")

    guarded.include_router(
        device_routes(lambda name: find(name).state if name or campaigns() else None, devices)
    )
    guarded.include_router(release_routes(releases or FleetState))
    if orders is not None:
        guarded.include_router(order_routes(orders))
    api.include_router(guarded)
    sources = Sources(
        campaigns=campaigns,
        conditions=conditions,
        devices=devices,
        releases=releases,
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
    """The description of an answer that is no model of pydantic's; of bytes, where no schema is
    given."""
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
    """The application of a service that is not ready. `doing` says what it does at the moment."""
    api = FastAPI(openapi_url=None)

    @api.get(FREE)
    def health() -> HealthView:
        """That the process runs, and what it is doing."""
        return HealthView(status="starting", run="", phase="", round=0, doing=doing())

    def not_yet(request: Request, _error: Exception) -> Response:
        path = request.scope["path"]
        if path == "/" or path.startswith(PAGES):
            return starting(request, doing())
        return problem(503, f"the service is starting: {doing()}", {"Retry-After": str(RETRY_S)})

    api.mount(
        PAGES.rstrip("/"),
        Starlette(routes=[static_files()], exception_handlers={Refusal: not_yet}),
    )
    api.add_exception_handler(Refusal, not_yet)
    return api
