"""File of a fleet's helpers: the name at the broker and the public key of each.

Each helper's ``helper.pub`` is a line with its name and its key (PEM). Such files, one after the
other, are the file that owners of devices and the aggregator's operator give their programs.
"""

import re
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from wire.codec import digest
from wire.errors import Malformed
from wire.fields import Name
from wire.identity.certificates import (
    TlsPublicKey,
    public_key_pem,
    read_public_key,
    write_public_key,
)
from wire.secret.question import MOST_HELPERS

_ONE = re.compile(
    rb"\s*helper ([A-Za-z0-9._-]{1,64})\s*\n"
    rb"(-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----)\s*"
)


class Helper(msgspec.Struct, frozen=True):
    """A helper of secret sums: its name at the broker, and its key (DER)."""

    name: Name
    der: bytes

    @property
    def public(self) -> TlsPublicKey:
        """Its public key."""
        return read_public_key(self.der)

    @property
    def digest(self) -> str:
        """SHA-256 of its key, by which questions name it."""
        return digest(self.der)


def write_helper(name: str, key: TlsPublicKey) -> bytes:
    """Return the content of a helper's ``helper.pub``."""
    return f"helper {name}\n".encode() + public_key_pem(key)


def read_helpers(text: bytes) -> tuple[Helper, ...]:
    """Return the helpers of a file, in the order of their digests.

    Raises:
        Malformed: it is no such file, has more than `MOST_HELPERS` helpers, or one twice.
    """
    helpers, at = list[Helper](), 0
    while at < len(text) or not helpers:
        one = _ONE.match(text, at)
        if one is None:
            raise Malformed(
                f"line {text[:at].count(10) + 1}: expected a line 'helper NAME' and a public key "
                "(PEM), as helper.pub has them"
            )
        at = one.end()
        helpers.append(Helper(one[1].decode(), _der(one[2])))
    check_helpers(helpers)
    return tuple(sorted(helpers, key=lambda helper: helper.digest))


def check_helpers(helpers: Sequence[Helper]) -> None:
    """Raise Malformed if there are more than `MOST_HELPERS` helpers, or one twice."""
    if len(helpers) > MOST_HELPERS:
        raise Malformed(f"{len(helpers)} helpers, at most {MOST_HELPERS} are allowed")
    for what, values in (
        ("name", [helper.name for helper in helpers]),
        ("key", [helper.digest for helper in helpers]),
    ):
        if len(set(values)) < len(values):
            raise Malformed(f"two helpers have the same {what}; each is another party with its own")


def _der(pem: bytes) -> bytes:
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise Malformed("public key: not PEM") from None
    if not isinstance(key, TlsPublicKey):
        raise Malformed(f"public key: expected P-256, got {type(key).__name__}")
    der = write_public_key(key)
    read_public_key(der)
    return der
