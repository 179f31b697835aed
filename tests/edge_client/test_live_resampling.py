"""From samples as they come to stretches at one rate."""

from typing import Any

import numpy as np
import pytest

from edge_client.data.recordings.resampling import LATE_S, Resampler, Samples, Stretch
from wire.arrays.tensors import Array

T0_S = 1_800_000_000.0


def wave(t: Array) -> Array:
    return np.stack(
        [np.sin(2 * np.pi * 1.3 * (t - T0_S)), np.cos(2 * np.pi * 0.7 * (t - T0_S))], axis=1
    )


def resampled(
    t: Array,
    values: Array | None = None,
    chunk: int = 37,
    resampler: Resampler | None = None,
    **options: Any,
) -> list[Stretch]:
    """Stretches, each that goes on from the one before joined to it."""
    resampler = resampler or Resampler(2, 50.0, **options)
    values = wave(t) if values is None else values
    found: list[Stretch] = []
    for at in range(0, len(t), chunk):
        found += resampler.push(Samples(t[at : at + chunk], values[at : at + chunk]))
    found += resampler.flush()
    whole: list[Stretch] = []
    for part in found:
        if part.begins:
            whole.append(part)
        else:
            last = whole[-1]
            assert part.t0_s == pytest.approx(last.t0_s + len(last.x) / 50, abs=1e-6)
            whole[-1] = Stretch(last.t0_s, np.concatenate([last.x, part.x]), True)
    return whole


def check(stretch: Stretch, tolerance: float = 0.02) -> None:
    """The values are the wave's at their times."""
    t = stretch.t0_s + np.arange(len(stretch.x)) / 50
    np.testing.assert_allclose(stretch.x, wave(t), atol=tolerance)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_samples_at_the_rate_stay_as_they_are(chunk: int) -> None:
    t = T0_S + np.arange(500) / 50
    (stretch,) = resampled(t, chunk=chunk)
    np.testing.assert_allclose(stretch.x, wave(t), atol=1e-4)


@pytest.mark.parametrize("rate_hz", [21.0, 49.0, 63.7, 104.0, 400.0])
def test_other_rates(rate_hz: float) -> None:
    (stretch,) = resampled(T0_S + np.arange(int(10 * rate_hz)) / rate_hz)
    assert len(stretch.x) == pytest.approx(500, abs=4)
    check(stretch, 0.06 if rate_hz < 30 else 0.02)


def test_jitter_disorder_duplicates_and_values_that_are_not_finite() -> None:
    rng = np.random.default_rng(1)
    t = T0_S + np.arange(1000) / 100 + rng.uniform(-0.002, 0.002, 1000)
    values = wave(t)
    values[rng.choice(1000, 50, replace=False), 0] = np.nan
    values[rng.choice(1000, 50, replace=False), 1] = np.inf
    order = np.argsort(np.arange(1000) + rng.uniform(0, 20, 1000))  # up to 0.2 s late
    order = np.concatenate([order, order[-30:]])  # and some twice
    (stretch,) = resampled(t[order], values[order])
    check(stretch, 0.03)
    assert np.isfinite(stretch.x).all()


def test_no_stretch_spans_a_gap() -> None:
    t = T0_S + np.arange(1000) / 50
    t = t[(t < T0_S + 5) | (t > T0_S + 6)]
    first, second = resampled(t)
    assert first.t0_s + (len(first.x) - 1) / 50 <= T0_S + 5
    assert second.t0_s >= T0_S + 6
    check(first)
    check(second)


def test_a_short_gap_is_bridged() -> None:
    t = T0_S + np.arange(500) / 50
    (stretch,) = resampled(np.delete(t, slice(100, 110)))
    assert len(stretch.x) == 500


def test_a_gap_of_one_channel_is_a_gap_of_all() -> None:
    t = T0_S + np.arange(1000) / 50
    values = wave(t)
    values[300:400, 1] = np.nan
    first, second = resampled(t, values)
    assert (len(first.x), len(second.x)) == (300, 600)
    check(first)
    check(second)


def test_channels_at_rates_of_their_own() -> None:
    fast, slow = T0_S + np.arange(2000) / 100, T0_S + np.arange(20) + 0.3
    t = np.concatenate([fast, slow])
    values = np.full((len(t), 2), np.nan)
    values[:2000, 0], values[2000:, 1] = wave(fast)[:, 0], (slow - T0_S) * 2
    order = np.argsort(t, kind="stable")
    stretch = resampled(t[order], values[order])[-1]
    at = stretch.t0_s + np.arange(len(stretch.x)) / 50
    assert (
        len(stretch.x) > 500
    )  # what is usual for a channel of one sample a second is known after eight
    np.testing.assert_allclose(stretch.x[:, 1], (at - T0_S) * 2, atol=1e-3)


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, -5.0])
def test_a_clock_that_is_set_begins_a_stretch(jump_s: float) -> None:
    t = T0_S + np.arange(500) / 50
    first, second = resampled(
        np.concatenate([t, t + 10 + jump_s]), np.concatenate([wave(t), wave(t + 10)])
    )
    assert (len(first.x), len(second.x)) == (500, 500)
    assert second.t0_s == pytest.approx(T0_S + 10 + jump_s)


def test_single_samples_with_a_wrong_time_cost_themselves() -> None:
    t = T0_S + np.arange(500) / 50
    resampler = Resampler(2, 50.0)
    t[100], t[200:203] = T0_S - 1000, T0_S - 3
    (stretch,) = resampled(t, wave(T0_S + np.arange(500) / 50), resampler=resampler)
    assert len(stretch.x) == 500
    assert resampler.num_late == 4


def test_a_sample_from_the_future_does_not_end_the_recording() -> None:
    t = T0_S + np.arange(500) / 50
    t[250] += 86_400
    stretches = resampled(t, wave(T0_S + np.arange(500) / 50))
    assert sum(len(s.x) for s in stretches) >= 495
    for stretch in (stretches[0], stretches[-1]):
        check(stretch)


def test_a_channel_that_falls_silent_costs_no_memory() -> None:
    resampler = Resampler(2, 50.0)
    for second in range(100):
        t = T0_S + second + np.arange(50) / 50
        values = wave(t)
        values[:, 1] = np.nan if second > 5 else values[:, 1]
        list(resampler.push(Samples(t, values)))
    assert len(resampler._channels[0].t) < 50 * (2 + LATE_S) * 2


def test_times_that_are_not_finite_are_passed_over() -> None:
    t = T0_S + np.arange(200) / 50
    bad = t.copy()
    bad[::10] = np.nan
    (stretch,) = resampled(bad, wave(t))
    check(stretch)


def test_what_is_too_fast_for_the_rate_is_averaged_away() -> None:
    t = T0_S + np.arange(8000) / 400
    hum = np.stack(
        [np.sin(2 * np.pi * 150 * (t - T0_S))] * 2, axis=1
    )  # at 50 Hz it would look like a constant or a slow wave
    stretch = resampled(t, hum)[0]
    assert np.abs(stretch.x[5:-5]).max() < 0.4
