"""The benchmark of a client in C++: the prototype trains beside `shoal-edge`, and its section has a
row for each client and each part."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.client_campaign import ROUNDS
from benchmarks.client_parts import (
    CORE,
    MQTT,
    OTHERS,
    PARTS,
    RECORDINGS,
    SECRET,
    count_lines,
    lines_of_parts,
)
from benchmarks.cpp_client import MAX_BATCH, main, missing_packages, text


def costs(number: int) -> dict[str, object]:
    memory = {"rss": number + 0.1, "pss": number + 0.2, "peak": number + 0.3}
    rounds = [{"seconds": number + place, "loss": number} for place in range(ROUNDS)]
    return {
        "start_s": number + 0.5,
        "rest": memory,
        "training": memory,
        "processor_s": ROUNDS * (number + 0.75),
        "rounds": rounds,
        "libraries": {"number": 3, "mb": 20.25, "executorch_mb": 10.5},
    }


def test_the_section_has_a_row_for_each_client_and_each_part() -> None:
    parts = {part: 1000 + number for number, part in enumerate((*PARTS, OTHERS))}
    shown = text(
        {
            "machine": "a machine",
            "load": 0.0,
            "turns": 3,
            "planned_mb": {"32": 9.5, "64": 18.5},
            "windows": 160,
            "program_mb": 0.25,
            "prototype_lines": 700,
            "kotlin_lines": parts,
            "kotlin_test_lines": 4321,
            "campaigns": {name: [costs(number) for number in (1, 9, 2)] for name in MAX_BATCH},
        }
    )
    for name in MAX_BATCH:
        assert f"| {name} | 20.2 (10.5) | 2.1 | 2.2 | 2.3 | 2.1 | 2.2 | 2.3 |" in shown
        times = "2.50 (1.50) | 2.00 (1.00) | 5.00 (2.00) | 2.75 (1.75)"
        assert f"| {name} | {times} | 2.000 |" in shown
    for part, count in parts.items():
        assert f"| {part} | {count:,} | " in shown
    assert "9.5 MB for 32 or 18.5 MB for 64 windows" in shown
    further = parts[SECRET] + parts[RECORDINGS]
    assert f"It has {sum(parts.values()):,} lines: {parts[MQTT]:,} for MQTT" in shown
    assert f"{further:,} for {SECRET}" in shown
    assert f"{sum(parts.values()) - parts[MQTT] - further:,} for the rest" in shown
    assert "Its tests have 4,321." in shown


def test_every_file_of_the_core_counts_once() -> None:
    lines = lines_of_parts()
    assert lines.keys() == {*PARTS, OTHERS}
    assert min(lines.values()) > 0
    assert sum(lines.values()) == sum(count_lines(path) for path in CORE.rglob("*.kt"))


@pytest.mark.slow
def test_every_client_trains(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    if missing := missing_packages():
        pytest.skip(f"apt-get install {' '.join(missing)} would run this")
    if shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None:
        pytest.skip("apt-get install mosquitto would run this")
    results = main(["--turns", "1", "--out", str(tmp_path / "cpp_client.json")])
    assert json.loads((tmp_path / "cpp_client.json").read_text()) == results
    assert results["campaigns"].keys() == MAX_BATCH.keys()
    for name, (turn,) in results["campaigns"].items():
        losses = [entry["loss"] for entry in turn["rounds"]]
        assert len(losses) == ROUNDS, name
        assert losses[-1] < losses[0] / 2, name
