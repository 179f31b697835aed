"""Roster of a fleet's devices, by which helpers know them (SPEC.md, 'Secret sums').

A root key signs it. Whoever issues certificates could otherwise invent devices, and learn the
numbers of a real one from a sum with them.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence

import msgspec

from wire.codec import encode
from wire.errors import Malformed, Untrusted
from wire.fields import Name
from wire.identity.certificates import TlsPublicKey, read_public_key, write_public_key
from wire.identity.keys import PrivateKey, PublicKey, verifies

_CONTEXT = b"shoal/1 roster\n"


class Roster(msgspec.Struct, frozen=True, tag="roster"):
    """Public keys (DER) of a fleet's devices, by id."""

    fleet: Name
    devices: dict[Name, bytes]


def sign_roster(root: PrivateKey, fleet: str, devices: Mapping[str, TlsPublicKey]) -> bytes:
    """Return a roster and its signature by the root key: two lines."""
    keys = {name: write_public_key(devices[name]) for name in sorted(devices)}
    text = encode(Roster(fleet, keys))
    return text + b"\n" + base64.b64encode(root.sign(_CONTEXT + text)) + b"\n"


def read_roster(
    payload: bytes, fleet: str, trusted: Sequence[PublicKey]
) -> Mapping[str, TlsPublicKey]:
    """Return the keys of a fleet's devices.

    Raises:
        Malformed: not a roster.
        Untrusted: not signed by a trusted key, or for another fleet.
    """
    text, _, signature = payload.rstrip(b"\n").partition(b"\n")
    try:
        roster = msgspec.json.decode(text, type=Roster)
        signed = base64.b64decode(signature, validate=True)
    except (msgspec.MsgspecError, ValueError, RecursionError, binascii.Error) as error:
        raise Malformed(f"roster of {len(payload)} bytes: not readable: {error}") from None
    if not any(verifies(key, signed, _CONTEXT + text) for key in trusted):
        raise Untrusted("roster: its signature was not made with a trusted key")
    if roster.fleet != fleet:
        raise Untrusted(f"roster: it is for the fleet {roster.fleet}, not {fleet}")
    return {name: read_public_key(key) for name, key in roster.devices.items()}
