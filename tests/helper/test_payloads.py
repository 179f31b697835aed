"""Payload of a device's answer: what an aggregator takes of it."""

from typing import Literal

import msgspec
import numpy as np
import pytest

from tests.helper.exchange import KEYS, ROSTER, Exchange
from wire.arrays.tensors import Tensors
from wire.errors import Untrusted, WrongLayout
from wire.secret.messages import check_signature
from wire.secret.payloads import masked_values, upload_of
from wire.secret.question import SignedShare


@pytest.fixture(scope="module")
def exchange() -> Exchange:
    exchange = Exchange()
    exchange.upload("d1")
    return exchange


def answer_of(exchange: Exchange) -> tuple[SignedShare, Tensors]:
    share, _, values = exchange.uploads["d1"]
    return upload_of(share, values, KEYS["d1"])


@pytest.mark.parametrize("bits", [16, 32])
def test_an_upload_comes_as_it_was_sent(bits: Literal[16, 32]) -> None:
    exchange = Exchange(bits=bits)
    exchange.upload("d1")
    signed, tensors = answer_of(exchange)
    values = masked_values(signed, tensors, exchange.question)
    share, _, sent = exchange.uploads["d1"]
    assert signed.share == share
    check_signature(ROSTER["d1"], signed.signature, signed.share)
    for part, integers in sent.items():
        np.testing.assert_array_equal(values[part], integers)
        assert values[part].dtype == integers.dtype


def test_an_upload_of_another_question_or_content_is_refused(exchange: Exchange) -> None:
    signed, tensors = answer_of(exchange)
    other = msgspec.structs.replace(exchange.question, about="b" * 64)
    with pytest.raises(Untrusted, match="for another question"):
        masked_values(signed, tensors, other)
    changed: Tensors = {name: text + np.uint8(1) for name, text in tensors.items()}
    with pytest.raises(Untrusted, match="or for other integers"):
        masked_values(signed, changed, exchange.question)


def test_an_upload_of_another_size_is_refused(exchange: Exchange) -> None:
    signed, tensors = answer_of(exchange)
    fewer = {"masked/change/a": tensors["masked/change/a"]}
    larger = {**tensors, "masked/change/a": np.zeros(2**20, np.uint8)}
    for wrong in (fewer, larger, {}):
        with pytest.raises(WrongLayout, match="masked"):
            masked_values(signed, wrong, exchange.question)
