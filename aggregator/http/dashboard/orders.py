"""Orders that the dashboard's forms give: the fields of a form become the order that the HTTP API
and the command line would give."""

from typing import Any
from urllib.parse import parse_qsl

import msgspec

from aggregator.operator.desk import BanDevice, TagDevices, UnbanDevice, UntagDevices
from aggregator.releases import orders as release
from aggregator.service.orders import Abort, Hold, Resume, RollBack
from wire.errors import ConfigError

Order = (
    Hold
    | Resume
    | Abort
    | RollBack
    | TagDevices
    | UntagDevices
    | BanDevice
    | UnbanDevice
    | release.MakeReleases
    | release.PauseRollout
    | release.ResumeRollout
    | release.PromoteRollout
    | release.EndRollout
    | release.ReturnToRelease
)
"""What can be ordered. A device is forgotten, and settings are changed, where a command says all of
what that means."""
LISTS = ("device_ids", "tags")
"""Fields that hold several names, with commas or spaces between them."""
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


def read_order(fields: dict[str, str]) -> msgspec.Struct:
    """The order that the fields of a form are: its tag as ``type``, and its own fields.

    Raises:
        ConfigError: they are no order.
    """
    values: dict[str, Any] = {
        name: value.replace(",", " ").split() if name in LISTS else value
        for name, value in fields.items()
    }
    if any(values.get(name) == [] for name in LISTS):
        raise ConfigError("no tag was named")
    for name, value in fields.items():
        if name not in LISTS and (len(value) > MOST_CHARACTERS or not value.isprintable()):
            raise ConfigError(
                f"{name} of {len(value)} characters: expected at most {MOST_CHARACTERS}, which "
                "can be printed"
            )
    try:
        order: msgspec.Struct = msgspec.convert(values, Order, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"not an order: {error}") from None
    return order
