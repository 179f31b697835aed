"""Public keys with the names of their owners: files that people hand to each other.

Such a file is a line, ``helper NAME`` or ``device ID``, and a public key (PEM). Files of helpers,
one after the other, are the file that owners of devices and the aggregator's operator give their
programs.
"""

import re

import msgspec

from wire.codec import digest
from wire.errors import Malformed
from wire.fields import Name
from wire.identity.certificates import (
    TlsPublicKey,
    public_key_pem,
    read_public_key,
    read_public_pem,
    write_public_key,
)
from wire.secret.question import MOST_HELPERS

_ONE = re.compile(
    rb"\s*(helper|device) ([A-Za-z0-9._-]{1,64})\s*\n"
    rb"(-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----)\s*"
)


class NamedKey(msgspec.Struct, frozen=True):
    """A party of secret sums: its name, and its key (DER)."""

    name: Name
    der: bytes

    @property
    def public(self) -> TlsPublicKey:
        """Its public key."""
        return read_public_key(self.der)

    @property
    def digest(self) -> str:
        """SHA-256 of its key, by which questions name a helper."""
        return digest(self.der)


def write_named_key(role: str, name: str, key: TlsPublicKey) -> bytes:
    """Return the content of a file of a party; `role` is ``helper`` or ``device``."""
    return f"{role} {name}\n".encode() + public_key_pem(key)


def read_named_keys(text: bytes, role: str) -> tuple[NamedKey, ...]:
    """Return the parties of a file, which all have this role, in the order of the file.

    Raises:
        Malformed: it is no such file.
    """
    parties, at = list[NamedKey](), 0
    while at < len(text) or not parties:
        one = _ONE.match(text, at)
        if one is None or one[1] != role.encode():
            raise Malformed(
                f"line {text[:at].count(10) + 1}: expected a line '{role} NAME' and a public key "
                "(PEM)"
            )
        at = one.end()
        parties.append(NamedKey(one[2].decode(), write_public_key(read_public_pem(one[3]))))
    return tuple(parties)


def read_helpers(text: bytes) -> tuple[NamedKey, ...]:
    """Return the helpers of a file, in the order of their digests.

    Raises:
        Malformed: it is no such file, has more than `MOST_HELPERS` helpers, or one twice.
    """
    helpers = read_named_keys(text, "helper")
    if len(helpers) > MOST_HELPERS:
        raise Malformed(f"{len(helpers)} helpers, at most {MOST_HELPERS} are allowed")
    for what, values in (
        ("name", [helper.name for helper in helpers]),
        ("key", [helper.digest for helper in helpers]),
    ):
        if len(set(values)) < len(values):
            raise Malformed(f"two helpers have the same {what}; each is another party with its own")
    return tuple(sorted(helpers, key=lambda helper: helper.digest))
