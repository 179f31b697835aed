"""Algorithms on devices have the results of simulations: exported to ONNX, trained by edge clients
over MQTT."""

from pathlib import Path

import pytest

from tests.end_to_end.boards import check_on_devices

ALGORITHMS = ["fedavg", "ditto", "dbe+distfl+irls"]
MORE = [
    "fedprox:mu=0.1",
    "scaffold",
    "fedper",
    "fedrod",
    "lg-net:fine_tune_epochs=1",
    "cgau:units=8",
    "fedavg+dp-sgd",
    "fedavg+local-gaussian:noise_multiplier=0.01",
    "moon",
    "fedbn",
    "fedrep",
    "fedbabu:fine_tune_epochs=1",
    "dbe",
    "feddisk:preparations=2:local_checks=1:local_epochs=1:ratio_epochs=1:density_units=4",
    "fedavg+ifca",
    "fedavg+autocfl:earliest=1",
    "apfl",
    "pfedme:inner_steps=2",
    "per-fedavg",
    "fedfomo:num_others=2",
    "apple:num_others=2",
    "fedala",
    "fedpcl:num_others=2",
    "fedgen:generator_steps=2:bank_size=32",
    "moon+dbe",
    "ditto+mr",
]


@pytest.mark.full
@pytest.mark.parametrize(
    "algorithm", [*ALGORITHMS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_devices_reach_what_the_simulation_does(algorithm: str, tmp_path: Path) -> None:
    check_on_devices(algorithm, tmp_path)
