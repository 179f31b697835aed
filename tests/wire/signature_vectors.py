"""Vectors of Ed25519 and ECDSA signatures: good ones, and those that a lenient verifier accepts."""

import hashlib
import json
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.wire.signed_vectors import VECTORS
from wire.identity.keys import PrivateKey, PublicKey, verifies

FILE = VECTORS / "signatures.json"
P = 2**255 - 19
"""Prime of the field of Ed25519."""
L = 2**252 + 27742317777372353535851937790883648493
"""Order of the base point of Ed25519."""
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of P-256."""
NEUTRAL = b"\x01" + bytes(31)
ORDER_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
RFC_8032 = (
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9"
        "b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f1"
        "1d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984d"
        "c6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3fe"
        "ebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431"
        "e0303dca179c138ac17ad9bef1177331a704",
    ),
)
"""Key, message and signature of section 7.1 of RFC 8032."""


@dataclass
class SignatureCase:
    """A signature and the verdict that every implementation gives."""

    name: str
    key: bytes
    message: bytes
    signature: bytes
    valid: bool = False


def _little(number: int) -> bytes:
    return number.to_bytes(32, "little")


def _forged(key: bytes) -> tuple[bytes, bytes]:
    """Return a message and a signature without a private key, which OpenSSL accepts."""
    signature = NEUTRAL + bytes(32)
    return next(
        (message, signature)
        for message in (bytes([number]) for number in range(256))
        if verifies(PublicKey.from_public_bytes(key), signature, message)
    )


def ed25519_cases() -> list[SignatureCase]:
    """Return the cases of Ed25519."""
    cases = [
        SignatureCase(
            f"RFC 8032, {number}",
            bytes.fromhex(key),
            bytes.fromhex(message),
            bytes.fromhex(sig),
            True,
        )
        for number, (key, message, sig) in enumerate(RFC_8032, 1)
    ]
    good = cases[1]
    r, s = good.signature[:32], int.from_bytes(good.signature[32:], "little")

    def changed(name: str, signature: bytes) -> None:
        cases.append(SignatureCase(name, good.key, good.message, signature))

    changed("S + L", r + _little(s + L))
    changed("S + 2 L", r + _little(s + 2 * L))
    changed("S = L", r + _little(L))
    changed("S = 0", r + bytes(32))
    changed("L - S", r + _little(L - s))
    changed("S with its highest bit set", r + _little(s | 1 << 255))
    changed("S of all bits", r + b"\xff" * 32)
    changed("R of all bits", b"\xff" * 32 + _little(s))
    changed("R = 0", bytes(32) + _little(s))
    changed("R is no point", b"\x02" + bytes(31) + _little(s))
    changed("R with another sign", _flipped(r, 255) + _little(s))
    changed("R and S exchanged", _little(s) + r)
    changed("empty", b"")
    changed("truncated by a byte", good.signature[:-1])
    changed("R only", r)
    changed("longer by a zero", good.signature + b"\0")
    changed("twice", good.signature * 2)
    for bit in range(0, 512, 37):
        changed(f"bit {bit} changed", _flipped(good.signature, bit))
    cases += [
        SignatureCase("another message", good.key, good.message + b"\0", good.signature),
        SignatureCase("another key", cases[0].key, good.message, good.signature),
        SignatureCase("key of 31 bytes", good.key[:31], good.message, good.signature),
        SignatureCase("key of 33 bytes", good.key + b"\0", good.message, good.signature),
        SignatureCase("empty key", b"", good.message, good.signature),
        SignatureCase("key is no point", b"\x02" + bytes(31), good.message, good.signature),
        SignatureCase("key of all bits", b"\xff" * 32, good.message, good.signature),
        SignatureCase(
            "key with another sign", _flipped(good.key, 255), good.message, good.signature
        ),
    ]
    private = PrivateKey.from_private_bytes(bytes(32))
    own = private.public_key().public_bytes_raw()
    scalar = int.from_bytes(hashlib.sha512(bytes(32)).digest()[:32], "little")
    scalar = scalar & ~7 & ~(1 << 255) | 1 << 254
    for name, point, valid in (
        ("R is the neutral point", NEUTRAL, True),
        ("R is the neutral point, not in its canonical form", _little(P + 1), False),
        ("R is the neutral point with a sign", _flipped(NEUTRAL, 255), False),
    ):
        hashed = int.from_bytes(hashlib.sha512(point + own).digest(), "little")
        cases.append(SignatureCase(name, own, b"", point + _little(hashed * scalar % L), valid))
    order_8 = int.from_bytes(bytes.fromhex(ORDER_8), "little")
    for name, y in (
        ("order 1", 1),
        ("order 2", P - 1),
        ("order 4", 0),
        ("order 8", order_8),
        ("order 8, the other y", P - order_8),
        ("order 4, not in its canonical form", P),
        ("order 1, not in its canonical form", P + 1),
    ):
        for sign in (0, 1):
            key = _little(y | sign << 255)
            named = f"key of {name}{', with a sign' if sign else ''}"
            cases.append(SignatureCase(named, key, *_forged(key)))
    return cases


def ecdsa_cases() -> list[SignatureCase]:
    """Return the cases of ECDSA over P-256 with SHA-256; keys are SubjectPublicKeyInfo, DER."""
    private = ec.derive_private_key(7, ec.SECP256R1())
    key = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    message = b"shoal"
    signature = private.sign(message, ec.ECDSA(SHA256(), deterministic_signing=True))
    r, s = decode_dss_signature(signature)

    def two(first: bytes, second: bytes) -> bytes:
        body = first + second
        return bytes([0x30, len(body)]) + body

    def integer(number: int, pad: int = 0) -> bytes:
        raw = bytes(pad) + number.to_bytes(number.bit_length() // 8 + 1, "big")
        return bytes([2, len(raw)]) + raw

    def case(name: str, bad: bytes, valid: bool = False) -> SignatureCase:
        return SignatureCase(name, key, message, bad, valid)

    negative = r.to_bytes(32, "big")
    return [
        case("good", signature, True),
        case("N - S", encode_dss_signature(r, N - s), True),
        case("R = 0", two(integer(0), integer(s))),
        case("S = 0", two(integer(r), integer(0))),
        case("R and S 0", two(integer(0), integer(0))),
        case("R and S 1", two(integer(1), integer(1))),
        case("R + N", two(integer(r + N), integer(s))),
        case("S + N", two(integer(r), integer(s + N))),
        case("R = N", two(integer(N), integer(s))),
        case("S = N", two(integer(r), integer(N))),
        case("R and S exchanged", encode_dss_signature(s, r)),
        case("R negative", two(bytes([2, 32, negative[0] | 0x80]) + negative[1:], integer(s))),
        case("R with a zero before it", two(integer(r, 1), integer(s))),
        case("S with a zero before it", two(integer(r), integer(s, 1))),
        case("length in two bytes", b"\x30\x81" + signature[1:]),
        case("length not stated", b"\x30\x80" + signature[2:] + bytes(2)),
        case("a byte after it", signature + b"\0"),
        case("a third number", two(integer(r), integer(s) + integer(1))),
        case("R only", two(integer(r), b"")),
        case("truncated", signature[:-1]),
        case("empty", b""),
        case("R and S without DER", r.to_bytes(32, "big") + s.to_bytes(32, "big")),
        SignatureCase("another message", key, message + b"\0", signature),
    ]


def _flipped(text: bytes, bit: int) -> bytes:
    changed = bytearray(text)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def text() -> str:
    """Return the text of the file, one case a line."""
    parts = []
    for name, cases in (("ed25519", ed25519_cases()), ("ecdsa-p256", ecdsa_cases())):
        lines = ",\n".join(
            "  "
            + json.dumps(
                {
                    "name": case.name,
                    "key": case.key.hex(),
                    "message": case.message.hex(),
                    "signature": case.signature.hex(),
                    "valid": case.valid,
                }
            )
            for case in cases
        )
        parts.append(f' "{name}": [\n{lines}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"
