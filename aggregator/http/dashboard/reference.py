"""Paths of the HTTP API for people, read from its OpenAPI document. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Parameter(NamedTuple):
    """A parameter of a path, or a field of a body."""

    name: str
    where: str
    kind: str
    about: str


class Operation(NamedTuple):
    """Method and path of the API, with their description."""

    method: str
    path: str
    about: str
    parameters: list[Parameter]
    answers: list[tuple[str, str]]
    """Statuses with their meanings."""


def operations(document: Mapping[str, Any]) -> list[Operation]:
    """Return every operation of an OpenAPI document, orders last."""
    operations = [
        Operation(
            method.upper(),
            path,
            stated.get("description", ""),
            [*_parameters(document, stated)],
            [(status, each["description"]) for status, each in sorted(stated["responses"].items())],
        )
        for path, methods in document["paths"].items()
        for method, stated in methods.items()
    ]
    return sorted(operations, key=lambda operation: operation.method != "GET")


def _parameters(document: Mapping[str, Any], stated: Mapping[str, Any]) -> Iterator[Parameter]:
    """Yield the parameters of an operation, and the fields of its body."""
    parameters = stated.get("parameters", ())
    fields = [(each["name"], each["in"], each["schema"], each) for each in parameters]
    content = stated.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    if name := schema.get("$ref", "").removeprefix("#/components/schemas/"):
        body = document["components"]["schemas"][name].get("properties", {})
        fields += [(field, "body", each, each) for field, each in body.items()]
    for field, where, kind, each in fields:
        words = str(kind.get("type", "")) or " or ".join(map(str, kind.get("enum", ())))
        yield Parameter(field, where, words, each.get("description", ""))
