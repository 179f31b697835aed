"""The HTTP API's paths for people, read from its OpenAPI document. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Parameter(NamedTuple):
    """A parameter of a path, or a field of a body."""

    name: str
    where: str
    kind: str
    about: str


class Operation(NamedTuple):
    """What can be asked."""

    method: str
    path: str
    about: str
    parameters: list[Parameter]
    answers: list[tuple[str, str]]
    """By status, what it means."""


def operations(document: Mapping[str, Any]) -> list[Operation]:
    """Every operation of an OpenAPI document, orders last."""
    found = [
        Operation(
            method.upper(),
            path,
            said.get("description", ""),
            [*_parameters(said), *_body(document, said)],
            [
                (status, answer["description"])
                for status, answer in sorted(said["responses"].items())
            ],
        )
        for path, methods in document["paths"].items()
        for method, said in methods.items()
    ]
    return sorted(found, key=lambda operation: operation.method != "GET")


def _parameters(said: Mapping[str, Any]) -> Iterator[Parameter]:
    for given in said.get("parameters", ()):
        yield Parameter(
            given["name"], given["in"], _kind(given["schema"]), given.get("description", "")
        )


def _body(document: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[Parameter]:
    schema = (
        said.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    )
    if (name := schema.get("$ref", "").removeprefix("#/components/schemas/")) and (
        body := document["components"]["schemas"][name]
    ):
        for field, given in body.get("properties", {}).items():
            yield Parameter(field, "body", _kind(given), given.get("description", ""))


def _kind(schema: Mapping[str, Any]) -> str:
    return str(schema.get("type", "")) or " or ".join(
        str(value) for value in schema.get("enum", ())
    )
