"""How a device gets its credentials: the token that a person hands it, and what it and the service
say over HTTPS (SPEC.md, 'Enrolment').

A token is ``shoal1.`` and the URL-safe base64 of 51 bytes: 16 secret ones, the SHA-256 of the
authority's certificate, and the first three of the SHA-256 of those 48, by which a mistyped token
is told from a wrong one.
"""

import base64
import hashlib
from typing import Literal, NamedTuple

import msgspec

from wire.errors import ConfigError

PREFIX = "shoal1."
SECRET_BYTES, FINGERPRINT_BYTES, SUM_BYTES = 16, 32, 3
REQUEST_BYTES = 24 * 2**10
"""What is said over HTTPS may have at most this many bytes, either way round."""
AUTHORITY, ENROL, RENEW = "/enrolment/authority", "/enrolment/enrol", "/enrolment/renew"
"""The paths: GET the authority's certificate; POST a request to enrol, or to renew."""
RENEW_AFTER = 0.6
"""A device renews its certificate when so much of its validity is over."""

Reason = Literal[
    "malformed",
    "token",
    "used",
    "expired",
    "other-name",
    "taken",
    "banned",
    "rejected",
    "unknown-device",
    "superseded",
    "attestation",
    "too-many",
    "busy",
]


class Token(NamedTuple):
    """What a token carries."""

    secret: bytes
    authority: str
    """The SHA-256 of the authority's certificate."""

    def __str__(self) -> str:
        body = self.secret + bytes.fromhex(self.authority)
        return (
            PREFIX
            + base64.urlsafe_b64encode(body + hashlib.sha256(body).digest()[:SUM_BYTES]).decode()
        )

    @property
    def hash(self) -> str:
        """By what a service knows it: the SHA-256 of the secret, which has 128 random bits."""
        return hashlib.sha256(self.secret).hexdigest()


def read_token(text: str) -> Token:
    """Read a token that a person has handed on.

    Raises:
        ConfigError: it is none, or was damaged on the way.
    """
    text = text.strip()
    size = SECRET_BYTES + FINGERPRINT_BYTES
    try:
        payload = base64.b64decode(text.removeprefix(PREFIX), altchars=b"-_", validate=True)
    except ValueError:
        payload = b""
    if not text.startswith(PREFIX) or len(payload) != size + SUM_BYTES:
        raise ConfigError(
            f"token of {len(text)} characters: expected {PREFIX} and 68 more, as `shoal enrol "
            "token` prints it"
        )
    body = payload[:size]
    if hashlib.sha256(body).digest()[:SUM_BYTES] != payload[size:]:
        raise ConfigError("token: a character of it is wrong; copy it again")
    return Token(body[:SECRET_BYTES], body[SECRET_BYTES:].hex())


def attestation_nonce(token: Token, key: str) -> str:
    """What an attestation has to be of: this token, and the key that is to get the certificate, by
    the SHA-256 of its SubjectPublicKeyInfo (DER) in hexadecimal digits."""
    of = f"shoal-attestation\n{hashlib.sha256(str(token).encode()).hexdigest()}\n{key}"
    return base64.urlsafe_b64encode(hashlib.sha256(of.encode()).digest()).decode().rstrip("=")


class Enrol(msgspec.Struct, frozen=True):
    """Device to service: a certificate for this key, please. `request` is PEM (PKCS#10); its common
    name is the id that is wanted. `attestation`: what an attester says of `attestation_nonce`, for
    a service that requires it."""

    token: str
    request: str
    attestation: str = ""


class Renew(msgspec.Struct, frozen=True):
    """Device to service: another certificate, please, before this one ends. `signature`: by this
    one's key, over `renewal_text`."""

    certificate: str
    request: str
    signature: str


class Enrolled(msgspec.Struct, frozen=True, tag="enrolled"):
    """Service to device: all that it needs to take part."""

    device_id: str
    fleet: str
    broker: str
    """``mqtts://HOST[:PORT]``."""
    certificate: str
    authority: str
    trust: str
    """The root keys (PEM), as in trust.pem."""
    policy: str = ""
    """What the operator suggests as the owner's policy (TOML)."""


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    """Service to device: the other certificate."""

    certificate: str


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """Service to device: somebody has to approve it; ask again after `retry_s`."""

    device_id: str
    retry_s: float


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Service to device: no."""

    reason: Reason
    detail: str = ""


Answer = Enrolled | Renewed | Waiting | Refused


def renewal_text(request: str) -> bytes:
    """What the key of the old certificate signs to have another."""
    return b"shoal-enrolment-renew\n" + hashlib.sha256(request.encode()).hexdigest().encode()
