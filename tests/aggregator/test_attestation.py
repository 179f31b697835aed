"""Attestations of apps and phones: tokens as Play Integrity makes them, and what is wrong with
others."""

import base64
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.keywrap import aes_key_wrap
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from aggregator.enrolment.attestation import NotAttested, PlayIntegrity, read_attestation
from tests.support.enrolment import enrolment_bench
from wire.errors import ConfigError
from wire.identity.certificates import key_digest, new_tls_key
from wire.identity.enrolment import Enrolled, Refused, attestation_nonce, read_token

NOW_S = 1_800_000_000.0
SECRET = bytes(range(32))
KEY = generate_private_key(SECP256R1())


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def part(value: Any) -> str:
    return b64(json.dumps(value).encode())


def play_token(
    said: Any,
    secret: bytes = SECRET,
    key: EllipticCurvePrivateKey = KEY,
    alg: str = "ES256",
    wrap: str = "A256KW",
) -> str:
    """A classic token with this in it."""
    signed = f"{part({'alg': alg})}.{part(said)}"
    r, s = decode_dss_signature(key.sign(signed.encode(), ECDSA(SHA256())))
    signed += "." + b64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
    header, content, iv = part({"alg": wrap, "enc": "A256GCM"}), os.urandom(32), os.urandom(12)
    sealed = AESGCM(content).encrypt(iv, signed.encode(), header.encode())
    return ".".join(
        [header, b64(aes_key_wrap(secret, content)), b64(iv), b64(sealed[:-16]), b64(sealed[-16:])]
    )


def said(own: str, at_s: float = NOW_S, **changes: Any) -> dict[str, Any]:
    """Return Play's verdict on a good app on a good phone, with its nonce; `changes` replace values
    by their names."""
    parts: dict[str, dict[str, Any]] = {
        "requestDetails": {
            "requestPackageName": "com.example.app",
            "nonce": own,
            "timestampMillis": str(int(at_s * 1000)),
        },
        "appIntegrity": {
            "appRecognitionVerdict": "PLAY_RECOGNIZED",
            "certificateSha256Digest": ["good"],
            "versionCode": "1",
        },
        "deviceIntegrity": {
            "deviceRecognitionVerdict": ["MEETS_BASIC_INTEGRITY", "MEETS_DEVICE_INTEGRITY"]
        },
        "accountDetails": {"appLicensingVerdict": "LICENSED"},
    }
    return {
        name: {key: changes.get(key, value) for key, value in held.items()}
        for name, held in parts.items()
    }


def settings_file(folder: Path, **more: Any) -> Path:
    public = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    keys = {
        "decryption_key": base64.b64encode(SECRET).decode(),
        "verification_key": base64.b64encode(public).decode(),
    }
    values = {
        "package": "com.example.app",
        **keys,
        "certificates": ["good"],
        "licensed": True,
        "exempt_tags": ["board"],
        **more,
    }
    path = folder / "integrity.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return path


@pytest.fixture
def attester(tmp_path: Path) -> PlayIntegrity:
    read = read_attestation(settings_file(tmp_path))
    return PlayIntegrity(read.settings, read.decryption_key, read.verification_key, lambda: NOW_S)


def test_a_good_phone_is_believed(attester: PlayIntegrity) -> None:
    attester.check(play_token(said("n")), "n")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nonce": "of another key"}, "another token or key"),
        ({"requestPackageName": "com.example.other"}, r"com\.example\.other"),
        ({"timestampMillis": str(int((NOW_S - 601) * 1000))}, "601 s old"),
        ({"timestampMillis": str(int((NOW_S + 61) * 1000))}, "-61 s old"),
        ({"timestampMillis": "soon"}, "no time"),
        ({"timestampMillis": None}, "no time"),
        ({"appRecognitionVerdict": "UNRECOGNIZED_VERSION"}, "UNRECOGNIZED_VERSION"),
        ({"certificateSha256Digest": ["other"]}, "another certificate"),
        ({"certificateSha256Digest": "good"}, "another certificate"),
        ({"deviceRecognitionVerdict": []}, "MEETS_DEVICE_INTEGRITY"),
        ({"appLicensingVerdict": "UNLICENSED"}, "did not get the app from Play"),
    ],
)
def test_what_play_does_not_say_is_not_believed(
    attester: PlayIntegrity, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotAttested, match=why):
        attester.check(play_token(said("n", **changes)), "n")


def test_no_other_key_algorithm_or_text_is_believed(attester: PlayIntegrity) -> None:
    good = play_token(said("n"))
    others = [
        play_token(said("n"), secret=bytes(32)),
        play_token(said("n"), key=generate_private_key(SECP256R1())),
        play_token(said("n"), alg="none"),
        play_token(said("n"), wrap="dir"),
        play_token(["n"]),
        "a.b.c",
        "....",
        "é" * 50,
        good[:-1],
        good + ".x",
    ]
    for text in others:
        with pytest.raises(NotAttested, match="not a token of Play Integrity"):
            attester.check(text, "n")
    with pytest.raises(NotAttested, match=r"requires an attestation .*; the request has none"):
        attester.check("", "n")


def test_a_damaged_token_is_not_believed_whatever_is_damaged(attester: PlayIntegrity) -> None:
    rng, good = random.Random(7), play_token(said("n"))
    for _ in range(2000):
        text = list(good)
        for _ in range(rng.randint(1, 3)):
            text[rng.randrange(len(text))] = rng.choice("AZaz09-_.=\n\x00é")
        if "".join(text) == good or _same(good, "".join(text)):
            continue
        with pytest.raises(NotAttested):
            attester.check("".join(text), "n")


def _same(one: str, other: str) -> bool:
    """Return True if two texts encode the same bytes: the last bits of a base64 character may not
    count."""
    try:
        return [base64.b64decode(p + "==", b"-_") for p in one.split(".")] == [
            base64.b64decode(p + "==", b"-_") for p in other.split(".")
        ]
    except ValueError:
        return False


def test_a_phone_enrols_with_an_attestation_of_its_token_and_key_and_a_board_without(
    tmp_path: Path,
) -> None:
    attester = read_attestation(settings_file(tmp_path))
    with enrolment_bench(tmp_path / "service", attester=attester) as bench:
        token, key = bench.token(), new_tls_key()
        nonce = attestation_nonce(read_token(token), key_digest(key.public_key()))
        good = play_token(said(nonce, bench.clock()))
        for text, other in (
            ("", key),
            (good, new_tls_key()),
            (play_token(said("another", bench.clock())), key),
        ):
            answer = bench.enrol(token, other, "phone-1", text)
            assert isinstance(answer, Refused)
            assert answer.reason == "attestation"
        assert isinstance(bench.enrol(token, key, "phone-1", good), Enrolled), (
            "what was refused has not used the token"
        )
        assert isinstance(bench.enrol(token, key, "phone-1"), Enrolled), (
            "it asks again, as after a lost answer"
        )
        assert isinstance(bench.enrol(bench.token(tags=("board",)), name="pi-1"), Enrolled)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"decryption_key": "AAAA"}, "decryption_key must have 32 bytes, got 3"),
        ({"verification_key": "AAAA"}, r"integrity\.toml"),
        ({"unknown": 1}, "unknown"),
        ({"licensed": "yes"}, "licensed"),
    ],
)
def test_settings_that_cannot_be_used_are_one_clear_error(
    tmp_path: Path, more: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        read_attestation(settings_file(tmp_path, **more))


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        read_attestation(tmp_path / "none.toml")
