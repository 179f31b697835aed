"""The dashboard's pages: each reads the states once, and shows what the functions beside this file
make of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from aggregator.core.ports import Clock
from aggregator.core.release.reach import needed
from aggregator.core.release.state import GOING, FleetState
from aggregator.core.state import RunState
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
    Alert,
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
from aggregator.http.releases import release_views, rollout_views
from aggregator.http.session import drop_cookie, kept_cookie
from aggregator.http.tokens import Access, Caller
from aggregator.http.views import Shown, campaign_view
from aggregator.operator.audit import read_back
from aggregator.operator.desk import Desk
from aggregator.releases.rollouts import KEPT
from aggregator.service.conditions import Conditions
from aggregator.service.devices import Devices
from wire.errors import ShoalError

LONGEST = 400
"""Characters that may be looked for."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What pages read, and where orders go: the same that the HTTP API has. Each page asks for
    states anew, once."""

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


@dataclass
class Pages:
    """Handlers of requests; they run in threads that may wait."""

    _sources: Sources
    _history: History = field(default_factory=History)
    _compared: dict[str, tuple[str, Mapping[str, str], dict[str, DistanceView]]] = field(
        default_factory=dict
    )
    """Digest of the last comparison of a run's devices, where they started from, and its result,
    by run: a page that is looked at every second computes it once a round."""

    def fleet(self, request: Request) -> Response:
        """The devices, worst first."""
        words, show, sort = (
            _words(request),
            _one_of(request, "show", Show),
            _one_of(request, "sort", Sort),
        )
        run = self._latest()
        page = fleet_page(self._sources.devices.entries, run, words, show, sort, _number(request))
        return self._show(
            request,
            "fleet.html",
            "fleet",
            page=page,
            words=words,
            show=show,
            sort=sort,
            shows=SHOWS,
            sorts=SORTS,
        )

    def device(self, request: Request) -> Response:
        """One device."""
        device_id, run = request.query_params.get("id", ""), self._latest()
        entry = self._sources.devices.entries.get(device_id)
        if entry is None:
            raise HTTPException(404, f"device {device_id[:64]!r}: it has never been here")
        known = run.devices.get(device_id) if run is not None else None
        condition = condition_of(entry, known.failures if known else 0)
        return self._show(
            request,
            "device.html",
            "fleet",
            entry=entry,
            line=device_line(run, device_id, entry),
            condition=condition,
        )

    def campaigns(self, request: Request) -> Response:
        """Every campaign, the latest first."""
        shown = [
            campaign_view(name, c.state, c.paused)
            for name, c in [*self._sources.campaigns().items()][::-1]
        ]
        return self._show(request, "campaigns.html", "campaigns", shown=shown)

    def live(self, request: Request) -> Response:
        """A campaign as it goes."""
        name, shown, run, past = self._campaign(request)
        now_s = self._sources.clock()
        return self._show(
            request,
            "live.html",
            "campaigns",
            live=live_campaign(run, self._sources.devices.entries, past, now_s, _number(request)),
            view=campaign_view(name, run, shown.paused),
            run=run,
            name=name,
            measure=measure_of(run.settings.algorithm),
            standings=STANDINGS,
            versions=versions_of(run),
            accuracies=accuracy_chart(past),
            rounds=past.rounds[:-9:-1],
            reading=past.first > 1,
            releasing=self._sources.releases is not None,
        )

    def groups(self, request: Request) -> Response:
        """A campaign's groups over time."""
        name, shown, run, past = self._campaign(request)
        moved = moves(self._sources.devices.entries, name)
        part = slice_of(len(moved), _number(request))
        trained = {line.round: line.sizes for line in past.rounds if line.sizes}
        views, problem = self._views(shown, run, past)
        return self._show(
            request,
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
        )

    def similarity(self, request: Request) -> Response:
        """One distance matrix as a picture; the number says which, in the order of the page."""
        _, shown, run, past = self._campaign(request)
        views = list(self._views(shown, run, past)[0].values())
        number = request.path_params["number"]
        if number not in map(str, range(len(views))):
            raise HTTPException(404, "there is no such picture: no distances are kept")
        payload = picture(views[int(number)])
        return Response(payload, 200, HEADERS | {"Cache-Control": "no-store"}, "image/png")

    def accuracy(self, request: Request) -> Response:
        """How good a campaign's models are, and what devices keep."""
        name, _, run, past = self._campaign(request)
        words, sort = _words(request), _one_of(request, "sort", AccuracySort)
        measure, number = measure_of(run.settings.algorithm), _number(request)
        return self._show(
            request,
            "accuracy.html",
            "campaigns",
            name=name,
            page=accuracy_page(run, past.evaluated, words, sort, number, bool(measure.of)),
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
        """What a campaign's privacy mechanism has spent."""
        name, _, run, past = self._campaign(request)
        spent = {
            line.round: line.notes["epsilon"] for line in past.rounds if "epsilon" in line.notes
        }
        return self._show(
            request,
            "privacy.html",
            "campaigns",
            name=name,
            run=run,
            spent=spent,
            chart=values_chart("epsilon", spent),
            mechanism=mechanism_of(run.settings.algorithm),
        )

    def releases(self, request: Request) -> Response:
        """Releases and rollouts."""
        state = self._sources.releases() if self._sources.releases is not None else None
        views = (
            sorted(release_views(state), key=lambda view: -view.number) if state is not None else []
        )
        part = slice_of(len(views), _number(request))
        campaigns = self._sources.campaigns()
        measures = {
            name: measure_of(shown.state.settings.algorithm) for name, shown in campaigns.items()
        }
        names = {measures.get(view.campaign, Measure()).name for view in views}
        return self._show(
            request,
            "releases.html",
            "releases",
            on=state is not None,
            rollouts=rollout_views(state)[::-1] if state is not None else [],
            going=GOING,
            views=views[part.begin : part.end],
            slice=part,
            kept=needed(state, KEPT) if state is not None else set(),
            campaigns=list(campaigns),
            measured=names.pop() if len(names) == 1 else "",
            measures=measures,
        )

    def alerts(self, request: Request) -> Response:
        """What an operator should know now."""
        now, access = self._sources.conditions(), self._sources.access
        tables = (
            (
                "Messages that were refused",
                "What arrived from devices and was not taken.",
                now.refused,
            ),
            (
                "Plans that devices declined",
                "Devices said why they do not carry a plan out.",
                now.declined,
            ),
            (
                "HTTP requests that were refused",
                "",
                dict(access.refused) if access is not None else {},
            ),
        )
        past = [
            alert
            for name, shown in self._sources.campaigns().items()
            for alert in round_alerts(name, self._history.past(shown))
        ]
        return self._show(
            request,
            "alerts.html",
            "alerts",
            alerts=[*self._standing_alerts(), *past],
            tables=tables,
            now=now,
        )

    def audit(self, request: Request) -> Response:
        """Who did what."""
        words, before = _words(request), request.query_params.get("before", "")
        folder = self._sources.audit
        if folder is None:
            raise HTTPException(404, "this service keeps no audit log")
        try:
            page = read_back(
                folder, int(before) if before.isdecimal() and len(before) < 16 else None, words
            )
        except OSError as error:
            raise HTTPException(503, f"the audit log cannot be read: {error.strerror}") from None
        return self._show(request, "audit.html", "audit", page=page, words=words, first=not before)

    def reference(self, request: Request) -> Response:
        """The HTTP API's paths."""
        return self._show(
            request, "reference.html", "api", operations=operations(self._sources.openapi())
        )

    def _show(self, request: Request, template: str, current: str, **shown: Any) -> Response:
        """`current`: the part of the dashboard that it belongs to."""
        caller: Caller | None = getattr(request.state, "caller", None)
        common = {
            "current": current,
            "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            "link": partial(_link, request),
            "user": caller,
            "may_order": caller is not None
            and caller.role == "operator"
            and self._sources.orders is not None,
            "urgent": sum(alert.tone == "bad" for alert in self._standing_alerts()),
            "told": told(request),
        }
        response = answer(request, render(template, **common, **shown))
        if LOOKS not in request.headers and kept_cookie(request.scope, TOLD):
            drop_cookie(response, request.scope, TOLD)  # it was said
        return response

    def _standing_alerts(self) -> list[Alert]:
        sources = self._sources
        releases = sources.releases() if sources.releases is not None else None
        return standing_alerts(sources.conditions(), sources.campaigns(), releases)

    def _latest(self) -> RunState | None:
        campaigns = self._sources.campaigns()
        return list(campaigns.values())[-1].state if campaigns else None

    def _campaign(self, request: Request) -> tuple[str, Shown, RunState, Past]:
        """The campaign that a path names."""
        name, campaigns = request.path_params["name"], self._sources.campaigns()
        if name not in campaigns:
            raise HTTPException(
                404,
                f"campaign {name[:64]!r}: expected one of "
                f"{', '.join(campaigns) or 'none, since there is none yet'}",
            )
        return name, campaigns[name], campaigns[name].state, self._history.past(campaigns[name])

    def _views(
        self, shown: Shown, run: RunState, past: Past
    ) -> tuple[dict[str, DistanceView], str]:
        """The distance matrices of the last round that has some, by name; and why there are
        none."""
        if past.viewed is None:
            return (
                {},
                "No round has compared devices yet, or the grouping of this campaign compares "
                "none.",
            )
        run_id, digest, starts = run.settings.run_id, past.viewed.views, run.starts
        before, starts_before, views = self._compared.get(run_id, ("", {}, {}))
        if before != digest or starts_before is not starts:
            try:
                matrices, ids = read_views(shown.blobs.get(digest))
            except ShoalError as error:
                return {}, str(error)
            compared = {name: compare(matrix, ids, starts) for name, matrix in matrices.items()}
            views = {name: each for name, each in compared.items() if each.ids}
            self._compared[run_id] = digest, starts, views
        return views, ""


def _words(request: Request) -> str:
    return request.query_params.get("q", "")[:LONGEST].strip()


def _number(request: Request) -> int:
    text = request.query_params.get("page", "")
    return int(text) if text.isdecimal() and len(text) < 10 else 1


def _one_of(request: Request, name: str, kind: Any) -> Any:
    """The value of a parameter, or the first of those that it may have."""
    values: tuple[str, ...] = get_args(kind)
    text = request.query_params.get(name, "")
    return text if text in values else values[0]


def _link(request: Request, **changes: object) -> str:
    """The address of this page with other parameters; an empty one is left out."""
    parameters: Mapping[str, object] = {**request.query_params, **changes}
    stated = {name: value for name, value in parameters.items() if value != ""}
    return f"{request.url.path}?{urlencode(stated)}"
