"""Ed25519 keys: the root key that signs bundles and vouches for services, and the keys of services.

A file of trusted keys may hold several, one PEM block after the other: that is how keys are
rotated.
"""

import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from wire.errors import BundleError

PublicKey = Ed25519PublicKey
PrivateKey = Ed25519PrivateKey

_BLOCK = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----", re.DOTALL)


def new_key() -> PrivateKey:
    """A fresh signing key."""
    return Ed25519PrivateKey.generate()


def verifies(key: PublicKey, signature: bytes, text: bytes) -> bool:
    """Whether this key's owner signed the text."""
    try:
        key.verify(signature, text)
    except InvalidSignature:
        return False
    return True


def key_name(key: PublicKey) -> str:
    """The 32 bytes of a public key as 64 lower-case hexadecimal digits."""
    return key.public_bytes_raw().hex()


def named_key(name: str) -> PublicKey:
    """The public key that `key_name` named."""
    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(name))


def private_pem(key: PrivateKey) -> bytes:
    """A signing key as PEM text (PKCS#8, not encrypted): keep its file readable by the aggregator
    alone."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key: PrivateKey) -> bytes:
    """The public half as PEM text, for devices to trust."""
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_private(pem: bytes) -> PrivateKey:
    """Read a signing key written by `private_pem`.

    Raises:
        BundleError: not an Ed25519 private key.
    """
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise BundleError(f"signing key: not a PEM private key: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BundleError(f"signing key: {type(key).__name__}, expected Ed25519")
    return key


def read_public(pem: bytes) -> tuple[PublicKey, ...]:
    """Read the public keys of a file, one or more, as `public_pem` writes them.

    Raises:
        BundleError: no key, or one that is not an Ed25519 public key.
    """
    keys = []
    for block in _BLOCK.findall(pem) or [pem]:
        try:
            key = serialization.load_pem_public_key(block)
        except ValueError as error:
            raise BundleError(f"trusted key: not a PEM public key: {error}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise BundleError(f"trusted key: {type(key).__name__}, expected Ed25519")
        keys.append(key)
    return tuple(keys)
