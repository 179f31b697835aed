"""Verification of Play Integrity tokens, which attest an app and its phone (SPEC.md, 'Enrolment').

Google answers a phone with a *classic* token: a JWE (A256KW, A256GCM), in it a JWS (ES256), in it
JSON. It is read offline with the app's two keys from the Play Console, so nobody learns who enrols.
"""

import base64
import json
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap
from cryptography.hazmat.primitives.serialization import load_der_public_key

from host.files import file_error
from wire.errors import ConfigError

T = TypeVar("T")

MOST_AHEAD_S = 60.0
"""Maximum time (s) by which a token may be dated in the future, since clocks differ."""


class NotAttested(Exception):
    """An attestation is not believed; the text says why."""


class AttestationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of the file of ``shoal serve --enrol-attestation``."""

    package: str
    """Name of the app's package."""
    decryption_key: str
    """AES-256 key from the Play Console, in base64."""
    verification_key: str
    """P-256 key from the Play Console (SubjectPublicKeyInfo, DER), in base64."""
    certificates: tuple[str, ...] = ()
    """Accepted SHA-256 digests of the app's signing certificates (URL-safe base64); empty: not
    checked.
    """
    device: tuple[str, ...] = ("MEETS_DEVICE_INTEGRITY",)
    """Verdicts on the phone, all of which the token must contain."""
    app: tuple[str, ...] = ("PLAY_RECOGNIZED",)
    """Verdicts on the app, one of which the token must contain."""
    licensed: bool = False
    """True if the phone's user must have got the app from Play."""
    most_age_s: float = 600.0
    """Maximum age of a token (s)."""
    exempt_tags: tuple[str, ...] = ()
    """Tags of enrolment tokens that need no attestation, such as those for boards."""


@dataclass(frozen=True)
class PlayIntegrity:
    """Reader and judge of Play Integrity's tokens."""

    settings: AttestationSettings
    decryption_key: bytes
    verification_key: EllipticCurvePublicKey
    clock: Callable[[], float] = time.time

    def check(self, text: str, nonce: str) -> None:
        """Check a phone's attestation of this nonce.

        Raises:
            NotAttested: the token is not signed by Play, or its claims fall short of the settings.
        """
        if not text:
            raise NotAttested(
                "this service requires an attestation by Play Integrity; the request has none"
            )
        claims = self._read(text)
        request, app = _part(claims, "requestDetails", dict), _part(claims, "appIntegrity", dict)
        device, account = (
            _part(claims, "deviceIntegrity", dict),
            _part(claims, "accountDetails", dict),
        )
        if request.get("nonce") != nonce:
            raise NotAttested("the attestation is for another token or key")
        if request.get("requestPackageName") != self.settings.package:
            raise NotAttested(
                f"the attestation is of the app {str(request.get('requestPackageName'))[:100]}, "
                f"expected {self.settings.package}"
            )
        try:
            age_s = self.clock() - int(request.get("timestampMillis", "")) / 1000
        except (TypeError, ValueError):
            raise NotAttested("the attestation has no time") from None
        if not -MOST_AHEAD_S <= age_s <= self.settings.most_age_s:
            raise NotAttested(
                f"the attestation is {age_s:.0f} s old; at most {self.settings.most_age_s:g} s "
                "are accepted"
            )
        if app.get("appRecognitionVerdict") not in self.settings.app:
            raise NotAttested(
                f"Play's verdict on the app is {str(app.get('appRecognitionVerdict'))[:100]}, "
                f"expected {' or '.join(self.settings.app)}"
            )
        expected, signers = self.settings.certificates, _part(app, "certificateSha256Digest", list)
        if expected and not any(digest in signers for digest in expected):
            raise NotAttested("the app is signed with another certificate")
        verdicts = _part(device, "deviceRecognitionVerdict", list)
        if missing := [verdict for verdict in self.settings.device if verdict not in verdicts]:
            raise NotAttested(f"Play's verdict on the phone lacks {missing[0]}")
        if self.settings.licensed and account.get("appLicensingVerdict") != "LICENSED":
            raise NotAttested("the phone's user did not get the app from Play")

    def _read(self, text: str) -> Mapping[str, Any]:
        """Decrypt a token, verify its signature and return its fields.

        Every fault of a hostile text raises the same error, which says nothing about the keys.
        """
        try:
            header, wrapped, iv, sealed, tag = text.split(".")
            _expect(header, alg="A256KW", enc="A256GCM")
            key = aes_key_unwrap(self.decryption_key, _bytes(wrapped))
            signed = (
                AESGCM(key)
                .decrypt(_bytes(iv), _bytes(sealed) + _bytes(tag), header.encode())
                .decode("ascii")
            )
            head, body, signature = signed.split(".")
            _expect(head, alg="ES256")
            raw = _bytes(signature)
            if len(raw) != 64:
                raise ValueError("signature")
            der = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
            self.verification_key.verify(der, f"{head}.{body}".encode(), ECDSA(SHA256()))
            claims = json.loads(_bytes(body))
            if not isinstance(claims, dict):
                raise ValueError("not an object")
            return claims
        except (ValueError, RecursionError, InvalidUnwrap, InvalidTag, InvalidSignature):
            raise NotAttested(
                "the attestation is not a token of Play Integrity for this app's keys"
            ) from None


def read_attestation(path: Path) -> PlayIntegrity:
    """Return the attestation checker that a TOML file configures.

    Raises:
        ConfigError: the file or a key in it cannot be used.
    """
    try:
        settings = msgspec.convert(tomllib.loads(path.read_text()), AttestationSettings)
        key = load_der_public_key(base64.b64decode(settings.verification_key, validate=True))
        secret = base64.b64decode(settings.decryption_key, validate=True)
    except OSError as error:
        raise ConfigError(file_error(f"--enrol-attestation {path}", error)) from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"--enrol-attestation {path}: not TOML, or a wrong value: {error}"
        ) from None
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise ConfigError(f"--enrol-attestation {path}: verification_key must be a P-256 key")
    if len(secret) != 32:
        raise ConfigError(
            f"--enrol-attestation {path}: decryption_key must have 32 bytes, got {len(secret)}"
        )
    return PlayIntegrity(settings, secret, key)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _expect(header: str, **wanted: str) -> None:
    head = json.loads(_bytes(header))
    if not isinstance(head, dict) or any(head.get(name) != value for name, value in wanted.items()):
        raise ValueError("another algorithm")


def _part(claims: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a field of this type, or an empty value if the field is absent or of another type."""
    part = claims.get(name)
    return part if isinstance(part, kind) else kind()
