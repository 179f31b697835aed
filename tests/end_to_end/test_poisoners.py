"""`shoal demo --poisoners`: real devices of which one poisons the others' model."""

import json
from pathlib import Path

import pytest

from shoal.cli import application


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_poisoner_among_ten_devices_is_named_by_the_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--algorithm=fedavg+robust --devices=10 --rounds=6 --seed=0 --poisoners=1"
    words = [*options.split(), f"--out={tmp_path / 'demo'}"]
    application("demo")(["demo", *words], standalone_mode=False)
    attack = json.loads((tmp_path / "demo" / "summary.json").read_text())["attack"]
    (poisoner,) = attack["attackers"]
    assert f"poisoned by {poisoner}; the service names {poisoner}\n" in capsys.readouterr().out
    assert attack["honest_accuracy"]["mean"] > 0.5
