"""The aggregator over HTTP, for people and tools: health, campaigns, their rounds and devices, and the models to download. Read only."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, cast

import msgspec
from fastapi import FastAPI, HTTPException, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST

from aggregator.adapters.http_devices import device_routes
from aggregator.adapters.http_releases import release_routes
from aggregator.adapters.metrics import CampaignMetrics
from aggregator.core.conditions import Conditions
from aggregator.core.ports import BlobLost, Blobs, StorageFailed, Store
from aggregator.core.rollout_state import FleetState
from aggregator.core.state import RunState
from aggregator.core.summary import accuracy_of, count_groups, spread, summarize
from aggregator.devices import Devices

DOWNLOAD = "application/octet-stream"


class Shown(Protocol):
    """What of a campaign is shown."""

    store: Store
    blobs: Blobs

    @property
    def paused(self) -> str:
        """Why nothing goes on; empty while it does."""

    def known(self) -> RunState:
        """Its state as it is now."""


Chosen = Annotated[str, Query(alias="campaign", description="The name of a campaign; the latest when empty.")]


def create_api(
    campaigns: Callable[[], Mapping[str, Shown]],
    conditions: Callable[[], Conditions],
    wall_s: Callable[[], float],
    devices: Devices,
    releases: Callable[[], FleetState] | None = None,
) -> FastAPI:
    """The application.

    `campaigns` returns the campaigns as they are now, by name, in the order of their starts; `conditions` what else there is to say;
    `wall_s` the seconds since the service was started. A handler reads a campaign's state once. `releases`: the fleet's releases,
    if it has some.
    """
    api = FastAPI(title="Shoal aggregator", description="Read-only view of the campaigns of a fleet.")

    if releases is not None:
        api.include_router(release_routes(releases))
    scraped = CampaignMetrics(lambda: {name: shown.known() for name, shown in campaigns().items()}, conditions, lambda: devices.state)

    def find(name: str) -> Shown:
        shown = campaigns()
        if not shown:
            raise HTTPException(404, "there is no campaign yet: `shoal campaign start` begins one")
        if name and name not in shown:
            raise HTTPException(404, f"campaign {name!r}: expected one of {', '.join(shown)}")
        return shown[name] if name else list(shown.values())[-1]

    @api.get("/health")
    def health() -> dict[str, Any]:
        """That the process runs, and where its latest campaign stands."""
        shown = campaigns()
        if not shown:
            return {"status": "ok", "run": "", "phase": "", "round": 0}
        state = find("").known()
        return {"status": "ok", "run": state.settings.name, "phase": state.phase, "round": state.round}

    @api.get("/ready")
    def ready(response: Response) -> dict[str, Any]:
        """Whether updates are taken: broker, database, disk, campaigns and voucher. 503 if one of them is not as it should be."""
        now, shown = conditions(), campaigns()
        checks = {
            "broker": "ok" if now.connected else "no connection",
            "database": next((told for c in shown.values() if (told := _checked(c.store.check)) != "ok"), "ok"),
            "disk": next((told for c in shown.values() if (told := _checked(c.blobs.check)) != "ok"), "ok"),
            "run": f"paused: {now.paused}" if now.paused else "ok",
            "voucher": now.unvouched or "ok",
        }
        as_it_should = all(value == "ok" for value in checks.values())
        response.status_code = 200 if as_it_should else 503
        return {"ready": as_it_should, **checks, "phase": find("").known().phase if shown else ""}

    @api.get("/metrics")
    def metrics() -> Response:
        """The same and more for Prometheus, in its text format."""
        return Response(scraped.text(), media_type=CONTENT_TYPE_LATEST)

    @api.get("/campaigns")
    def list_campaigns() -> list[dict[str, Any]]:
        """The campaigns that are open, in the order of their starts."""
        return [_line(name, shown.known(), shown.paused) for name, shown in campaigns().items()]

    @api.get("/run")
    def run(name: Chosen = "") -> dict[str, Any]:
        """A campaign's settings, and where it stands."""
        shown = find(name)
        state = shown.known()
        settings = msgspec.to_builtins(state.settings)
        for name in ("reported", "responses"):
            settings.pop(name)
        return {
            "settings": settings,
            "phase": state.phase,
            "round": state.round,
            "online": sum(d.online for d in state.devices.values()),
            "cohort": len(state.cohort),
            "received": len(state.received),
            "groups": count_groups(state.starts),
            "deadline_at_s": state.deadline_at_s,
            "bytes_up": sum(r.bytes_up for r in state.received.values()),
            "bytes_down": sum(r.bytes_down for r in state.received.values()),
            "refused": conditions().refused,
            "paused": shown.paused,
            "epoch": state.epoch,
            "attempt": state.attempt,
        }

    @api.get("/rounds")
    def rounds(name: Chosen = "") -> list[dict[str, Any]]:
        """The closed rounds. `accuracy` is that of the models devices received in the round."""
        return [
            {
                "round": r.round,
                "phase": r.phase,
                "opened_at_s": r.opened_at_s,
                "closed_at_s": r.closed_at_s,
                "devices": len(r.evaluated),
                "groups": count_groups(r.groups),
                "accuracy": msgspec.to_builtins(spread(accuracy_of(r).values())),
                "bytes_up": r.bytes_up,
                "bytes_down": r.bytes_down,
                "notes": r.notes,
            }
            for r in find(name).store.rounds()
        ]

    def current(name: str) -> RunState | None:
        return find(name).known() if name or campaigns() else None

    api.include_router(device_routes(current, devices))

    @api.get("/models")
    def models(name: Chosen = "") -> dict[str, str]:
        """The digest of each group's current model."""
        return dict(find(name).known().models)

    @api.get("/models/{group}")
    def model(group: str, name: Chosen = "") -> Response:
        """A group's current model as safetensors."""
        shown = find(name)
        state = shown.known()
        if group not in state.models:
            raise HTTPException(404, f"group {group!r}: expected one of {', '.join(sorted(state.models))}")
        return _download(shown.blobs, state.models[group], f"{state.settings.run_id}-{group}.safetensors")

    @api.get("/bundle")
    def bundle(name: Chosen = "") -> Response:
        """The bundle that devices train with."""
        shown = find(name)
        state = shown.known()
        return _download(shown.blobs, state.settings.bundle, f"{state.settings.run_id}.shoal")

    @api.get("/summary")
    def summary(name: Chosen = "") -> dict[str, Any]:
        """The summary of a campaign, as `summary.json` has it, so far."""
        shown = find(name)
        return cast(dict[str, Any], msgspec.to_builtins(summarize(shown.known(), shown.store.rounds(), wall_s())))

    @api.get("/views/{number}")
    def views(number: int, name: Chosen = "") -> Response:
        """The distance matrices of a round as safetensors."""
        shown = find(name)
        for record in shown.store.rounds():
            if record.round == number and record.views:
                return _download(shown.blobs, record.views, f"round-{number}.safetensors")
        raise HTTPException(404, f"round {number}: no distances were computed in it")

    return api


def _line(name: str, state: RunState, paused: str) -> dict[str, Any]:
    return {
        "name": name,
        "algorithm": state.settings.algorithm,
        "phase": state.phase,
        "round": state.round,
        "trained": state.trained,
        "rounds": state.next_settings.rounds,
        "devices": len(state.devices),
        "online": state.num_online,
        "groups": count_groups(state.starts),
        "paused": paused,
    }


def _checked(check: Callable[[], None]) -> str:
    try:
        check()
    except StorageFailed as error:
        return str(error)
    return "ok"


def _download(blobs: Blobs, digest: str, name: str) -> Response:
    try:
        payload = blobs.get(digest)
    except (BlobLost, StorageFailed) as error:
        raise HTTPException(404, str(error)) from None
    return Response(payload, media_type=DOWNLOAD, headers={"Content-Disposition": f'attachment; filename="{name}"'})
