"""AsyncAPI 3.0 document of the protocol, generated from the table of topics and the messages.

``python -m wire.asyncapi`` writes ``asyncapi.json``. `SPEC.md` has the rules that such a document
cannot express.
"""

from pathlib import Path
from typing import Any, get_args

import msgspec

from wire import messages as m
from wire.secret import messages as secret
from wire.topics import PROTOCOL, TABLE, Kind, TopicRights, Topics

FILE = Path(__file__).with_name("asyncapi.json")
SIGNED = "application/vnd.shoal.signed"
"""Content type of four lines (SPEC.md, 'Signatures'), of which the first is the message."""
TENSORS, BYTES, JSON = (
    "application/vnd.shoal.tensors",
    "application/octet-stream",
    "application/json",
)

CARRIED: dict[Kind, tuple[type, ...]] = {
    "check-in": (m.CheckIn,),
    "status": (m.DeviceStatus,),
    "update": (m.Update,),
    "offer": (m.Offer,),
    "piece": (m.Piece,),
    "decline": (m.Decline,),
    "fetch": (m.Fetch,),
    "in-use": (m.InUse,),
    "error": (m.ErrorReport,),
    "plan": (m.Plan,),
    "reply": get_args(m.Reply),
    "release": (m.Release,),
    "want": (m.Want,),
    "request": (secret.SumRequest,),
    "answer": get_args(secret.Answer),
    "blob": (),
    "aggregator": (m.AggregatorStatus,),
}
"""Messages of each kind of topic; empty for a blob, which is bytes."""
_PARAMETERS = {
    "fleet": {"description": "The fleet's name: 1 to 64 of A-Z a-z 0-9 . _ -"},
    "device": {
        "description": "The device's id: as a fleet's name, and the common name of its certificate."
    },
    "helper": {
        "description": "The common name of the helper's certificate, which ends with @helper."
    },
    "digest": {"description": "SHA-256 of the bytes, in 64 lower-case hexadecimal digits."},
}

_BLOB = {
    "name": "blob",
    "contentType": BYTES,
    "summary": "A bundle, a model, or inputs: the bytes with this hash.",
    "payload": {"type": "string", "format": "binary"},
}


def document() -> dict[str, Any]:
    """Return the document, with operations of every role.

    They are named ``device.send.check-in``, ``aggregator.receive.check-in``, and so on.
    """
    kinds = [kind for row in TABLE for kind in CARRIED[row.kind]]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = {name: _described(schema) for name, schema in sorted(schemas.items())}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Shoal",
            "version": PROTOCOL.rpartition("/")[2],
            "description": "How devices, helpers and an aggregator talk over an MQTT broker. Every "
            "publication and subscription has QoS 1.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": JSON,
        "channels": {row.kind: _channel(row) for row in TABLE},
        "operations": dict(sorted(_operations())),
        "components": {
            "schemas": schemas,
            "messages": {
                kind.__name__: _message(row, kind) for row in TABLE for kind in CARRIED[row.kind]
            }
            | {"Blob": _BLOB},
        },
    }


def _channel(row: TopicRights) -> dict[str, Any]:
    address = (
        Topics("FLEET")
        .of_kind(row.kind, "PARTY")
        .replace("FLEET", "{fleet}")
        .replace("PARTY", "{helper}" if "helper" in (row.writer, *row.readers) else "{device}")
        .replace("+", "{digest}")
    )
    return {
        "address": address,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _names(row)},
        "parameters": {
            name: parameter for name, parameter in _PARAMETERS.items() if f"{{{name}}}" in address
        },
    }


def _operations() -> list[tuple[str, dict[str, Any]]]:
    operations = []
    for row in TABLE:
        channel = {"$ref": f"#/channels/{row.kind}"}
        messages = [{"$ref": f"#/channels/{row.kind}/messages/{name}"} for name in _names(row)]
        sent = {
            "action": "send",
            "channel": channel,
            "messages": messages,
            "bindings": {"mqtt": {"qos": 1, "retain": row.retained}},
        }
        received = {
            "action": "receive",
            "channel": channel,
            "messages": messages,
            "bindings": {"mqtt": {"qos": 1}},
        }
        operations.append((f"{row.writer}.send.{row.kind}", sent))
        operations += [(f"{reader}.receive.{row.kind}", received) for reader in row.readers]
    return operations


def _names(row: TopicRights) -> list[str]:
    return [kind.__name__ for kind in CARRIED[row.kind]] or ["Blob"]


def _message(row: TopicRights, kind: type) -> dict[str, Any]:
    message: dict[str, Any] = {
        "name": msgspec.json.schema_components([kind])[1][kind.__name__]["properties"]["type"][
            "enum"
        ][0]
    }
    if kind is m.Update:
        message |= {
            "contentType": TENSORS,
            "summary": "A tensor file (SPEC.md, 'Tensors') with this message in its metadata.",
        }
    elif kind is m.Piece:
        message |= {
            "contentType": BYTES,
            "summary": "This message, a line feed, and a part of an update (SPEC.md, 'Pieces').",
        }
    elif kind is secret.SumRequest:
        message |= {
            "contentType": SIGNED,
            "summary": "Four lines (SPEC.md, 'Signatures'), a line feed, and the shares of the set "
            "(SPEC.md, 'Secret sums').",
        }
    elif row.writer == "helper":
        message |= {
            "contentType": BYTES,
            "summary": "This message, a line feed, its signature, a line feed, and sealed sums "
            "(SPEC.md, 'Secret sums').",
        }
    elif row.writer == "aggregator":
        message |= {
            "contentType": SIGNED,
            "summary": "Four lines (SPEC.md, 'Signatures'); the first is this message.",
        }
    return message | {"payload": {"$ref": f"#/components/schemas/{kind.__name__}"}}


def _described(part: Any) -> Any:
    """Return a schema whose descriptions are one line each, without discriminators.

    AsyncAPI has another form for discriminators. The ``type`` of a message distinguishes it from
    others.
    """
    if isinstance(part, list):
        return [_described(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    schema = {name: _described(inner) for name, inner in part.items() if name != "discriminator"}
    return (
        schema | {"description": " ".join(schema["description"].split())}
        if isinstance(schema.get("description"), str)
        else schema
    )


def text() -> str:
    """Return the AsyncAPI document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=1).decode() + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
    print(f"{FILE}: written")
