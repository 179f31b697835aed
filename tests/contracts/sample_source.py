"""Contract of every source of samples; subclassed once per adapter. `feed` sends these samples in
the adapter's own way."""

import time
from collections.abc import Callable

import numpy as np

from edge_client.data.recordings.resampling import Samples
from edge_client.live.samples import Source
from wire.arrays.tensors import Array

Feed = Callable[[Array, Array], None]
"""Makes samples come: t (n,) Unix seconds, values (n, 2)."""
Spoil = Callable[[], None]
"""Makes something come that cannot be read."""


def collect(source: Source, count: int, patience_s: float = 10.0) -> Samples:
    """Return the samples that come, until there are so many."""
    found: list[Samples] = []
    end_s = time.monotonic() + patience_s
    while sum(len(s.t) for s in found) < count and time.monotonic() < end_s:
        found += source.read(0.1)
    return Samples(
        np.concatenate([s.t for s in found]),
        np.concatenate([s.values for s in found]),
        sum((s.labels for s in found), ()),
    )


class SampleSourceContract:
    """`source` records the channels a and b."""

    def test_samples_come_in_order_with_their_times_and_values(
        self, source: Source, feed: Feed
    ) -> None:
        t = np.round(time.time() - 3 + np.arange(50) / 50, 3)
        values = np.stack([np.arange(50) - 20, np.arange(50) * 3], 1).astype(np.float64)
        feed(t, values)
        samples = collect(source, 50)
        np.testing.assert_allclose(samples.t, t, atol=2e-3)
        np.testing.assert_allclose(samples.values, values, atol=1e-6)

    def test_nothing_comes_in_time(self, source: Source) -> None:
        assert source.read(0.2) == []
        assert not source.is_over

    def test_what_cannot_be_read_is_counted_and_what_comes_after_is_read(
        self, source: Source, feed: Feed, spoil: Spoil
    ) -> None:
        spoil()
        feed(np.round(time.time() - 3 + np.arange(20) / 50, 3), np.ones((20, 2)))
        assert len(collect(source, 20).t) == 20
        assert source.ignored.count >= 1

    def test_it_can_be_closed_twice(self, source: Source) -> None:
        source.close()
        source.close()
