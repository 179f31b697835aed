"""Whether Play Integrity says that an app and its phone are what they seem (SPEC.md, 'Enrolment').

Google's service answers a phone with a *classic* token: a JWE (A256KW, A256GCM), in it a JWS
(ES256), in it JSON. With the two keys that the Play Console shows for an app a service reads it
alone: nothing is asked of Google, and nobody learns which phones enrol.
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

from wire.errors import ConfigError

T = TypeVar("T")

MOST_AHEAD_S = 60.0
"""A token may be from so far in the future: clocks differ."""


class NotAttested(Exception):
    """An attestation is not believed; the text says why."""


class AttestationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of ``shoal serve --enrol-attestation``."""

    package: str
    """The app's package."""
    decryption_key: str
    """As the Play Console shows it: base64 of an AES-256 key."""
    verification_key: str
    """The same: base64 of a P-256 key (SubjectPublicKeyInfo, DER)."""
    certificates: tuple[str, ...] = ()
    """SHA-256 of the certificates that the app is signed with, URL-safe base64; none: those that
    Play recognises."""
    device: tuple[str, ...] = ("MEETS_DEVICE_INTEGRITY",)
    """What Play has to say of the phone, all of it."""
    app: tuple[str, ...] = ("PLAY_RECOGNIZED",)
    """What Play has to say of the app, one of these."""
    licensed: bool = False
    """Whether the phone's user must have got the app from Play."""
    most_age_s: float = 600.0
    """How old a token may be."""
    exempt_tags: tuple[str, ...] = ()
    """Tokens to enrol with one of these tags need none: those for boards."""


@dataclass(frozen=True)
class PlayIntegrity:
    """Reads and judges Play Integrity's tokens."""

    settings: AttestationSettings
    decryption_key: bytes
    verification_key: EllipticCurvePublicKey
    clock: Callable[[], float] = time.time

    def check(self, text: str, nonce: str) -> None:
        """Judge a phone's attestation of this nonce.

        Raises:
            NotAttested: it is not to be believed, or says too little.
        """
        if not text:
            raise NotAttested(
                "this service wants an attestation by Play Integrity, and there is none"
            )
        said = self._read(text)
        request, app = _part(said, "requestDetails", dict), _part(said, "appIntegrity", dict)
        device, account = _part(said, "deviceIntegrity", dict), _part(said, "accountDetails", dict)
        if request.get("nonce") != nonce:
            raise NotAttested("it is of another token or key")
        if request.get("requestPackageName") != self.settings.package:
            raise NotAttested(
                f"it is of the app {str(request.get('requestPackageName'))[:100]}, expected "
                f"{self.settings.package}"
            )
        try:
            age_s = self.clock() - int(request.get("timestampMillis", "")) / 1000
        except (TypeError, ValueError):
            raise NotAttested("it says no time") from None
        if not -MOST_AHEAD_S <= age_s <= self.settings.most_age_s:
            raise NotAttested(
                f"it is {age_s:.0f} s old, expected at most {self.settings.most_age_s:g}"
            )
        if app.get("appRecognitionVerdict") not in self.settings.app:
            raise NotAttested(
                f"Play says of the app: {str(app.get('appRecognitionVerdict'))[:100]}"
            )
        expected, signers = self.settings.certificates, _part(app, "certificateSha256Digest", list)
        if expected and not any(digest in signers for digest in expected):
            raise NotAttested("the app is signed with another certificate")
        verdicts = _part(device, "deviceRecognitionVerdict", list)
        if missing := [verdict for verdict in self.settings.device if verdict not in verdicts]:
            raise NotAttested(f"Play does not say of the phone: {missing[0]}")
        if self.settings.licensed and account.get("appLicensingVerdict") != "LICENSED":
            raise NotAttested("the phone's user did not get the app from Play")

    def _read(self, text: str) -> Mapping[str, Any]:
        """Decrypt and verify. Whatever is wrong with a hostile text is one error: it says nothing
        about keys."""
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
            said = json.loads(_bytes(body))
            if not isinstance(said, dict):
                raise ValueError("not an object")
            return said
        except (ValueError, RecursionError, InvalidUnwrap, InvalidTag, InvalidSignature):
            raise NotAttested("it is no token of Play Integrity for this app's keys") from None


def read_attestation(path: Path) -> PlayIntegrity:
    """The settings in a TOML file.

    Raises:
        ConfigError: it cannot be used.
    """
    try:
        settings = msgspec.convert(tomllib.loads(path.read_text()), AttestationSettings)
        key = load_der_public_key(base64.b64decode(settings.verification_key, validate=True))
        secret = base64.b64decode(settings.decryption_key, validate=True)
    except OSError as error:
        raise ConfigError(f"--enrol-attestation {path}: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"--enrol-attestation {path}: {error}") from None
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise ConfigError(f"--enrol-attestation {path}: verification_key is no P-256 key")
    if len(secret) != 32:
        raise ConfigError(
            f"--enrol-attestation {path}: decryption_key has {len(secret)} bytes, expected 32"
        )
    return PlayIntegrity(settings, secret, key)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _expect(header: str, **wanted: str) -> None:
    said = json.loads(_bytes(header))
    if not isinstance(said, dict) or any(said.get(name) != value for name, value in wanted.items()):
        raise ValueError("another algorithm")


def _part(said: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a field of this type; an empty one where the field is absent or of another type."""
    part = said.get(name)
    return part if isinstance(part, kind) else kind()
