"""Releases and rollouts over HTTP, for people and tools: what there is.
`aggregator.http.orders` has the orders."""

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter, HTTPException
from pydantic import BaseModel

from aggregator.core.release.progress import in_use, progress_of
from aggregator.core.release.state import FleetState
from aggregator.http.problem import PAGE, After, Limit, Number


class ReleaseView(BaseModel):
    """A release as `GET /releases` says it."""

    number: int
    group: str
    state: str
    campaign: str
    run_id: str
    round: int
    algorithm: str
    bundle: str
    model: str
    devices: int
    """How many devices of the group it was made for."""
    accuracy: float | None
    """Over the windows of the devices that evaluated it before it was released; null where none
    did."""
    parent: int
    returns_to: int
    made_at_s: float
    in_use: int
    """How many devices say that they use it."""


class CountsView(BaseModel):
    """What devices say that were given a release."""

    offered: int
    confirmed: int
    failed: int
    waiting: int
    away: int
    alone: int
    """Of those that confirmed, how many use it without what they have kept: their accuracy is of
    the release's model alone."""
    reasons: dict[str, int]


class StepView(CountsView):
    """A step of a rollout, and the devices that it reached."""

    share: float
    tags: list[str]


class RolloutView(BaseModel):
    """A campaign's last rollout as `GET /rollouts` says it."""

    campaign: str
    releases: dict[str, int]
    phase: str
    step: int
    reason: str
    began_at_s: float
    steps: list[StepView]
    returned: CountsView


def release_views(state: FleetState) -> list[ReleaseView]:
    """Every release, by number."""
    used, views = in_use(state), []
    for number, release in sorted(state.catalogue.releases.items()):
        said: dict[str, Any] = msgspec.to_builtins(release)
        metrics = said.pop("metrics")
        accuracy = release.metrics.accuracy if metrics["num_examples"] else None
        views.append(ReleaseView(**said, accuracy=accuracy, in_use=used.get(number, 0)))
    return views


def rollout_views(state: FleetState) -> list[RolloutView]:
    """The last rollout of each campaign."""
    views = []
    for campaign, rollout in state.rollouts.items():
        said: dict[str, Any] = msgspec.to_builtins(progress_of(state, campaign, rollout))
        said["steps"] = [{**step, **step.pop("step")} for step in said["steps"]]
        views.append(RolloutView.model_validate(said))
    return views


def release_routes(current: Callable[[], FleetState]) -> APIRouter:
    """The routes. `current` returns the state as it is now."""
    routes = APIRouter()

    @routes.get("/releases")
    def releases(after: After = 0, limit: Limit = PAGE) -> list[ReleaseView]:
        """The releases of the fleet, by number."""
        return [view for view in release_views(current()) if view.number > after][:limit]

    @routes.get("/releases/{number}")
    def release(number: Number) -> ReleaseView:
        """One release."""
        for view in release_views(current()):
            if view.number == number:
                return view
        raise HTTPException(404, f"release {number}: there is none of this number")

    @routes.get("/rollouts")
    def rollouts(limit: Limit = PAGE) -> list[RolloutView]:
        """The last rollout of each campaign, and what devices say of it."""
        return rollout_views(current())[:limit]

    return routes
