"""Tokens and messages of enrolment, against their vectors."""

import json
import secrets

import msgspec
import pytest

from tests.wire.enrolment_vectors import FILE, enrolment_vectors
from wire.codec import decode
from wire.errors import ConfigError, Malformed
from wire.identity.enrolment import Answer, Enrol, Refused, Renew, Token, read_token, renewal_text

HELD = json.loads(FILE.read_text())


def test_the_vectors_are_those_that_are_made() -> None:
    assert enrolment_vectors() == HELD


def test_tokens_are_read_and_others_are_refused() -> None:
    for vector in HELD["tokens"]:
        assert read_token(vector["token"]) == Token(
            bytes.fromhex(vector["secret"]), vector["authority"]
        )
    for text in HELD["refused_tokens"]:
        with pytest.raises(ConfigError, match="token"):
            read_token(text)


def test_a_token_with_any_other_character_is_not_read() -> None:
    token = str(Token(secrets.token_bytes(16), "00" * 32))
    for place in range(len("shoal1."), len(token)):
        with pytest.raises(ConfigError, match="one of its characters is wrong"):
            read_token(token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :])


def test_messages_and_answers() -> None:
    for text, kind in zip(HELD["said"], (Enrol, Enrol, Renew), strict=True):
        assert msgspec.json.encode(decode(text.encode(), kind)).decode() == text
    for text in HELD["answers"]:
        assert msgspec.json.encode(decode(text.encode(), Answer)).decode() == text
    for text in HELD["refused_answers"]:
        with pytest.raises(Malformed):
            decode(text.encode(), Answer)
    assert renewal_text(HELD["renewal"]["request"]).decode() == HELD["renewal"]["text"]


def test_a_reason_of_a_later_version_is_malformed_and_a_field_is_passed_over() -> None:
    assert decode(b'{"type":"refused","reason":"used","later":1}', Answer) == Refused("used")
