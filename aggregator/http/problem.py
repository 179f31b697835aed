"""Parameters that several HTTP routes share, refusals in the shape of RFC 9457, and OpenAPI."""

import http
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from aggregator.ports import StorageFailed

PROBLEM = "application/problem+json"
STRUCT = "x-struct"
"""Key in a field's schema with the name of the msgspec struct that the field holds."""
RETRY_S = 5
"""Seconds after which a client may try again, if the service cannot answer now."""

LARGEST = 2**53
"""Largest whole number that every JSON reader can represent."""
PAGE = 1000
"""Maximum number of entries in one answer."""

NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"
Chosen = Annotated[
    str,
    Query(
        alias="campaign",
        pattern=rf"^$|{NAME}",
        description="The name of a campaign; the latest when empty.",
    ),
]
Campaign = Annotated[str, Path(alias="name", pattern=NAME, description="The name of a campaign.")]
Group = Annotated[str, Path(pattern=NAME, description="A group, by its number, or `initial`.")]
ID = r"^[A-Za-z0-9._-]{1,64}$"
DeviceId = Annotated[str, Path(alias="device_id", pattern=ID, description="A device's id.")]
Number = Annotated[int, Path(alias="number", ge=0, le=LARGEST)]
Limit = Annotated[int, Query(ge=1, le=PAGE, description="So many at most.")]
After = Annotated[int, Query(ge=0, le=LARGEST, description="Only those with a greater number.")]


class Fault(BaseModel):
    """A fault of a request."""

    where: str = Field(description="Such as `query.limit` or `body.rounds`.")
    problem: str


class Problem(BaseModel):
    """Reason why a request was not answered (RFC 9457)."""

    title: str = Field(description="The status in words.")
    status: int
    detail: str
    errors: list[Fault] = Field(default=[], description="With 422: each fault of the request.")


REASONS: dict[int, str] = {
    400: "The body is not what its media type says.",
    401: "Without a valid token.",
    403: "The token's role does not permit it.",
    404: "There is nothing of this name.",
    409: "The service refuses the order as things are.",
    411: "The length of the body is not said.",
    413: "The body is too large.",
    422: "A value is not one that is expected, or a parameter is unknown.",
    429: "Too many requests; `Retry-After` says when to ask again.",
    503: "The service cannot do it now; `Retry-After` says when to ask again.",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the refusals of a route, for its OpenAPI description."""
    return {status: {"model": Problem, "description": REASONS[status]} for status in statuses}


def problem(
    status: int,
    detail: str,
    headers: Mapping[str, str] | None = None,
    errors: tuple[Fault, ...] = (),
) -> Response:
    """Return a refusal."""
    body = Problem(
        title=http.HTTPStatus(status).phrase, status=status, detail=detail, errors=list(errors)
    )
    return Response(body.model_dump_json(), status, dict(headers or {}), PROBLEM)


def refuse_unknown(request: Request) -> None:
    """Refuse unknown and repeated query parameters.

    Raises:
        RequestValidationError: a parameter is unknown or repeated.
    """
    aliases = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    names = [name for name, _ in request.query_params.multi_items()]
    faults = [
        (name, f"unknown parameter; known are {', '.join(sorted(aliases)) or 'none'}")
        for name in names
        if name not in aliases
    ]
    faults += [(name, "came more than once") for name in sorted(aliases) if names.count(name) > 1]
    if faults:
        raise RequestValidationError(
            [
                {"loc": ("query", name[:64]), "msg": message, "type": "query"}
                for name, message in faults[:10]
            ]
        )


def answer_with_problem(request: Request, error: Any) -> Response:
    """Return the response for a request that failed."""
    match error:
        case HTTPException(status_code=405):
            allowed = [
                name
                for method, name in (("GET", "GET, HEAD"), ("POST", "POST"))
                for route in request.app.routes
                if route.matches({**request.scope, "method": method})[0] is Match.FULL
            ]
            names = ", ".join(dict.fromkeys(allowed))
            return problem(405, str(error.detail), {"Allow": names})
        case HTTPException():
            return problem(error.status_code, str(error.detail), error.headers)
        case RequestValidationError():
            faults = tuple(
                Fault(
                    where=".".join(str(part) for part in e["loc"]),
                    problem=e["msg"].removeprefix("Value error, "),
                )
                for e in error.errors()
            )
            detail = "; ".join(f"{fault.where}: {fault.problem}" for fault in faults)[:1000]
            return problem(422, detail, errors=faults)
        case StorageFailed():
            return problem(503, str(error), {"Retry-After": str(RETRY_S)})
    name = type(error).__name__
    return problem(500, f"A defect of Shoal ({name}). The service's log has more.")


HANDLERS: dict[int | type[Exception], Any] = dict.fromkeys(
    (HTTPException, RequestValidationError, StorageFailed, Exception), answer_with_problem
)
"""Handlers that give every refusal of an application the same shape."""


def describe(api: FastAPI, structs: tuple[type, ...], free: str) -> None:
    """Complete the OpenAPI document of an application.

    It then says which media type refusals have, that every path except `free` takes a bearer token,
    and which fields these msgspec structs have.
    """

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            document = get_openapi(
                title=api.title, version=api.version, description=api.description, routes=api.routes
            )
            parts = document["components"]
            for part in parts["schemas"].values():
                for name, field in part.get("properties", {}).items():
                    if STRUCT in field:
                        part["properties"][name] = {"$ref": f"#/components/schemas/{field[STRUCT]}"}
            parts["schemas"] |= msgspec.json.schema_components(
                structs, ref_template="#/components/schemas/{name}"
            )[1]
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    operation["security"] = [] if path == free else [{"token": []}]
                    for answer in operation["responses"].values():
                        content = answer.get("content", {})
                        if content.get("application/json", {}).get("schema") == {
                            "$ref": "#/components/schemas/Problem"
                        }:
                            answer["content"] = {PROBLEM: content["application/json"]}
            api.openapi_schema = document
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]
