"""Enrolment of devices: tokens, and the messages over HTTPS (SPEC.md, 'Enrolment').

A person hands the device a token: ``shoal1.`` and the URL-safe base64 of 51 bytes. These are 16
secret bytes, the SHA-256 of the authority's certificate, and the first three bytes of the SHA-256
of those 48, which distinguish a mistyped token from a wrong one.
"""

import base64
import hashlib
from typing import Literal, NamedTuple

import msgspec

from wire.errors import ConfigError

PREFIX = "shoal1."
SECRET_BYTES, FINGERPRINT_BYTES, SUM_BYTES = 16, 32, 3
REQUEST_BYTES = 24 * 2**10
"""Maximum number of bytes of a request and of an answer over HTTPS."""
AUTHORITY, ENROL, RENEW = "/enrolment/authority", "/enrolment/enrol", "/enrolment/renew"
"""Paths: GET the authority's certificate; POST a request to enrol, or to renew."""
RENEW_AFTER = 0.6
"""Fraction of a certificate's validity after which a device renews it."""

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
    """Content of a token."""

    secret: bytes
    authority: str
    """SHA-256 of the authority's certificate."""

    def __str__(self) -> str:
        body = self.secret + bytes.fromhex(self.authority)
        return (
            PREFIX
            + base64.urlsafe_b64encode(body + hashlib.sha256(body).digest()[:SUM_BYTES]).decode()
        )

    @property
    def hash(self) -> str:
        """SHA-256 of the secret (128 random bits), by which a service identifies the token."""
        return hashlib.sha256(self.secret).hexdigest()


def read_token(text: str) -> Token:
    """Return the token in a text that a person has passed on.

    Raises:
        ConfigError: the text is not a token, or was damaged.
    """
    text = text.strip()
    size = SECRET_BYTES + FINGERPRINT_BYTES
    try:
        payload = base64.b64decode(text.removeprefix(PREFIX), altchars=b"-_", validate=True)
    except ValueError:
        payload = b""
    if not text.startswith(PREFIX) or len(payload) != size + SUM_BYTES:
        raise ConfigError(
            f"token of {len(text)} characters: expected {PREFIX} and 68 more characters, as "
            "`shoal enrol token` prints it"
        )
    body = payload[:size]
    if hashlib.sha256(body).digest()[:SUM_BYTES] != payload[size:]:
        raise ConfigError("token: one of its characters is wrong; copy it again")
    return Token(body[:SECRET_BYTES], body[SECRET_BYTES:].hex())


def attestation_nonce(token: Token, key: str) -> str:
    """Return the nonce that an attestation must have, for this token and this key.

    `key`: SHA-256 of the SubjectPublicKeyInfo (DER) of the key that gets the certificate, in
    hexadecimal digits.
    """
    of = f"shoal-attestation\n{hashlib.sha256(str(token).encode()).hexdigest()}\n{key}"
    return base64.urlsafe_b64encode(hashlib.sha256(of.encode()).digest()).decode().rstrip("=")


class Enrol(msgspec.Struct, frozen=True):
    """Device to service: request for a certificate.

    `request` is PEM (PKCS#10); its common name is the wanted id. `attestation`: an attester's
    statement on `attestation_nonce`, for a service that requires it.
    """

    token: str
    request: str
    attestation: str = ""


class Renew(msgspec.Struct, frozen=True):
    """Device to service: request for a new certificate, before this one expires.

    `signature`: over `renewal_text`, by the key of this certificate.
    """

    certificate: str
    request: str
    signature: str


class Enrolled(msgspec.Struct, frozen=True, tag="enrolled"):
    """Service to device: credentials and addresses with which it takes part."""

    device_id: str
    fleet: str
    broker: str
    """Address of the broker, ``mqtts://HOST[:PORT]``."""
    certificate: str
    authority: str
    trust: str
    """Root keys (PEM), as in trust.pem."""
    policy: str = ""
    """Owner's policy that the operator suggests (TOML)."""


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    """Service to device: new certificate."""

    certificate: str


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """Service to device: a person must approve the enrolment; ask again after `retry_s` seconds."""

    device_id: str
    retry_s: float


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Service to device: refusal, with its reason."""

    reason: Reason
    detail: str = ""


Answer = Enrolled | Renewed | Waiting | Refused


def renewal_text(request: str) -> bytes:
    """Return the text that the key of the old certificate signs for a new one."""
    return b"shoal-enrolment-renew\n" + hashlib.sha256(request.encode()).hexdigest().encode()
