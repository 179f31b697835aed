"""100,000 messages changed at random: each is read or refused with a `WireError`. Kotlin's FuzzTest
does the same."""

import random

from tests.wire.changes import changed, refuses
from tests.wire.write_vectors import GOLDEN
from wire import messages as m
from wire.arrays.tensors import decode_tensors
from wire.codec import decode, decode_update


def test_changed_messages_are_read_or_refused() -> None:
    rng = random.Random(7)
    seeds = [path.read_bytes() for path in sorted(GOLDEN.glob("*.json"))]
    refused = sum(
        refuses(decode, changed(seeds[i % len(seeds)], rng), m.Message) for i in range(70_000)
    )
    assert 35_000 < refused < 70_000


def test_changed_tensor_files_are_read_or_refused() -> None:
    rng = random.Random(8)
    seeds = [path.read_bytes() for path in sorted(GOLDEN.glob("*.safetensors"))]
    readers = (decode_tensors, decode_update)
    refused = sum(
        refuses(readers[i % 2], changed(seeds[i // 2 % len(seeds)], rng)) for i in range(30_000)
    )
    assert 10_000 < refused < 30_000
