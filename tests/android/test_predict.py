"""Predictions on a phone; `benchmarks/phone_predictions.py` has what they take."""

from pathlib import Path

import pytest

from benchmarks.phone_predictions import measure
from tests.android.bridge import host_command
from tests.support.fleets import synthetic_fleet

pytestmark = pytest.mark.full


def test_a_phone_predicts_alone_and_while_it_trains(tmp_path: Path) -> None:
    found = measure(host_command("PredictKt"), synthetic_fleet(2, num_windows=96), tmp_path)
    assert 0 < found.graph <= found.prediction
    assert found.training > 0
