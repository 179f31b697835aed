"""Sealed texts: what only one helper can read (SPEC.md, 'Secret sums').

HPKE (RFC 9180) in base mode with P-256, HKDF-SHA256 and AES-128-GCM.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import (
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from wire.errors import Untrusted

_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


def seal(text: bytes, helper: EllipticCurvePublicKey, purpose: bytes) -> bytes:
    """Return a text that only the owner of the helper's key can open, for the same purpose."""
    return _SUITE.encrypt(text, helper, info=purpose)


def unseal(sealed: bytes, helper: EllipticCurvePrivateKey, purpose: bytes) -> bytes:
    """Return the text of `seal`.

    Raises:
        Untrusted: the text was changed, or was sealed to another key or for another purpose.
    """
    try:
        return _SUITE.decrypt(sealed, helper, info=purpose)
    except (InvalidTag, ValueError):
        raise Untrusted("sealed text: not sealed to this key for this purpose") from None
