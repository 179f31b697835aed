"""The parameters that several paths of the HTTP API take, and the refusal of others."""

from typing import Annotated

from fastapi import Path, Query, Request
from fastapi.exceptions import RequestValidationError

LARGEST = 2**53
"""The largest whole number that every reader of JSON has."""
PAGE = 1000
"""The most lines of one answer."""

NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"
Chosen = Annotated[
    str,
    Query(
        alias="campaign",
        pattern=rf"^$|{NAME}",
        description="The name of a campaign; the latest when empty.",
    ),
]
Campaign = Annotated[str, Path(pattern=NAME, description="The name of a campaign.")]
Group = Annotated[str, Path(pattern=NAME, description="A group, by its number, or `initial`.")]
ID = r"^[A-Za-z0-9._-]{1,64}$"
DeviceId = Annotated[str, Path(pattern=ID, description="A device's id.")]
Number = Annotated[int, Path(ge=0, le=LARGEST)]
Limit = Annotated[int, Query(ge=1, le=PAGE, description="So many at most.")]
After = Annotated[int, Query(ge=0, le=LARGEST, description="Only those with a greater number.")]


def refuse_unknown(request: Request) -> None:
    """Refuse parameters that the path does not have, and those that come more than once.

    Raises:
        RequestValidationError: there is one.
    """
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    names = [name for name, _ in request.query_params.multi_items()]
    faults = [
        (name, f"unknown; expected {', '.join(sorted(known)) or 'none'}")
        for name in names
        if name not in known
    ]
    faults += [(name, "more than once") for name in sorted(known) if names.count(name) > 1]
    if faults:
        raise RequestValidationError(
            [
                {"loc": ("query", name[:64]), "msg": told, "type": "query"}
                for name, told in faults[:10]
            ]
        )
