"""What a prediction takes on a phone, beside the graph itself: the bundle is verified and the program loaded once."""

import subprocess
from pathlib import Path

from algorithms.registry import read_algorithm
from export.bundle import capture_graphs, make_bundle
from simulation.objective import objective_for_fleet
from tests.android.bridge import host_command
from tests.conftest import some_graphs, synthetic_fleet
from wire.keys import new_key, public_pem

MOST_MS = 5.0


def test_a_prediction_takes_at_most_five_milliseconds_more_than_its_graph(tmp_path: Path) -> None:
    command, data, key = host_command("PredictKt"), synthetic_fleet(2, num_windows=96), new_key()
    objective = some_graphs(objective_for_fleet(data, read_algorithm("fedavg"), 0), "predict")
    exported = capture_graphs(objective, data.window.shape, ("onnx", "executorch"))
    bundle, trust = tmp_path / "device.shoal", tmp_path / "trust.pem"
    bundle.write_bytes(
        make_bundle(exported, name="steps", bundle_version=1, objective=objective, classes=data.classes, window=data.window, key=key)
    )
    trust.write_bytes(public_pem(key))
    done = subprocess.run([*command, str(bundle), str(trust), str(tmp_path / "state")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    alone_ms, whole_ms, first_ms = map(float, done.stdout.split())
    print(f"graph {alone_ms:.3f} ms, prediction {whole_ms:.3f} ms, the first {first_ms:.0f} ms")
    assert whole_ms - alone_ms <= MOST_MS
