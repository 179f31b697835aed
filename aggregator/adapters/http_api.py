"""The aggregator over HTTP, for people and tools: health, the run, its rounds and devices, and the models to download. Read only."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
from fastapi import FastAPI, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST

from aggregator.adapters.http_devices import device_routes
from aggregator.adapters.metrics import RunMetrics
from aggregator.core.conditions import Conditions
from aggregator.core.ports import BlobLost, Blobs, StorageFailed, Store
from aggregator.core.state import RunState
from aggregator.core.summary import accuracy_of, count_groups, spread, summarize
from aggregator.devices import Devices

DOWNLOAD = "application/octet-stream"


def create_api(
    current: Callable[[], RunState],
    store: Store,
    blobs: Blobs,
    conditions: Callable[[], Conditions],
    wall_s: Callable[[], float],
    devices: Devices,
) -> FastAPI:
    """The application.

    `current` returns the run's state as it is now, and every handler calls it once; `conditions` what else there is to say; `wall_s` the
    seconds since the service was started.
    """
    api = FastAPI(title="Shoal aggregator", description="Read-only view of one federated run.")

    scraped = RunMetrics(current, conditions, lambda: devices.state)

    @api.get("/health")
    def health() -> dict[str, Any]:
        """That the process runs, and where the run stands."""
        state = current()
        return {"status": "ok", "run": state.settings.name, "phase": state.phase, "round": state.round}

    @api.get("/ready")
    def ready(response: Response) -> dict[str, Any]:
        """Whether updates are taken: broker, database, disk, run and voucher. 503 if one of them is not as it should be."""
        now = conditions()
        checks = {
            "broker": "ok" if now.connected else "no connection",
            "database": _checked(store.check),
            "disk": _checked(blobs.check),
            "run": f"paused: {now.paused}" if now.paused else "ok",
            "voucher": now.unvouched or "ok",
        }
        as_it_should = all(value == "ok" for value in checks.values())
        response.status_code = 200 if as_it_should else 503
        return {"ready": as_it_should, **checks, "phase": current().phase}

    @api.get("/metrics")
    def metrics() -> Response:
        """The same and more for Prometheus, in its text format."""
        return Response(scraped.text(), media_type=CONTENT_TYPE_LATEST)

    @api.get("/run")
    def run() -> dict[str, Any]:
        """The settings, and where the run stands."""
        state = current()
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
            "paused": conditions().paused,
            "epoch": state.epoch,
            "attempt": state.attempt,
        }

    @api.get("/rounds")
    def rounds() -> list[dict[str, Any]]:
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
            for r in store.rounds()
        ]

    api.include_router(device_routes(current, devices))

    @api.get("/models")
    def models() -> dict[str, str]:
        """The digest of each group's current model."""
        return dict(current().models)

    @api.get("/models/{group}")
    def model(group: str) -> Response:
        """A group's current model as safetensors."""
        state = current()
        if group not in state.models:
            raise HTTPException(404, f"group {group!r}: expected one of {', '.join(sorted(state.models))}")
        return _download(blobs, state.models[group], f"{state.settings.run_id}-{group}.safetensors")

    @api.get("/bundle")
    def bundle() -> Response:
        """The bundle that devices train with."""
        state = current()
        return _download(blobs, state.settings.bundle, f"{state.settings.run_id}.shoal")

    @api.get("/summary")
    def summary() -> dict[str, Any]:
        """The summary of the run, as `summary.json` has it, so far."""
        return cast(dict[str, Any], msgspec.to_builtins(summarize(current(), store.rounds(), wall_s())))

    @api.get("/views/{number}")
    def views(number: int) -> Response:
        """The distance matrices of a round as safetensors."""
        for record in store.rounds():
            if record.round == number and record.views:
                return _download(blobs, record.views, f"round-{number}.safetensors")
        raise HTTPException(404, f"round {number}: no distances were computed in it")

    return api


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
