"""Vectors of enrolment: tokens that are read and that are refused, messages and answers, and what a
renewal signs."""

import base64
import hashlib
import json
from typing import Any

import msgspec

from tests.wire.signed_vectors import VECTORS
from wire.codec import digest
from wire.identity.enrolment import (
    Enrol,
    Enrolled,
    Refused,
    Renew,
    Renewed,
    Token,
    Waiting,
    attestation_nonce,
    renewal_text,
)

FILE = VECTORS / "enrolment.json"
SECRET, AUTHORITY = bytes(range(16)), hashlib.sha256(b"authority").hexdigest()
GOOD = str(Token(SECRET, AUTHORITY))
PUBLIC_KEY = b"SubjectPublicKeyInfo"


def enrolment_vectors() -> dict[str, Any]:
    """Return the content of ``enrolment.json``."""
    short = "shoal1." + base64.urlsafe_b64encode(SECRET).decode()
    refused = [
        GOOD[:-1],
        GOOD + "A",
        GOOD.replace("shoal1.", "shoal2."),
        GOOD[:20] + ("A" if GOOD[20] != "A" else "B") + GOOD[21:],
    ]
    request = "-----BEGIN CERTIFICATE REQUEST-----\nQQ==\n-----END CERTIFICATE REQUEST-----\n"
    said = [
        Enrol(GOOD, request),
        Enrol(GOOD, request, "attestation"),
        Renew("certificate", request, "00ff"),
    ]
    answers = [
        Enrolled(
            "pi-1",
            "default",
            "mqtts://broker.example",
            "certificate",
            "authority",
            "trust",
            "max_epochs = 5.0\n",
        ),
        Renewed("certificate"),
        Waiting("pi-1", 10.0),
        Refused("used", "another key has used this token, as pi-1"),
        Refused("attestation", "it is of another token or key"),
    ]
    return {
        "tokens": [{"token": GOOD, "secret": SECRET.hex(), "authority": AUTHORITY}],
        "refused_tokens": [*refused, short, "", "shoal1." + "!" * 68],
        "said": [msgspec.json.encode(message).decode() for message in said],
        "answers": [msgspec.json.encode(message).decode() for message in answers],
        "refused_answers": [
            "{}",
            '{"type":"enrolled"}',
            '{"type":"other"}',
            '{"type":"refused","reason":"unheard-of"}',
            "[]",
            "",
        ],
        "renewal": {"request": request, "text": renewal_text(request).decode()},
        "attestation": {
            "token": GOOD,
            "public_key": PUBLIC_KEY.hex(),
            "nonce": attestation_nonce(Token(SECRET, AUTHORITY), digest(PUBLIC_KEY)),
        },
    }


def text() -> str:
    """The file's text."""
    return json.dumps(enrolment_vectors(), indent=1) + "\n"
