"""Orders that the dashboard's forms give: the fields of a form become the order that the HTTP API
and the command line would give."""

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
"""Orders that forms give, by name, with the type of each field. A device is forgotten, and
settings are changed, by a command alone, which says all of what that means."""
OPTIONAL = ("roll_out", "group")
"""Fields that a form may leave out."""
MOST_FIELDS = 16
MOST_CHARACTERS = 200
"""Of a field."""


def read_form(body: bytes) -> dict[str, str]:
    """The fields of a form as a browser sends it (``application/x-www-form-urlencoded``).

    Raises:
        ConfigError: it is none, or a field comes more than once.
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
        raise ConfigError("expected the fields of a form") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ConfigError("a field of the form came more than once")
    return fields


def read_order(form: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the name of the order that the fields of a form are, their ``type``, and the order's
    own fields.

    Raises:
        ConfigError: they are no order.
    """
    kinds = ORDERS.get(form.get("type", ""))
    if kinds is None:
        raise ConfigError(f"not an order: type {form.get('type', '')[:64]!r}")
    fields: dict[str, Any] = {}
    for name, kind in kinds.items():
        text = form.get(name)
        if text is None:
            if name not in OPTIONAL:
                raise ConfigError(f"not an order: field {name} is missing")
            continue
        if kind is not _NAMES and (len(text) > MOST_CHARACTERS or not text.isprintable()):
            raise ConfigError(
                f"{name} of {len(text)} characters: expected at most {MOST_CHARACTERS}, which can "
                "be printed"
            )
        value = text.replace(",", " ").split() if kind is _NAMES else text
        if value == []:
            raise ConfigError("no tag was named")
        try:
            fields[name] = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"not an order: {name}: {error}") from None
    return form["type"], fields
