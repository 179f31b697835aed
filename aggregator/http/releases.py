"""HTTP routes of releases and rollouts. `aggregator.http.orders` has the orders."""

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter, HTTPException
from pydantic import BaseModel

from aggregator.http.problem import PAGE, After, Limit, Number
from aggregator.view.fleet import FleetView
from aggregator.view.progress import ReleaseState


class ReleaseView(BaseModel):
    """A release as `GET /releases` returns it."""

    number: int
    group: str
    state: ReleaseState
    campaign: str
    run_id: str
    round: int
    algorithm: str
    bundle: str
    model: str
    devices: int
    """Number of devices of the group for which it was made."""
    accuracy: float | None
    """Accuracy over the windows of the devices that evaluated it before its release; null if none
    did.
    """
    made_s: float
    in_use: int
    """Number of devices that report it as their model in use."""


class CountsView(BaseModel):
    """Answers of devices that were offered a release."""

    offered: int
    confirmed: int
    failed: int
    waiting: int
    silent: int
    """Number of online devices that have never reported a model in use."""
    away: int
    alone: int
    """Number of devices that confirmed, and use the release without their personal model.

    Their accuracy is that of the release's model alone.
    """
    reasons: dict[str, int]


class StepView(CountsView):
    """A step of a rollout, and the answers of the devices that it reached."""

    share: float
    tags: list[str]


class RolloutView(BaseModel):
    """A campaign's last rollout as `GET /rollouts` returns it."""

    campaign: str
    releases: dict[str, int]
    phase: str
    direct: bool
    """True if devices take up the models because their campaign has ended; they do not confirm."""
    step: int
    reason: str
    statements: dict[str, str]
    """Statements of the first devices about its releases, by device."""
    began_s: float
    step_s: float
    """Time when the step began, or was resumed."""
    steps: list[StepView]


def release_views(view: FleetView) -> list[ReleaseView]:
    """Return every release, by number."""
    used, views = view.totals.answers.in_use, []
    for number, release in sorted(view.fleet.releases.items()):
        fields: dict[str, Any] = msgspec.to_builtins(release)
        metrics = fields.pop("metrics")
        accuracy = release.metrics.accuracy if metrics["num_examples"] else None
        state = view.release_states[number]
        views.append(
            ReleaseView(**fields, state=state, accuracy=accuracy, in_use=used.get(number, 0))
        )
    return views


def rollout_views(view: FleetView) -> list[RolloutView]:
    """Return the last rollout of each campaign."""
    return [RolloutView.model_validate(msgspec.to_builtins(each)) for each in view.rollouts]


def release_routes(current: Callable[[], FleetView]) -> APIRouter:
    """Return the routes of releases. `current` returns the fleet as it is now."""
    routes = APIRouter()

    @routes.get("/releases")
    def releases(after: After = 0, limit: Limit = PAGE) -> list[ReleaseView]:
        """List the releases of the fleet, by number."""
        return [view for view in release_views(current()) if view.number > after][:limit]

    @routes.get("/releases/{number}")
    def release(number: Number) -> ReleaseView:
        """Show one release."""
        for view in release_views(current()):
            if view.number == number:
                return view
        raise HTTPException(404, f"No release {number}.")

    @routes.get("/rollouts")
    def rollouts(limit: Limit = PAGE) -> list[RolloutView]:
        """List the last rollout of each campaign, with the answers of devices."""
        return rollout_views(current())[:limit]

    return routes
