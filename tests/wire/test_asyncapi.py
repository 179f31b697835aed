"""The AsyncAPI document: up to date, valid, and as the table and the messages are.

``asyncapi-3.0.0.json.gz`` is the schema of AsyncAPI documents, ``3.0.0-without-$id.json`` of
github.com/asyncapi/spec-json-schemas, under the Apache License 2.0.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from tests.wire.write_vectors import MESSAGES
from wire.asyncapi import FILE, document, text
from wire.codec import encode
from wire.topics import TABLE, Topics


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(
        gzip.decompress((Path(__file__).with_name("asyncapi-3.0.0.json.gz")).read_bytes())
    )
    return jsonschema.Draft7Validator(schema)


def test_the_file_is_that_of_the_code() -> None:
    assert FILE.read_text() == text(), "run python -m wire.asyncapi"


def test_it_is_a_document_of_asyncapi_3(validator: Any) -> None:
    said = document()
    assert [error.message for error in validator.iter_errors(said)] == []
    del said["channels"]["plan"]["messages"]["Plan"]["$ref"]
    said["channels"]["plan"]["messages"]["Plan"]["payload"] = 7
    assert list(validator.iter_errors(said)) != [], "the schema finds what is wrong"


def test_every_reference_leads_somewhere() -> None:
    said = document()

    def references(part: Any) -> list[str]:
        if isinstance(part, list):
            return [ref for inner in part for ref in references(inner)]
        if isinstance(part, dict):
            return (
                [part["$ref"]]
                if isinstance(part.get("$ref"), str)
                else [ref for inner in part.values() for ref in references(inner)]
            )
        return []

    found = set(references(said))
    assert len(found) > 40
    for reference in found:
        part: Any = said
        for name in reference.removeprefix("#/").split("/"):
            assert name in part, reference
            part = part[name]


def test_channels_and_operations_are_those_of_the_table() -> None:
    said = document()
    assert list(said["channels"]) == [row.kind for row in TABLE]
    for row in TABLE:
        address = said["channels"][row.kind]["address"].format(
            fleet="watches", device="pi-1", helper="north@helper", digest="0" * 64
        )
        assert Topics("watches").parse(address).kind == row.kind
        who = {
            name.split(".")[0]
            for name, op in said["operations"].items()
            if op["channel"]["$ref"] == f"#/channels/{row.kind}"
        }
        assert who == {row.writer, *row.readers}
        assert (
            said["operations"][f"{row.writer}.send.{row.kind}"]["bindings"]["mqtt"]["retain"]
            is row.retained
        )


@pytest.mark.parametrize("name", [name for name in MESSAGES if name != "voucher"])
def test_messages_of_the_vectors_have_their_schemas(name: str) -> None:
    said, message = document(), MESSAGES[name]
    schema = {
        "$ref": f"#/components/schemas/{type(message).__name__}",
        "components": said["components"],
    }
    payload = json.loads(encode(message))
    jsonschema.Draft202012Validator(schema).validate(payload)
    wrong = msgspec.to_builtins(message) | {"type": "another"}
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(wrong)) != []
