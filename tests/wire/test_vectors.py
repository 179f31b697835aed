"""The vectors that every implementation of the protocol is held to."""

import pytest

from tests.wire.write_vectors import GOLDEN, HOSTILE, HOSTILE_MESSAGES, HOSTILE_TENSORS, MESSAGES, UPDATE, UPDATE_TENSORS
from wire import messages as m
from wire.codec import decode, decode_update, encode, encode_update
from wire.errors import WireError
from wire.tensors import decode_tensors


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_message_is_read_and_written_to_the_same_bytes(name: str) -> None:
    payload = (GOLDEN / f"{name}.json").read_bytes()
    assert decode(payload, m.Message) == MESSAGES[name]
    assert encode(MESSAGES[name]) == payload


def test_golden_update() -> None:
    payload = (GOLDEN / "update.safetensors").read_bytes()
    update, tensors = decode_update(payload)
    assert update == UPDATE
    assert {k: v.tolist() for k, v in tensors.items()} == {k: v.tolist() for k, v in UPDATE_TENSORS.items()}
    assert encode_update(UPDATE, UPDATE_TENSORS) == payload


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_hostile_tensor_file_is_refused(name: str) -> None:
    with pytest.raises(WireError):
        decode_tensors((HOSTILE / f"{name}.safetensors").read_bytes())


@pytest.mark.parametrize("name", HOSTILE_MESSAGES)
def test_hostile_message_is_refused(name: str) -> None:
    with pytest.raises(WireError):
        decode((HOSTILE / f"{name}.json").read_bytes(), m.Message)


def test_no_vector_is_forgotten() -> None:
    assert {p.stem for p in HOSTILE.iterdir()} == HOSTILE_TENSORS.keys() | HOSTILE_MESSAGES.keys()
