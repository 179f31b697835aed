"""HTTP routes of an operator's orders.

The service's own thread carries them out, and the route waits for the answer.
"""

import queue
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    create_model,
)

from aggregator.core.settings import RunSettings
from aggregator.fleet.eligibility import LONGEST
from aggregator.fleet.records import MOST_TAGS
from aggregator.http.problem import ID, LARGEST, NAME, RETRY_S, Campaign, DeviceId, Number, refusals
from aggregator.operator.desk import WAIT_S, Desk
from host.settings import Setting, about, settings_of
from wire.errors import ConfigError

BUSY = f"The service was busy for {WAIT_S:g} s. It carries the order out when it can."


class OrderView(BaseModel):
    """Outcome of an order."""

    state: Literal["done", "waiting"] = Field(
        description="`waiting` (202): the service is busy, and carries it out when it can; the "
        "audit log says what came of it."
    )
    text: str


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
"""Whole number as in JSON Schema, where 3.0 is one too."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _read(setting: Setting, value: Any) -> Any:
    """Return the value of a setting in a body."""
    try:
        return setting.read(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


LIVE = {
    name: each
    for name, each in settings_of(RunSettings).items()
    if each.about["live"] and name not in ("hyper", "min_updates")
} | {
    each.name: each
    for each in (
        Setting("lr", float, None, about("Learning rate.", live=True, ge=0, le=1e6)),
        Setting(
            "algorithm",
            str,
            None,
            about("The same algorithm with another mean.", live=True, min_length=1, max_length=200),
        ),
    )
}
"""Settings of a campaign that may change while it runs, by field of a body."""

if TYPE_CHECKING:
    SettingsChange = _Body
else:
    SettingsChange = create_model(
        "SettingsChange",
        __base__=_Body,
        __doc__="Settings of a campaign from its next round on; at least one. Those that are "
        "absent stay.",
        **{
            # use a factory: a default would appear in the schema
            name: (
                Annotated[
                    Any,
                    PlainValidator(partial(_read, each)),
                    WithJsonSchema(msgspec.json.schema(Annotated[each.bare, each.meta])),
                ],
                Field(default_factory=type(None)),
            )
            for name, each in LIVE.items()
        },
    )
    SettingsChange.model_config["json_schema_extra"] = {"minProperties": 1}


_body = partial(create_model, __base__=_Body)
RoundChoice = _body(
    "RoundChoice",
    __doc__="A round of a campaign.",
    to=(
        Whole,
        Field(
            ge=0,
            le=LARGEST,
            description="The round that made the models; it has to be one of those that are "
            "remembered.",
        ),
    ),
)
DeviceChoice = _body(
    "DeviceChoice",
    __doc__="A device.",
    device_id=(Annotated[str, Field(pattern=ID)], ...),
)
Exclusion = create_model(
    "Exclusion",
    __base__=DeviceChoice,
    __doc__="A device to exclude from a campaign.",
    since=(
        # bounds on `Whole` inside a union would be no part of the JSON schema
        Annotated[int, Field(ge=1, le=LARGEST), BeforeValidator(_whole)] | None,
        Field(
            default=None,
            description="Return to the last stored models before this round; null: go on with the "
            "current ones.",
        ),
    ),
)
StepChoice = _body(
    "StepChoice",
    __doc__="A step of a rollout.",
    step=(
        Whole,
        Field(
            ge=0,
            le=1000,
            description="The step that it is at, from 0: an order that comes twice promotes once.",
        ),
    ),
)
GroupChoice = _body(
    "GroupChoice",
    __doc__="A group of devices.",
    group=(
        str,
        Field(
            default="",
            max_length=200,
            description="Empty: the release's own, or the only one that devices are in.",
        ),
    ),
)
Releasing = _body(
    "Releasing",
    __doc__="What to release.",
    campaign=(Annotated[str, Field(pattern=NAME)], ...),
    roll_out=(
        bool,
        Field(default=True, description="Whether to begin to give it to devices."),
    ),
)
TagChoice = _body(
    "TagChoice",
    __doc__="Tags of a device.",
    tags=(
        list[Annotated[str, Field(pattern=ID)]],
        Field(min_length=1, max_length=MOST_TAGS),
    ),
)
Tagging = _body(
    "Tagging",
    __doc__="Tags of several devices, which are named either by their ids or by a rule.",
    tags=(list[str], Field(min_length=1)),
    device_ids=(list[str], []),
    where=(
        str,
        Field(default="", max_length=LONGEST, description="A rule, as `serve --where` takes it."),
    ),
)
BanReason = _body(
    "BanReason",
    __doc__="Why a device is banned.",
    reason=(
        str,
        Field(default="", max_length=1000, description="For the registry and the audit log."),
    ),
)

OneDevice = Annotated[DeviceId, AfterValidator(lambda device_id: (device_id,))]
"""Id of a device, as a tuple for orders on several devices."""


_REFUSALS = refusals(400, 401, 403, 409, 411, 413, 422, 429, 503)
_ANSWERS: dict[int | str, dict[str, Any]] = {
    202: {"model": OrderView, "description": "It waits."},
    **_REFUSALS,
}


_ROUTES: tuple[tuple[str, str, str, str, str, Any, Any], ...] = (
    (
        "/campaigns/{name}/start",
        "start",
        "Start a campaign whose bundle and settings `shoal campaign start` has written into the "
        "service's folder.",
        "campaign-start",
        "name",
        Campaign,
        None,
    ),
    (
        "/campaigns/{name}/pause",
        "pause",
        "Pause a campaign.",
        "campaign-pause",
        "name",
        Campaign,
        None,
    ),
    (
        "/campaigns/{name}/resume",
        "resume",
        "End a pause, once its cause is gone.",
        "campaign-resume",
        "name",
        Campaign,
        None,
    ),
    (
        "/campaigns/{name}/abort",
        "abort",
        "End a campaign where it stands. Its models stay.",
        "campaign-abort",
        "name",
        Campaign,
        None,
    ),
    (
        "/campaigns/{name}/rollback",
        "roll_back",
        "Return to the models of an earlier round, or open the open round anew.",
        "campaign-rollback",
        "name",
        Campaign,
        RoundChoice,
    ),
    (
        "/campaigns/{name}/exclude",
        "exclude",
        "Give a device no further assignment of a campaign. It may still be given the model.",
        "campaign-exclude",
        "name",
        Campaign,
        Exclusion,
    ),
    (
        "/campaigns/{name}/include",
        "include",
        "Let an excluded device take part again.",
        "campaign-include",
        "name",
        Campaign,
        DeviceChoice,
    ),
    (
        "/devices/{device_id}/tag",
        "tag",
        "Add tags to a device, which need not have been here yet.",
        "tag-devices",
        "device_ids",
        OneDevice,
        TagChoice,
    ),
    (
        "/devices/{device_id}/untag",
        "untag",
        "Take tags away from a device.",
        "untag-devices",
        "device_ids",
        OneDevice,
        TagChoice,
    ),
    (
        "/devices/{device_id}/ban",
        "ban",
        "Refuse everything of a device from now on, at the broker too.",
        "ban-device",
        "device_id",
        DeviceId,
        BanReason,
    ),
    (
        "/devices/{device_id}/unban",
        "unban",
        "End a ban, or the refusal of a second device with this id.",
        "unban-device",
        "device_id",
        DeviceId,
        None,
    ),
    (
        "/devices/{device_id}/forget",
        "forget",
        "Remove everything that a device ever sent; the answer says what cannot be removed.",
        "forget-device",
        "device_id",
        DeviceId,
        None,
    ),
    (
        "/releases/{number}/rollback",
        "return_to",
        "Return a group to the model of this release, under a new number.",
        "return-to-release",
        "to",
        Number,
        GroupChoice,
    ),
    (
        "/rollouts/{name}/pause",
        "pause_rollout",
        "Give a campaign's releases to no further device.",
        "pause-rollout",
        "campaign",
        Campaign,
        None,
    ),
    (
        "/rollouts/{name}/resume",
        "resume_rollout",
        "Go on with a rollout that is paused.",
        "resume-rollout",
        "campaign",
        Campaign,
        None,
    ),
    (
        "/rollouts/{name}/promote",
        "promote_rollout",
        "Take a rollout past the gate of its step.",
        "promote-rollout",
        "campaign",
        Campaign,
        StepChoice,
    ),
    (
        "/rollouts/{name}/rollback",
        "end_rollout",
        "End a rollout, and give devices back what they had.",
        "end-rollout",
        "campaign",
        Campaign,
        None,
    ),
    (
        "/releases",
        "make_releases",
        "Make releases of what a campaign has trained.",
        "make-releases",
        "",
        None,
        Releasing,
    ),
    (
        "/tags/add",
        "tag_several",
        "Add tags to devices, which need not have been here yet.",
        "tag-devices",
        "",
        None,
        Tagging,
    ),
    (
        "/tags/remove",
        "untag_several",
        "Take tags away from devices.",
        "untag-devices",
        "",
        None,
        Tagging,
    ),
)
"""Routes of orders: path, name, description, order, field in the path with its type, and body.

A path without a field has an empty name and None.
"""


def order_routes(orders: Desk) -> APIRouter:
    """Return the routes of all orders."""
    routes = APIRouter(responses=_ANSWERS, tags=["orders"])

    async def give(request: Request, response: Response, order: str, **fields: Any) -> OrderView:
        caller = getattr(request.state, "caller", None)
        if caller is None:
            raise HTTPException(
                401, "Orders need a token.", {"WWW-Authenticate": 'Bearer realm="shoal"'}
            )
        retry = {"Retry-After": str(RETRY_S)}
        try:
            answer = await orders.ask(caller.name, order, **fields)
        except queue.Full:
            raise HTTPException(503, "Too many orders wait already.", retry) from None
        if answer is None:
            response.status_code = 202
            return OrderView(state="waiting", text=BUSY)
        match answer.cause:
            case "refused":
                raise HTTPException(409, answer.text)
            case "storage":
                raise HTTPException(503, answer.text, retry)
            case "defect":
                raise HTTPException(500, answer.text)
        return OrderView(state="done", text=answer.text)

    def add(path: str, name: str, text: str, order: str, field: str, key: Any, body: Any) -> None:
        """Add the route of an order."""
        if key is None:

            async def take(body: body, request: Request, response: Response) -> OrderView:
                return await give(request, response, order, **body.model_dump())
        elif body is None:

            async def take(  # type: ignore[misc]
                key: key, request: Request, response: Response
            ) -> OrderView:
                return await give(request, response, order, **{field: key})
        else:

            async def take(  # type: ignore[misc]
                key: key, body: body, request: Request, response: Response
            ) -> OrderView:
                return await give(request, response, order, **{field: key}, **body.model_dump())

        routes.add_api_route(path, take, methods=["POST"], name=name, description=text)

    for route in _ROUTES:
        add(*route)

    @routes.post("/campaigns/resume")
    async def resume_all(request: Request, response: Response) -> OrderView:
        """End the pause of every campaign, once its cause is gone."""
        return await give(request, response, "campaign-resume", name="")

    @routes.post("/campaigns/{name}/settings")
    async def settings(
        name: Campaign, change: SettingsChange, request: Request, response: Response
    ) -> OrderView:
        """Change settings of a campaign from its next round on."""
        if not change.model_fields_set:
            raise HTTPException(422, "body: must have at least one setting")
        changes = change.model_dump(exclude_unset=True, exclude_none=True)
        if "min_devices" in changes:  # fewer updates are never aggregated
            changes["min_updates"] = changes["min_devices"]
        if "lr" in changes:
            changes["hyper"] = {"lr": changes.pop("lr")}
        return await give(request, response, "campaign-set", name=name, changes=changes)

    return routes
