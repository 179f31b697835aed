"""What a prediction takes on a phone, beside the graph itself: the bundle is verified and the
program loaded once, and a training in the same process holds a prediction up for one batch at most.
"""

from pathlib import Path

import pytest

from benchmarks.phone_predictions import measure
from tests.android.bridge import host_command
from tests.support.fleets import synthetic_fleet

pytestmark = pytest.mark.full

MOST_MS = 5.0


def test_a_prediction_takes_5_ms_more_than_its_graph_at_most_also_while_the_phone_trains(
    tmp_path: Path,
) -> None:
    found = measure(host_command("PredictKt"), synthetic_fleet(2, num_windows=96), tmp_path)
    print(found)
    assert found.prediction - found.graph <= MOST_MS
    assert found.training - found.graph <= MOST_MS
