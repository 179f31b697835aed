"""Ed25519 keys: the root key, which signs bundles and vouches for services, and services' keys.

A file of trusted keys may hold several, one PEM block after the other, so that keys can be rotated.
"""

import base64
import binascii
import re
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from wire.errors import BundleError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PublicKey = Ed25519PublicKey
PrivateKey = Ed25519PrivateKey

_FIELD = 2**255 - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = (0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8)
"""Coordinates y of the eight points for which a signature can be made without a private key."""

_SPKI = bytes.fromhex("302a300506032b6570032100")
"""Bytes before the 32 bytes of an Ed25519 key in a PEM block (RFC 8410)."""
_BLOCK = re.compile(rb"-----BEGIN PUBLIC KEY-----(.*?)-----END PUBLIC KEY-----", re.DOTALL)


def new_key() -> PrivateKey:
    """Return a new signing key."""
    return Ed25519PrivateKey.generate()


def public_key(encoded: bytes) -> PublicKey:
    """Return the public key of 32 bytes in the encoding of RFC 8032.

    Raises:
        BundleError: not 32 bytes, not in the canonical form, or a point of small order.
    """
    y = int.from_bytes(encoded, "little") & (1 << 255) - 1
    if len(encoded) != 32 or y >= _FIELD or y in _SMALL_ORDER:
        raise BundleError("trusted key: not an Ed25519 public key")
    return Ed25519PublicKey.from_public_bytes(encoded)


def verifies(key: PublicKey, signature: bytes, text: bytes) -> bool:
    """Return True if the signature of the text was made with this key."""
    try:
        key.verify(signature, text)
    except InvalidSignature:
        return False
    return True


def key_name(key: PublicKey) -> str:
    """Return the 32 bytes of a public key as 64 lower-case hexadecimal digits."""
    return key.public_bytes_raw().hex()


# `serialization` takes 1 MiB of memory, and a device only reads public keys
def private_pem(key: "PrivateKey | EllipticCurvePrivateKey") -> bytes:
    """Return a private key as PEM text (PKCS#8, not encrypted).

    Only its owner may read the file with it.
    """
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key: PrivateKey) -> bytes:
    """Return the public half of a key as PEM text, for devices to trust."""
    text = base64.b64encode(_SPKI + key.public_key().public_bytes_raw())
    return b"-----BEGIN PUBLIC KEY-----\n" + text + b"\n-----END PUBLIC KEY-----\n"


def read_private(pem: bytes) -> PrivateKey:
    """Return the signing key in a PEM text from `private_pem`.

    Raises:
        BundleError: not an Ed25519 private key.
    """
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        raise BundleError(
            "signing key: not a PEM private key without a passphrase; restore it from a backup"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BundleError(f"signing key: expected Ed25519, got {type(key).__name__}")
    return key


def read_public(pem: bytes) -> tuple[PublicKey, ...]:
    """Return the public keys, one or more, in a text of PEM blocks from `public_pem`.

    Raises:
        BundleError: no key, or one that is not an Ed25519 public key.
    """
    keys = []
    for block in _BLOCK.findall(pem) or [b""]:
        try:
            der = base64.b64decode(b"".join(block.split()), validate=True)
        except binascii.Error:
            der = b""
        if not der.startswith(_SPKI) or len(der) != len(_SPKI) + 32:
            raise BundleError("trusted key: not a public key; expected Ed25519 keys in PEM")
        keys.append(public_key(der[len(_SPKI) :]))
    return tuple(keys)
