"""Values that a part of the helpers can read, beside the aggregator and the broker.

A device's masked values are known to both. A helper knows all seeds of a device but one.
"""

import numpy as np
import pytest

from tests.helper.exchange import SIZES, Exchange
from wire.arrays.tensors import Tensors
from wire.secret.masks import SEED_BYTES, mask
from wire.secret.messages import purpose_of, seeds_of
from wire.secret.sealing import unseal


def what_is_left(num_helpers: int, lying: int) -> list[bool]:
    """Return by part: True if the integers of a device are read with so many helpers' keys."""
    exchange = Exchange(num_helpers)
    exchange.upload("d0")
    share, _, values = exchange.uploads["d0"]
    purpose = purpose_of(share.question, "d0", share.upload)
    seeds: dict[int, bytes] = {}
    for helper in range(lying):
        text = unseal(share.sealed[helper], exchange.keys[helper], purpose)
        for at, j in enumerate(seeds_of(helper, num_helpers)):
            seeds[j] = text[at * SEED_BYTES :][:SEED_BYTES]
    left: Tensors = {}
    for part, size in SIZES.items():
        left[part] = values[part].copy()
        for seed in seeds.values():
            left[part] -= mask(seed, part, size, values[part].dtype)
    return [bool((left[part] == exchange.integers["d0"][part]).all()) for part in SIZES]


@pytest.mark.parametrize(
    ("num_helpers", "lying", "reads"),
    [
        (1, 0, False),
        (1, 1, True),
        *((2, lying, lying == 2) for lying in (0, 1, 2)),
        *((3, lying, lying >= 2) for lying in (0, 1, 2)),
        *((4, lying, lying >= 2) for lying in (0, 1, 2)),
    ],
)
def test_one_helper_beside_the_aggregator_reads_nothing_and_two_read_all(
    num_helpers: int, lying: int, reads: bool
) -> None:
    assert set(what_is_left(num_helpers, lying)) == {reads}


@pytest.mark.parametrize("num_helpers", [2, 3, 4])
def test_what_is_left_without_one_seed_is_uniform(num_helpers: int) -> None:
    """Uploads of one device, 400 of them, are equally often in each sixteenth of the range."""
    counts = np.zeros(16)
    for _ in range(400):
        exchange = Exchange(num_helpers)
        exchange.upload("d0")
        share, _, values = exchange.uploads["d0"]
        text = unseal(
            share.sealed[0], exchange.keys[0], purpose_of(share.question, "d0", share.upload)
        )
        masked = values["change/a"].copy()
        for at in range(len(seeds_of(0, num_helpers))):
            seed = text[at * SEED_BYTES :][:SEED_BYTES]
            masked -= mask(seed, "change/a", len(masked), masked.dtype)
        counts += np.histogram(masked, 16, (0, 65536))[0]
    expected = counts.sum() / 16
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 45  # 15 degrees of freedom: a chance of 1 in 10,000
