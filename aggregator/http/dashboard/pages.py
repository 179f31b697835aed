"""Pages of the dashboard. Each reads one view of the fleet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from aggregator.http.dashboard.accuracy import SORTS as ACCURACY_SORTS
from aggregator.http.dashboard.accuracy import (
    Measure,
    accuracy_chart,
    accuracy_page,
    measure_of,
    mechanism_of,
    values_chart,
)
from aggregator.http.dashboard.accuracy import Sort as AccuracySort
from aggregator.http.dashboard.alerts import (
    round_alerts,
    standing_alerts,
)
from aggregator.http.dashboard.answers import HEADERS, LOOKS, TOLD, answer, told
from aggregator.http.dashboard.fleet import (
    SHOWS,
    SORTS,
    Show,
    Sort,
    condition_of,
    fleet_page,
    moves,
    slice_of,
)
from aggregator.http.dashboard.history import History, Past
from aggregator.http.dashboard.live import STANDINGS, live_campaign, versions_of
from aggregator.http.dashboard.reference import operations
from aggregator.http.devices import device_line
from aggregator.http.pages.charts import bar_chart
from aggregator.http.pages.distances import DistanceView, compare, picture, read_views
from aggregator.http.pages.rendering import render
from aggregator.http.pages.words import splits, untested
from aggregator.http.releases import release_views, rollout_views
from aggregator.http.session import drop_cookie, kept_cookie
from aggregator.http.tokens import Access, Caller
from aggregator.http.views import BlobsOf, campaign_line
from aggregator.operator.audit import read_back
from aggregator.operator.desk import Desk
from aggregator.ports import Store
from aggregator.service.conditions import Conditions
from aggregator.view.device import group_key
from aggregator.view.fleet import FleetView
from aggregator.view.progress import GOING, needed_releases
from wire.errors import ShoalError

LONGEST = 400
"""Maximum number of characters of a search."""
Compared = tuple[str, tuple[str, ...], Mapping[str, str], dict[str, DistanceView]]
"""A comparison: digest of the distances, devices, group of each device, and matrices."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Data sources of pages, and the desk of orders; the HTTP API has the same.

    Each page calls `view` once.
    """

    view: Callable[[], FleetView]
    store: Store
    blobs: BlobsOf
    conditions: Callable[[], Conditions]
    access: Access | None
    orders: Desk | None
    audit: Path | None
    """Folder with the audit log; None if there is none."""
    openapi: Callable[[], dict[str, Any]]


@dataclass
class Pages:
    """Handlers of requests for pages; they run in threads that may wait."""

    _sources: Sources
    _history: History = field(default_factory=History)
    _compared: dict[str, Compared] = field(default_factory=dict)
    """Last comparison of a run's devices, by run.

    A page is requested every second, and this is computed once a round.
    """

    def fleet(self, request: Request) -> Response:
        """Show the state of the fleet, and its devices, worst first."""
        words, show, sort = (
            _words(request),
            _one_of(request, "show", Show),
            _one_of(request, "sort", Sort),
        )
        view = self._sources.view()
        page = fleet_page(view, words, show, sort, _number(request))
        name, measure, past = view.latest, Measure(), Past()
        if name:
            measure = measure_of(view.fleet.campaigns[name].settings.algorithm)
            past = self._history.past(view, name, self._sources.store)
        evaluated = [line for line in past.rounds if line.accuracy.mean is not None]
        return self._show(
            request,
            view,
            "fleet.html",
            "fleet",
            campaign=campaign_line(name, view.campaigns[name]) if name else None,
            measure=measure,
            rated=evaluated[-1] if evaluated else None,
            in_use=view.totals.answers.in_use,
            page=page,
            words=words,
            show=show,
            sort=sort,
            shows=SHOWS,
            sorts=SORTS,
        )

    def device(self, request: Request) -> Response:
        """Show one device."""
        device_id, view = request.query_params.get("id", ""), self._sources.view()
        device = view.device(device_id)
        if device is None:
            raise HTTPException(404, f"No device {device_id[:64]!r} has ever checked in.")
        return self._show(
            request,
            view,
            "device.html",
            "fleet",
            device=device,
            line=device_line(view, device),
            condition=condition_of(device),
        )

    def campaigns(self, request: Request) -> Response:
        """Show every campaign: paused and waiting ones, then running ones, then finished ones.

        The latest is the first of its kind.
        """
        view = self._sources.view()
        shown = [campaign_line(name, each) for name, each in [*view.campaigns.items()][::-1]]
        shown.sort(key=lambda line: not (line.paused or line.waiting))
        return self._show(
            request,
            view,
            "campaigns.html",
            "campaigns",
            shown=[line for line in shown if line.phase != "finished"],
            finished=[line for line in shown if line.phase == "finished"],
            records=view.fleet.campaigns,
            measures={line.name: measure_of(line.algorithm).name for line in shown},
        )

    def live(self, request: Request) -> Response:
        """Show a campaign's progress."""
        view, name, past = self._campaign(request)
        live = live_campaign(view, name, past, _number(request))
        campaign = view.fleet.campaigns[name]
        return self._show(
            request,
            view,
            "live.html",
            "campaigns",
            live=live,
            view=campaign_line(name, view.campaigns[name]),
            run=campaign,
            name=name,
            measure=measure_of(campaign.settings.algorithm),
            standings=STANDINGS,
            versions=versions_of(campaign),
            accuracies=accuracy_chart(past),
            rounds=past.rounds[:-9:-1],
            reading=past.first > 1,
        )

    def groups(self, request: Request) -> Response:
        """Show a campaign's groups over time."""
        view, name, past = self._campaign(request)
        moved = moves(view, name)
        part = slice_of(len(moved), _number(request))
        trained = {line.round: line.sizes for line in past.rounds if line.sizes}
        views, problem = self._views(view, name, past)
        notes = [line.notes for line in past.rounds]
        return self._show(
            request,
            view,
            "groups.html",
            "campaigns",
            name=name,
            sizes=past.rounds[-1].sizes if past.rounds else {},
            chart=bar_chart(trained),
            moved=moved[part.begin : part.end],
            slice=part,
            views=views,
            viewed=past.viewed,
            problem=problem,
            sentences=[*untested(notes), *splits(notes)],
        )

    def similarity(self, request: Request) -> Response:
        """Return a distance matrix as a picture, by its number on the page of groups."""
        view, name, past = self._campaign(request)
        views = list(self._views(view, name, past)[0].values())
        number = request.path_params["number"]
        if number not in map(str, range(len(views))):
            raise HTTPException(404, f"No picture {number[:16]!r} of distances.")
        payload = picture(views[int(number)])
        return Response(payload, 200, HEADERS | {"Cache-Control": "no-store"}, "image/png")

    def accuracy(self, request: Request) -> Response:
        """Show accuracy of a campaign's models, and personal models of devices."""
        view, name, past = self._campaign(request)
        words, sort = _words(request), _one_of(request, "sort", AccuracySort)
        measure = measure_of(view.fleet.campaigns[name].settings.algorithm)
        by_loss, number = bool(measure.of), _number(request)
        page = accuracy_page(view, name, past.evaluated, words, sort, number, by_loss)
        return self._show(
            request,
            view,
            "accuracy.html",
            "campaigns",
            name=name,
            run=view.fleet.campaigns[name],
            page=page,
            words=words,
            sort=sort,
            sorts=ACCURACY_SORTS,
            measure=measure,
            chart=accuracy_chart(past),
            losses=values_chart(
                "mean loss",
                {line.round: line.loss for line in past.rounds if line.loss is not None},
            )
            if measure.of
            else None,
        )

    def privacy(self, request: Request) -> Response:
        """Show the privacy that a campaign's mechanism has spent."""
        view, name, past = self._campaign(request)
        campaign = view.fleet.campaigns[name]
        spent = {
            line.round: line.notes["epsilon"] for line in past.rounds if "epsilon" in line.notes
        }
        return self._show(
            request,
            view,
            "privacy.html",
            "campaigns",
            name=name,
            run=campaign,
            spent=spent,
            chart=values_chart("epsilon", spent),
            mechanism=mechanism_of(campaign.settings.algorithm),
        )

    def releases(self, request: Request) -> Response:
        """Show rollouts, and releases: those that devices use or are offered, then the others."""
        view = self._sources.view()
        views = release_views(view)[::-1]
        views.sort(key=lambda each: not each.in_use and each.state != "canary")
        part = slice_of(len(views), _number(request))
        measures = {
            name: measure_of(campaign.settings.algorithm)
            for name, campaign in view.fleet.campaigns.items()
        }
        names = {measures.get(each.campaign, Measure()).name for each in views}
        return self._show(
            request,
            view,
            "releases.html",
            "releases",
            rollouts=rollout_views(view)[::-1],
            going=GOING,
            views=views[part.begin : part.end],
            slice=part,
            kept=needed_releases(view.fleet, view.totals.answers.offered),
            campaigns=list(view.fleet.campaigns),
            measured=names.pop() if len(names) == 1 else "",
            measures=measures,
        )

    def alerts(self, request: Request) -> Response:
        """Show alerts, notes on the last rounds, and numbers of refusals and declines."""
        now, access = self._sources.conditions(), self._sources.access
        view, store = self._sources.view(), self._sources.store
        tables = (
            (
                "Refused messages",
                "Messages of devices that the service did not accept.",
                now.refused,
            ),
            (
                "Declined assignments",
                "Assignments that devices did not carry out, by the reason that they gave.",
                now.declined,
            ),
            (
                "Refused HTTP requests",
                "",
                dict(access.refused) if access is not None else {},
            ),
        )
        past = [
            alert
            for name, campaign in view.fleet.campaigns.items()
            if campaign.phase != "finished" or name == view.latest
            for alert in round_alerts(name, self._history.past(view, name, store))
        ]
        return self._show(
            request,
            view,
            "alerts.html",
            "alerts",
            past=past,
            tables=tables,
            now=now,
        )

    def audit(self, request: Request) -> Response:
        """Show the audit log."""
        words, before = _words(request), request.query_params.get("before", "")
        folder = self._sources.audit
        if folder is None:
            raise HTTPException(404, "This service has no audit log.")
        try:
            page = read_back(
                folder, int(before) if before.isdecimal() and len(before) < 16 else None, words
            )
        except OSError as error:
            raise HTTPException(503, f"The audit log cannot be read: {error.strerror}.") from None
        shown: dict[str, Any] = {"page": page, "words": words, "first": not before}
        return self._show(request, self._sources.view(), "audit.html", "audit", **shown)

    def reference(self, request: Request) -> Response:
        """Show the HTTP API's paths."""
        listed = operations(self._sources.openapi())
        return self._show(request, self._sources.view(), "reference.html", "api", operations=listed)

    def _show(
        self, request: Request, fleet: FleetView, template: str, current: str, **shown: Any
    ) -> Response:
        """Return a page. `current`: the part of the dashboard to which it belongs."""
        caller: Caller | None = getattr(request.state, "caller", None)
        standing = standing_alerts(self._sources.conditions(), fleet)
        common = {
            "current": current,
            "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            "link": partial(_link, request),
            "user": caller,
            "may_order": caller is not None
            and caller.role == "operator"
            and self._sources.orders is not None,
            "standing": standing,
            "heard_s": fleet.totals.heard_s,
            "urgent": sum(alert.tone == "bad" for alert in standing),
            "told": told(request),
        }
        response = answer(request, render(template, **common, **shown))
        if LOOKS not in request.headers and kept_cookie(request.scope, TOLD):
            drop_cookie(response, request.scope, TOLD)  # this page shows the outcome
        return response

    def _campaign(self, request: Request) -> tuple[FleetView, str, Past]:
        """Return the fleet, and the campaign that a path names with its closed rounds."""
        name, view = request.path_params["name"], self._sources.view()
        if name not in view.fleet.campaigns:
            names = ", ".join(view.fleet.campaigns) or "none yet"
            raise HTTPException(404, f"No campaign {name[:64]!r}. Known campaigns: {names}.")
        return view, name, self._history.past(view, name, self._sources.store)

    def _views(
        self, fleet: FleetView, name: str, past: Past
    ) -> tuple[dict[str, DistanceView], str]:
        """Return the distance matrices by name, or nothing and the reason why there are none.

        They belong to the last round that has some.
        """
        if fleet.fleet.campaigns[name].settings.secret:
            return {}, "Secret mode has no distances: no numbers of two devices can be compared."
        if past.viewed is None:
            return (
                {},
                "No distances yet: no round has compared devices, or this campaign's grouping "
                "compares none.",
            )
        campaign, digest = fleet.fleet.campaigns[name], past.viewed.views
        run_id, devices = campaign.settings.run_id, fleet.fleet.devices
        before, compared, groups_before, views = self._compared.get(run_id, ("", (), {}, {}))
        groups = {d: group_key(campaign, d, devices[d]) for d in compared if d in devices}
        if before != digest or groups_before != groups:
            if (blobs := self._sources.blobs(name)) is None:
                return {}, "The files of this campaign cannot be read."
            try:
                matrices, ids = read_views(blobs.get(digest))
            except ShoalError as error:
                return {}, str(error)
            groups = {d: group_key(campaign, d, devices[d]) for d in ids if d in devices}
            comparisons = {key: compare(matrix, ids, groups) for key, matrix in matrices.items()}
            views = {key: view for key, view in comparisons.items() if view.ids}
            self._compared[run_id] = digest, tuple(ids), groups, views
        return views, ""


def _words(request: Request) -> str:
    return request.query_params.get("q", "")[:LONGEST].strip()


def _number(request: Request) -> int:
    text = request.query_params.get("page", "")
    return int(text) if text.isdecimal() and len(text) < 10 else 1


def _one_of(request: Request, name: str, kind: Any) -> Any:
    """Return the value of a parameter, or the first allowed value."""
    values: tuple[str, ...] = get_args(kind)
    text = request.query_params.get(name, "")
    return text if text in values else values[0]


def _link(request: Request, **changes: object) -> str:
    """Return the address of this page with other parameters; empty ones are left out."""
    parameters: Mapping[str, object] = {**request.query_params, **changes}
    stated = {name: value for name, value in parameters.items() if value != ""}
    return f"{request.url.path}?{urlencode(stated)}"
