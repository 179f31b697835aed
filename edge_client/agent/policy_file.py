"""What the owner of a device permits, from a TOML file with the fields of
`wire.messages.Policy`."""

import math
import tomllib
import typing
from pathlib import Path

import msgspec

from wire.errors import ConfigError
from wire.messages import Policy, Verb

VERBS = tuple(str(verb.__struct_config__.tag) for verb in typing.get_args(Verb))


def read_policy(path: Path) -> Policy:
    """
    Raises:
        ConfigError: the file cannot be read, or a field is unknown or has a value that it cannot
        have; the text names the file and the
            field.
    """
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"policy {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"policy {path}: not TOML: {error}") from None
    fields = Policy.__struct_fields__
    for name, value in given.items():
        if name not in fields:
            raise ConfigError(
                f"policy {path}: field {name!r} is unknown, expected one of {', '.join(fields)}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"policy {path}: field {name!r} is {value}, expected a number; leave it out where "
                "nothing is restricted"
            )
        try:
            msgspec.convert({name: value}, Policy)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"policy {path}: field {name!r}: {str(error).partition(' - at')[0]}, got {value!r}"
            ) from None
    policy = msgspec.convert(given, Policy)
    if unknown := [name for name in policy.verbs or () if name not in VERBS]:
        raise ConfigError(
            f"policy {path}: field 'verbs': no verb {unknown[0]!r}, expected some of "
            f"{', '.join(VERBS)}"
        )
    return policy
