"""Orders in the dashboard's forms, turned into the orders of the HTTP API and the commands."""

from typing import Any
from urllib.parse import parse_qsl

import msgspec

from wire.errors import ConfigError

_NAMES, _CAMPAIGN, _DEVICE = tuple[str, ...], {"campaign": str}, {"device_id": str}
ORDERS: dict[str, dict[str, Any]] = {
    "campaign-pause": {"name": str},
    "campaign-resume": {"name": str},
    "campaign-abort": {"name": str},
    "campaign-rollback": {"name": str, "to": int},
    "campaign-exclude": {"name": str, "device_id": str, "since": int},
    "campaign-include": {"name": str, "device_id": str},
    "tag-devices": {"device_ids": _NAMES, "tags": _NAMES},
    "untag-devices": {"device_ids": _NAMES, "tags": _NAMES},
    "ban-device": {**_DEVICE, "reason": str},
    "unban-device": _DEVICE,
    "make-releases": {**_CAMPAIGN, "roll_out": bool},
    "pause-rollout": _CAMPAIGN,
    "resume-rollout": _CAMPAIGN,
    "promote-rollout": {**_CAMPAIGN, "step": int},
    "end-rollout": _CAMPAIGN,
    "return-to-release": {"to": int, "group": str},
}
"""Types of the fields of each order that forms give, by name.

Devices are forgotten, and settings changed, by a command only, which explains the consequences.
"""
OPTIONAL = ("roll_out", "group")
"""Fields that a form may omit."""
MOST_FIELDS = 16
MOST_CHARACTERS = 200
"""Maximum number of characters of a field."""


def read_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form in ``application/x-www-form-urlencoded``.

    Raises:
        ConfigError: the body is not a form, or a field comes more than once.
    """
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            max_num_fields=MOST_FIELDS,
            strict_parsing=bool(body),
            errors="strict",
        )
    except ValueError:
        raise ConfigError("The body is not a form, or has too many fields.") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ConfigError("A field of the form came more than once.")
    return fields


def read_order(form: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the order in a form: its name, which is the field ``type``, and its own fields.

    Raises:
        ConfigError: the fields are not an order.
    """
    kinds = ORDERS.get(form.get("type", ""))
    if kinds is None:
        raise ConfigError(f"Unknown order {form.get('type', '')[:64]!r} (field type).")
    fields: dict[str, Any] = {}
    for name, kind in kinds.items():
        text = form.get(name)
        if text is None:
            if name not in OPTIONAL:
                raise ConfigError(f"The field {name} is missing.")
            continue
        if kind is not _NAMES and len(text) > MOST_CHARACTERS:
            raise ConfigError(f"{name} must have at most {MOST_CHARACTERS} characters")
        if kind is not _NAMES and not text.isprintable():
            raise ConfigError(f"{name} must have printable characters only")
        value = text.replace(",", " ").split() if kind is _NAMES else text
        if value == []:
            raise ConfigError(f"{name} must have at least one name")
        try:
            fields[name] = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{name} has a wrong value: {error}") from None
    return form["type"], fields
