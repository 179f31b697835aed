"""Payload of a device's answer: what an aggregator takes of it."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helper.exchange import KEYS, ROSTER, Exchange
from wire.errors import LimitExceeded, Untrusted, WireError, WrongLayout
from wire.secret.payloads import decode_upload, encode_upload


@pytest.fixture(scope="module")
def exchange() -> Exchange:
    exchange = Exchange()
    exchange.upload("d1")
    return exchange


def payload_of(exchange: Exchange) -> bytes:
    share, _, values = exchange.uploads["d1"]
    return encode_upload(share, values, KEYS["d1"])


@pytest.mark.parametrize("bits", [16, 32])
def test_an_upload_comes_as_it_was_sent(bits: int) -> None:
    exchange = Exchange(bits=bits)
    exchange.upload("d1")
    signed, values = decode_upload(payload_of(exchange), exchange.question, ROSTER["d1"])
    share, _, sent = exchange.uploads["d1"]
    assert signed.share == share
    for part, integers in sent.items():
        np.testing.assert_array_equal(values[part], integers)
        assert values[part].dtype == integers.dtype


def test_an_upload_of_another_device_question_or_content_is_refused(exchange: Exchange) -> None:
    payload, question = payload_of(exchange), exchange.question
    with pytest.raises(Untrusted, match="share: its signature"):
        decode_upload(payload, question, ROSTER["d2"])
    other = msgspec.structs.replace(question, about="b" * 64)
    with pytest.raises(Untrusted, match="for another question"):
        decode_upload(payload, other, ROSTER["d1"])
    share, _, values = exchange.uploads["d1"]
    changed = {part: integers + np.uint16(1) for part, integers in values.items()}
    with pytest.raises(Untrusted, match="or for other integers"):
        decode_upload(encode_upload(share, changed, KEYS["d1"]), question, ROSTER["d1"])


def test_an_upload_of_another_size_is_refused(exchange: Exchange) -> None:
    share, _, values = exchange.uploads["d1"]
    fewer = encode_upload(share, {"change/a": values["change/a"]}, KEYS["d1"])
    with pytest.raises(WrongLayout, match="masked"):
        decode_upload(fewer, exchange.question, ROSTER["d1"])
    larger = {**values, "change/a": np.zeros(2**20, np.uint16)}
    with pytest.raises(LimitExceeded):
        decode_upload(encode_upload(share, larger, KEYS["d1"]), exchange.question, ROSTER["d1"])


@given(at=st.integers(0, 4000), until=st.integers(0, 40), text=st.binary(max_size=40))
def test_changed_bytes_are_refused_or_change_nothing(
    exchange: Exchange, at: int, until: int, text: bytes
) -> None:
    payload = payload_of(exchange)
    changed = payload[:at] + text + payload[at + until :]
    try:
        signed, values = decode_upload(changed, exchange.question, ROSTER["d1"])
    except WireError:
        return
    share, _, sent = exchange.uploads["d1"]
    assert signed.share == share
    for part, integers in sent.items():
        np.testing.assert_array_equal(values[part], integers)
